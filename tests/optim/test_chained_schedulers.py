"""`RandomLR` and `CosineCycleLR` together with the schedulers of torch: each acts on the rate itself."""

import contextlib
import copy
import math

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

import heatbath as hb
from scheduled_steps import LAW, effective_rates, make

# Up to torch 2.8 its SequentialLR warns of what it does itself.
pytestmark = pytest.mark.filterwarnings("ignore:The epoch parameter in:UserWarning")

CHAINED = {
    "cosine": (lambda o: lr_scheduler.CosineAnnealingLR(o, 10), lambda k: 0.05 * (1 + math.cos(math.pi * k / 10))),
    "exponential": (lambda o: lr_scheduler.ExponentialLR(o, 0.9), lambda k: 0.1 * 0.9**k),
    "step": (lambda o: lr_scheduler.StepLR(o, 3, 0.5), lambda k: 0.1 * 0.5 ** (k // 3)),
    "linear": (lambda o: lr_scheduler.LinearLR(o, 0.2, total_iters=5), lambda k: 0.1 * (0.2 + 0.8 * min(k, 5) / 5)),
    "cycle": (lambda o: hb.CosineCycleLR(o, 4), lambda k: 0.1 * (1 + math.cos(math.pi * k / 4))),
    "lambda": (lambda o: lr_scheduler.LambdaLR(o, lambda k: 1 / (1 + k)), lambda k: 0.1 / (1 + k)),
    "restarts": (
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
        lambda k: 0.05 * (1 + math.cos(math.pi * (k % 4) / 4)),
    ),
}
SETS_THE_RATE_OUTRIGHT = {"lambda", "restarts"}


@pytest.mark.parametrize("name", CHAINED)
@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1, dtype=torch.float64)], ids=["float", "tensor"])
@pytest.mark.parametrize("law", [LAW, hb.TwoPoint(1.0)], ids=str)
@pytest.mark.parametrize("random_first", [False, True])
def test_multiplies_what_a_chained_scheduler_has_set(name, lr, law, random_first):
    make_scheduler, closed_form = CHAINED[name]
    parameter, optimizer = make(lr.clone() if isinstance(lr, torch.Tensor) else lr)
    builders = [make_scheduler, lambda o: hb.RandomLR(o, law, seed=7)]
    schedulers = [build(optimizer) for build in (reversed(builders) if random_first else builders)]
    schedulers.sort(key=lambda scheduler: isinstance(scheduler, hb.RandomLR))
    is_changed = random_first and name in SETS_THE_RATE_OUTRIGHT | {"linear"}
    with pytest.warns(UserWarning, match="build RandomLR after") if is_changed else contextlib.nullcontext():
        rates = effective_rates(parameter, optimizer, schedulers, 9)
    expected = [closed_form(k) for k in range(9)] * hb.draw(law, 7, 0, 9)
    if random_first:
        # The other scheduler was built on a rate already multiplied: it knows no other beginning but its own.
        expected = expected[1:] if name in SETS_THE_RATE_OUTRIGHT else expected
        rates = rates[-len(expected) :]
    np.testing.assert_allclose(rates, expected, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("name", sorted(set(CHAINED) - SETS_THE_RATE_OUTRIGHT))
def test_schedulers_of_the_epoch_act_on_the_rate_itself(name):
    make_scheduler, closed_form = CHAINED[name]
    parameter, optimizer = make()
    outer = make_scheduler(optimizer)
    inner = hb.RandomLR(optimizer, LAW, seed=7)
    rates = effective_rates(parameter, optimizer, [inner], 24, epoch=4, after_epoch=[outer])
    expected = [closed_form(k // 4) for k in range(24)] * hb.draw(LAW, 7, 0, 24)
    np.testing.assert_allclose(rates, expected, rtol=1e-11, atol=1e-15)


def test_reduce_on_plateau_reduces_the_rate_itself():
    parameter, optimizer = make()
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    inner = hb.RandomLR(optimizer, LAW, seed=7)
    rates = effective_rates(parameter, optimizer, [inner], 12, epoch=4, after_epoch=[plateau])
    expected = np.repeat([0.1, 0.1, 0.05], 4) * hb.draw(LAW, 7, 0, 12)
    np.testing.assert_allclose(rates, expected, rtol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_reduce_on_plateau_with_eps_zero_reduces_through_draws_of_zero(seed):
    parameter, optimizer = make()
    law = hb.TwoPoint(1.0)
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, eps=0.0)
    inner = hb.RandomLR(optimizer, law, seed=seed)
    rates = effective_rates(parameter, optimizer, [inner], 12, epoch=3, after_epoch=[plateau])
    expected = np.repeat([0.1, 0.1, 0.05, 0.025], 3) * hb.draw(law, seed, 0, 12)
    np.testing.assert_allclose(rates, expected, rtol=1e-9, atol=1e-15)


def test_a_decay_of_the_epoch_survives_draws_of_zero():
    parameter, optimizer = make()
    law = hb.TwoPoint(1.0)
    outer = lr_scheduler.StepLR(optimizer, 1, 0.5)
    inner = hb.RandomLR(optimizer, law, seed=7)
    rates = effective_rates(parameter, optimizer, [inner], 24, epoch=4, after_epoch=[outer])
    np.testing.assert_allclose(rates, 0.1 * 0.5 ** (np.arange(24) // 4) * hb.draw(law, 7, 0, 24), rtol=1e-9, atol=1e-15)


def test_one_cycle_and_chained_scheduler():
    parameter, optimizer = make(momentum=0.0)
    cycle = lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=30, cycle_momentum=False)
    both = lr_scheduler.ChainedScheduler([cycle, hb.RandomLR(optimizer, LAW, seed=1)], optimizer)
    rates = effective_rates(parameter, optimizer, [both], 20)
    twin, plain = make()
    reference = lr_scheduler.OneCycleLR(plain, 0.3, total_steps=30, cycle_momentum=False)
    expected = effective_rates(twin, plain, [reference], 20) * hb.draw(LAW, 1, 0, 20)
    np.testing.assert_allclose(rates, expected, rtol=1e-11)


def test_sequential_after_a_warm_up():
    parameter, optimizer = make()
    warmup = lr_scheduler.LinearLR(optimizer, 0.25, total_iters=3)
    sequence = lr_scheduler.SequentialLR(optimizer, [warmup, hb.RandomLR(optimizer, LAW, seed=1)], [4])
    rates = effective_rates(parameter, optimizer, [sequence], 12)
    expected = np.concatenate([[0.025, 0.05, 0.075, 0.1], 0.1 * hb.draw(LAW, 1, 0, 8)])
    np.testing.assert_allclose(rates, expected, rtol=1e-12)


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1, dtype=torch.float64)], ids=["float", "tensor"])
@pytest.mark.parametrize("saved", [None, 2, 7])
def test_sequential_goes_on_at_the_full_rate_where_the_warm_up_would_reach_it(lr, saved):
    if isinstance(lr, torch.Tensor) and tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 10):
        pytest.skip("torch's SequentialLR itself loses the full rate there, where it is a tensor")

    def build():
        parameter, optimizer = make(lr.clone() if isinstance(lr, torch.Tensor) else lr)
        warmup = lr_scheduler.LinearLR(optimizer, 0.2, total_iters=4)
        return parameter, optimizer, lr_scheduler.SequentialLR(optimizer, [warmup, hb.RandomLR(optimizer, LAW)], [4])

    parameter, optimizer, sequence = build()
    rates = effective_rates(parameter, optimizer, [sequence], saved or 12)
    if saved:
        states = copy.deepcopy([optimizer.state_dict(), sequence.state_dict()])
        parameter, optimizer, sequence = build()
        optimizer.load_state_dict(states[0])
        sequence.load_state_dict(states[1])
        rates = np.append(rates, effective_rates(parameter, optimizer, [sequence], 12 - saved))
    expected = np.concatenate([[0.02, 0.04, 0.06, 0.08], 0.1 * hb.draw(LAW, 0, 0, 8)])
    np.testing.assert_allclose(rates, expected, rtol=1e-11)


