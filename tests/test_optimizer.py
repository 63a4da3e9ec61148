import copy
import io
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import heatbath as hb
from oracles import random_sgd_path

LAWS = [hb.Uniform(1.0), hb.Uniform(0.4), hb.TwoPoint(1.0), hb.LogNormal(0.8), hb.Exponential()]
IMPLEMENTATIONS = {
    "default": {},
    "for-loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable": {"capturable": True},
    "capturable fused": {"capturable": True, "fused": True},
    "differentiable": {"differentiable": True},
}
RULES = {
    "plain": {},
    "decay": {"weight_decay": 0.1},
    "momentum": {"momentum": 0.9},
    "dampening": {"momentum": 0.8, "dampening": 0.3, "weight_decay": 0.05},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "nesterov decay maximize": {"momentum": 0.7, "nesterov": True, "weight_decay": 0.2, "maximize": True},
    "maximize": {"momentum": 0.5, "maximize": True},
}
STEPS = 60


def make_parameters(shapes=((3, 4), (5,), ()), dtype=torch.float64, kind=nn.Parameter):
    generator = torch.Generator().manual_seed(0)
    return [kind(torch.randn(shape, dtype=dtype, generator=generator)) for shape in shapes]


def kind_for(flags):
    """Autograd forbids changing a leaf in place, so that a differentiable step takes tensors that are none."""
    return torch.Tensor.clone if flags.get("differentiable") else nn.Parameter


def make_gradients(parameters, steps, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(p.shape, dtype=p.dtype, generator=generator) for p in parameters] for _ in range(steps)]


def walk(optimizer, parameters, gradients):
    for row in gradients:
        for p, gradient in zip(parameters, row, strict=True):
            p.grad = None if gradient is None else gradient.clone()
        optimizer.step()


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors])


