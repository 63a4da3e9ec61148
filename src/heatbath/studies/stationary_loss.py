"""The loss at which SGD with weight decay comes to rest: measured on many replicas at once, and predicted.

With weight decay a training has a stationary state, in which the noise keeps the regularised loss above its minimum by
``sum_i a_i <x_i^2> / 2`` over the directions of the Hessian, with curvatures ``a_i``. For softmax regression, which is
convex, Hessian and gradient noise at the minimum are known in closed form, and so is the prediction.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from heatbath.draws import draw
from heatbath.studies.ensembles import OnFraction
from heatbath.theory import quadratic, shuffled
from heatbath.theory.landscapes import Array
from heatbath.thermostat import Thermostat

_BLOCK = 1024  # multipliers drawn at once
_CHUNK = 4096  # samples that are evaluated at once


@dataclass(frozen=True, eq=False)
class Problem:
    """A classification by a network of linear layers with ReLU between them, and weight decay on all parameters."""

    inputs: Tensor  # of shape ``(samples, features)``
    labels: Tensor  # integers
    sizes: tuple[int, ...]  # of the layers: features, hidden units, classes; two sizes are softmax regression
    weight_decay: float  # ``w`` in the regularised loss ``f = cross entropy + w |x|^2 / 2``

    def start(self, replicas: int, generator: torch.Generator) -> list[Tensor]:
        """Return the parameters of replicas, as torch starts linear layers: weights and biases, layer by layer."""
        found = []
        for fan_in, fan_out in pairwise(self.sizes):
            for shape in ((replicas, fan_in, fan_out), (replicas, 1, fan_out)):
                uniform = torch.rand(shape, generator=generator, device=self.inputs.device, dtype=self.inputs.dtype)
                found.append((2.0 * uniform - 1.0) / math.sqrt(fan_in))
        return found

    def losses(self, parameters: list[Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross entropy of each replica, of its own batch or of one that all share."""
        hidden = inputs
        for layer, (weight, bias) in enumerate(zip(parameters[::2], parameters[1::2], strict=True)):
            hidden = (functional.relu(hidden) if layer else hidden) @ weight + bias
        targets = labels.expand(hidden.shape[:2])
        return (
            functional.cross_entropy(hidden.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets).mean(1)
        )

    @torch.no_grad()
    def regularised_losses(self, parameters: list[Tensor]) -> Tensor:
        """Return ``f`` of each replica over all samples."""
        total = sum(
            self.losses(parameters, x, y) * len(x)
            for x, y in zip(self.inputs.split(_CHUNK), self.labels.split(_CHUNK), strict=True)
        )
        return total / len(self.inputs) + 0.5 * self.weight_decay * _squares(parameters)


