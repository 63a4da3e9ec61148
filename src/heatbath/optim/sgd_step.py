r"""One step of SGD with a given multiplier, as pure functions on lists of tensors.

`random_sgd` takes the multiplier as a number and hands torch's SGD kernels other scalars, so that ``alpha`` costs no
pass over memory. PyTorch's kernel computes ``b <- m b + (1 - d) g``, then ``x <- x - r b``, or ``x <- x - r (g + m b)``
with Nesterov. It does our step when driven with

* coupling "update", or no momentum: ``r = lr alpha``.
* coupling "gradient": ``1 - d = alpha (1 - tau)``.
* coupling "gradient" with Nesterov, where ``x <- x - lr (alpha g + mu v)`` needs ``alpha`` in front of ``g`` in both
  places but the kernel has one ``m`` for two uses: keep the buffer in a moving unit, ``b = v / s``. Matching all four
  coefficients leaves one solution: ``s' = sqrt(alpha s)``, ``m = mu s / s'``, ``1 - d = alpha / s'``, ``r = lr alpha``.
  The unit is a running geometric mean of the draws. It fails as ``alpha / s -> 0``, so that steps which would take
  it far (about 1 % of them for a uniform law) go through two kernel calls and put ``s`` back to 1. So do all steps of
  a group with parameters in float16, which has no range to spare, and steps that a parameter with a velocity sits out:
  its unit could not follow.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import sgd as torch_sgd

sgd: Any = torch_sgd.sgd  # it takes tensors as rates too, its annotations do not say so
SETTINGS: Final = (  # of a group of `heatbath.RandomSGD`, as keywords of the functions here
    *("coupling", "lr", "momentum", "dampening", "nesterov", "weight_decay", "maximize", "foreach", "fused"),
)
_LOW, _HIGH = 2.0**-6, 2.0**6  # how far alpha may lie from the buffer's unit, and the square of the next from 1


def random_sgd(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Any],
    has_sparse_grad: bool = False,
    foreach: bool | None = None,
    fused: bool | None = None,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    *,
    multiplier: float,
    unit: float | None,
    coupling: str,
    lr: Any,
    momentum: float,
    dampening: float,
    nesterov: bool,
    weight_decay: Any,
    maximize: bool,
    moves_unit: bool = True,
) -> float:
    """Take one step in place with torch's kernels, and return the unit of the buffers after it.

    Args are torch's, the settings of `heatbath.RandomSGD`, and:
        buffers: all None before the first step, filled in here; empty without momentum.
        multiplier: ``alpha >= 0``.
        unit: the velocities over the buffers; None if there are no buffers yet. It is 1 everywhere but with Nesterov
            in coupling "gradient".
        moves_unit: whether the unit may move; if not, it must be 1.
    """
    if type(lr) is not float and isinstance(lr, Tensor) and lr.ndim:  # the kernels want it without dimensions
        lr = lr.reshape(())
    alpha, after, enters_velocity = multiplier, 1.0, momentum != 0 and coupling == "gradient"
    if unit is None or not enters_velocity:
        lr = lr * alpha
        if unit is None and momentum != 0 and found_inf is not None:
            dampening = start_at_rest(buffers, grads)
    elif not nesterov:
        dampening = 1.0 - alpha * (1.0 - dampening)
    elif (moves_unit or alpha == unit) and _LOW < alpha * unit < _HIGH and _LOW * unit < alpha < _HIGH * unit:
        after = math.sqrt(alpha * unit)
        lr, momentum, dampening = lr * alpha, momentum * unit / after, 1.0 - alpha / after
    else:
        grads = _with_decay(params, grads, weight_decay, maximize, grad_scale)
        kernels = {"has_sparse_grad": has_sparse_grad, "foreach": foreach, "fused": fused}
        _nesterov_in_two_calls(params, grads, buffers, unit, alpha, lr, momentum, kernels)
        return 1.0
    sgd(
        params,
        grads,
        buffers,
        has_sparse_grad,
        foreach,
        fused,
        grad_scale,
        found_inf,
        weight_decay=weight_decay,
        momentum=momentum,
        lr=lr,
        dampening=dampening,
        nesterov=nesterov,
        maximize=maximize,
    )
    if unit is None and enters_velocity:
        # Torch's first step sets b = g and moves by r g, or r (g + mu g): the move is ours, b lacks its alpha.
        for buffer in buffers:
            buffer.mul_(alpha)
    return after


def start_at_rest(buffers: list[Any], grads: list[Tensor]) -> float:
    """Make velocities of zero, and return the dampening with which a step from them is a first step.

    Torch's own first step leaves the buffers unwritten, with whatever was in memory, if found_inf makes it skip.
    """
    buffers[:] = [torch.zeros_like(grad) for grad in grads]
    return 0.0


def _with_decay(
    params: list[Tensor], grads: list[Tensor], weight_decay: Any, maximize: bool, grad_scale: Tensor | None
) -> list[Tensor]:
    """The gradients of what is minimized, weight decay included."""
    if grad_scale is not None:  # in place, as the fused kernel leaves them
        for grad in grads:
            grad.div_(grad_scale)
    if maximize:
        grads = [-grad for grad in grads]
    if weight_decay != 0:
        # Autograd may want the parameters as they were before the step, if it differentiates by the decay.
        before = [p.clone() for p in params] if isinstance(weight_decay, Tensor) else params
        grads = [grad + weight_decay * param for grad, param in zip(grads, before, strict=True)]
    return grads


def _nesterov_in_two_calls(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Any],
    unit: float,
    multiplier: float,
    lr: Any,
    momentum: float,
    kernels: dict[str, Any],
) -> None:
    """Take a Nesterov step of coupling "gradient" for any ``alpha >= 0``; the buffers become the velocities."""
    plain = {"weight_decay": 0.0, "nesterov": False, "maximize": False, **kernels}
    if multiplier != 0:
        sgd(params, grads, [], lr=lr * multiplier, momentum=0.0, dampening=0.0, **plain)
    rest = {"momentum": momentum * unit, "dampening": 1.0 - multiplier}
    sgd(params, grads, buffers, lr=lr * momentum, **rest, **plain)
