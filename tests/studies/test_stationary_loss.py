import numpy as np
import pytest
import torch

from heatbath import RandomSGD
from heatbath.studies.stationary_loss import (
    Problem,
    find_minimum,
    measure_stationary_losses,
    predict_excess_losses,
)
from heatbath.thermostat import Thermostat


@pytest.fixture(scope="module")
def problem():
    """Three overlapping classes in the plane: small enough that every direction is seen to be at rest."""
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=200)
    centres = np.array([[1.0, 0.0], [-0.5, 0.8], [-0.5, -0.8]])
    inputs = centres[labels] + 0.9 * rng.standard_normal((200, 2))
    return Problem(torch.from_numpy(inputs), torch.from_numpy(labels), (2, 3), 0.05)


@pytest.fixture(scope="module")
def minimum(problem):
    return find_minimum(problem)


def test_the_minimum_is_where_the_gradient_vanishes(problem, minimum):
    parameters, loss = minimum
    tracked = [parameter.clone().requires_grad_() for parameter in parameters]
    value = problem.losses(tracked, problem.inputs, problem.labels).sum()
    value = value + 0.025 * sum(parameter.square().sum() for parameter in tracked)
    assert value.item() == pytest.approx(loss, rel=1e-14)
    assert problem.regularised_losses(parameters).item() == pytest.approx(loss, rel=1e-12)
    assert max(gradient.abs().max() for gradient in torch.autograd.grad(value, tracked)) < 1e-9


@pytest.mark.parametrize("coupling", ["gradient", "update"])
@pytest.mark.parametrize("nesterov", [False, True])
def test_a_replica_takes_the_steps_of_the_optimizer(problem, coupling, nesterov):
    """A batch of all samples leaves the multipliers alone at random, and these are the optimizer's."""
    knobs = Thermostat(0.3, 200, 0.6, nesterov, "uniform:0.8", coupling, sampling="shuffled")
    found = measure_stationary_losses(problem, knobs, summed_rate=3.0, replicas=2, readings=1, seed=4)
    generator = torch.Generator().manual_seed(4)
    start = problem.start(2, generator)
    for replica in range(2):
        parameters = [torch.nn.Parameter(p[replica : replica + 1].clone()) for p in start]
        optimizer = RandomSGD(
            parameters,
            0.3,
            law=knobs.law,
            coupling=coupling,
            seed=4 + replica,
            momentum=0.6,
            nesterov=nesterov,
            weight_decay=0.05,
        )
        losses = []
        for _ in range(8):
            losses.append(problem.regularised_losses(parameters).item())
            optimizer.zero_grad()
            problem.losses(parameters, problem.inputs, problem.labels).sum().backward()
            optimizer.step()
        at = np.random.default_rng(4).integers(2, 4, 1), 4 + np.random.default_rng(4).integers(2, 4, 2)[1:]
        np.testing.assert_allclose(found[replica], [losses[int(k[0])] for k in at], rtol=1e-12)


@pytest.mark.parametrize("sampling", ["replacement", "shuffled"])
@pytest.mark.parametrize("law", ["constant", "uniform:1"])
def test_the_excess_loss_is_the_predicted_one(problem, minimum, sampling, law):
    knobs = Thermostat(0.02, 10, 0.8, law=law, sampling=sampling)
    found = measure_stationary_losses(problem, knobs, summed_rate=250.0, replicas=48, readings=60)
    (predicted,) = predict_excess_losses(problem, minimum[0], [knobs])
    excess = found - minimum[1]
    error = excess.mean(axis=1).std() / np.sqrt(len(excess))
    # Of the next order in the temperature a twentieth is left, at most.
    assert abs(excess.mean() - predicted) < 4 * error + 0.05 * predicted
    assert error < 0.04 * predicted
    first, second = excess.T
    assert abs((first - second).mean()) < 4 * (first - second).std() / np.sqrt(len(first))


def test_reshuffling_cools_and_the_random_rate_heats(problem, minimum):
    knobs = [
        Thermostat(0.002, 10, 0.8, law=law, sampling=sampling)
        for law in ("constant", "uniform:1")
        for sampling in ("replacement", "shuffled")
    ]
    constant, cold, random, heated = predict_excess_losses(problem, minimum[0], knobs)
    assert random / constant == pytest.approx(4 / 3, rel=0.01)
    assert cold < 0.1 * constant
    assert heated > 3 * cold


def test_layers_between_make_a_network(problem):
    deep = Problem(problem.inputs, problem.labels, (2, 5, 3), 0.05)
    found = measure_stationary_losses(
        deep, Thermostat(0.1, 20, 0.5), summed_rate=40.0, replicas=3, readings=5, progress=lambda done, what: None
    )
    assert found.shape == (3, 2)
    assert (found < np.log(3.0)).all()
    with pytest.raises(ValueError, match="sizes must be features and classes"):
        find_minimum(deep)


def test_what_cannot_be_trained_is_refused(problem):
    with pytest.raises(ValueError, match="batch_size must be at most the 200 samples, got 201"):
        measure_stationary_losses(problem, Thermostat(0.1, 201), summed_rate=1.0, replicas=2)
    with pytest.raises(ValueError, match=r"the loss is not a number after \d+ steps: lr = 1e\+30"):
        measure_stationary_losses(problem, Thermostat(1e30, 20), summed_rate=1e32, replicas=2, readings=20)