@pytest.mark.parametrize("coupling", ["gradient", "update"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("rule", RULES)
def test_equals_the_obvious_reference(rule, implementation, coupling):
    for law in LAWS:
        parameters = make_parameters(kind=kind_for(IMPLEMENTATIONS[implementation]))
        gradients = make_gradients(parameters, STEPS)
        starts = [p.detach().numpy().copy() for p in parameters]
        settings = dict(RULES[rule])
        optimizer = hb.RandomSGD(
            parameters, 0.05, law=law, coupling=coupling, seed=4, **settings, **IMPLEMENTATIONS[implementation]
        )
        walk(optimizer, parameters, gradients)

        settings["sign"] = -1.0 if settings.pop("maximize", False) else 1.0
        for i, p in enumerate(parameters):
            positions, velocities = random_sgd_path(
                starts[i],
                lambda k, x, i=i, gradients=gradients: gradients[k][i].numpy(),
                hb.draw(law, 4, 0, STEPS),
                lr=0.05,
                coupling=coupling,
                **settings,
            )
            np.testing.assert_allclose(p.detach().numpy(), positions[-1], rtol=1e-12, atol=1e-13)
            if "momentum" in settings:
                np.testing.assert_allclose(optimizer.velocity(p), velocities[-1], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("implementation", ["for-loop", "foreach", "fused", "capturable"])
def test_low_precision_stays_close_to_the_reference(implementation, dtype):
    parameters = make_parameters(dtype=dtype)
    gradients = make_gradients(parameters, 20)
    start = parameters[0].detach().double().numpy().copy()
    optimizer = hb.RandomSGD(
        parameters, 0.01, momentum=0.9, nesterov=True, seed=4, weight_decay=0.01, **IMPLEMENTATIONS[implementation]
    )
    walk(optimizer, parameters, gradients)
    positions, _ = random_sgd_path(
        start,
        lambda k, x: gradients[k][0].double().numpy(),
        hb.draw(hb.Uniform(1.0), 4, 0, 20),
        **{"lr": 0.01, "coupling": "gradient", "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    )
    tolerance = 40 * torch.finfo(dtype).eps
    np.testing.assert_allclose(parameters[0].detach().double().numpy(), positions[-1], rtol=tolerance, atol=tolerance)


SHARED_FLAGS = [{}, {"foreach": False}, {"foreach": True}, {"fused": True}, {"differentiable": True}]
SHARED_CASES = [
    pytest.param(flags, dtype, id=f"{flags}-{dtype}")
    for flags in SHARED_FLAGS
    for dtype in (torch.float32, torch.float64, torch.complex64)
    if not (flags.get("fused") and dtype.is_complex)  # torch's fused kernel takes no complex parameters
]


@pytest.mark.parametrize(("flags", "dtype"), SHARED_CASES)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("lr", [0.05, torch.tensor(0.05)], ids=["float", "tensor"])
def test_constant_is_torch_sgd_bit_for_bit(rule, flags, lr, dtype):
    ours, theirs = (make_parameters(dtype=dtype, kind=kind_for(flags)) for _ in range(2))
    gradients = make_gradients(ours, 12)
    for coupling in ("gradient", "update"):
        for kind, parameters in ((hb.RandomSGD, ours), (torch.optim.SGD, theirs)):
            more = {"law": hb.Constant(), "coupling": coupling, "seed": 3} if kind is hb.RandomSGD else {}
            copied_lr = lr.clone() if isinstance(lr, torch.Tensor) else lr
            optimizer = kind(parameters, copied_lr, **RULES[rule], **flags, **more)
            walk(optimizer, parameters, gradients)
            buffers = [optimizer.state[p].get("momentum_buffer") for p in parameters]
            if kind is hb.RandomSGD:
                kept = buffers
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        assert all(a is b or torch.equal(a, b) for a, b in zip(kept, buffers, strict=True))
        assert optimizer.param_groups[0]["lr"] == 0.05


def test_couplings_agree_without_momentum_and_differ_with_it():
    def final(coupling, momentum):
        parameters = make_parameters()
        optimizer = hb.RandomSGD(parameters, 0.1, coupling=coupling, momentum=momentum, seed=1)
        walk(optimizer, parameters, make_gradients(parameters, 10))
        return flat(parameters)

    torch.testing.assert_close(final("gradient", 0.0), final("update", 0.0), rtol=1e-14, atol=1e-14)
    assert (final("gradient", 0.9) - final("update", 0.9)).abs().max() > 1e-3


def test_rate_is_the_draw_and_lr_is_left_alone():
    parameters = make_parameters()
    optimizer = hb.RandomSGD(parameters, 0.1, law=hb.LogNormal(0.5), seed=12)
    group = optimizer.param_groups[0]
    assert group["rate"] == 1.0
    seen = []
    for row in make_gradients(parameters, 8):
        walk(optimizer, parameters, [row])
        seen.append(group["rate"])
        assert group["lr"] == 0.1
    assert seen == hb.draw(hb.LogNormal(0.5), 12, 0, 8).tolist()


def test_groups_have_their_own_settings_and_equal_seeds_share_draws():
    a, b, c = make_parameters(((2,), (3,), (4,)))
    optimizer = hb.RandomSGD(
        [
            {"params": [a]},
            {"params": [b], "lr": 0.5, "seed": 9, "law": "twopoint:0.5", "coupling": "update"},
            {"params": [c], "momentum": 0.9},
        ],
        lr=0.1,
        seed=2,
    )
    gradients = make_gradients([a, b, c], 5)
    starts = [p.detach().numpy().copy() for p in (a, b, c)]
    walk(optimizer, [a, b, c], gradients)
    rates = [group["rate"] for group in optimizer.param_groups]
    assert rates[0] == rates[2] == hb.draw(hb.Uniform(1.0), 2, 4, 1)[0]
    assert rates[1] == hb.draw(hb.TwoPoint(0.5), 9, 4, 1)[0]
    settings = [
        {"lr": 0.1, "coupling": "gradient"},
        {"lr": 0.5, "coupling": "update"},
        {"lr": 0.1, "coupling": "gradient", "momentum": 0.9},
    ]
    for i, p in enumerate((a, b, c)):
        law, seed = (hb.TwoPoint(0.5), 9) if i == 1 else (hb.Uniform(1.0), 2)
        path, _ = random_sgd_path(
            starts[i], lambda k, x, i=i: gradients[k][i].numpy(), hb.draw(law, seed, 0, 5), **settings[i]
        )
        np.testing.assert_allclose(p.detach().numpy(), path[-1], rtol=1e-13)


def test_add_param_group_joins_the_draws_where_the_others_are():
    a, b = make_parameters(((2,), (3,)))
    optimizer = hb.RandomSGD([a], 0.1, seed=2)
    walk(optimizer, [a], make_gradients([a], 3))
    optimizer.add_param_group({"params": [b], "seed": 5})
    walk(optimizer, [a, b], make_gradients([a, b], 2))
    assert [group["rate"] for group in optimizer.param_groups] == [
        hb.draw(hb.Uniform(1.0), 2, 4, 1)[0],
        hb.draw(hb.Uniform(1.0), 5, 4, 1)[0],
    ]


@pytest.mark.parametrize("implementation", ["for-loop", "foreach", "fused", "capturable", "capturable fused"])
@pytest.mark.parametrize(("nesterov", "dampening"), [(False, 0.0), (False, 0.3), (True, 0.0)])
def test_parameters_that_sit_out_or_join_late(implementation, nesterov, dampening):
    """A parameter without a gradient keeps its velocity untouched; one that joins late starts from none."""
    parameters = make_parameters(((2,), (3,), (4,)))
    gradients = make_gradients(parameters, 30)
    for k in range(30):
        if k < 4:
            gradients[k][1] = None
        if k in (6, 7, 15):
            gradients[k][2] = None
    law = hb.Uniform(1.0)
    starts = [p.detach().numpy().copy() for p in parameters]
    settings = {"momentum": 0.9, "nesterov": nesterov, "dampening": dampening}
    optimizer = hb.RandomSGD(parameters, 0.05, law=law, seed=3, **settings, **IMPLEMENTATIONS[implementation])
    walk(optimizer, parameters, gradients)
    alphas = hb.draw(law, 3, 0, 30)
    for i, p in enumerate(parameters):
        present = [k for k in range(30) if gradients[k][i] is not None]
        path, velocities = random_sgd_path(
            starts[i],
            lambda k, x, i=i, present=present: gradients[present[k]][i].numpy(),
            alphas[present],
            lr=0.05,
            coupling="gradient",
            **settings,
        )
        np.testing.assert_allclose(p.detach().numpy(), path[-1], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(optimizer.velocity(p), velocities[-1], rtol=1e-12, atol=1e-14)


def test_closure_is_called_once_before_the_draw():
    parameter = nn.Parameter(torch.tensor([2.0]))
    optimizer = hb.RandomSGD([parameter], 0.1, seed=6)
    calls = []

    def closure():
        calls.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        loss = (parameter**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 4.0
    assert calls == [True]
    alpha = hb.draw(hb.Uniform(1.0), 6, 0, 1)[0]
    assert parameter.item() == pytest.approx(2.0 - 0.1 * alpha * 4.0, rel=1e-6)

    def broken():
        raise RuntimeError("no data")

    with pytest.raises(RuntimeError, match="no data"):
        optimizer.step(broken)
    assert optimizer.state_dict()["param_groups"][0]["step"] == 1


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sparse_gradients(momentum):
    dense, sparse = nn.Parameter(torch.ones(5, 3)), nn.Parameter(torch.ones(5, 3))
    optimizers = [hb.RandomSGD([p], 0.1, momentum=momentum, seed=1) for p in (dense, sparse)]
    for k in range(6):
        values = torch.randn(2, 3, generator=torch.Generator().manual_seed(k))
        gradient = torch.sparse_coo_tensor(torch.tensor([[0, 3]]), values, (5, 3), check_invariants=True)
        sparse.grad, dense.grad = gradient, gradient.to_dense()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(sparse, dense)


def test_sparse_gradients_are_refused_where_they_cannot_work():
    parameter = nn.Parameter(torch.ones(5, 3))
    parameter.grad = torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1, 3), (5, 3), check_invariants=True)
    with pytest.raises(RuntimeError, match="sparse"):
        hb.RandomSGD([parameter], 0.1, capturable=True).step()
    with pytest.raises(RuntimeError, match="sparse"):
        hb.RandomSGD([parameter], 0.1, fused=True).step()


def test_complex_parameters_move_as_their_real_and_imaginary_parts():
    numbers = make_parameters(((4,),), dtype=torch.complex128)
    pairs = [nn.Parameter(torch.view_as_real(numbers[0].detach()).clone())]
    gradients = make_gradients(numbers, 10)
    settings = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "seed": 3}
    walk(hb.RandomSGD(numbers, 0.1, **settings), numbers, gradients)
    walk(hb.RandomSGD(pairs, 0.1, **settings), pairs, [[torch.view_as_real(row[0])] for row in gradients])
    torch.testing.assert_close(torch.view_as_real(numbers[0]), pairs[0], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("law", [hb.Uniform(0.9), hb.TwoPoint(1.0)], ids=str)
@pytest.mark.parametrize("coupling", ["gradient", "update"])
@pytest.mark.parametrize("nesterov", [False, True])
def test_differentiable_step_carries_gradients_to_everything_it_uses(law, coupling, nesterov):
    def step(lr, weight_decay, weight, gradient, velocity):
        x = weight.clone()
        settings = {"momentum": 0.9, "nesterov": nesterov, "weight_decay": weight_decay, "coupling": coupling}
        optimizer = hb.RandomSGD([x], lr, law=law, differentiable=True, seed=seed, **settings)
        x.grad = gradient.clone()
        optimizer.state[x]["momentum_buffer"] = velocity.clone()
        optimizer.step()
        return x

    values = (0.1, 0.2, [0.3, 0.7], [1.0, -2.0], [0.5, 0.4])
    numbers = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in values]
    for seed in range(4):  # noqa: B007 (step reads it); among them draws of 0 for the two-point law
        torch.autograd.gradcheck(step, numbers)


@pytest.mark.parametrize(
    "make_scheduler",
    [
        lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=10, eta_min=0.01),
        lambda o: lr_scheduler.StepLR(o, step_size=3, gamma=0.5),
        lambda o: lr_scheduler.ExponentialLR(o, 0.9),
        lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.3, total_steps=40, cycle_momentum=True),
        lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=4),
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 5),
        lambda o: lr_scheduler.LambdaLR(o, lambda k: 1 / (1 + k)),
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.LinearLR(o, 0.1, total_iters=4), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[4]
        ),
        lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
        lambda o: hb.CosineCycleLR(o, 6),
    ],
)
def test_schedulers_own_lr_and_the_draws_never_compound(make_scheduler):
    """The rates are those that the scheduler sets on torch's SGD; each step is that rate times the draw."""

    def rates_and_moves(kind, **settings):
        parameter = nn.Parameter(torch.zeros((), dtype=torch.float64))
        optimizer = kind([parameter], 0.1, momentum=0.5, **settings)
        scheduler = make_scheduler(optimizer)
        rates, moves = [], []
        for _ in range(20):
            before = parameter.item()
            parameter.grad = torch.ones_like(parameter)
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.state.clear()  # each step is a first one, so that the move is lr alpha g
            optimizer.step()
            moves.append(before - parameter.item())
            scheduler.step(*([1.0] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else []))
        return np.array(rates), np.array(moves)

    theirs, plain_moves = rates_and_moves(torch.optim.SGD)
    for coupling in ("gradient", "update"):
        ours, moves = rates_and_moves(hb.RandomSGD, law=hb.Uniform(0.9), coupling=coupling, seed=8)
        np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_allclose(moves, plain_moves * hb.draw(hb.Uniform(0.9), 8, 0, 20), rtol=1e-9, atol=1e-15)


