"""The knobs of every optimizer that a thermometer can read, as they are at the moment of the step."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import heatbath as hb
from heatbath.theory.quadratic import stationary_moments
from heatbath.thermometry.step_rules import Knobs
from heatbath.thermometry.thermometer import Thermometer
from noise_problems import Phase
from thermometer_runs import CASES, assert_alike, batch, gradient, small_network, step

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(("coupling", "nesterov", "law", "momentum"), CASES)
def test_kinetic_temperature_is_right_at_leading_order(coupling, nesterov, law, momentum):
    errors = []
    for lr in (1e-2, 1e-3):
        thermostat = hb.Thermostat(lr, 3, momentum, nesterov, law, coupling)
        knobs = Knobs(lr, momentum, nesterov, law, coupling, 1.0, 0.0, 0.0, 1.0, False)
        velocity = stationary_moments(thermostat, 0.7, 2.0)[1, 1]
        errors.append(knobs.kinetic_temperature(velocity) / thermostat.temperature(2.0) - 1)
        assert knobs.temperature(2.0 / 3) == pytest.approx(thermostat.temperature(2.0), rel=1e-12)
    assert abs(errors[0]) < 0.1
    assert errors[0] / errors[1] == pytest.approx(10.0, rel=0.2)


def run(optimizer_of, randomize=lambda optimizer: lambda: None, later=False):
    """Readings of a run, whose thermometer is there before or after what randomizes the rate."""
    model = small_network()
    optimizer = optimizer_of(model.parameters())
    if later:
        thermometer, after = Thermometer(model, optimizer, interval=3), randomize(optimizer)
    else:
        after, thermometer = randomize(optimizer), Thermometer(model, optimizer, interval=3)
    for k in range(40):
        step(model, optimizer, thermometer, *batch(k), cross_entropy)
        after()
    return thermometer.history


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("coupling", ["gradient", "update"])
@pytest.mark.parametrize("later", [False, True])
def test_randomize_reads_as_random_sgd(nesterov, coupling, later):
    """The hooks of the two may come in either order."""
    settings = {"lr": 0.05, "momentum": 0.8, "nesterov": nesterov}
    draws = {"law": hb.Uniform(0.8), "coupling": coupling, "seed": 4}

    def randomize(optimizer):
        handle = hb.randomize(optimizer, **draws)
        return lambda: handle

    randomized = run(partial(torch.optim.SGD, **settings), randomize, later)
    assert_alike(randomized, run(partial(hb.RandomSGD, **settings, **draws)))


@pytest.mark.parametrize("how", ["gradient", "update", "scheduler"])
@pytest.mark.parametrize("pieces", [1, 4])
def test_draws_of_others_on_a_constant_random_sgd(how, pieces):
    """RandomSGD with a constant law leaves the draws to `randomize` or RandomLR, and reads as SGD does with them."""
    histories = []
    for make in (torch.optim.SGD, partial(hb.RandomSGD, law=hb.Constant())):
        model = small_network()
        optimizer = make(model.parameters(), 0.1, momentum=0.5, nesterov=True)
        if how == "scheduler":
            scheduler = hb.RandomLR(optimizer, "uniform:1", seed=2)
        else:
            hb.randomize(optimizer, "uniform:1", coupling=how, seed=2)
        thermometer = Thermometer(model, optimizer, interval=1)
        for k in range(8):
            optimizer.zero_grad()
            if pieces == 1:
                thermometer.observe(cross_entropy, *batch(k))
            for x, y in zip(batch(k)[0].chunk(pieces), batch(k)[1].chunk(pieces), strict=True):
                (cross_entropy(model(x), y) / pieces).backward()
            optimizer.step()
            if how == "scheduler":
                scheduler.step()
        histories.append(thermometer.history)
    assert_alike(*histories)
    assert histories[0][-1]["temperature"] > 0


def test_a_multiplier_of_zero_takes_nothing_from_the_noise():
    """The gradients are looked at before they are multiplied."""
    model = small_network()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    hb.randomize(optimizer, hb.TwoPoint(1.0), seed=1)
    thermometer = Thermometer(model, optimizer, interval=1, decay=0.0, batch_size=8)
    for k in range(8):
        optimizer.zero_grad()
        rows = list(zip(batch(k)[0].chunk(2), batch(k)[1].chunk(2), strict=True))
        one, two = (gradient(model, *row) for row in rows)
        for x, y in rows:
            (cross_entropy(model(x), y) / 2).backward()
        optimizer.step()
        exact = 2 * (one - two).square().sum().item()
        assert thermometer.history[-1]["trace"] == pytest.approx(exact, rel=1e-9)
        assert thermometer.history[-1]["clipping"] == 1.0
    assert set(hb.draw(hb.TwoPoint(1.0), 1, 0, 8)) == {0.0, 2.0}


def test_complex_parameters_count_as_their_two_parts():
    histories = []
    for is_complex in (True, False):
        model = Phase(5, 3, is_complex=is_complex)
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.5, weight_decay=0.01)
        thermometer = Thermometer(model, optimizer, interval=1, batch_size=8)
        for k in range(12):
            optimizer.zero_grad()
            if k % 2:
                thermometer.observe(cross_entropy, *batch(k))
            for x, y in zip(batch(k)[0].chunk(2), batch(k)[1].chunk(2), strict=True):
                (cross_entropy(model(x), y) / 2).backward()
            optimizer.step()
        histories.append(thermometer.history)
    assert_alike(*histories)


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_random_lr_reads_as_random_sgd(momentum):
    settings, draws = {"lr": 0.05, "momentum": momentum, "weight_decay": 0.1}, {"law": hb.TwoPoint(0.5), "seed": 4}
    scheduled = run(partial(torch.optim.SGD, **settings), lambda optimizer: hb.RandomLR(optimizer, **draws).step)
    assert_alike(scheduled, run(partial(hb.RandomSGD, **settings, **draws, coupling="update")))


def test_groups():
    model = small_network()
    rates = (0.1, 0.02)
    groups = [{"params": model[i].parameters(), "lr": lr} for i, lr in zip((0, 2), rates, strict=True)]
    optimizer = hb.RandomSGD(groups, momentum=0.5)
    thermometer = Thermometer(model, optimizer, interval=1)
    inputs, targets = batch(0)
    one, two = gradient(model, inputs[:4], targets[:4]), gradient(model, inputs[4:], targets[4:])
    step(model, optimizer, thermometer, inputs, targets, cross_entropy)
    sizes = [sum(p.numel() for p in model[i].parameters()) for i in (0, 2)]
    temperatures = [
        hb.Thermostat(lr, 8, 0.5, law=hb.Uniform(1.0)).temperature(2 * difference.square().sum().item() / size)
        for lr, difference, size in zip(rates, (one - two).split(sizes), sizes, strict=True)
    ]
    (reading,) = thermometer.history
    assert [reading["temperature/0"], reading["temperature/1"]] == pytest.approx(temperatures, rel=1e-9)
    assert reading["temperature"] == pytest.approx(np.average(temperatures, weights=sizes), rel=1e-9)


def test_group_that_comes_later():
    model = small_network()
    optimizer = hb.RandomSGD(model[0].parameters(), 0.05, momentum=0.8)
    thermometer = Thermometer(model, optimizer, interval=1)
    for k in range(12):
        if k == 6:
            optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.1})
        step(model, optimizer, thermometer, *batch(k), cross_entropy)
    assert "temperature/1" not in thermometer.history[5]
    assert thermometer.history[-1]["temperature/1"] > 0
    assert len(thermometer.state_dict()["sides"]) == 5


def test_group_without_parameters():
    histories = []
    for order in (1, -1):
        model = small_network()
        groups = [[], [*model.parameters()]][::order]
        optimizer = hb.RandomSGD([{"params": group} for group in groups], 0.05, momentum=0.8)
        thermometer = Thermometer(model, optimizer, interval=1)
        for k in range(6):
            step(model, optimizer, thermometer, *batch(k), cross_entropy)
        histories.append(thermometer.history)
    one, two = (history[-1] for history in histories)
    assert one["temperature/0"] is two["temperature/1"] is None
    assert one["temperature"] == one["temperature/1"] == two["temperature/0"] == two["temperature"] > 0
    assert one["trace"] == two["trace"] > 0


@pytest.mark.parametrize("observes", [True, False])
@pytest.mark.parametrize("what", ["new group", "unfrozen layer"])
def test_parameters_that_come_while_a_reading_is_due(what, observes):
    """That reading has no noise of its own, as it would be of other parameters than the step; the next one has."""
    model = small_network()
    if what == "new group":
        optimizer = torch.optim.SGD(model[2].parameters(), 0.05, momentum=0.5)
    else:
        model[0].requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.5)
    thermometer = Thermometer(model, optimizer, interval=1, decay=0.0, batch_size=8)
    for k in range(6):
        optimizer.zero_grad()
        if observes:
            thermometer.observe(cross_entropy, *batch(k))
        if k == 3 and what == "unfrozen layer":
            model[0].requires_grad_(True)
        for x, y in zip(batch(k)[0].chunk(2), batch(k)[1].chunk(2), strict=True):
            (cross_entropy(model(x), y) / 2).backward()
        if k == 3 and what == "new group":
            optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.1})
        optimizer.step()
    traces = [reading["trace"] for reading in thermometer.history]
    assert len(traces) == 6
    assert traces[3] is None
    assert min(traces[:3] + traces[4:]) > 0


def test_rate_and_momentum_are_those_of_the_moment():
    model = small_network()
    optimizer = torch.optim.SGD(model.parameters(), torch.tensor(0.1), momentum=0.5)
    thermometer = Thermometer(model, optimizer, interval=1, decay=0.5)
    step(model, optimizer, thermometer, *batch(0), cross_entropy)
    optimizer.param_groups[0].update(lr=torch.tensor(0.01), momentum=0.8)
    step(model, optimizer, thermometer, *batch(0), cross_entropy)
    one, two = thermometer.history
    assert two["lr"] == pytest.approx(0.01)
    ratio = (two["temperature"] / two["trace"]) / (one["temperature"] / one["trace"])
    assert ratio == pytest.approx(0.1 * 0.5 / 0.2, rel=1e-6)
