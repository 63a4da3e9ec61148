"""The shape of the gradient noise against gradients of single samples, and against laws whose kurtosis is known."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from heatbath.studies.noise_shape import Projections, describe_shape


@pytest.fixture
def problem():
    generator = torch.Generator().manual_seed(3)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    inputs = torch.randn(400, 5, generator=generator, dtype=torch.float64)
    return model, inputs * torch.tensor([4.0, 1.0, 1.0, 0.5, 0.5]), torch.randint(3, (400,), generator=generator)


def sample_gradients(model, inputs, labels):
    rows = []
    for x, y in zip(inputs, labels, strict=True):
        loss = functional.cross_entropy(model(x[None]), y[None])
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]))
    return torch.stack(rows)


def flat(direction):
    return torch.cat([part.flatten() for part in direction.values()])


def test_projections_are_those_of_each_samples_gradient(problem):
    projections, gradients = Projections(*problem), sample_gradients(*problem)
    direction = projections.random(torch.Generator().manual_seed(0))
    assert flat(direction).norm() == pytest.approx(1.0)
    torch.testing.assert_close(projections.along(direction), gradients @ flat(direction))


def test_the_largest_directions_are_eigenvectors_of_the_covariance(problem):
    values, vectors = torch.linalg.eigh(torch.cov(sample_gradients(*problem).T))
    projections = Projections(*problem)
    first, second = projections.largest(2, 60, torch.Generator().manual_seed(0))
    assert abs(float(flat(first) @ vectors[:, -1])) == pytest.approx(1.0, abs=1e-3)
    assert abs(float(flat(first) @ flat(second))) < 1e-6
    assert projections.along(second).var() == pytest.approx(float(values[-2]), rel=0.01)


@pytest.mark.parametrize(("law", "kurtosis"), [("normal", 0.0), ("laplace", 3.0), ("uniform", -1.2)])
def test_kurtosis_and_tail_of_known_laws(law, kurtosis):
    values = torch.from_numpy(getattr(np.random.default_rng(5), law)(size=200_000))
    found = describe_shape(values, batch_size=30, batches=40_000, seed=1)
    assert found.sample_kurtosis == pytest.approx(kurtosis, abs=0.15)
    assert found.batch_kurtosis == pytest.approx(kurtosis / 30, abs=0.005)
    heavier = {"normal": 0.0027, "laplace": 0.0033, "uniform": 0.0024}[law]  # Edgeworth: 0.0027 + k/30/24 He3(3) phi(3)
    assert found.tail == pytest.approx(heavier, abs=4 * (0.0027 / 40_000) ** 0.5)