def saved(optimizer):
    stream = io.BytesIO()
    torch.save(optimizer.state_dict(), stream)
    stream.seek(0)
    return torch.load(stream, weights_only=True)


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
    final_rate = whole.param_groups[0]["rate"]
    for k, (weights, state) in enumerate(checkpoints):
        fresh = [nn.Parameter(weight) for weight in weights]
        resumed = build(fresh)
        resumed.load_state_dict(state)
        walk(resumed, fresh, gradients[k:])
        assert all(torch.equal(a, b) for a, b in zip(fresh, parameters, strict=True))
        assert resumed.param_groups[0]["rate"] == final_rate


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
    assert group["rate"] is None
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
    assert group["rate"] == hb.draw(hb.TwoPoint(0.5), 7, 0, 1)[0]


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
    assert twin.param_groups[0]["rate"] == optimizer.param_groups[0]["rate"]
    walk(optimizer, parameters, gradients[5:])
    walk(twin, twin_parameters, gradients[5:])
    assert torch.equal(flat(parameters), flat(twin_parameters))
    assert twin.param_groups[0]["rate"] == optimizer.param_groups[0]["rate"]


def test_switching_modes_between_steps_keeps_the_velocity():
    """Eager steps in a moving unit, capturable steps in plain units, another rule: one and the same trajectory."""
    parameters, twins = make_parameters(), make_parameters()
    gradients = make_gradients(parameters, 40)
    mixed = hb.RandomSGD(parameters, 0.05, momentum=0.9, nesterov=True, seed=1)
    plain = hb.RandomSGD(twins, 0.05, momentum=0.9, nesterov=True, seed=1)
    for k, row in enumerate(gradients):
        mixed.param_groups[0]["capturable"] = k % 7 == 3
        mixed.param_groups[0]["foreach"] = k % 3 == 1
        nesterov = k % 10 < 7
        mixed.param_groups[0]["nesterov"] = plain.param_groups[0]["nesterov"] = nesterov
        walk(mixed, parameters, [row])
        walk(plain, twins, [row])
    torch.testing.assert_close(flat(parameters), flat(twins), rtol=1e-12, atol=1e-13)