def test_a_warm_up_of_epochs_built_too_late_is_told_once():
    parameter, optimizer = make()
    inner = hb.RandomLR(optimizer, LAW, seed=1)
    warmup = lr_scheduler.LinearLR(optimizer, 0.5, total_iters=2)
    sequence = lr_scheduler.SequentialLR(optimizer, [warmup, lr_scheduler.ExponentialLR(optimizer, 0.9)], [2])
    with pytest.warns(UserWarning, match="build RandomLR after the other schedulers"):
        effective_rates(parameter, optimizer, [inner], 1)
    effective_rates(parameter, optimizer, [sequence, inner], 3)


@pytest.mark.parametrize("how", ["forgotten", "removed"])
def test_a_second_random_lr_takes_over_from_one_that_is_gone(how):
    parameter, optimizer = make()
    first = hb.RandomLR(optimizer, LAW, seed=3)
    effective_rates(parameter, optimizer, [first], 2)
    with pytest.raises(ValueError, match="draws already by RandomLR"):
        hb.RandomLR(optimizer, LAW, seed=4)
    if how == "removed":
        first.remove()
        np.testing.assert_allclose(effective_rates(parameter, optimizer, [first], 3), 0.1)
    else:
        del first
    second = hb.RandomLR(optimizer, LAW, seed=4)
    rates = effective_rates(parameter, optimizer, [second], 6)
    np.testing.assert_allclose(rates, 0.1 * hb.draw(LAW, 4, 0, 6), rtol=1e-11)


@pytest.mark.parametrize("name", ["exponential", "step", "linear"])
@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1, dtype=torch.float64)], ids=["float", "tensor"])
@pytest.mark.parametrize("cycle_first", [False, True])
def test_cosine_cycle_chains_in_any_order_and_through_rates_of_zero(name, lr, cycle_first):
    """The cycle is at zero in epochs 3, 9 and 15, the decay in steps falls on all of them, the warm-up ends at 5."""
    make_scheduler, closed_form = CHAINED[name]
    parameter, optimizer = make(lr.clone() if isinstance(lr, torch.Tensor) else lr)
    builders = [make_scheduler, lambda o: hb.CosineCycleLR(o, 3)]
    schedulers = [build(optimizer) for build in (reversed(builders) if cycle_first else builders)]
    rates = effective_rates(parameter, optimizer, schedulers, 17)
    expected = [closed_form(k) * (1 + math.cos(math.pi * k / 3)) for k in range(17)]
    np.testing.assert_allclose(rates, expected, rtol=1e-9, atol=1e-15)


def test_cosine_cycle_after_a_warm_up():
    parameter, optimizer = make()
    warmup = lr_scheduler.LinearLR(optimizer, 0.5, total_iters=2)
    sequence = lr_scheduler.SequentialLR(optimizer, [warmup, hb.CosineCycleLR(optimizer, 4)], [2])
    rates = effective_rates(parameter, optimizer, [sequence], 8)
    expected = [0.05, 0.075] + [0.1 * (1 + math.cos(math.pi * k / 4)) for k in range(6)]
    np.testing.assert_allclose(rates, expected, rtol=1e-11)
