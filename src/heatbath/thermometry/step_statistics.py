r"""What an SGD-like optimizer has just done, as a few numbers: inner products of its vectors.

In PyTorch's sign let ``b' = mu b + G`` be the velocity after a step and ``x' = x - l D`` the step, where

    coupling "gradient":  G = alpha g,   D = b'         or  G + mu b'          for Nesterov
    coupling "update":    G = g,         D = alpha b'   or  alpha (G + mu b')

and ``g`` is the gradient with the weight decay in it. What is still there after the step is ``x'``, ``b'`` and the
gradient of the loss: all other vectors are combinations of them, so that their six inner products say everything. A
dampening ``tau`` makes the step that of a rate ``(1 - tau) l`` with the velocity ``b / (1 - tau)``. A decay beside the
velocity adds ``lambda x`` to ``b'`` in ``D``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heatbath.thermometry.per_sample import as_real
from heatbath.thermometry.step_rules import Knobs, StepRule

PAIRS = ("xx", "xg", "xb", "gg", "gb", "bb")  # x: position, b: velocity, both after the step, g: gradient of the loss


class Motion(NamedTuple):
    """What one step of a group was, in sums over its parameters."""

    squared_velocity: float
    fluctuation: float  # l [(1 - mu)/2 |D|^2 + w D.b'], alpha averaged over its law where it multiplies D
    squared_position: float  # |x'|^2
    lever: float  # w x'.b'


def describe_motion(knobs: Knobs, products: Sequence[float]) -> Motion:
    """Return the motion that the inner products of `PAIRS` describe."""
    mu, lr = knobs.momentum, knobs.lr
    xx, xg, xb, gg, gb, bb = products
    if (mu or knobs.has_velocity) and not knobs.nesterov:
        # Of x = x' + l D the decay beside the velocity adds its part: D = (b' + lambda x') / (1 - l alpha lambda).
        decay = knobs.decay_beside
        rest = 1.0 - lr * knobs.multiplier * decay
        squared_step = (bb + 2.0 * decay * xb + decay**2 * xx) / rest**2
        cross = (bb + decay * xb) / rest
    else:
        # x = x' + l D and D hold G, which holds the weight decay of x: one linear equation for G in (x', g, b').
        alpha = 1.0 if knobs.is_multiplied else knobs.multiplier
        pull = alpha if knobs.coupling == "gradient" else 1.0
        shrink = 1.0 - alpha * knobs.weight_decay * lr
        push = (
            pull * knobs.weight_decay / shrink,
            pull * knobs.sign / shrink,
            alpha * knobs.weight_decay * lr * mu / shrink,
        )
        step = (push[0], push[1], push[2] + mu)
        velocity = (0.0, 0.0, 1.0) if mu else push
        gram = ((xx, xg, xb), (xg, gg, gb), (xb, gb, bb))

        def product(left: Sequence[float], right: Sequence[float]) -> float:
            return sum(left[i] * gram[i][j] * right[j] for i in range(3) for j in range(3))

        squared_step, cross, bb = product(step, step), product(step, velocity), product(velocity, velocity)
    if knobs.coupling == "update":
        squared_step *= knobs.law.second_moment
    scale = 1.0 / (1.0 - knobs.dampening)
    fluctuation = scale * lr * (0.5 * (1.0 - mu) * squared_step + knobs.memory * cross)
    return Motion(bb, fluctuation, scale * xx, scale * knobs.memory * xb)


def inner_products(rule: StepRule, group: dict[str, Any]) -> Tensor:
    """Return the inner products `PAIRS` of the group's vectors after a step, in float64 and on the device."""
    found = gram(rule.vectors(group, p) for p in group["params"] if p.grad is not None)
    products = torch.zeros(3, 3) if found is None else found.new_zeros(3, 3)
    if found is not None:
        products[: len(found), : len(found)] = found
    rows, columns = zip(*[("xgb".index(pair[0]), "xgb".index(pair[1])) for pair in PAIRS], strict=True)
    return products[list(rows), list(columns)]


def gram(vectors: Iterable[Sequence[Tensor]]) -> Tensor | None:
    """Return the matrix of inner products of several vectors, which come in parts, in float64 where there is that.

    It goes by pieces of bounded size, large tensors cut and small ones put together, with one matrix product for each:
    that bounds the memory, and the number of kernels to launch. A complex component counts as two real ones. What is
    given are, for each part of weight space, the tensors of all vectors there.
    """
    total: Tensor | None = None
    bucket: list[list[Tensor]] = []
    count = 0

    def flush() -> None:
        nonlocal total, count
        device = bucket[0][0].device
        piece = torch.empty(len(bucket[0]), count, dtype=widest(device), device=device)
        for row, parts in zip(piece, zip(*bucket, strict=True), strict=True):
            torch.cat(parts, out=row)
        bucket.clear()
        count = 0
        if total is None:
            total = piece @ piece.T
        elif piece.device == total.device:
            total.addmm_(piece, piece.T)
        else:
            total += (piece @ piece.T).to(total.device)

    for tensors in vectors:
        flat = [as_real(tensor.to_dense() if tensor.is_sparse else tensor).reshape(-1) for tensor in tensors]
        length, device = flat[0].numel(), flat[0].device
        size = 2**13 if device.type == "cpu" else 2**20
        for start in range(0, length, size):
            part = min(size, length - start)
            if bucket and (count + part > size or bucket[0][0].device != device):
                flush()
            bucket.append(flat if part == length else [vector[start : start + part] for vector in flat])
            count += part
    if bucket:
        flush()
    return total


def squared_length(tensor: Tensor) -> Tensor:
    """Return the sum of the squares of the components, in the widest numbers."""
    dense = as_real(tensor.to_dense() if tensor.is_sparse else tensor)
    length: Tensor = torch.linalg.vector_norm(dense, dtype=widest(dense.device))
    return length.square()


def widest(device: torch.device) -> torch.dtype:
    """Return the widest real numbers that the device has."""
    return torch.float32 if device.type == "mps" else torch.float64