def test_hooks_fire_around_the_step():
    parameters = make_parameters()
    optimizer = hb.RandomSGD(parameters, 0.1, seed=2)
    rates = []
    optimizer.register_step_pre_hook(lambda o, args, kwargs: rates.append(("before", o.param_groups[0]["rate"])))
    optimizer.register_step_post_hook(lambda o, args, kwargs: rates.append(("after", o.param_groups[0]["rate"])))
    walk(optimizer, parameters, make_gradients(parameters, 2))
    first, second = hb.draw(hb.Uniform(1.0), 2, 0, 2)
    assert rates == [("before", 1.0), ("after", first), ("before", first), ("after", second)]


def test_law_and_seed_may_be_changed_in_the_group():
    parameters = make_parameters()
    optimizer = hb.RandomSGD(parameters, 0.1, seed=2)
    gradients = make_gradients(parameters, 4)
    walk(optimizer, parameters, gradients[:2])
    optimizer.param_groups[0].update(law=hb.TwoPoint(0.5), seed=6)
    walk(optimizer, parameters, gradients[2:3])
    assert optimizer.param_groups[0]["rate"] == hb.draw(hb.TwoPoint(0.5), 6, 2, 1)[0]
    optimizer.param_groups[0]["law"] = "uniform:7"
    with pytest.raises(ValueError, match="delta"):
        walk(optimizer, parameters, gradients[3:])


