r"""The noise of a step's gradient, from gradients of small and large batches of the same step.

If a gradient is the mean of ``M`` gradients ``g_i`` of equal small batches, then (McCandlish et al. 2018, appendix A)

    small = mean_i |g_i|^2 = |g|^2 + M tr(S1)/C,      whole = |mean_i g_i|^2 = |g|^2 + tr(S1)/C      on average, so
    tr(S1)/C = (small - whole) / (M - 1),             |g|^2 = (M whole - small) / (M - 1)            are unbiased.

The small batches are the micro-batches of gradient accumulation and the ranks of data parallelism, whose gradients
come by anyway, or else the two halves of a mini-batch, at the cost of their two passes.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only
from torch.utils.hooks import unserializable_hook

from heatbath.thermometry.per_sample import LossFn, call_model, call_with, innermost, is_sum, leaves, map_leaves
from heatbath.thermometry.step_statistics import gram, widest


class GradientParts:
    """Watches the backward passes of one step, on this rank, through hooks on the parameters.

    A pass counts while its gradient is there: what is zeroed or set to None before the step is no part of it.

    Args:
        groups: the parameters, by group.
    """

    def __init__(self, groups: list[list[Tensor]]) -> None:
        self._is_paused, self._only_counts = False, False
        self._incoming: dict[int, tuple[Tensor, Tensor | None]] = {}  # |h|^2, and |.grad|^2 before h is added to it
        self._seen: dict[int, Tensor] = {}  # the sum of |h_i|^2 and the number of the h_i, for each parameter
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

    def gather(self, groups: list[list[Tensor]], ranks: dist.ProcessGroup | None) -> tuple[list[float], float]:
        """Return ``sum_i |h_i|^2`` by group and the number of parts ``h_i``, over all passes and ranks.

        A backward pass begins at the output. A parameter that has been seen more often than the first one is seen
        several times in a pass (in reentrant checkpoints), not with a whole ``h_i`` each: the sums are then ``nan``.
        """
        squares, passes = [0.0 for _ in groups], []
        owners = {id(p): index for index, group in enumerate(groups) for p in group if p.grad is not None}
        device = next((p.device for group in groups for p in group), torch.device("cpu"))
        if seen := {key: row.to(device) for key, row in self._seen.items() if key in owners}:
            for key, (square, count) in zip(seen, torch.stack([*seen.values()]).tolist(), strict=True):
                squares[owners[key]] += square
                passes += [count] if square else []  # a gradient of zero does not tell whether it was zeroed
        if passes and passes[0] < max(passes):
            squares = [math.nan for _ in groups]
        numbers = [*squares, max(passes, default=0.0)]
        if ranks is not None and dist.get_world_size(ranks) > 1:
            table = torch.tensor(numbers, dtype=widest(device), device=device)
            dist.all_reduce(table, group=ranks)
            numbers = table.tolist()
        return numbers[:-1], numbers[-1]

    def _see(self, reference: weakref.ref[Tensor], grad: Tensor) -> None:
        parameter = reference()
        if parameter is None or self._is_paused:
            return
        with torch.no_grad():
            # Whether earlier passes are still there: a first one need not ask.
            earlier = parameter.grad if id(parameter) in self._seen else None
            left = None if earlier is None else _square(earlier)
            square = grad.new_ones((), dtype=torch.float32) if self._only_counts else _square(grad)
            self._incoming[id(parameter)] = square, left

    def _add(self, parameter: Tensor) -> None:
        """Count what has become part of ``parameter.grad``; `torch.autograd.grad` comes by as well, and is not."""
        if (arrived := self._incoming.pop(id(parameter), None)) is None:
            return
        square, left = arrived
        row = torch.stack([square, torch.ones_like(square)])
        if left is not None:
            before = self._seen[id(parameter)]
            row += torch.where((left > 0.0) | (before[0] == 0.0), before, 0.0)
        self._seen[id(parameter)] = row


def compare_parts(squares: float, whole: float, count: float, scale: float) -> tuple[float, float]:
    """Return ``tr(S1)/C`` and ``|g|^2`` from ``sum_i |h_i|^2``, where the step has ``sum_i h_i / scale``.

    Whether the losses of the micro-batches were divided by their number does not matter: if not, both numbers are
    those of the sum of losses that is then minimized.
    """
    small = count * squares / scale**2
    return (small - whole) / (count - 1), (count * whole - small) / (count - 1)


def batch_length(inputs: Any) -> int:
    """The number of samples in a tensor or in containers of them, the batch first."""
    return next((len(leaf) for leaf in leaves(inputs) if isinstance(leaf, Tensor) and leaf.dim()), 0)


def compare_halves(
    model: nn.Module,
    groups: list[list[Tensor]],
    loss_fn: LossFn,
    inputs: Any,
    targets: Any,
    checks_loss: bool = True,
) -> list[Tensor]:
    """Return ``(tr(S1), |g|^2)`` of each group from the halves of a batch.

    Gradients, buffers and random state are left as they are; the sample that is left over of an odd batch is not used.

    Raises:
        ValueError: a batch of one, or a loss that is not a mean over the batch.
    """
    model = innermost(model)
    size = batch_length(inputs)
    half = size // 2
    if half == 0:
        raise ValueError(f"a batch of {size} has no two halves to compare: the noise needs at least 2 samples a step")
    parameters = [p for group in groups for p in group]
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    outputs, grads = [], []

    def differentiate(part: slice) -> tuple[Any, tuple[Tensor | None, ...]]:
        output = call_model(model, _cut(inputs, part))
        loss = loss_fn(output, _cut(targets, part))
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise ValueError("loss_fn must return one number, the mean over the batch (reduction='mean')")
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        return tree_map_only(Tensor, Tensor.detach, output), found

    with torch.enable_grad(), torch.random.fork_rng(sorted({p.get_device() for p in parameters if p.is_cuda})):
        for part in (slice(0, half), slice(half, 2 * half)):
            run = partial(differentiate, part)
            output, found = call_with(model, buffers, run) if buffers else run()
            outputs.append(output)
            grads.append(found)
    with torch.no_grad():
        if checks_loss:
            _check_mean(loss_fn, outputs[0], _cut(targets, slice(0, half)), half)
        pairs, results = iter(zip(*grads, strict=True)), []
        for group in groups:
            mine = [pair for pair in (next(pairs) for _ in group) if pair[0] is not None and pair[1] is not None]
            total = gram(mine)
            if total is None:  # the loss does not depend on this group
                total = torch.zeros(2, 2, dtype=torch.float64)
            distance = total[0, 0] + total[1, 1] - 2.0 * total[0, 1]  # |g1 - g2|^2, of mean 2 tr(S1) / half
            results.append(torch.stack([0.5 * half * distance, total[0, 1]]))
    return results


def _square(gradient: Tensor) -> Tensor:
    return torch.as_tensor(gram([[gradient]]))[0, 0]


def _cut(data: Any, part: slice) -> Any:
    return map_leaves(data, lambda leaf: leaf[part] if isinstance(leaf, Tensor) and leaf.dim() else leaf)


def _check_mean(loss_fn: LossFn, output: Any, targets: Any, half: int) -> None:
    """Give the same samples again and again: a mean stays as it is, a sum grows."""
    found = [leaf for leaf in tree_leaves(output) if leaf is not None]
    if not all(isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == half for leaf in found):
        return  # the model returns something else than one output a sample: nothing to put together

    def repeat(leaf: Any, times: int) -> Any:
        return torch.cat([leaf] * times) if isinstance(leaf, Tensor) and leaf.dim() else leaf

    once, twice, thrice = (
        loss_fn(tree_map(partial(repeat, times=times), output), map_leaves(targets, partial(repeat, times=times)))
        for times in (1, 2, 3)
    )
    if is_sum(float(once), float(twice), float(thrice), once.dtype):
        raise ValueError(
            "loss_fn sums over the batch: it must be the mean (reduction='mean'), as the noise of a sum grows with the "
            "batch and the temperature of the formula is not that of the step"
        )
