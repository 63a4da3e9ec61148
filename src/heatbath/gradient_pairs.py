r"""The noise of a step's gradient, from gradients of small and large batches of the same step.

If a gradient is the mean of ``M`` gradients ``g_i`` of equal small batches, then (McCandlish et al. 2018, appendix A)

    small = mean_i |g_i|^2 = |g|^2 + M tr(S1)/C,      whole = |mean_i g_i|^2 = |g|^2 + tr(S1)/C      on average, so
    tr(S1)/C = (small - whole) / (M - 1),             |g|^2 = (M whole - small) / (M - 1)            are unbiased.

The small batches are the micro-batches of gradient accumulation and the ranks of data parallelism, whose gradients
come by anyway, or else the two halves of a mini-batch, at the cost of their two passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only
from torch.utils.hooks import unserializable_hook

from heatbath.dynamics import gram

LossFunction = Callable[[Any, Any], Tensor]


class GradientParts:
    """Watches the backward passes of one step, on this rank, through hooks on the parameters.

    Args:
        groups: the parameters, by group.
    """

    def __init__(self, groups: list[list[Tensor]]) -> None:
        self._is_paused = False
        self._incoming: dict[int, Tensor] = {}
        self._squares: list[Any] = [0.0 for _ in groups]
        self._passes: dict[int, int] = {}
        self._device = groups[0][0].device if groups and groups[0] else torch.device("cpu")
        self._hooks: list[Any] = []
        for index, parameters in enumerate(groups):
            for p in parameters:
                self._hooks.append(p.register_hook(unserializable_hook(partial(self._see, id(p)))))
                self._hooks.append(p.register_post_accumulate_grad_hook(partial(self._add, index)))

    def remove(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Overlook the backward passes within."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def gather(self, ranks: dist.ProcessGroup | None) -> tuple[list[float], float]:
        """Return ``sum_i |h_i|^2`` by group and the number of parts ``h_i``, over all passes and ranks."""
        passes = max(self._passes.values(), default=0)
        wide = torch.float32 if self._device.type == "mps" else torch.float64
        numbers = [torch.as_tensor(x, dtype=wide).to(self._device) for x in (*self._squares, passes)]
        table = torch.stack(numbers)
        if ranks is not None and dist.get_world_size(ranks) > 1:
            dist.all_reduce(table, group=ranks)
        *squares, count = table.tolist()
        return squares, count

    def _see(self, parameter: int, grad: Tensor) -> None:
        if not self._is_paused:
            with torch.no_grad():
                self._incoming[parameter] = torch.as_tensor(gram([[grad]]))[0, 0]

    def _add(self, index: int, parameter: Tensor) -> None:
        """Count what has become part of ``parameter.grad``; `torch.autograd.grad` comes by as well, and is not."""
        if (square := self._incoming.pop(id(parameter), None)) is not None:
            self._squares[index] = self._squares[index] + square
            self._passes[id(parameter)] = self._passes.get(id(parameter), 0) + 1


def compare_parts(squares: float, whole: float, count: float, scale: float) -> tuple[float, float]:
    """Return ``tr(S1)/C`` and ``|g|^2`` from ``sum_i |h_i|^2``, where the step has ``sum_i h_i / scale``.

    Whether the losses of the micro-batches were divided by their number does not matter: if not, both numbers are
    those of the sum of losses that is then minimized.
    """
    small = count * squares / scale**2
    return (small - whole) / (count - 1), (count * whole - small) / (count - 1)


def batch_length(inputs: Any) -> int:
    """The number of samples in a tensor or in containers of them, the batch first."""
    return next((len(leaf) for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.dim()), 0)


def compare_halves(
    model: nn.Module,
    groups: list[list[Tensor]],
    loss_fn: LossFunction,
    inputs: Any,
    targets: Any,
    checks_loss: bool = True,
) -> tuple[list[Tensor], int]:
    """Return ``(tr(S1), |g|^2)`` of each group from the halves of a batch, and the size of the batch.

    Gradients, buffers and random state are left as they are; the sample that is left over of an odd batch is not used.

    Raises:
        ValueError: a batch of one, or a loss that is not a mean over the batch.
    """
    model = _innermost(model)
    size = batch_length(inputs)
    half = size // 2
    if half == 0:
        raise ValueError(f"a batch of {size} has no two halves to compare: the noise needs at least 2 samples a step")
    parameters = [p for group in groups for p in group]
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    outputs, losses, grads = [], [], []
    with torch.enable_grad(), torch.random.fork_rng(sorted({p.get_device() for p in parameters if p.is_cuda})):
        for part in (slice(0, half), slice(half, 2 * half)):
            rows = _cut(inputs, part)
            output = torch.func.functional_call(model, buffers, (rows,)) if buffers else model(rows)
            loss = loss_fn(output, _cut(targets, part))
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                raise ValueError("loss_fn must return one number, the mean over the batch (reduction='mean')")
            grads.append(torch.autograd.grad(loss, parameters, allow_unused=True))
            outputs.append(tree_map_only(Tensor, Tensor.detach, output))
            losses.append(loss.detach())
            del output, loss  # the graph, before the second one is built
    with torch.no_grad():
        if checks_loss:
            _check_mean(loss_fn, outputs, _cut(targets, slice(0, 2 * half)), losses, half)
        pairs, results = iter(zip(*grads, strict=True)), []
        for group in groups:
            mine = [pair for pair in (next(pairs) for _ in group) if pair[0] is not None and pair[1] is not None]
            total = gram(mine)
            if total is None:  # the loss does not depend on this group
                total = torch.zeros(2, 2, dtype=torch.float64)
            distance = total[0, 0] + total[1, 1] - 2.0 * total[0, 1]  # |g1 - g2|^2, of mean 2 tr(S1) / half
            results.append(torch.stack([0.5 * half * distance, total[0, 1]]))
    return results, size


def _cut(tree: Any, part: slice) -> Any:
    return tree_map_only(Tensor, lambda leaf: leaf[part] if leaf.dim() else leaf, tree)


def _check_mean(loss_fn: LossFunction, outputs: list[Any], targets: Any, losses: list[Tensor], half: int) -> None:
    """Put the halves' outputs together: a mean over the batch gives the mean of their losses, a sum the sum."""
    leaves = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]
    if any(leaf.dim() == 0 or len(leaf) != half for leaf in leaves):
        return  # the model returns something else than one output a sample: nothing to put together
    whole = loss_fn(
        tree_map(lambda *both: torch.cat(both) if isinstance(both[0], Tensor) else both[0], *outputs), targets
    )
    value, total = float(whole), float(losses[0] + losses[1])
    if abs(value - total) < abs(value - 0.5 * total):
        raise ValueError(
            "loss_fn sums over the batch: it must be the mean (reduction='mean'), as the noise of a sum grows with the "
            "batch and the temperature of the formula is not that of the step"
        )


def _innermost(model: nn.Module) -> nn.Module:
    """The module itself: another batch size would recompile it, and no rank must wait for the others."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model