BAD_SETTINGS = [
    ({"lr": -0.1}, ValueError, ["learning rate", "-0.1", ">= 0"]),
    ({"lr": float("nan")}, ValueError, ["learning rate", "nan"]),
    ({"lr": float("inf")}, ValueError, ["lr", "inf"]),
    ({"lr": "fast"}, TypeError, ["lr", "'fast'"]),
    ({"lr": torch.tensor([0.1, 0.2])}, ValueError, ["lr", "1-element"]),
    ({"momentum": -0.5}, ValueError, ["momentum", "-0.5"]),
    ({"dampening": float("nan")}, ValueError, ["dampening", "nan"]),
    ({"weight_decay": -1.0}, ValueError, ["weight_decay", "-1"]),
    ({"law": "gauss"}, ValueError, ["gauss", "uniform"]),
    ({"law": 3.0}, TypeError, ["law", "3.0"]),
    ({"coupling": "both"}, ValueError, ["coupling", "both", "gradient", "update"]),
    ({"seed": -1}, ValueError, ["seed", "-1"]),
    ({"seed": 0.5}, TypeError, ["seed", "0.5"]),
    ({"nesterov": True}, ValueError, ["Nesterov", "momentum"]),
    ({"nesterov": True, "momentum": 0.9, "dampening": 0.1}, ValueError, ["Nesterov", "dampening=0.1"]),
    ({"fused": True, "foreach": True}, RuntimeError, ["fused", "foreach"]),
    ({"fused": True, "differentiable": True}, RuntimeError, ["fused", "differentiable"]),
    ({"capturable": True, "differentiable": True}, RuntimeError, ["capturable", "differentiable"]),
]


