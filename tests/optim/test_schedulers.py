"""`RandomLR` and `CosineCycleLR`: the rates of each step, with any optimizer, and across a resume."""

import copy
import io
import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import heatbath as hb
from scheduled_steps import LAW, effective_rates, make


@pytest.mark.parametrize("law", [hb.Uniform(1.0), hb.TwoPoint(1.0), hb.LogNormal(0.5)], ids=str)
@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1, dtype=torch.float64)], ids=["float", "tensor"])
def test_each_mini_batch_has_its_own_draw(law, lr):
    parameter, optimizer = make(lr.clone() if isinstance(lr, torch.Tensor) else lr)
    scheduler = hb.RandomLR(optimizer, law, seed=3)
    assert float(scheduler.get_last_lr()[0]) == 0.1 * hb.draw(law, 3, 0, 1)[0]
    rates = effective_rates(parameter, optimizer, [scheduler], 40)
    np.testing.assert_allclose(rates, 0.1 * hb.draw(law, 3, 0, 40), rtol=1e-11, atol=1e-15)
    assert float(scheduler.get_last_lr()[0]) == pytest.approx(0.1 * hb.draw(law, 3, 40, 1)[0], rel=1e-12, abs=1e-30)


def test_on_sgd_it_is_coupling_update():
    paths = []
    for random_rate in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(4, 2).double()
        settings = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}
        if random_rate:
            optimizer = hb.RandomSGD(model.parameters(), 0.05, law=LAW, coupling="update", seed=5, **settings)
            scheduler = None
        else:
            optimizer = torch.optim.SGD(model.parameters(), 0.05, **settings)
            scheduler = hb.RandomLR(optimizer, LAW, seed=5)
        for k in range(25):
            x = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(k))
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
            if scheduler:
                scheduler.step()
        paths.append(model.weight.detach().clone())
    torch.testing.assert_close(*paths, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, hb.RandomSGD])
def test_any_optimizer(kind):
    """Each step of the randomized optimizer is that of the plain one run at the drawn rate."""
    settings = {"law": "constant"} if kind is hb.RandomSGD else {}
    parameter, optimizer = make(kind=kind, **settings)
    twin, plain = make(kind=kind, **settings)
    scheduler = hb.RandomLR(optimizer, LAW, seed=2)
    for k, alpha in enumerate(hb.draw(LAW, 2, 0, 15)):
        gradient = torch.randn(3, dtype=torch.float64, generator=torch.Generator().manual_seed(k))
        parameter.grad, twin.grad = gradient.clone(), gradient.clone()
        plain.param_groups[0]["lr"] = 0.1 * alpha
        optimizer.step()
        scheduler.step()
        plain.step()
        torch.testing.assert_close(parameter, twin, rtol=1e-12, atol=1e-14)


def test_groups_keep_their_own_rates():
    a, b = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.AdamW([{"params": [a]}, {"params": [b], "lr": 0.5}], lr=0.1)
    scheduler = hb.RandomLR(optimizer, LAW, seed=1)
    for k in range(5):
        alpha = hb.draw(LAW, 1, k, 1)[0]
        assert scheduler.get_last_lr() == pytest.approx([0.1 * alpha, 0.5 * alpha], rel=1e-12)
        optimizer.step()
        scheduler.step()


def test_skipped_optimizer_steps_do_not_compound():
    _, optimizer = make()
    scheduler = hb.RandomLR(optimizer, LAW, seed=1)
    optimizer.step()
    for k in range(1, 20):
        scheduler.step()
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * hb.draw(LAW, 1, k, 1)[0], rel=1e-12)


@pytest.mark.parametrize("optimizer_first", [False, True])
def test_resume_is_exact(optimizer_first):
    def build():
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.AdamW(model.parameters(), 0.05)
        return model, optimizer, [lr_scheduler.CosineAnnealingLR(optimizer, 30), hb.RandomLR(optimizer, LAW, seed=9)]

    def train(model, optimizer, schedulers, start, stop):
        for k in range(start, stop):
            x = torch.randn(8, 4, generator=torch.Generator().manual_seed(k))
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
            for scheduler in schedulers:
                scheduler.step()

    model, optimizer, schedulers = build()
    train(model, optimizer, schedulers, 0, 7)
    stream = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict(), *(s.state_dict() for s in schedulers)], stream)
    train(model, optimizer, schedulers, 7, 15)

    stream.seek(0)
    weights, optimizer_state, *scheduler_states = torch.load(stream, weights_only=True)
    again, resumed, others = build()
    again.load_state_dict(weights)
    if optimizer_first:
        resumed.load_state_dict(optimizer_state)
    for scheduler, state in zip(others, scheduler_states, strict=True):
        scheduler.load_state_dict(state)
    if not optimizer_first:
        resumed.load_state_dict(optimizer_state)
    train(again, resumed, others, 7, 15)
    assert torch.equal(again.weight, model.weight)
    assert others[1].get_last_lr() == schedulers[1].get_last_lr()


