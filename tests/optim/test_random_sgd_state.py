"""What `RandomSGD` saves, loads and copies: a run that goes on as if it had never stopped."""

import copy
import json
import math
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

import heatbath as hb
from optimizer_walks import IMPLEMENTATIONS, RULES, flat, make_gradients, make_parameters, saved, walk


@pytest.mark.parametrize("implementation", ["for-loop", "foreach", "fused", "capturable"])
@pytest.mark.parametrize("rule", ["plain", "dampening", "nesterov decay maximize"])
@pytest.mark.parametrize("coupling", ["gradient", "update"])
def test_resume_is_bit_identical_from_every_step(implementation, rule, coupling):
    def build(parameters):
        return hb.RandomSGD(
            parameters, 0.05, coupling=coupling, seed=31, **RULES[rule], **IMPLEMENTATIONS[implementation]
        )

    parameters = make_parameters()
    gradients = make_gradients(parameters, 25)
    whole = build(parameters)
    checkpoints = []
    for row in gradients:
        checkpoints.append(([p.detach().clone() for p in parameters], saved(whole)))
        walk(whole, parameters, [row])
    final_rate = whole.param_groups[0]["multiplier"]
    for k, (weights, state) in enumerate(checkpoints):
        fresh = [nn.Parameter(weight) for weight in weights]
        resumed = build(fresh)
        resumed.load_state_dict(state)
        walk(resumed, fresh, gradients[k:])
        assert all(torch.equal(a, b) for a, b in zip(fresh, parameters, strict=True))
        assert resumed.param_groups[0]["multiplier"] == final_rate


def test_resume_in_a_fresh_process(tmp_path):
    program = """
import sys, torch, heatbath as hb
first, last, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
optimizer = hb.RandomSGD(model.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=1e-3, seed=77)
if first:
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"]); optimizer.load_state_dict(state["optimizer"])
for k in range(first, last):
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(k))
    optimizer.zero_grad(); model(x).pow(2).mean().backward(); optimizer.step()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
print(" ".join(v.hex() for p in model.parameters() for v in p.detach().double().reshape(-1).tolist()))
"""

    def run(first, last, path):
        return subprocess.run(
            [sys.executable, "-c", program, str(first), str(last), str(path)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    run(0, 7, tmp_path / "half.pt")
    assert run(7, 15, tmp_path / "half.pt") == run(0, 15, tmp_path / "whole.pt")


def test_state_dict_holds_only_integers_and_text_of_the_randomness():
    parameters = make_parameters()
    optimizer = hb.RandomSGD(parameters, 0.1, law=hb.LogNormal(0.5), momentum=0.9, seed=3)
    walk(optimizer, parameters, make_gradients(parameters, 4))
    group = optimizer.state_dict()["param_groups"][0]
    assert (group["law"], group["seed"], group["step"]) == ("lognormal:0.5", 3, 4)
    assert group["multiplier"] is None
    assert group.keys() == optimizer.param_groups[0].keys()
    assert json.loads(json.dumps(group)) == group
    assert set(optimizer.state_dict()["state"][0]) == {"momentum_buffer"}


def test_loads_the_state_of_torch_sgd():
    ours, theirs = make_parameters(), make_parameters()
    gradients = make_gradients(ours, 4)
    sgd = torch.optim.SGD(theirs, 0.1, momentum=0.9)
    walk(sgd, theirs, gradients)
    optimizer = hb.RandomSGD(ours, 0.2, momentum=0.5, law="twopoint:0.5", seed=7)
    optimizer.load_state_dict(sgd.state_dict())
    group = optimizer.param_groups[0]
    assert (group["lr"], group["momentum"], group["law"], group["seed"]) == (0.1, 0.9, hb.TwoPoint(0.5), 7)
    torch.testing.assert_close(optimizer.velocity(ours[0]), sgd.state[theirs[0]]["momentum_buffer"])
    walk(optimizer, ours, gradients[:1])
    assert group["multiplier"] == hb.draw(hb.TwoPoint(0.5), 7, 0, 1)[0]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"law": "uniform:0.5"}, ["law", "uniform:0.5", "Uniform(delta=1.0)"]),
        ({"seed": 4}, ["seed=4", "seed=3"]),
        ({"coupling": "update"}, ["coupling", "update", "gradient"]),
        ({"step": -1}, ["step", "-1"]),
        ({"step": 0.5}, ["step", "0.5"]),
    ],
)
def test_foreign_state_is_refused_and_nothing_changes(changed, words):
    parameters = make_parameters()
    optimizer = hb.RandomSGD(parameters, 0.1, momentum=0.9, seed=3)
    walk(optimizer, parameters, make_gradients(parameters, 3))
    state = copy.deepcopy(optimizer.state_dict())
    state["param_groups"][0].update(changed)
    state["param_groups"][0]["lr"] = 99.0
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises((ValueError, TypeError)) as caught:
        optimizer.load_state_dict(state)
    assert all(word in str(caught.value) for word in words)
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert torch.equal(after["state"][0]["momentum_buffer"], before["state"][0]["momentum_buffer"])


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("capturable", [False, True])
def test_copies_go_on_alone(copier, capturable):
    parameters = make_parameters()
    optimizer = hb.RandomSGD(parameters, 0.05, momentum=0.9, nesterov=True, seed=1, capturable=capturable)
    gradients = make_gradients(parameters, 10)
    walk(optimizer, parameters, gradients[:5])
    twin = copier(optimizer)
    twin_parameters = twin.param_groups[0]["params"]
    assert twin.param_groups[0]["multiplier"] == optimizer.param_groups[0]["multiplier"]
    walk(optimizer, parameters, gradients[5:])
    walk(twin, twin_parameters, gradients[5:])
    assert torch.equal(flat(parameters), flat(twin_parameters))
    assert twin.param_groups[0]["multiplier"] == optimizer.param_groups[0]["multiplier"]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("flatten", [False, True])