@pytest.mark.parametrize(("settings", "error", "words"), BAD_SETTINGS, ids=lambda value: str(value)[:40])
def test_bad_settings_are_named_for_the_optimizer_and_for_a_group(settings, error, words):
    parameters = make_parameters(((2,), (3,)))
    with pytest.raises(error) as caught:
        hb.RandomSGD(parameters, **{"lr": 0.1, **settings})
    assert all(word in str(caught.value) for word in words)
    optimizer = hb.RandomSGD(parameters[:1], 0.1)
    with pytest.raises(error) as caught:
        optimizer.add_param_group({"params": parameters[1:], **settings})
    assert all(word in str(caught.value) for word in words)
    assert len(optimizer.param_groups) == 1


def test_bad_parameters():
    with pytest.raises(ValueError, match="empty parameter list"):
        hb.RandomSGD([], 0.1)
    with pytest.raises(TypeError, match="iterable of Tensors"):
        hb.RandomSGD(torch.zeros(3, requires_grad=True), 0.1)


def test_it_is_an_sgd_and_prints_its_draws():
    optimizer = hb.RandomSGD(make_parameters(), 0.1, seed=5)
    assert isinstance(optimizer, torch.optim.SGD)
    assert "law: uniform:1.0" in str(optimizer)
    assert "seed: 5" in str(optimizer)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
def test_a_step_that_the_grad_scaler_skips_consumes_no_draw(fused, nesterov):
    """After inf gradients: no draw, no move; and the steps that count are those of an unscaled run."""
    parameters, twins = (make_parameters(dtype=torch.float32) for _ in range(2))
    gradients = make_gradients(parameters, 9)
    settings = {"momentum": 0.9, "nesterov": nesterov, "weight_decay": 0.01, "seed": 3, "fused": fused}
    optimizer, plain = hb.RandomSGD(parameters, 0.1, **settings), hb.RandomSGD(twins, 0.1, **settings)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
    skipped = {0, 3, 4}
    seen = []
    for k, row in enumerate(gradients):
        scale = scaler.scale(torch.ones(())).item()
        for p, gradient in zip(parameters, row, strict=True):
            p.grad = gradient * scale
        if k in skipped:
            parameters[1].grad.fill_(float("inf"))
        before = flat(parameters).clone()
        scaler.step(optimizer)
        scaler.update()
        if k in skipped:
            assert torch.equal(flat(parameters), before)
        else:
            seen.append(optimizer.param_groups[0]["rate"])
            walk(plain, twins, [row])
            torch.testing.assert_close(flat(parameters), flat(twins), rtol=1e-6, atol=1e-6)
    assert seen == hb.draw(hb.Uniform(1.0), 3, 0, 6).tolist()


def test_many_draws_near_zero_do_not_disturb_the_moving_unit():
    """The law with the most zeros, momentum close to 1, and single precision: errors stay at rounding."""
    for law in (hb.TwoPoint(1.0), hb.Arcsine(1.0), hb.LogNormal(2.0)):
        parameters = make_parameters(((50,),), dtype=torch.float32)
        gradients = make_gradients(parameters, 400)
        start = parameters[0].detach().double().numpy().copy()
        optimizer = hb.RandomSGD(parameters, 1e-2, law=law, momentum=0.99, nesterov=True, seed=2, fused=True)
        walk(optimizer, parameters, gradients)
        path, _ = random_sgd_path(
            start,
            lambda k, x, gradients=gradients: gradients[k][0].double().numpy(),
            hb.draw(law, 2, 0, 400),
            **{"lr": 1e-2, "coupling": "gradient", "momentum": 0.99, "nesterov": True},
        )
        error = np.abs(parameters[0].detach().double().numpy() - path[-1]).max() / np.abs(path).max()
        assert error < 1e-5


