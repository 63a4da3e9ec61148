"""Small models in training with a thermometer: a noisy bowl, a network, their batches, and steps of either."""

import math

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import heatbath as hb

CASES = [  # coupling, nesterov, law, momentum
    ("gradient", False, hb.Uniform(0.8), 0.8),
    ("gradient", True, hb.TwoPoint(0.7), 0.6),
    ("update", False, hb.LogNormal(0.5), 0.7),
    ("update", True, hb.Uniform(1.0), 0.8),
]


class Bowl(nn.Module):
    """A quadratic loss with additive noise: a sample ``xi`` has the gradient ``a x + xi``."""

    def __init__(self, curvature, start=0.0):
        super().__init__()
        self.x = nn.Parameter(torch.full((len(curvature),), start, dtype=torch.float64))
        self.curvature = torch.as_tensor(curvature)

    def forward(self, xi):
        return 0.5 * (self.curvature * self.x * self.x).sum() + xi @ self.x


def mean(outputs, targets):
    return outputs.mean()


def small_network(seed=0, *extra):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 6), *extra, nn.Tanh(), nn.Linear(6, 3)).double()


def batch(k, size=8):
    generator = torch.Generator().manual_seed(1000 + k)
    inputs = torch.randn(size, 5, dtype=torch.float64, generator=generator)
    return inputs, torch.randint(3, (size,), generator=generator)


def step(model, optimizer, thermometer, inputs, targets=None, loss_fn=mean):
    optimizer.zero_grad()
    loss_fn(model(inputs), targets).backward()
    thermometer.observe(loss_fn, inputs, targets)
    optimizer.step()


def gradient(model, inputs, targets):
    grads = torch.autograd.grad(cross_entropy(model(inputs), targets), list(model.parameters()))
    return torch.cat([g.flatten() for g in grads])


def assert_alike(one, other):
    assert len(one) == len(other) > 0
    for ours, theirs in zip(one, other, strict=True):
        assert {k for k, v in ours.items() if v is None} == {k for k, v in theirs.items() if v is None}
        both = [[reading[k] for k, v in ours.items() if v is not None] for reading in (ours, theirs)]
        np.testing.assert_allclose(*both, rtol=1e-6)


def z_score(values, exact, batches=10):
    """By batch means, as neighbouring values are correlated."""
    values = np.asarray(values, dtype=float)
    means = values[len(values) % batches :].reshape(batches, -1).mean(axis=1)
    return abs(means.mean() - exact) / (means.std(ddof=1) / math.sqrt(batches))
