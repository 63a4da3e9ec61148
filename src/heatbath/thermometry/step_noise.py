"""The gradients of one step while it is prepared, and their noise when it has been taken."""

from __future__ import annotations

import gc
import math
import warnings
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from heatbath.thermometry.batch_halves import Halves, LossOfBatch, batch_length, compare_halves
from heatbath.thermometry.micro_batches import GradientParts, RootMetric, Squares, compare_parts
from heatbath.thermometry.per_sample import innermost
from heatbath.thermometry.step_rules import StepRule
from heatbath.thermometry.step_statistics import widest


class NoiseSample(NamedTuple):
    """What one step tells of the noise of its gradient.

    Attributes:
        rows: ``tr(S1)`` (``tr(S1)/C`` where ``C`` is not known) and ``|g|^2`` of each group; empty if the step tells
            nothing.
        heats: ``tr(P S1)`` of each group, likewise; empty also if there is no metric ``P`` yet.
        size: the samples ``C`` in the step, if they were counted.
        clipping: the length of the gradient that the optimizer saw over that of the backward passes.
        squares: the squared lengths of the gradients that the optimizer saw, by group.
        loss: the mean over the ranks; ``nan`` if nobody told it.
    """

    rows: list[list[float]]
    heats: list[float]
    size: int | None
    clipping: float
    squares: list[float]
    loss: float


