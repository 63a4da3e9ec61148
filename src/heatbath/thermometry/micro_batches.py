r"""The backward passes of one step: micro-batches of gradient accumulation and ranks of data parallelism.

Let a step's gradient be ``sum_i w_i g_i``, with gradients ``g_i`` of batches of ``n_i`` samples and weights ``w_i``
that add up to one: ``1/M`` for the mean of ``M`` batches (McCandlish et al. 2018, appendix A). With
``1/C = sum_i w_i^2/n_i``, the samples in the step if the batches are equal, and ``share = sum_i w_i^2``,

    parts = sum_i |w_i g_i|^2 = share |g|^2 + tr(S1)/C,   whole = |sum_i w_i g_i|^2 = |g|^2 + tr(S1)/C   on average, so
    |g|^2 = (whole - parts) / (1 - share),                tr(S1)/C = (parts - share whole) / (1 - share) are unbiased.

The whole is looked at when a backward pass ends, before anybody clips it. With a metric ``P`` the same holds of
``tr(P S1)``, with squares weighted by ``P``: the one with which the step was taken, so the squares wait for it.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.utils.hooks import unserializable_hook

from heatbath.thermometry.moments import widened
from heatbath.thermometry.per_sample import as_real
from heatbath.thermometry.step_statistics import squared_length

Weigh = Callable[[Tensor, Tensor], Tensor]  # a parameter and numbers of its shape to their sum, weighted by its metric


class GradientParts:
    """Watches the backward passes of one step, on this rank, through hooks on the parameters.

    A pass counts while its gradient is there: what is zeroed or set to None before the step is no part of it. With
    ``keeps_squares``, which takes the memory of one gradient more, `weighted` may be asked for.
    """

    def __init__(self, groups: list[list[Tensor]], keeps_squares: bool) -> None:
        self._groups, self._keeps_squares = groups, keeps_squares
        self._is_paused, self._only_counts, self._has_grown = False, False, False
        self._incoming: dict[int, tuple[Tensor, Tensor | None, Tensor | None]] = {}  # |h|^2, |.grad|^2 before it, h^2
        self._seen: dict[int, Tensor] = {}  # the sum of |h_i|^2 and the number of the h_i, for each parameter
        self._squares: dict[int, Tensor] = {}  # the sum of h_i^2, component by component
        self.whole: list[Tensor] | None = None  # by group, the squared length of the gradient when the last pass ended
        self._hooks: list[Any] = []
        for p in (p for parameters in groups for p in parameters):
            self._hooks.append(p.register_hook(unserializable_hook(partial(self._see, weakref.ref(p)))))
            self._hooks.append(p.register_post_accumulate_grad_hook(self._add))

    def remove(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()

    def only_count(self) -> None:
        """From now on count the passes and no more: the sums are not asked for."""
        self._only_counts = True

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Overlook the backward passes within."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def gather(self) -> tuple[list[float], float]:
        """Return ``sum_i |h_i|^2`` by group and the number of parts ``h_i``, over all passes.

        A backward pass begins at the output. A parameter that has been seen more often than the first one is seen
        several times in a pass (in reentrant checkpoints), not with a whole ``h_i`` each: the sums are then ``nan``.
        """
        sums, passes = [0.0 for _ in self._groups], []
        owners = {id(p): index for index, group in enumerate(self._groups) for p in group if p.grad is not None}
        device = next((p.device for group in self._groups for p in group), torch.device("cpu"))
        if seen := {key: row.to(device) for key, row in self._seen.items() if key in owners}:
            for key, (square, count) in zip(seen, torch.stack([*seen.values()]).tolist(), strict=True):
                sums[owners[key]] += square
                passes += [count] if square else []  # a gradient of zero does not tell whether it was zeroed
        if passes and passes[0] < max(passes):
            sums = [math.nan for _ in self._groups]
        return sums, max(passes, default=0.0)

    def weighted(self, weigh: Weigh) -> list[float]:
        """Return ``sum_i |h_i|^2`` by group, weighted by a metric."""
        return add_up(weigh, self._groups, lambda p: self._squares.get(id(p)) if p.grad is not None else None)

    def squares_now(self) -> list[Tensor]:
        """Return the squared length of each group's gradient as it is."""
        with torch.no_grad():
            found = [[squared_length(p.grad) for p in group if p.grad is not None] for group in self._groups]
            return [sum(row[1:], row[0]) if row else torch.zeros(()) for row in found]

    def _see(self, reference: weakref.ref[Tensor], grad: Tensor) -> None:
        parameter = reference()
        if parameter is None or self._is_paused:
            return
        with torch.no_grad():
            # Whether earlier passes are still there: a first one need not ask.
            earlier = parameter.grad if id(parameter) in self._seen else None
            left = None if earlier is None else squared_length(earlier)
            square = torch.ones((), device=grad.device) if self._only_counts else squared_length(grad)
            keeps = self._keeps_squares and not self._only_counts
            self._incoming[id(parameter)] = square, left, squares_of(grad) if keeps else None

    def _add(self, parameter: Tensor) -> None:
        """Count what has become part of ``parameter.grad``; `torch.autograd.grad` comes by as well, and is not."""
        key = id(parameter)
        if (arrived := self._incoming.pop(key, None)) is None:
            return
        square, left, squares = arrived
        row = torch.stack([square, torch.ones_like(square)])
        if left is not None:
            before = self._seen[key]
            is_there = (left > 0.0) | (before[0] == 0.0)
            row += torch.where(is_there, before, 0.0)
            if squares is not None and key in self._squares:
                squares.add_(torch.where(is_there, self._squares[key], 0.0))
        self._seen[key] = row
        if squares is not None:
            self._squares[key] = squares
        # Each time: a pass that raises, and is taken again, calls nothing that was queued in it.
        self._has_grown = True
        _when_backward_ends(partial(_when_backward_ends, self._look))  # after what others, as DDP, have queued

    def _look(self) -> None:
        if self._has_grown:
            self._has_grown, self.whole = False, self.squares_now()


def compare_parts(squares: float, whole: float, share: float, scale: float) -> tuple[float, float]:
    """Return ``tr(S1)/C`` and ``|g|^2`` from ``sum_i |h_i|^2``, where the step has ``sum_i h_i / scale``.

    Whether the losses of the micro-batches were divided by their number does not matter: if not, both numbers are
    those of the sum of losses that is then minimized.
    """
    parts = squares / scale**2
    return (parts - share * whole) / (1.0 - share), (whole - parts) / (1.0 - share)


def squares_of(gradient: Tensor) -> Tensor:
    """Return the squares of the components, in at least single precision; a complex one has two."""
    return widened(as_real(gradient.to_dense() if gradient.is_sparse else gradient)).square()


def add_up(weigh: Weigh, groups: list[list[Tensor]], numbers: Callable[[Tensor], Tensor | None]) -> list[float]:
    """Return the weighted sums of some numbers of each parameter, by group."""
    rows = [[weigh(p, x) for p in group if (x := numbers(p)) is not None] for group in groups]
    return [float(torch.stack(row).sum()) if row else 0.0 for row in rows]


def _when_backward_ends(call: Callable[[], None]) -> None:
    """Let the engine call this at the end of the backward pass under way, after what was queued before."""
    Variable._execution_engine.queue_callback(call)
