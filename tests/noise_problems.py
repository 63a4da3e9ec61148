"""Small models whose gradient noise is known: by its definition, from the gradient of each sample."""

import math
from collections import OrderedDict

import numpy as np
import torch
from torch import nn

EXACT = {"rtol": 1e-10, "atol": 1e-12}


def linear_problem(seed, n=40, d=3, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Linear(d, 1).to(dtype)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    x = torch.randn(n, d, generator=generator, dtype=torch.float64) + 0.5
    y = torch.randn(n, 1, generator=generator, dtype=torch.float64)
    return model, x.to(dtype), y.to(dtype)


class Named(OrderedDict):
    """A dict with attributes, of a type that torch does not know."""

    def __getattr__(self, name):
        if name not in self:
            raise AttributeError(name)
        return self[name]


class Phase(nn.Module):
    """A layer of complex weights, or of their real and imaginary parts, and a real one."""

    def __init__(self, inputs, outputs, *, is_complex):
        super().__init__()
        start = torch.randn(inputs, outputs, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
        self.weight = nn.Parameter(start if is_complex else torch.view_as_real(start).clone())
        self.bias = nn.Parameter(torch.ones(outputs, dtype=torch.float64))

    def forward(self, x):
        weight = self.weight if self.weight.is_complex() else torch.view_as_complex(self.weight)
        return (x.to(weight.dtype) @ weight).abs() + self.bias


class SmallConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.3))
        self.head = nn.Linear(27, 4)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


def conv_problem(n=24, dtype=torch.float64):
    torch.manual_seed(4)
    model = SmallConvNet().to(dtype)
    model.body[1].running_mean.normal_()
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(n, 1, 8, 8, generator=generator, dtype=torch.float64)
    return model, x.to(dtype), torch.randint(4, (n,), generator=generator)


def sample_rows(model, loss_fn, inputs, targets):
    """Per-sample gradients by the slow way: one backward pass each."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for k in range(len(inputs)):
        loss = loss_fn(model(inputs[k : k + 1]), targets[k : k + 1])
        grads = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        rows.append(torch.cat([g.flatten() for g in grads]).double().numpy())
    return np.array(rows)


def known_answer(rows):
    """The estimates from a matrix of per-sample gradients, each by its definition."""
    n = len(rows)
    mean = rows.mean(axis=0)
    covariance = (rows - mean).T @ (rows - mean) / (n - 1)
    trace = np.trace(covariance)
    left_out = [np.trace(np.cov(np.delete(rows, k, axis=0).T)) for k in range(n)]
    return {
        "gradient_norm_squared": mean @ mean - trace / n,
        "trace": trace,
        "trace_error": math.sqrt((n - 1) * np.var(left_out)),
        "spectrum": np.linalg.eigvalsh(covariance)[::-1][: n - 1],
        "along the gradient": mean @ covariance @ mean / (mean @ mean),
        "covariance": covariance,
    }


def check(noise, rows, **tolerance):
    answer = known_answer(rows)
    for name in ("gradient_norm_squared", "trace", "trace_error"):
        np.testing.assert_allclose(getattr(noise, name), answer[name], **tolerance)
    np.testing.assert_allclose(noise.spectrum, answer["spectrum"], **tolerance)
    np.testing.assert_allclose(noise.along(), answer["along the gradient"], **tolerance)
    np.testing.assert_allclose(sum(noise.layer_traces.values()), answer["trace"], **tolerance)
    squared = noise.gradient_norm_squared
    assert noise.noise_scale == (noise.trace / squared if squared > 0 else math.inf)
    return answer