@pytest.mark.parametrize("random_last", [False, True], ids=["random loaded first", "random loaded last"])
def test_resume_after_a_scheduler_of_the_epoch_came_last_tells_of_nothing(random_last):
    def build():
        parameter, optimizer = make()
        return parameter, optimizer, lr_scheduler.ExponentialLR(optimizer, 0.5), hb.RandomLR(optimizer, LAW)

    parameter, optimizer, outer, inner = build()
    rates = effective_rates(parameter, optimizer, [inner], 4, epoch=4, after_epoch=[outer])
    states = copy.deepcopy([part.state_dict() for part in (inner, outer, optimizer)])
    parameter, optimizer, outer, inner = build()
    pairs = list(zip((inner, outer, optimizer), states, strict=True))
    for part, state in reversed(pairs) if random_last else pairs:
        part.load_state_dict(state)
    rates = np.append(rates, effective_rates(parameter, optimizer, [inner], 4, epoch=4, after_epoch=[outer]))
    np.testing.assert_allclose(rates, 0.1 * np.repeat([1.0, 0.5], 4) * hb.draw(LAW, 0, 0, 8), rtol=1e-11)


def test_resume_by_last_epoch():
    _, optimizer = make()
    first = hb.RandomLR(optimizer, LAW, seed=9)
    for _ in range(6):
        optimizer.step()
        first.step()
    _, resumed = make()
    resumed.load_state_dict(optimizer.state_dict())
    second = hb.RandomLR(resumed, LAW, seed=9, last_epoch=5)
    assert second.last_epoch == first.last_epoch == 6
    assert second.get_last_lr() == first.get_last_lr()


def test_state_is_plain_and_foreign_state_is_refused():
    _, optimizer = make()
    scheduler = hb.RandomLR(optimizer, LAW, seed=9)
    state = scheduler.state_dict()
    assert state["law"] == "uniform:0.9"
    assert all(isinstance(value, (int, float, str, list, bool)) for value in state.values())
    for key, value in {"law": "uniform:0.5", "seed": 8}.items():
        with pytest.raises(ValueError, match=f"has {key}={value!r}, this RandomLR has {key}=.* with the saved {key}$"):
            scheduler.load_state_dict({**state, key: value, "last_epoch": 55})
        assert scheduler.last_epoch == 0


@pytest.mark.parametrize("build", [lambda o: hb.RandomLR(o, LAW, seed=9), lambda o: hb.CosineCycleLR(o, 3)])
def test_one_that_loads_the_state_of_another_is_its_equal_in_all_but_the_optimizer(build):
    parameter, optimizer = make()
    scheduler = build(optimizer)
    effective_rates(parameter, optimizer, [scheduler], 5)
    again = build(make()[1])
    again.load_state_dict(scheduler.state_dict())
    assert {**vars(again), "optimizer": optimizer} == vars(scheduler)


@pytest.mark.parametrize("period", [1, 6, 18, 2.5])
def test_cosine_cycle_is_the_paper_s_formula(period):
    parameter, optimizer = make()
    scheduler = hb.CosineCycleLR(optimizer, period)
    rates = effective_rates(parameter, optimizer, [scheduler], 60)
    np.testing.assert_allclose(
        rates, [0.1 * (1 + math.cos(math.pi * k / period)) for k in range(60)], rtol=1e-11, atol=1e-16
    )


def test_the_true_period_may_be_given():
    parameter, optimizer = make()
    rates = effective_rates(parameter, optimizer, [hb.CosineCycleLR(optimizer, cycle=5)], 30)
    np.testing.assert_allclose(rates[5:], rates[:-5], rtol=1e-10, atol=1e-16)
    parameter, optimizer = make()
    twice = effective_rates(parameter, optimizer, [hb.CosineCycleLR(optimizer, 2.5)], 30)
    assert rates.tolist() == twice.tolist()
    assert rates[0] == pytest.approx(0.2, rel=1e-12)