def test_checkpoints_by_torch_distributed(momentum, flatten):
    from torch.distributed.checkpoint import state_dict as checkpoint

    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    settings = {"momentum": momentum, "nesterov": momentum > 0, "seed": 3}
    optimizer = hb.RandomSGD(model.parameters(), 0.1, **settings)
    options = checkpoint.StateDictOptions(flatten_optimizer_state_dict=flatten)
    for k in range(4):
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        state = checkpoint.get_optimizer_state_dict(model, optimizer, options=options)
        assert optimizer.param_groups[0]["step"] == k + 1
    resumed = hb.RandomSGD(model.parameters(), 0.1, **settings)
    checkpoint.set_optimizer_state_dict(model, resumed, copy.deepcopy(state), options=options)
    assert resumed.param_groups[0]["step"] == 4
    assert resumed.param_groups[0]["multiplier"] == optimizer.param_groups[0]["multiplier"]


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")  # torch 2.8 warns of itself
@pytest.mark.filterwarnings("ignore:torch.distributed is")  # it is not initialized: one process, as we want
@pytest.mark.parametrize("flatten", [False, True])
def test_torch_distributed_keeps_a_velocity_that_sat_out(flatten, tmp_path):
    """A fresh optimizer says which keys are loaded: a velocity must need none beside those that it has."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import state_dict as checkpoint

    options = checkpoint.StateDictOptions(flatten_optimizer_state_dict=flatten)

    def build():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
        return model, hb.RandomSGD(model.parameters(), 0.1, momentum=0.9, nesterov=True, seed=5)

    def train(model, optimizer, steps):
        for k in steps:
            for i, p in enumerate(model.parameters()):
                p.grad = None if k in (4, 5, 6) and i < 2 else torch.full_like(p, 0.1 + 0.01 * k)
            optimizer.step()
            optimizer.zero_grad()

    def pack(model, optimizer):
        state = checkpoint.get_optimizer_state_dict(model, optimizer, options=options)
        return {"model": model.state_dict(), "optimizer": state}

    model, optimizer = build()
    train(model, optimizer, range(6))
    dcp.save(pack(model, optimizer), checkpoint_id=tmp_path, no_dist=True)
    again, resumed = build()
    state = pack(again, resumed)
    dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
    checkpoint.set_optimizer_state_dict(again, resumed, state["optimizer"], options=options)
    for p, twin in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(optimizer.velocity(p), resumed.velocity(twin))
    train(model, optimizer, range(6, 12))
    train(again, resumed, range(6, 12))
    assert torch.equal(flat(model.parameters()), flat(again.parameters()))


REHEARSED = {
    "plain": {},
    "heavy ball": {"momentum": 0.9, "weight_decay": 0.1},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "update": {"momentum": 0.9, "weight_decay": 0.1, "coupling": "update"},
    "capturable": {"capturable": True},
    "fused": {"momentum": 0.9, "fused": True, "capturable": True},
}


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1, dtype=torch.float64)], ids=["float", "tensor"])
@pytest.mark.parametrize("rule", REHEARSED)
def test_a_checkpoint_by_torch_distributed_consumes_no_draw_and_moves_nothing(rule, lr):
    """Also one before the first step, when it makes a state by a step of its own."""
    from torch.distributed.checkpoint import state_dict as checkpoint

    def train(is_saved):
        torch.manual_seed(0)
        model = nn.Linear(3, 2).double()
        own_lr = lr.clone() if isinstance(lr, torch.Tensor) else lr
        optimizer = hb.RandomSGD(model.parameters(), own_lr, seed=3, **REHEARSED[rule])
        for k in range(4):
            if is_saved:
                checkpoint.get_optimizer_state_dict(model, optimizer)
            group = optimizer.param_groups[0]
            assert (int(group["step"]), group["lr"]) == (k, lr)
            model(torch.ones(1, 3).double()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            assert float(group["multiplier"]) == hb.draw(hb.Uniform(1.0), 3, k, 1)[0]
        return flat(model.parameters())

    torch.testing.assert_close(train(True), train(False), rtol=1e-14, atol=1e-14)


def test_a_setting_that_the_state_lacks_stays_and_one_that_it_has_wins():
    parameters, others = make_parameters(), make_parameters()
    optimizer = hb.RandomSGD(parameters, 0.1, momentum=0.9, capturable=True)
    optimizer.load_state_dict(torch.optim.SGD(others, 0.2, momentum=0.9).state_dict())
    assert optimizer.param_groups[0]["capturable"] is True
    optimizer.load_state_dict(hb.RandomSGD(others, 0.2, momentum=0.9).state_dict())
    assert optimizer.param_groups[0]["capturable"] is False


@pytest.mark.parametrize("law", ["arcsine", "constant", "exponential", "lognormal", "twopoint", "uniform"])
def test_groups_that_a_wrapper_saves_as_they_are_can_be_loaded(law, tmp_path):
    optimizer = hb.RandomSGD([nn.Parameter(torch.zeros(2))], 0.1, law=law)
    torch.save([{**group, "params": [0]} for group in optimizer.param_groups], tmp_path / "groups.pt")
    (group,) = torch.load(tmp_path / "groups.pt", weights_only=True)
    assert group["law"] == optimizer.param_groups[0]["law"]
    again = hb.RandomSGD([nn.Parameter(torch.zeros(2))], 0.5, law=law)
    again.load_state_dict({"state": {}, "param_groups": [group]})
    assert again.param_groups[0]["lr"] == 0.1


def test_loads_the_name_that_the_multiplier_had_before():
    parameters = make_parameters()
    optimizer = hb.RandomSGD(parameters, 0.1, momentum=0.9, seed=3)
    walk(optimizer, parameters, make_gradients(parameters, 4))
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        group["rate"] = group.pop("multiplier")
    resumed = hb.RandomSGD(parameters, 0.1, momentum=0.9, seed=3)
    resumed.load_state_dict(state)
    assert resumed.param_groups[0]["multiplier"] == optimizer.param_groups[0]["multiplier"]
    assert resumed.state_dict()["param_groups"][0].keys() == optimizer.state_dict()["param_groups"][0].keys()


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.RMSprop])
def test_the_state_of_another_optimizer_is_refused(kind):
    parameters = make_parameters()
    other = kind(parameters, 0.1)
    walk(other, parameters, make_gradients(parameters, 1))
    optimizer = hb.RandomSGD(parameters, 0.1, momentum=0.9)
    walk(optimizer, parameters, make_gradients(parameters, 2))
    before = saved(optimizer)
    with pytest.raises(ValueError, match=r"another optimizer: param_groups\[0\] lacks .*dampening"):
        optimizer.load_state_dict(other.state_dict())
    assert saved(optimizer)["param_groups"] == before["param_groups"]


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, "1"])
def test_a_buffer_scale_that_no_step_leaves_is_refused(scale):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = hb.RandomSGD([weight], lr=0.1, momentum=0.9)
    state = optimizer.state_dict()
    state["param_groups"][0]["buffer_scale"] = scale
    with pytest.raises(ValueError, match=r"param_groups\[0\]\['buffer_scale'\] must be a positive number"):
        optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["buffer_scale"] == 1.0
