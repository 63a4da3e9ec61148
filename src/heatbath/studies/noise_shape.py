"""Is the gradient noise Gaussian? Its projections on directions: those that are random, and those where it is largest.

The projection of the gradient of sample i on a direction u is the derivative of its loss along u. Forward
differentiation gives it for all samples in one pass, and no gradient of a single sample is ever stored.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp
from torch.nn import functional

Tensors = dict[str, Tensor]
_CHUNK = 250  # samples that are differentiated at once


@dataclass(frozen=True)
class NoiseShape:
    """What the noise of a batch looks like along one direction; of a Gaussian 0 and 0.0027."""

    sample_kurtosis: float  # the excess kurtosis of the projections of single samples
    batch_kurtosis: float  # that of the mean over a batch
    tail: float  # how often the mean over a batch is more than three standard deviations off


class Projections:
    """Projects the gradients of samples on directions; the loss is the cross entropy, and dropout should be off."""

    def __init__(self, model: nn.Module, inputs: Tensor, labels: Tensor) -> None:
        self._model, self._parts = model, list(zip(inputs.split(_CHUNK), labels.split(_CHUNK), strict=True))
        self.parameters: Tensors = {name: p.detach() for name, p in model.named_parameters()}

    def random(self, generator: torch.Generator) -> Tensors:
        """Return a direction, uniform on the unit sphere."""
        drawn = {name: torch.randn(p.shape, generator=generator).to(p) for name, p in self.parameters.items()}
        return _unit(drawn)

    def largest(self, count: int, rounds: int, generator: torch.Generator) -> list[Tensors]:
        """Return about the directions in which the noise is largest, by rounds of subspace iteration."""
        found = [self.random(generator) for _ in range(count)]
        for _ in range(rounds):
            found = _orthonormal([self._covariance_times(direction) for direction in found])
        return found

    def along(self, direction: Tensors) -> Tensor:
        """Return the projection of each sample's gradient, in double precision."""
        parts = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, of what its first jvp imports
            for x, y in self._parts:
                parts.append(jvp(partial(self._losses, inputs=x, labels=y), (self.parameters,), (direction,))[1])
        return torch.cat(parts).double()

    def _losses(self, parameters: Tensors, inputs: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(self._model, parameters, inputs), labels, reduction="none")

    def _covariance_times(self, direction: Tensors) -> Tensors:
        projected = self.along(direction)
        weights = ((projected - projected.mean()) / len(projected)).to(next(iter(direction.values())).dtype)
        total = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        for (x, y), weight in zip(self._parts, weights.split(_CHUNK), strict=True):
            pull = vjp(partial(self._losses, inputs=x, labels=y), self.parameters)[1]
            for name, part in pull(weight)[0].items():
                total[name] += part
        return total


def describe_shape(projected: Tensor, batch_size: int, batches: int, seed: int) -> NoiseShape:
    """Return the shape of the noise along a direction.

    The kurtosis of a batch follows from that of a sample, ``k / batch_size``, as its samples are independent; the tail
    is counted over batches that are drawn with replacement.
    """
    values = projected.cpu().numpy()
    values = (values - values.mean()) / values.std()
    kurtosis = float((values**4).mean() - 3.0)
    rng = np.random.default_rng(seed)
    means = np.stack([values[rng.integers(len(values), size=batch_size)].mean() for _ in range(batches)])
    tail = float((np.abs(means) * np.sqrt(batch_size) > 3.0).mean())
    return NoiseShape(kurtosis, kurtosis / batch_size, tail)


def _unit(direction: Tensors) -> Tensors:
    length = torch.sqrt(sum((part.double().square().sum() for part in direction.values()), torch.zeros(())))
    return {name: part / length.to(part) for name, part in direction.items()}


def _orthonormal(directions: Sequence[Tensors]) -> list[Tensors]:
    """Gram and Schmidt's, from the first on."""
    found: list[Tensors] = []
    for direction in directions:
        rest = dict(direction)
        for other in found:
            overlap = sum(float((rest[name].double() * other[name]).sum()) for name in rest)
            rest = {name: part - overlap * other[name] for name, part in rest.items()}
        found.append(_unit(rest))
    return found