@pytest.mark.parametrize("kind", [int, np.int64, np.float32, np.float64])
def test_cosine_cycle_takes_numbers_of_numpy_and_its_state_can_be_loaded(kind):
    _, optimizer = make()
    scheduler = hb.CosineCycleLR(optimizer, kind(6))
    stream = io.BytesIO()
    torch.save(scheduler.state_dict(), stream)
    stream.seek(0)
    assert torch.load(stream, weights_only=True) == scheduler.state_dict()


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1, dtype=torch.float64)], ids=["float", "tensor"])
def test_cosine_cycle_may_be_asked_twice_for_the_first_rate(lr):
    _, optimizer = make(lr)
    scheduler = hb.CosineCycleLR(optimizer, 4)
    for k in range(10):  # as wrappers of schedulers do, Ignite's for one, which know nothing of the first step
        scheduler.last_epoch = k
        scheduler._get_lr_called_within_step = True
        rate = scheduler.get_lr()[0]
        scheduler._get_lr_called_within_step = False
        assert float(rate) == pytest.approx(0.1 * (1 + math.cos(math.pi * k / 4)), abs=1e-16)
        optimizer.param_groups[0]["lr"] = rate


def test_cosine_cycle_resumes_by_state_and_by_last_epoch_even_at_zero():
    _, optimizer = make()
    scheduler = hb.CosineCycleLR(optimizer, 3)
    checkpoints = []
    rates = []
    for _ in range(12):
        checkpoints.append((optimizer.state_dict(), scheduler.state_dict()))
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    for k, (optimizer_state, state) in enumerate(checkpoints):
        _, fresh = make()
        resumed = hb.CosineCycleLR(fresh, 3)
        fresh.load_state_dict(optimizer_state)
        resumed.load_state_dict(state)
        for j in range(k, 12):
            assert fresh.param_groups[0]["lr"] == rates[j]
            fresh.step()
            resumed.step()
        if k:
            _, fresh = make()
            fresh.load_state_dict(checkpoints[k - 1][0])
            assert hb.CosineCycleLR(fresh, 3, last_epoch=k - 1).get_last_lr() == [rates[k]]


def test_get_lr_outside_a_step_warns():
    _, optimizer = make()
    for scheduler in (hb.RandomLR(optimizer), hb.CosineCycleLR(optimizer, 3)):
        with pytest.warns(UserWarning, match="get_last_lr"):
            scheduler.get_lr()


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda o: hb.RandomLR(o, "gauss"), ValueError, ["gauss"]),
        (lambda o: hb.RandomLR(o, seed=-1), ValueError, ["seed", "-1"]),
        (lambda o: hb.RandomLR("sgd"), TypeError, ["str"]),
        (lambda o: hb.RandomLR(hb.RandomSGD([nn.Parameter(torch.zeros(2))])), ValueError, ["draws already"]),
        (lambda o: hb.CosineCycleLR(o, 0), ValueError, ["period", "0"]),
        (lambda o: hb.CosineCycleLR(o, float("nan")), ValueError, ["period", "nan"]),
        (lambda o: hb.CosineCycleLR(o, "6"), TypeError, ["period", "'6'"]),
        (lambda o: hb.CosineCycleLR(o, cycle=-1), ValueError, ["cycle", "-1"]),
        (hb.CosineCycleLR, TypeError, ["period", "cycle"]),
        (lambda o: hb.CosineCycleLR(o, 6, cycle=12), TypeError, ["period", "cycle"]),
    ],
)
def test_bad_arguments(build, error, words):
    _, optimizer = make()
    with pytest.raises(error) as caught:
        build(optimizer)
    assert all(word in str(caught.value) for word in words)
    assert optimizer.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["deepcopy", "pickle"])
def test_copies_with_their_optimizer_go_on_alike(copier):
    """Also with a scheduler that sets the rate outright, which needs the rate to be put back after each step."""
    parameter, optimizer = make()
    schedulers = [hb.CosineCycleLR(optimizer, 7), hb.RandomLR(optimizer, LAW, seed=3)]
    effective_rates(parameter, optimizer, schedulers, 3)
    twin, copied, *others = copier([parameter, optimizer, *schedulers])
    expected = effective_rates(parameter, optimizer, schedulers, 5)
    np.testing.assert_allclose(effective_rates(twin, copied, others, 5), expected, rtol=1e-10)


