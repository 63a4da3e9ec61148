"""The noise of a gradient from the two halves of a mini-batch, at the cost of their two passes.

With gradients ``g1`` and ``g2`` of halves of ``h`` samples, ``h |g1 - g2|^2 / 2`` and ``g1.g2`` are unbiased for
``tr(S1)`` and ``|g|^2``.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from heatbath.thermometry.containers import leaves, map_leaves
from heatbath.thermometry.logs import one_line
from heatbath.thermometry.micro_batches import squares_of
from heatbath.thermometry.per_sample import call_with, innermost
from heatbath.thermometry.step_statistics import gram

LossOfBatch = Callable[[Any], Tensor]


class NoHalvesError(ValueError):
    """A batch has no two halves, or none that the model takes; the next one may."""


class Halves(NamedTuple):
    """What the halves of a batch gave."""

    rows: list[Tensor]  # tr(S1) and |g|^2 of each group
    spreads: dict[int, Tensor]  # the part of tr(S1) in each component of a parameter, by its id, if asked for
    loss: Tensor  # the mean


def batch_length(batch: Any) -> int:
    """Return the number of samples in a tensor or in containers of them: the length that most tensors have."""
    lengths = Counter(len(leaf) for leaf in leaves(batch) if isinstance(leaf, Tensor) and leaf.dim())
    return lengths.most_common(1)[0][0] if lengths else 0


def compare_halves(
    model: nn.Module,
    groups: list[list[Tensor]],
    loss_of_batch: LossOfBatch,
    batch: Any,
    keeps_spreads: bool = False,
    checks_loss: bool = True,
) -> Halves:
    """Return the noise of a batch's gradient; the sample that is left over of an odd one is not used.

    Gradients, buffers and random state are left as they are. A batch of one, or a loss that is no mean, raises.
    """
    model, size = innermost(model), batch_length(batch)
    half = size // 2
    if size == 0:
        kind = type(batch).__name__
        raise ValueError(f"the batch, a {kind}, holds no tensor of samples that could be found: nothing can be halved")
    if half == 0:
        raise NoHalvesError(
            f"a batch of {size} has no two halves to compare: the noise needs at least 2 samples a step"
        )
    parameters = [p for group in groups for p in group]
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}

    def loss_of(low: int, high: int) -> Tensor:
        try:
            loss = loss_of_batch(_cut(batch, size, slice(low, high)))
        except Exception as error:
            if not checks_loss:
                raise
            with torch.no_grad():
                loss_of_batch(batch)  # which raises if model or loss is wrong
            raise NoHalvesError(f"the model does not take half of this batch: {one_line(error)}") from error
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
            raise ValueError(f"the loss must be one number, the mean over the batch, got {found}")
        if not loss.requires_grad and torch.is_grad_enabled():
            raise ValueError("the loss has no gradient: it must come from the outputs of the model, with autograd on")
        return loss.reshape(())

    def differentiate(low: int, high: int) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        loss = loss_of(low, high)
        return loss.detach(), torch.autograd.grad(loss, parameters, allow_unused=True)

    def run(function: Callable[[], Any]) -> Any:
        return call_with(model, buffers, function) if buffers else function()

    devices = sorted({p.get_device() for p in parameters if p.is_cuda})
    with torch.enable_grad(), torch.random.fork_rng(devices), _same_random_numbers():
        (one, first), (two, second) = (run(partial(differentiate, low, low + half)) for low in (0, half))
        if checks_loss:
            with torch.no_grad():
                _refuse_sum(float(run(partial(loss_of, 0, 2 * half))), float(one), float(two))
    with torch.no_grad():
        pairs = zip(parameters, first, second, strict=True)
        found = {id(p): (g1, g2) for p, g1, g2 in pairs if g1 is not None and g2 is not None}
        if not found:
            raise ValueError("the loss depends on no parameter of the optimizer: is it that of another model?")
        rows = [_compare([found[id(p)] for p in group if id(p) in found], half) for group in groups]
        spreads = (
            {key: squares_of(g1 - g2).mul_(0.5 * half) for key, (g1, g2) in found.items()} if keeps_spreads else {}
        )
    return Halves(rows, spreads, 0.5 * (one + two))


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Put the random states of Python and NumPy back, which the model or its loss may use."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


def _compare(pairs: list[tuple[Tensor, Tensor]], half: int) -> Tensor:
    total = gram(pairs)
    if total is None:  # the loss does not depend on this group
        return torch.zeros(2, dtype=torch.float64)
    distance = total[0, 0] + total[1, 1] - 2.0 * total[0, 1]  # |g1 - g2|^2, of mean 2 tr(S1) / half
    return torch.stack([0.5 * half * distance, total[0, 1]])


def _cut(batch: Any, size: int, part: slice) -> Any:
    return map_leaves(batch, lambda x: x[part] if isinstance(x, Tensor) and x.dim() and len(x) == size else x)


def _refuse_sum(whole: float, one: float, two: float) -> None:
    """Raise if the loss of two halves together is the sum of theirs; a mean lies between them, but for dropout."""
    sign = -1.0 if one < 0.0 else 1.0  # a log density, for one, may make all of them negative
    low, high = sorted((sign * one, sign * two))
    if low > 0.1 * high > 0.0 and sign * whole > high + 0.5 * low:
        raise ValueError(
            "the loss sums over the batch, or divides by a number that does not shrink with it (num_items_in_batch): "
            f"two halves have {one:.6g} and {two:.6g}, together {whole:.6g}; it must be the mean (reduction='mean'), "
            "or the noise is not that of the step"
        )