def measure_stationary_losses(
    problem: Problem,
    knobs: Thermostat,
    *,
    summed_rate: float,
    replicas: int,
    readings: int = 50,
    seed: int = 0,
    progress: OnFraction | None = None,
) -> Array:
    """Train replicas, and return the mean regularised loss of each over two stretches: shape ``(replicas, 2)``.

    ``summed_rate`` is the sum of ``lr / (1 - momentum)`` over the steps of a stretch. Means are over ``readings``
    random steps in the second half of the first, and of a second one that follows: where they agree, the state is
    stationary. What is left over of a shuffled epoch sits out. A loss that is no number any more raises ValueError.
    """
    generator = torch.Generator(problem.inputs.device).manual_seed(seed)
    parameters = problem.start(replicas, generator)
    velocities = [torch.zeros_like(parameter) for parameter in parameters]
    steps = max(2, round(summed_rate * (1.0 - knobs.momentum) / knobs.lr))
    rng = np.random.default_rng(seed)
    halves = [stretch * steps + rng.integers(steps // 2, steps, readings) for stretch in (0, 1)]
    count = np.stack([np.bincount(half, minlength=2 * steps) for half in halves])
    sums = torch.zeros((replicas, 2), dtype=torch.float64, device=problem.inputs.device)
    multipliers = _multipliers(knobs, seed, replicas, problem.inputs)
    for step, batch in enumerate(_batches(problem, knobs, replicas, generator, 2 * steps)):
        if count[:, step].any():
            losses = problem.regularised_losses(parameters).double()
            sums += losses[:, None] * torch.as_tensor(count[:, step] / readings, device=losses.device)
            if not torch.isfinite(losses).all():
                raise ValueError(f"the loss is not a number after {step} steps: lr = {knobs.lr:g} is too large")
            if progress is not None:
                progress(step / (2 * steps), "training")
        _step(problem, knobs, parameters, velocities, next(multipliers), problem.inputs[batch], problem.labels[batch])
    return np.asarray(sums.cpu().numpy())


def find_minimum(problem: Problem, seed: int = 0) -> tuple[list[Tensor], float]:
    """Return the parameters, in double precision, and the regularised loss of the minimum of softmax regression."""
    if len(problem.sizes) != 2:
        raise ValueError(f"sizes must be features and classes, for one minimum; got {problem.sizes}")
    problem = replace(problem, inputs=problem.inputs.double())
    generator = torch.Generator(problem.inputs.device).manual_seed(seed)
    parameters = [parameter.requires_grad_() for parameter in problem.start(1, generator)]
    solver = torch.optim.LBFGS(
        parameters, max_iter=2000, tolerance_grad=1e-10, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        solver.zero_grad()
        loss = problem.losses(parameters, problem.inputs, problem.labels).sum()
        loss = loss + 0.5 * problem.weight_decay * _squares(parameters).sum()
        loss.backward()
        return loss

    solver.step(closure)
    return [parameter.detach() for parameter in parameters], closure().item()


def predict_excess_losses(problem: Problem, minimum: list[Tensor], knobs: Sequence[Thermostat]) -> list[float]:
    """Return ``sum_i a_i <x_i^2> / 2`` of softmax regression about its minimum, for each of several knobs."""
    curvatures, variances = _spectrum(replace(problem, inputs=problem.inputs.double()), minimum)
    samples, found = len(problem.inputs), []
    for one in knobs:
        if one.sampling == "shuffled":
            own = replace(one, dataset_size=samples)
            moments = shuffled.stationary_moments(own, curvatures, variances, samples // one.batch_size)
        else:
            moments = quadratic.stationary_moments(one, curvatures, variances)
        found.append(float(0.5 * (curvatures * moments[:, 0, 0]).sum()))
    return found


def _spectrum(problem: Problem, minimum: list[Tensor]) -> tuple[Array, Array]:
    """The eigenvalues of the Hessian of the regularised loss, and the variance of a sample's gradient along each."""
    weight, bias = (parameter[0] for parameter in minimum)
    features = torch.cat([problem.inputs, torch.ones_like(problem.inputs[:, :1])], dim=1)
    chances = torch.softmax(problem.inputs @ weight + bias, dim=1)
    classes, width = chances.shape[1], features.shape[1]
    hessian = features.new_empty(classes, width, classes, width)
    for a in range(classes):
        for b in range(classes):
            factor = chances[:, a] * (float(a == b) - chances[:, b]) / len(features)
            hessian[a, :, b, :] = features.T @ (features * factor[:, None])
    flat = hessian.reshape(classes * width, -1)
    flat.diagonal().add_(problem.weight_decay)
    curvatures, basis = torch.linalg.eigh(flat)
    errors = chances - functional.one_hot(problem.labels, classes)
    sums, squares = torch.zeros_like(curvatures), torch.zeros_like(curvatures)
    for some, error in zip(features.split(_CHUNK), errors.split(_CHUNK), strict=True):
        gradients = (error[:, :, None] * some[:, None, :]).flatten(1) @ basis
        sums += gradients.sum(0)
        squares += gradients.square().sum(0)
    variances = squares / len(features) - (sums / len(features)).square()
    return np.asarray(curvatures.cpu().numpy()), np.asarray(variances.clamp(min=0.0).cpu().numpy())


def _step(
    problem: Problem,
    knobs: Thermostat,
    parameters: list[Tensor],
    velocities: list[Tensor],
    multiplier: Tensor,
    inputs: Tensor,
    labels: Tensor,
) -> None:
    """One step of all replicas, in place: that of `RandomSGD`, with a multiplier for each replica."""
    tracked = [parameter.requires_grad_() for parameter in parameters]
    gradients = torch.autograd.grad(problem.losses(tracked, inputs, labels).sum(), tracked)
    in_gradient = knobs.coupling == "gradient"
    with torch.no_grad():
        for parameter, velocity, gradient in zip(parameters, velocities, gradients, strict=True):
            gradient = gradient.add(parameter, alpha=problem.weight_decay)
            gradient = gradient * multiplier if in_gradient else gradient
            velocity.mul_(knobs.momentum).add_(gradient)
            direction = gradient.add(velocity, alpha=knobs.momentum) if knobs.nesterov else velocity
            parameter.sub_(direction if in_gradient else direction * multiplier, alpha=knobs.lr)


def _batches(
    problem: Problem, knobs: Thermostat, replicas: int, generator: torch.Generator, steps: int
) -> Iterator[Tensor]:
    """The samples of each replica's next batch, shape ``(replicas, batch size)``."""
    samples, size, device = len(problem.inputs), knobs.batch_size, problem.inputs.device
    if size > samples:
        raise ValueError(f"batch_size must be at most the {samples} samples, got {size}")
    order, used = torch.empty(0), samples
    for _ in range(steps):
        if knobs.sampling == "replacement":
            yield torch.randint(samples, (replicas, size), generator=generator, device=device)
            continue
        if used + size > samples:
            order, used = torch.rand((replicas, samples), generator=generator, device=device).argsort(1), 0
        yield order[:, used : used + size]
        used += size


def _multipliers(knobs: Thermostat, seed: int, replicas: int, like: Tensor) -> Iterator[Tensor]:
    """One for each replica and step, shaped to multiply parameters."""
    first = 0
    while True:
        block = np.stack([draw(knobs.law, seed + replica, first, _BLOCK) for replica in range(replicas)], axis=1)
        yield from torch.as_tensor(block, dtype=like.dtype, device=like.device)[..., None, None]
        first += _BLOCK


def _squares(parameters: list[Tensor]) -> Tensor:
    """The squared norm of each replica's parameters."""
    return torch.stack([parameter.square().sum((1, 2)) for parameter in parameters]).sum(0)