def test_built_on_an_optimizer_in_mid_run_and_then_loaded():
    """The order that torch advises against: the optimizer's state first, then the scheduler is built and loaded."""
    for build in (lambda o: hb.RandomLR(o, LAW, seed=3), lambda o: hb.CosineCycleLR(o, 3)):
        parameter, optimizer = make()
        scheduler = build(optimizer)
        effective_rates(parameter, optimizer, [scheduler], 5)
        twin, resumed = make()
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        again = build(resumed)
        again.load_state_dict(scheduler.state_dict())
        expected = effective_rates(parameter, optimizer, [scheduler], 6)
        np.testing.assert_allclose(effective_rates(twin, resumed, [again], 6), expected, rtol=1e-10, atol=1e-16)


@pytest.mark.filterwarnings("ignore:get_lr")
@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1, dtype=torch.float64)], ids=["float", "tensor"])
@pytest.mark.parametrize("build", [lambda o: hb.RandomLR(o, LAW, seed=3), lambda o: hb.CosineCycleLR(o, 3)])
def test_get_lr_outside_a_step_changes_nothing(lr, build):
    runs = []
    for nosy in (False, True):
        _, optimizer = make(lr.clone() if isinstance(lr, torch.Tensor) else lr)
        scheduler = build(optimizer)
        rates = []
        for _ in range(6):
            rates.append(float(optimizer.param_groups[0]["lr"]))
            optimizer.step()
            if nosy:
                for rate in scheduler.get_lr():
                    if isinstance(rate, torch.Tensor):
                        rate.fill_(99.0)
            scheduler.step()
        runs.append(rates)
    assert runs[0] == pytest.approx(runs[1], rel=1e-12, abs=1e-16)


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1, dtype=torch.float64)], ids=["float", "tensor"])
def test_a_checkpoint_by_torch_distributed_changes_nothing(lr):
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    scheduler = hb.RandomLR(optimizer, LAW, seed=3)
    for k in range(6):
        assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.1 * hb.draw(LAW, 3, k, 1)[0], rel=1e-12)
        get_optimizer_state_dict(model, optimizer)
        optimizer.step()
        scheduler.step()


def test_a_warm_up_from_zero_through_gradients_of_zero():
    """Its first steps look like those of a checkpoint, and no rate is lost in them."""
    parameter, optimizer = make()
    warmup = lr_scheduler.LambdaLR(optimizer, lambda k: max(0, k - 1) / 4)
    scheduler = hb.RandomLR(optimizer, LAW, seed=3)
    for k, alpha in enumerate(hb.draw(LAW, 3, 0, 6)):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * max(0, k - 1) / 4 * alpha, rel=1e-12)
        parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        warmup.step()
        scheduler.step()


def test_groups_may_come_later():
    a, b = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    for build in (lambda o: hb.RandomLR(o, LAW, seed=3), lambda o: hb.CosineCycleLR(o, 3)):
        optimizer = torch.optim.SGD([a], 0.1)
        scheduler = build(optimizer)
        optimizer.step()
        scheduler.step()
        optimizer.add_param_group({"params": [b], "lr": 0.5})
        for _ in range(3):
            optimizer.step()
            scheduler.step()
            one, other = scheduler.get_last_lr()
            assert other == pytest.approx(5 * one, abs=1e-15)
        optimizer.param_groups.clear()


@pytest.mark.parametrize("optimizer_first", [False, True])
@pytest.mark.filterwarnings("ignore:the state dict holds no draws:UserWarning")
def test_a_state_from_before_the_draws_were_in_the_optimizer(optimizer_first):
    """Groups then held the multiplied rate, with the rate itself and the multiplier beside it."""
    parameter, optimizer = make(kind=torch.optim.AdamW)
    scheduler = hb.RandomLR(optimizer, LAW, seed=3)
    effective = []
    for k in range(9):
        if k == 5:
            old = copy.deepcopy(optimizer.state_dict())
            del old["heatbath"]
            live = optimizer.param_groups[0]
            old["param_groups"][0].update({key: live[key] for key in ("lr", "base_lr", "lr_factor")})
            saved = old, scheduler.state_dict()
        effective.append(optimizer.param_groups[0]["lr"])
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        scheduler.step()
    parameter, resumed = make(kind=torch.optim.AdamW)
    again = hb.RandomLR(resumed, LAW, seed=3)
    pairs = list(zip((resumed, again), saved, strict=True))
    for part, state in pairs if optimizer_first else reversed(pairs):
        part.load_state_dict(state)
    for k in range(5, 9):
        assert resumed.param_groups[0]["lr"] == pytest.approx(effective[k], rel=1e-12)
        parameter.grad = torch.ones_like(parameter)
        resumed.step()
        again.step()
