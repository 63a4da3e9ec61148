"""The knobs of every optimizer that a thermometer can read, as they are at the moment of the step."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import heatbath as hb
from heatbath.dynamics import Knobs
from heatbath.theory.quadratic import stationary_moments
from heatbath.thermometer import Thermometer
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


def run(make, steps=40, law=None, later=False):
    model = small_network()
    optimizer, after = make(model)
    thermometer = Thermometer(model, optimizer, interval=3, law=law)
    if later:
        hooks = optimizer._optimizer_step_post_hooks
        hooks.move_to_end(thermometer._hook.id, last=False)
    for k in range(steps):
        step(model, optimizer, thermometer, *batch(k), cross_entropy)
        after()
    return thermometer.history


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("coupling", ["gradient", "update"])
@pytest.mark.parametrize("later", [False, True])
def test_randomize_reads_as_random_sgd(nesterov, coupling, later):
    """The hooks of the two may come in either order."""
    law, settings = hb.Uniform(0.8), {"momentum": 0.8, "nesterov": nesterov}

    def randomized(model):
        optimizer = torch.optim.SGD(model.parameters(), 0.05, **settings)
        handle = hb.randomize(optimizer, law, coupling=coupling, seed=4)
        return optimizer, lambda: handle

    def ours(model):
        return hb.RandomSGD(model.parameters(), 0.05, law=law, coupling=coupling, seed=4, **settings), lambda: None

    assert_alike(run(randomized, later=later), run(ours))


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_random_lr_reads_as_random_sgd(momentum):
    law = hb.TwoPoint(0.5)

    def scheduled(model):
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=momentum, weight_decay=0.1)
        scheduler = hb.RandomLR(optimizer, law, seed=4)
        return optimizer, scheduler.step

    def ours(model):
        settings = {"law": law, "coupling": "update", "seed": 4, "momentum": momentum, "weight_decay": 0.1}
        return hb.RandomSGD(model.parameters(), 0.05, **settings), lambda: None

    assert_alike(run(scheduled, law=law), run(ours))


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
    assert len(thermometer._balance.sides) == 5


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