AMP_FLAGS = [{"fused": True, "capturable": True}, {"fused": True}]


@pytest.mark.parametrize("flags", AMP_FLAGS, ids=str)
@pytest.mark.parametrize("law", [hb.Constant(), hb.Uniform(1.0)], ids=str)
@pytest.mark.parametrize("capturable_group", [False, True])
@pytest.mark.parametrize("dampening", [0.0, 0.3])
def test_found_inf_reaches_every_kernel(flags, law, capturable_group, dampening):
    """Capturable or not, constant or not, mixed groups, first step or later: a skipped step moves and draws nothing."""
    a, b = make_parameters(((3,), (4,)), dtype=torch.float32)
    groups = [{"params": [a]}, {"params": [b], "capturable": capturable_group}]
    optimizer = hb.RandomSGD(groups, 0.1, law=law, momentum=0.9, dampening=dampening, seed=3, **flags)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    moved = 0
    for k in range(7):
        scale = scaler.scale(torch.ones(())).item()
        a.grad, b.grad = torch.ones(3) * scale, torch.ones(4) * scale
        if k in (0, 3):
            b.grad.fill_(float("inf"))
        before = flat([a, b]).clone()
        scaler.step(optimizer)
        scaler.update()
        if k in (0, 3):
            assert torch.equal(flat([a, b]), before)
        moved += k not in (0, 3)
        assert torch.isfinite(flat([a, b])).all()
        assert [group["step"] for group in optimizer.state_dict()["param_groups"]] == [moved, moved]


def test_numbers_of_numpy_and_one_element_rates_are_taken():
    parameters = make_parameters()
    optimizer = hb.RandomSGD(parameters, np.float32(0.1), momentum=np.int64(0), seed=np.int64(5), law=hb.Uniform(1))
    walk(optimizer, parameters, make_gradients(parameters, 2))
    assert saved(optimizer)["param_groups"][0]["seed"] == 5
    for flags in IMPLEMENTATIONS.values():
        parameters = make_parameters(kind=kind_for(flags))
        optimizer = hb.RandomSGD(parameters, torch.tensor([0.1]), momentum=0.9, **flags)
        walk(optimizer, parameters, make_gradients(parameters, 2))


@pytest.mark.parametrize("capturable", [False, True])
def test_an_empty_group_does_no_harm(capturable):
    parameters = make_parameters()
    optimizer = hb.RandomSGD([{"params": parameters}, {"params": []}], 0.1, momentum=0.9, capturable=capturable)
    walk(optimizer, parameters, make_gradients(parameters, 2))


def test_velocity_is_a_copy_and_knows_its_own():
    parameters = make_parameters()
    optimizer = hb.RandomSGD(parameters, 0.1, momentum=0.9)
    assert optimizer.velocity(parameters[0]) is None
    walk(optimizer, parameters, make_gradients(parameters, 2))
    optimizer.velocity(parameters[0]).zero_()
    assert optimizer.velocity(parameters[0]).abs().max() > 0
    with pytest.raises(KeyError, match="parameters"):
        optimizer.velocity(torch.zeros(3))


def test_a_coupling_changed_to_nonsense_is_refused_at_the_step():
    parameters = make_parameters()
    optimizer = hb.RandomSGD(parameters, 0.1)
    optimizer.param_groups[0]["coupling"] = "both"
    with pytest.raises(ValueError, match="both"):
        walk(optimizer, parameters, make_gradients(parameters, 1))


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
    assert resumed.param_groups[0]["rate"] == optimizer.param_groups[0]["rate"]


def test_half_precision_buffers_do_not_overflow_in_the_moving_unit():
    parameter = nn.Parameter(torch.zeros(64, dtype=torch.float16))
    optimizer = hb.RandomSGD([parameter], 1e-6, law=hb.LogNormal(2.0), momentum=0.9, nesterov=True, seed=1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        parameter.grad = (50 * torch.randn(64, generator=generator)).half()
        optimizer.step()
    assert torch.isfinite(optimizer.state[parameter]["momentum_buffer"]).all()
    assert torch.isfinite(parameter).all()
