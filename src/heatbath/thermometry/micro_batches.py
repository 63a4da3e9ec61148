r"""The backward passes of one step: micro-batches of gradient accumulation and ranks of data parallelism.

If a gradient is the mean of ``M`` gradients ``g_i`` of equal small batches, then (McCandlish et al. 2018, appendix A)

    small = mean_i |g_i|^2 = |g|^2 + M tr(S1)/C,      whole = |mean_i g_i|^2 = |g|^2 + tr(S1)/C      on average, so
    tr(S1)/C = (small - whole) / (M - 1),             |g|^2 = (M whole - small) / (M - 1)            are unbiased.

The whole is looked at when a backward pass ends, before anybody clips it. With a metric ``P`` the same holds of
``tr(P S1)``, with squares weighted by ``P``.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.utils.hooks import unserializable_hook

from heatbath.thermometry.step_statistics import gram

RootMetric = Callable[[Tensor], Tensor | None]  # P^(1/2) of a parameter, None for 1


class Squares(NamedTuple):
    """The squared length of a gradient, and the one weighted by the metric."""

    plain: float
    weighted: float


class GradientParts:
    """Watches the backward passes of one step, on this rank, through hooks on the parameters.

    A pass counts while its gradient is there: what is zeroed or set to None before the step is no part of it.

    Args:
        groups: the parameters, by group.
        root_metric: what the weighted squares are weighted by; None if they are not asked for.

    Attributes:
        whole: for each group, the squares of the gradients when the last pass ended; None before the first.
    """

    def __init__(self, groups: list[list[Tensor]], root_metric: RootMetric | None) -> None:
        self._groups, self._root_metric = groups, root_metric
        self._is_paused, self._only_counts, self._is_queued = False, False, False
        self._incoming: dict[int, tuple[Tensor, Tensor | None]] = {}  # |h|^2, and |.grad|^2 before h is added to it
        self._seen: dict[int, Tensor] = {}  # the sums of |h_i|^2 and the number of the h_i, for each parameter
        self.whole: list[Tensor] | None = None
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

    def gather(self) -> tuple[list[Squares], float]:
        """Return ``sum_i |h_i|^2`` by group and the number of parts ``h_i``, over all passes.

        A backward pass begins at the output. A parameter that has been seen more often than the first one is seen
        several times in a pass (in reentrant checkpoints), not with a whole ``h_i`` each: the sums are then ``nan``.
        """
        sums, passes = [[0.0, 0.0] for _ in self._groups], []
        owners = {id(p): index for index, group in enumerate(self._groups) for p in group if p.grad is not None}
        device = next((p.device for group in self._groups for p in group), torch.device("cpu"))
        if seen := {key: row.to(device) for key, row in self._seen.items() if key in owners}:
            for key, (plain, weighted, count) in zip(seen, torch.stack([*seen.values()]).tolist(), strict=True):
                sums[owners[key]][0] += plain
                sums[owners[key]][1] += weighted
                passes += [count] if plain else []  # a gradient of zero does not tell whether it was zeroed
        if passes and passes[0] < max(passes):
            sums = [[math.nan, math.nan] for _ in self._groups]
        return [Squares(*pair) for pair in sums], max(passes, default=0.0)

    def squares_now(self) -> list[Tensor]:
        """Return the squares of the gradients as they are, a row for each group."""
        with torch.no_grad():
            return [self._squares([p for p in group if p.grad is not None]) for group in self._groups]

    def _squares(self, parameters: list[Tensor]) -> Tensor:
        grads = [(p, p.grad.detach()) for p in parameters if p.grad is not None]
        plain = gram([grad] for _, grad in grads)
        if plain is None:
            return torch.zeros(2, dtype=torch.float64)
        if self._root_metric is None:
            return plain[0].repeat(2)
        weighted = gram([self._weigh(p, grad)] for p, grad in grads)
        assert weighted is not None
        return torch.cat([plain[0], weighted[0]])

    def _weigh(self, parameter: Tensor, grad: Tensor) -> Tensor:
        root = None if self._root_metric is None else self._root_metric(parameter)
        return grad if root is None else grad * root

    def _see(self, reference: weakref.ref[Tensor], grad: Tensor) -> None:
        parameter = reference()
        if parameter is None or self._is_paused:
            return
        with torch.no_grad():
            # Whether earlier passes are still there: a first one need not ask.
            earlier = parameter.grad if id(parameter) in self._seen else None
            left = None if earlier is None else _square(earlier)
            if self._only_counts:
                squares = torch.ones(2, device=grad.device)
            elif self._root_metric is None:
                squares = _square(grad).repeat(2)
            else:
                squares = torch.stack([_square(grad), _square(self._weigh(parameter, grad))])
            self._incoming[id(parameter)] = squares, left

    def _add(self, parameter: Tensor) -> None:
        """Count what has become part of ``parameter.grad``; `torch.autograd.grad` comes by as well, and is not."""
        if (arrived := self._incoming.pop(id(parameter), None)) is None:
            return
        squares, left = arrived
        row = torch.cat([squares, squares.new_ones(1)])
        if left is not None:
            before = self._seen[id(parameter)]
            row += torch.where((left > 0.0) | (before[0] == 0.0), before, 0.0)
        self._seen[id(parameter)] = row
        if not self._is_queued:
            self._is_queued = True
            _when_backward_ends(partial(_when_backward_ends, self._look))  # after what others, as DDP, have queued

    def _look(self) -> None:
        self._is_queued, self.whole = False, self.squares_now()


def compare_parts(squares: float, whole: float, count: float, scale: float) -> tuple[float, float]:
    """Return ``tr(S1)/C`` and ``|g|^2`` from ``sum_i |h_i|^2``, where the step has ``sum_i h_i / scale``.

    Whether the losses of the micro-batches were divided by their number does not matter: if not, both numbers are
    those of the sum of losses that is then minimized.
    """
    small = count * squares / scale**2
    return (small - whole) / (count - 1), (count * whole - small) / (count - 1)


def _square(gradient: Tensor) -> Tensor:
    return torch.as_tensor(gram([[gradient]]))[0, 0]


def _when_backward_ends(call: Callable[[], None]) -> None:
    """Let the engine call this at the end of the backward pass under way, after what was queued before."""
    Variable._execution_engine.queue_callback(call)
