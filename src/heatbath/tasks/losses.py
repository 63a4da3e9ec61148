"""Losses and metrics by name or as a function of outputs and targets, summed over samples or tokens.

A sum over a data set is one of sums over its batches, so that a mean is exact however the data is cut. Targets of -100
count nowhere, as in torch's cross entropy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

IGNORED = -100
Values = Callable[[Tensor, Tensor], Tensor]
Function = Callable[[Tensor, Tensor], Any]


def read_outputs(outputs: Any) -> Tensor:
    """Return the tensor in what a model returns: itself, or its ``logits``; raise TypeError where there is none."""
    found = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", outputs)
    if isinstance(found, Tensor):
        return found
    what = f"a {type(outputs).__name__}"
    if isinstance(outputs, Mapping):
        what += f" with {', '.join(map(str, outputs)) or 'nothing'}"
    raise TypeError(f"the model returns {what}: it must return a tensor, or an object with a tensor .logits")


@dataclass(frozen=True)
class Measure:
    """A loss or a metric."""

    name: str  # what records call it
    values: Values | None = None  # one number for each target that counts; None for a function of the user's
    function: Function | None = None  # a mean over the batch, or a number for each sample
    finish: Callable[[float], float] = float  # applied to the mean over all data

    def mean(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over a batch, to be minimised."""
        if self.values is not None:
            return self.values(outputs, targets).sum() / _counted(targets).clamp(min=1)
        assert self.function is not None
        found: Tensor = self.function(outputs, targets)
        return found

    def sums(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum over a batch, and over how many it is, as double precision."""
        if self.values is not None:
            return self.values(outputs, targets).double().sum(), _counted(targets).double()
        assert self.function is not None
        samples = torch.tensor(float(len(targets)), dtype=torch.float64, device=targets.device)
        returned = self.function(outputs, targets)
        try:
            found = torch.as_tensor(returned, device=targets.device).double()
        except (TypeError, ValueError, RuntimeError):
            what = f"{returned!r:.80}".partition("\n")[0]
        else:
            if found.ndim == 0:
                return found * samples, samples
            if found.shape == targets.shape[:1]:
                return found.sum(), samples
            what = f"a tensor of shape {tuple(found.shape)}"
        expected = f"one number, or one for each of the {len(targets)} samples"
        raise ValueError(f"metric {self.name} returns {what}: it must return {expected}")


def _counted(targets: Tensor) -> Tensor:
    """How many targets count."""
    if targets.is_floating_point():
        return torch.tensor(targets.numel(), device=targets.device)
    return (targets != IGNORED).sum()


def class_scores(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores of shape (targets, classes) and integer targets of shape (targets,), or raise ValueError.

    Classes are the last dimension of the outputs, as in a language model, or else the second, as in torch's cross
    entropy.
    """
    if targets.is_floating_point():
        raise ValueError("targets are fractions, where integer labels are needed: name metrics such as mse")
    if outputs.shape[:-1] == targets.shape:
        return outputs.flatten(0, -2), targets.flatten()
    if outputs.ndim > 2 and (outputs.shape[0], *outputs.shape[2:]) == tuple(targets.shape):
        return outputs.movedim(1, -1).flatten(0, -2), targets.flatten()
    raise ValueError(
        f"outputs of shape {tuple(outputs.shape)} are not class scores for targets of shape {tuple(targets.shape)}: "
        f"these must be integer labels of shape {tuple(outputs.shape[:-1])}"
    )


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    scores, flat = class_scores(outputs, targets)
    return functional.cross_entropy(_at_least_single(scores), flat, reduction="none", ignore_index=IGNORED)


def _hits(outputs: Tensor, targets: Tensor, among: int = 1) -> Tensor:
    scores, flat = class_scores(outputs, targets)
    best = scores.topk(min(among, scores.shape[-1]), -1).indices if among > 1 else scores.argmax(-1, keepdim=True)
    return (best == flat[:, None]).any(-1)


def _of_one_shape(function: Values, outputs: Tensor, targets: Tensor) -> Tensor:
    """A function of numbers, of outputs and targets of equal shape; outputs may have one more dimension of size 1."""
    outputs = _at_least_single(outputs)
    if outputs.ndim == targets.ndim + 1 and outputs.shape[-1] == 1:
        outputs = outputs.squeeze(-1)
    if outputs.shape != targets.shape:
        raise ValueError(f"outputs have shape {tuple(outputs.shape)}, targets {tuple(targets.shape)}: make them alike")
    return function(outputs, targets.to(outputs.dtype))


def _at_least_single(values: Tensor) -> Tensor:
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


_SQUARES = partial(_of_one_shape, lambda outputs, targets: (outputs - targets) ** 2)
_DISTANCES = partial(_of_one_shape, lambda outputs, targets: (outputs - targets).abs())
LOSSES: dict[str, Values] = {
    "cross_entropy": _cross_entropy,
    "binary_cross_entropy": partial(
        _of_one_shape, partial(functional.binary_cross_entropy_with_logits, reduction="none")
    ),
    "mse": _SQUARES,
    "mae": _DISTANCES,
}
METRICS = {
    one.name: one
    for one in (
        Measure("accuracy", _hits),
        Measure("top5_accuracy", partial(_hits, among=5)),
        Measure("binary_accuracy", partial(_of_one_shape, lambda outputs, targets: (outputs > 0) == (targets > 0.5))),
        Measure("mse", _SQUARES),
        Measure("rmse", _SQUARES, finish=math.sqrt),
        Measure("mae", _DISTANCES),
        Measure("perplexity", _cross_entropy, finish=lambda mean: math.exp(min(mean, 700.0))),
    )
}


def read_loss(loss: str | Function) -> Measure:
    """Return a loss from its name or a function; raise ValueError for another name, TypeError for anything else."""
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise ValueError(f"unknown loss {loss!r}: choose one of {', '.join(LOSSES)}, or give a function")
        return Measure("loss", LOSSES[loss])
    if not callable(loss):
        raise TypeError(f"loss must be a name or a function of outputs and targets, got {loss!r:.100}")
    return Measure("loss", function=loss)


def read_metrics(metrics: Any) -> tuple[Measure, ...]:
    """Return metrics from their names or functions; raise as `read_loss` does, and where two have one name."""
    if isinstance(metrics, str) or callable(metrics):
        metrics = (metrics,)
    if not isinstance(metrics, Iterable):
        raise TypeError(f"metrics must be names and functions, got {metrics!r:.100}")
    found = tuple(_read_metric(one) for one in metrics)
    names = ["loss", *(one.name for one in found)]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two metrics are called {twice[0]!r}: name functions differently")
    return found


def _read_metric(metric: Any) -> Measure:
    if isinstance(metric, str):
        if metric not in METRICS:
            raise ValueError(f"unknown metric {metric!r}: choose one of {', '.join(METRICS)}, or give a function")
        return METRICS[metric]
    name = getattr(metric, "__name__", None) or type(metric).__name__
    if not callable(metric) or not name.isidentifier():
        raise TypeError(f"a metric must be a name or a function with a name of its own, got {metric!r:.100}")
    return Measure(name, function=metric)