class DataParallel:
    """The ranks over which gradients are averaged, found when the training has begun.

    A model may be wrapped in `DistributedDataParallel` after the thermometer was built, as frameworks do.

    Args:
        model: the model of the thermometer.
        process_group: the ranks, if the user told them.
    """

    def __init__(self, model: nn.Module, process_group: dist.ProcessGroup | None) -> None:
        self._model, self._group = model, process_group
        self.averages_in_backward = process_group is None  # as DistributedDataParallel does
        self._is_found = process_group is not None

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The process group, or None for a process of its own."""
        if not self._is_found and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            self._group = self._find()
            if self._group is None:
                warnings.warn(
                    f"{dist.get_world_size()} processes are running, but the model is in no DistributedDataParallel: "
                    "the thermometer reads this process alone; tell it the ranks with process_group=... if their "
                    "gradients are averaged",
                    RuntimeWarning,
                    stacklevel=2,
                )
        self._is_found = True
        return self._group

    @property
    def size(self) -> int:
        """The number of ranks."""
        return 1 if self.group is None else dist.get_world_size(self.group)

    def add(self, numbers: list[float]) -> list[float]:
        """Return the sums of the numbers of all ranks."""
        device = next(self._model.parameters()).device
        table = torch.tensor(numbers, dtype=widest(device), device=device)
        dist.all_reduce(table, group=self.group)
        return table.tolist()

    def _find(self) -> dist.ProcessGroup | None:
        inner = innermost(self._model)
        # `type` and not `isinstance`, which would wake up lazy objects that only pretend to a class.
        wrappers = [x for x in gc.get_objects() if issubclass(type(x), DistributedDataParallel)]
        found = [wrapper for wrapper in wrappers if any(module is inner for module in wrapper.modules())]
        return found[0].process_group if found else None


class StepNoise:
    """Watches the coming step: its backward passes, and what `observe` is given.

    Args:
        model: the model.
        optimizer: which will take the step.
        rule: how it steps, if that is known.
        ranks: over which gradients are averaged.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, rule: StepRule | None, ranks: DataParallel) -> None:
        self._model, self._optimizer, self._ranks = model, optimizer, ranks
        self.groups = trainable(optimizer)
        self.loss: Tensor | None = None
        self._root_metric = _metric_of(optimizer, rule)
        members = (p for group in self.groups for p in group)
        self._knows_metric = self._root_metric is None or all(self._root_metric(p) is not None for p in members)
        self._parts = GradientParts(self.groups, self._root_metric)
        self._halves: Halves | None = None
        self._sizes: list[int] = []  # of the batches that it was called with

    def observe(self, loss_of_batch: LossOfBatch, batch: Any, is_first: bool) -> None:
        """Count a batch, and compare its halves unless ranks or an earlier call tell the noise."""
        self._sizes.append(batch_length(batch))
        if self._halves is not None or self._ranks.size > 1:
            return
        if not is_first and self._sizes[-1] < 2:
            warnings.warn("a reading fell on a batch of one, which has no two halves", RuntimeWarning, stacklevel=3)
            return
        with self._parts.paused():
            self._halves = compare_halves(
                self._model, self.groups, loss_of_batch, batch, self._root_metric, checks_loss=is_first
            )
        self.loss = self._halves.loss if self.loss is None else self.loss
        self._parts.only_count()

    def remove(self) -> None:
        """Take the hooks away."""
        self._parts.remove()

    def measure(self, scale: float, multipliers: list[float], known_size: int | None) -> NoiseSample:
        """Return the noise of the step that has been taken.

        Args:
            scale: by which an AMP scaler multiplied the loss.
            multipliers: by which somebody else multiplied the gradients of each group before the step.
            known_size: the samples in a step, if they are known.
        """
        seen = [row.tolist() for row in self._parts.squares_now()]
        sums, count = self._parts.gather()
        # Of the batches that `observe` was called with, the last ones are in the step; others were skipped.
        size: float = sum(self._sizes[-max(int(count), 1) :])
        loss = math.nan if self.loss is None else float(self.loss)
        if self._ranks.size > 1:
            count, size, loss, *flat = self._ranks.add([count, size, loss, *(x for pair in sums for x in pair)])
            loss /= self._ranks.size
            sums = [Squares(*pair) for pair in zip(flat[::2], flat[1::2], strict=True)]
        nothing = NoiseSample([], [], int(size) or None, 1.0, [row[0] for row in seen], loss)
        if _identities(self.groups) != _identities(trainable(self._optimizer)):
            return nothing  # parameters have come or gone since they were looked at
        factors = [multiplier**-2 if multiplier else math.nan for multiplier in multipliers]
        after = [[factor * number for number in row] for factor, row in zip(factors, seen, strict=True)]
        before = after
        if self._parts.whole is not None and self._ranks.averages_in_backward:
            before = [[number / scale**2 for number in row.tolist()] for row in self._parts.whole]
        nothing = nothing._replace(clipping=_length_ratio(before, after))
        if self._halves is not None:
            return self._sample(nothing, [row.tolist() for row in self._halves.rows])
        if count < 2 or any(math.isnan(number) for pair in (*sums, *before) for number in pair):
            return nothing
        rows, times, whole_scale = [], known_size or nothing.size or 1, self._ranks.size * scale
        for sum_, whole in zip(sums, before, strict=True):
            noise, squared = compare_parts(sum_.plain, whole[0], count, whole_scale)
            heat, _ = compare_parts(sum_.weighted, whole[1], count, whole_scale)
            rows.append([times * noise, squared, times * heat])
        return self._sample(nothing, rows)

    def _sample(self, rest: NoiseSample, rows: list[list[float]]) -> NoiseSample:
        heats = [row[2] for row in rows] if self._knows_metric else []
        return rest._replace(rows=[row[:2] for row in rows], heats=heats)


def trainable(optimizer: Optimizer) -> list[list[Tensor]]:
    """Return the parameters that require gradients, by group."""
    return [[p for p in group["params"] if p.requires_grad] for group in optimizer.param_groups]


def _identities(groups: list[list[Tensor]]) -> list[list[int]]:
    return [[id(p) for p in group] for group in groups]


def _metric_of(optimizer: Optimizer, rule: StepRule | None) -> RootMetric | None:
    if rule is None or not rule.has_metric:
        return None
    owners = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    return torch.no_grad()(lambda p: rule.root_metric(owners[id(p)], p))


def _length_ratio(before: list[list[float]], after: list[list[float]]) -> float:
    """The length of the second gradient over that of the first; 1 if rounding alone makes the difference."""
    squares = [sum(row[0] for row in rows) for rows in (before, after)]
    ratio = math.sqrt(squares[1] / squares[0]) if squares[0] > 0.0 and math.isfinite(sum(squares)) else 1.0
    return 1.0 if abs(ratio - 1.0) < 1e-3 else ratio
