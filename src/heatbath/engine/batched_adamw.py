"""AdamW for many networks at once, each with its own knobs; `heatbath.engine.batched_sgd` has SGD."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from heatbath.engine.optimizers import ADAMW_EPS
from heatbath.engine.split_bf16 import join, split


def adamw_coefficients(
    multiplier: Any, lr: Any, number: Any, *, beta: float, beta2: float, weight_decay: float, coupling: str
) -> tuple[Any, Any, Any, Any]:
    r"""Return ``a, b, c, d`` of `batched_adamw` for one step or an array of them.

    Args:
        multiplier: the random multiplier of the step.
        lr: its rate, without that.
        number: how many steps came before.
        beta: the first beta.
        beta2: the second.
        weight_decay: likewise of AdamW.
        coupling: what the multiplier acts on.
    """
    one = np.ones_like(multiplier)
    moved = lr * (multiplier if coupling == "update" else one)
    into_moments = multiplier if coupling == "gradient" else one
    taken = number + 1.0
    return into_moments, moved * weight_decay, moved / (1.0 - beta**taken), 1.0 / np.sqrt(1.0 - beta2**taken)


def batched_adamw(
    params: list[Tensor],
    grads: Sequence[Tensor],
    moments: list[Tensor],
    squares: list[Tensor],
    coefficients: Sequence[Tensor],
    beta: Tensor,
    share: Tensor,
    gains: Sequence[float],
    rests: Sequence[Tensor] = (),
) -> None:
    r"""Take one step in place on parameters that hold one network in each row.

    With ``h = a g``: ``m <- beta m + (1 - beta) h``, ``s <- beta2 s + (1 - beta2) h^2`` and
    ``x <- x - b x - gain c m / (d \sqrt{s} + eps)``.

    Args:
        params: of shape (networks, ...).
        grads: their gradients, in any floating-point format.
        moments: ``m``, starting from zero.
        squares: ``s``, likewise.
        coefficients: those of `adamw_coefficients`, each of shape (networks,).
        beta: of the same shape, as is the next.
        share: ``1 - beta2``, which single precision would round if it were computed from ``beta2``.
        gains: how many equal weights each number of a parameter stands for the sum of.
        rests: see `heatbath.engine.batched_sgd.linear_sgd`.
    """
    lower: Sequence[Tensor | None] = rests or [None] * len(params)
    for param, rest, raw, moment, square, gain in zip(params, lower, grads, moments, squares, gains, strict=True):
        whole = param if rest is None else join(param, rest)
        shape = (-1, *[1] * (param.ndim - 1))
        a, b, c, d, first, new_part = (number.view(shape) for number in (*coefficients, beta, share))
        grad = a * raw.to(whole.dtype)
        new = first * moment + (1.0 - first) * grad
        spread = (1.0 - new_part) * square + new_part * grad * grad
        moment.copy_(new)
        square.copy_(spread)
        after = whole - b * whole - (gain * c) * new / (d * spread.sqrt() + ADAMW_EPS)
        if rest is None:
            param.copy_(after)
        else:
            high, low = split(after)
            param.copy_(high)
            rest.copy_(low)
