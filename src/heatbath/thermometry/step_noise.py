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
from heatbath.thermometry.micro_batches import GradientParts, add_up, compare_parts, squares_of
from heatbath.thermometry.per_sample import innermost
from heatbath.thermometry.step_rules import AdamRule, StepRule
from heatbath.thermometry.step_statistics import widest


class NoiseSample(NamedTuple):
    """What one step tells of the noise of its gradient, by group."""

    rows: list[tuple[float, float]]  # tr(S1) (tr(S1)/C where C is not known) and |g|^2; empty if it tells nothing
    heats: list[float]  # tr(P S1), likewise, with the metric P of the step; empty also if it has none
    size: float | None  # the samples C in the step, if they were counted
    clipping: float  # the length of the gradient that the optimizer saw over that of the backward passes
    squares: list[float]  # the squared lengths of the gradients that the optimizer saw
    loss: float  # the mean over the ranks; nan if nobody told it
    reason: str = ""  # why the step tells nothing


class DataParallel:
    """The ranks over which gradients are averaged, found when the training has begun, if the user did not tell them.

    A model may be wrapped in `DistributedDataParallel` after the thermometer was built, as frameworks do.
    """

    def __init__(self, model: nn.Module, process_group: dist.ProcessGroup | None) -> None:
        wrapper = model if isinstance(model, DistributedDataParallel) else None
        self._model = model
        self._group: dist.ProcessGroup | None = process_group if wrapper is None else wrapper.process_group
        self.averages_in_backward = process_group is None or wrapper is not None
        self._is_found = self._group is not None

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
    """Watches the coming step: its backward passes, and what `observe` is given."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, rule: StepRule | None, ranks: DataParallel) -> None:
        self._model, self._optimizer, self._ranks = model, optimizer, ranks
        self.groups = trainable(optimizer)
        self.loss: Tensor | None = None
        self._rule = rule if isinstance(rule, AdamRule) else None  # in whose coordinates squares have to be weighed
        self._parts = GradientParts(self.groups, keeps_squares=self._rule is not None)
        self._halves: Halves | None = None
        self._sizes: list[int] = []  # of the batches that were counted; 0 for one that does not tell
        self._divisor: int | None = None  # by which each loss was divided, if not by the number of batches
        self._weighs_samples = False  # all samples of the step weigh the same, not all batches

    def count(self, size: int, divisor: int | None = None, weighs_samples: bool = False) -> None:
        """Count the samples of a batch that goes into the step."""
        self._sizes.append(size)
        self._divisor, self._weighs_samples = divisor, weighs_samples

    def observe(self, loss_of_batch: LossOfBatch, batch: Any, checks_loss: bool) -> None:
        """Count a batch, and compare its halves unless ranks or an earlier call tell the noise."""
        self.count(batch_length(batch))
        if self._halves is not None or self._ranks.size > 1:
            return
        with self._parts.paused():
            keeps_spreads = self._rule is not None
            self._halves = compare_halves(self._model, self.groups, loss_of_batch, batch, keeps_spreads, checks_loss)
        self.loss = self._halves.loss if self.loss is None else self.loss
        self._parts.only_count()

    def remove(self) -> None:
        """Take the hooks away."""
        self._parts.remove()

    def measure(
        self, scale: float, multipliers: list[float], told_size: int | None, last_size: float | None
    ) -> NoiseSample:
        """Return the noise of the step that has been taken.

        An AMP scaler multiplied the loss by ``scale``, somebody else the gradients of each group by ``multipliers``.
        The samples in a step are those that the user told, were counted, or were in the last step that was read.
        """
        self._owners = {id(p): group for group in self._optimizer.param_groups for p in group["params"]}
        seen = [float(square) for square in self._parts.squares_now()]
        now, then = ([[id(p) for p in group] for group in x] for x in (trainable(self._optimizer), self.groups))
        has_changed = now != then
        sums, count = self._parts.gather()
        weighted = [] if self._rule is None or has_changed else self._parts.weighted(self._weigh)
        scale *= count / self._divisor if self._divisor and count else 1.0  # a last step of fewer batches
        # Of the batches that were counted, the last ones are in the step; others were skipped.
        sizes = self._sizes[-max(int(count), 1) :]
        counted = [len(sizes), sum(sizes), sum(n * n for n in sizes), sum(1.0 / n if n else math.inf for n in sizes)]
        loss = math.nan if self.loss is None else float(self.loss)
        if self._ranks.size > 1:
            numbers = self._ranks.add([count, loss, *counted, *sums, *weighted])
            count, loss, counted, both = numbers[0], numbers[1] / self._ranks.size, numbers[2:6], numbers[6:]
            sums, weighted = both[: len(sums)], both[len(sums) :]
        size, share = self._weights(*counted)
        sample = NoiseSample([], [], size, 1.0, seen, loss)
        if has_changed:
            return sample._replace(reason="parameters have come or gone since the step before")
        after = [
            square / multiplier**2 if multiplier else math.nan
            for square, multiplier in zip(seen, multipliers, strict=True)
        ]
        before = after
        if self._parts.whole is not None and self._ranks.averages_in_backward:
            before = [float(square) / scale**2 for square in self._parts.whole]
        sample = sample._replace(clipping=_length_ratio(before, after))
        if self._halves is not None:
            return self._from_halves(sample, self._halves)
        if count < 2:
            return sample._replace(reason="the step had one backward pass, and no batch was observed")
        if any(math.isnan(number) for number in (*sums, *before)):
            return sample._replace(reason="a parameter was met several times in one backward pass")
        times, scale, share = told_size or size or last_size or 1, self._ranks.size * scale, share or 1.0 / count
        rows = [compare_parts(*pair, share, scale) for pair in zip(sums, before, strict=True)]
        heats = [noise for noise, _ in rows]
        if self._rule is not None:
            # The whole as it was before: what the optimizer saw, less the multiplier and the clipping.
            shrinks = [sample.clipping * multiplier for multiplier in multipliers]
            wholes = add_up(self._weigh, self.groups, lambda p: None if p.grad is None else squares_of(p.grad))
            pairs = zip(weighted, wholes, shrinks, strict=True)
            heats = [compare_parts(w, whole / c**2, share, scale)[0] for w, whole, c in pairs if c]
        rows = [(times * noise, squared) for noise, squared in rows]
        return sample._replace(rows=rows, heats=[times * heat for heat in heats] if len(heats) == len(rows) else [])

    def _weights(self, batches: float, total: float, squares: float, inverses: float) -> tuple[float | None, float]:
        """``C`` of `micro_batches`, None if a batch did not tell its size; and ``share``, 0 if batches weigh alike."""
        if not batches or math.isinf(inverses):
            return None, 0.0
        if self._weighs_samples:
            return int(total), squares / total**2
        are_equal = math.isclose(total * inverses, batches**2)
        return int(total) if are_equal else batches**2 / inverses, 0.0

    def _from_halves(self, sample: NoiseSample, halves: Halves) -> NoiseSample:
        rows = [(float(trace), float(squared)) for trace, squared in halves.rows]
        if self._rule is None:
            return sample._replace(rows=rows, heats=[trace for trace, _ in rows])
        heats = add_up(self._weigh, self.groups, lambda p: None if p.grad is None else halves.spreads.get(id(p)))
        return sample._replace(rows=rows, heats=heats)

    def _weigh(self, parameter: Tensor, numbers: Tensor) -> Tensor:
        assert self._rule is not None
        root = self._rule.root_metric(self._owners[id(parameter)], parameter)
        return (numbers * root.square()).sum(dtype=widest(numbers.device))


def trainable(optimizer: Optimizer) -> list[list[Tensor]]:
    """Return the parameters that require gradients, by group."""
    return [[p for p in group["params"] if p.requires_grad] for group in optimizer.param_groups]


def _length_ratio(before: list[float], after: list[float]) -> float:
    """The length of the second gradient over that of the first; 1 if rounding alone makes the difference."""
    squares = sum(before), sum(after)
    ratio = math.sqrt(squares[1] / squares[0]) if squares[0] > 0.0 and math.isfinite(sum(squares)) else 1.0
    return 1.0 if abs(ratio - 1.0) < 1e-3 else ratio
