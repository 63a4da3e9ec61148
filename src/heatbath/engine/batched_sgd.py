"""The step of `RandomSGD` for many networks at once, each with its own knobs.

Whatever the coupling and Nesterov, it reads ``v <- mu v + a g``, ``x <- x - b g - c v`` with the three numbers of
`linear_coefficients`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from heatbath.engine.split_bf16 import join, split


def linear_coefficients(rate: Any, lr: Any, momentum: float, nesterov: bool, coupling: str) -> tuple[Any, Any, Any]:
    """Return ``a, b, c`` of ``v <- mu v + a g``, ``x <- x - b g - c v`` for one multiplier or an array."""
    into_velocity = rate if coupling == "gradient" else rate * 0.0 + 1.0
    moved = lr * (rate if coupling == "update" else rate * 0.0 + 1.0)
    if nesterov:
        return into_velocity, moved * into_velocity, moved * momentum
    return into_velocity, moved * 0.0, moved


def linear_sgd(
    params: list[Tensor],
    grads: list[Tensor],
    velocities: list[Tensor],
    coefficients: Sequence[Tensor],
    momentum: Tensor,
    weight_decay: Tensor,
    gains: Sequence[float],
    rests: Sequence[Tensor] = (),
) -> None:
    """Take one step in place on parameters that hold one network in each row.

    Args:
        params: of shape (networks, ...).
        grads: their gradients, in any floating-point format.
        velocities: starting from zero.
        coefficients: those of `linear_coefficients`, each of shape (networks,), as are the next two.
        momentum: ``mu``.
        weight_decay: what times the parameters is added to the gradients.
        gains: a factor for the gradients of each parameter.
        rests: the lower halves, see `heatbath.engine.split_bf16`, of parameters of which ``params`` are the upper ones;
            velocities and numbers are of single precision then. Empty where parameters are whole.
    """
    lower: Sequence[Tensor | None] = rests or [None] * len(params)
    for param, rest, raw, velocity, gain in zip(params, lower, grads, velocities, gains, strict=True):
        whole = param if rest is None else join(param, rest)
        shape = (-1, *[1] * (param.ndim - 1))
        a, b, c, mu, decay = (number.view(shape) for number in (*coefficients, momentum, weight_decay))
        grad = raw.to(whole.dtype) * gain + decay * whole
        new = mu * velocity + a * grad
        way = b * grad + c * new
        velocity.copy_(new)
        if rest is None:
            param.sub_(way)
        else:
            high, low = split(whole - way)
            param.copy_(high)
            rest.copy_(low)
