r"""One step of SGD with a given multiplier, as pure functions on lists of tensors.

`random_sgd` takes the multiplier as a number and hands torch's SGD kernels other scalars, so that ``alpha`` costs no
pass over memory. PyTorch's kernel computes ``b <- m b + (1 - d) g``, then ``x <- x - r b``, or ``x <- x - r (g + m b)``
with Nesterov. It does our step when driven with

* coupling "update", or no momentum: ``r = lr alpha``.
* coupling "gradient": ``1 - d = alpha (1 - tau)``.
* coupling "gradient" with Nesterov, where ``x <- x - lr (alpha g + mu v)`` needs ``alpha`` in front of ``g`` in both
  places but the kernel has one ``m`` for two uses: keep the buffer in a moving unit, ``b = v / s``. Matching all four
  coefficients leaves one solution: ``s' = sqrt(alpha s)``, ``m = mu s / s'``, ``1 - d = alpha / s'``, ``r = lr alpha``.
  The unit is a running geometric mean of the draws. It fails as ``alpha / s -> 0``, so that steps with
  ``alpha`` far from ``s`` (under 1 % of them for a uniform law) go through two kernel calls and put ``s`` back to 1.

`capturable_sgd` takes it as a tensor that a CUDA graph or a compiled step may change under the hood.
"""

from __future__ import annotations

import math
from itertools import repeat
from typing import Any

import torch
from torch import Tensor
from torch.optim import sgd as torch_sgd

sgd: Any = torch_sgd.sgd  # it takes tensors as rates too, its annotations do not say so
COUPLINGS = ("gradient", "update")
_REACH = 64.0  # how far alpha may lie from the buffer's unit, as a factor


def random_sgd(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor | None],
    scales: list[float] | None,
    *,
    rate: float,
    coupling: str,
    lr: Any,
    momentum: float,
    dampening: float,
    nesterov: bool,
    **kernel: Any,
) -> None:
    """Take one step in place, with torch's kernels.

    Args:
        params: what is stepped.
        grads: their gradients.
        buffers: their momentum buffers; None where there is none yet, filled in here.
        scales: the velocity over the buffer, updated in place; None where it is 1 by construction, which is
            everywhere but with Nesterov in coupling "gradient".
        rate: the multiplier ``alpha >= 0``.
        coupling: "gradient" or "update".
        lr: mean learning rate, a number or a tensor.
        momentum: ``mu``.
        dampening: ``tau``.
        nesterov: look-ahead.
        kernel: handed on to `torch.optim.sgd.sgd`.
    """
    if coupling == "update" or momentum == 0:
        kernel.update(lr=lr * rate, momentum=momentum, dampening=dampening, nesterov=nesterov)
        sgd(params, grads, buffers, **kernel)
        return
    units = [None if b is None else s for b, s in zip(buffers, scales or repeat(1.0), strict=False)]
    for unit in dict.fromkeys(units):
        members = [i for i, other in enumerate(units) if other == unit]
        some: list[list[Any]] = [[tensors[i] for i in members] for tensors in (params, grads, buffers)]
        after = 1.0
        if unit is None:
            # Torch's first step sets b = g and moves by r g, or r (g + mu g): the move is ours, b lacks its alpha.
            sgd(*some, lr=lr * rate, momentum=momentum, dampening=dampening, nesterov=nesterov, **kernel)
            for buffer in some[2]:
                buffer.mul_(rate)
        elif not nesterov:
            damp = 1.0 - rate * (1.0 - dampening)
            sgd(*some, lr=lr, momentum=momentum, dampening=damp, nesterov=False, **kernel)
        elif unit <= _REACH * rate <= _REACH**2 * unit:
            after = math.sqrt(rate * unit)
            drag, damp = momentum * unit / after, 1.0 - rate / after
            sgd(*some, lr=lr * rate, momentum=drag, dampening=damp, nesterov=True, **kernel)
        else:
            _step_in_two_calls(*some, rate=rate, lr=lr, momentum=momentum, unit=unit, **kernel)
        for i, buffer in zip(members, some[2], strict=True):
            buffers[i] = buffer
            if scales is not None:
                scales[i] = after


def capturable_sgd(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor | None],
    *,
    rate: Tensor,
    coupling: str,
    lr: Any,
    momentum: float,
    dampening: float,
    nesterov: bool,
    weight_decay: float,
    maximize: bool,
    fused: bool | None,
    has_sparse_grad: bool = False,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    foreach: bool | None = None,  # noqa: ARG001 (always multi-tensor)
) -> None:
    """Take one step in place with ``alpha`` in a 0-dimensional tensor; other arguments as in `random_sgd`.

    In a compiled step the multiplication is merged into its neighbours; in an eager one, as in a captured graph, it
    is a pass over the gradients of its own.
    """
    if not params:
        return
    if has_sparse_grad:
        raise RuntimeError("sparse gradients need an uncompiled step with capturable=False")
    knobs: dict[str, Any] = {"momentum": momentum, "dampening": dampening, "nesterov": nesterov}
    if fused:
        knobs.update(fused=True, foreach=False, found_inf=found_inf)
        if coupling == "update":
            product = lr * rate if params[0].is_cpu else (lr * rate).float()  # off the CPU the kernel reads a float32
            knobs.update(lr=product, weight_decay=weight_decay, maximize=maximize, grad_scale=grad_scale)
            sgd(params, grads, buffers, **knobs)
            return
    if grad_scale is not None:
        torch._foreach_div_(grads, grad_scale)
    if maximize:
        grads = list(torch._foreach_neg(grads))
    if weight_decay != 0:
        grads = list(torch._foreach_add(grads, params, alpha=weight_decay))
    if coupling == "gradient":
        grads = list(torch._foreach_mul(grads, rate))
    else:
        lr = lr * rate
    if fused:
        sgd(params, grads, buffers, lr=lr, weight_decay=0.0, maximize=False, **knobs)
        return
    if momentum != 0:
        velocities: list[Tensor] = []
        for i, (grad, buffer) in enumerate(zip(grads, buffers, strict=True)):
            if buffer is None:
                buffers[i] = velocity = grad.detach().clone()
            else:
                velocity = buffer.mul_(momentum).add_(grad, alpha=1 - dampening)
            velocities.append(velocity)
        grads = list(torch._foreach_add(grads, velocities, alpha=momentum)) if nesterov else velocities
    if isinstance(lr, Tensor):
        torch._foreach_sub_(params, torch._foreach_mul(grads, lr))
    else:
        torch._foreach_add_(params, grads, alpha=-lr)


def _step_in_two_calls(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor | None],
    *,
    rate: float,
    lr: Any,
    momentum: float,
    unit: float,
    weight_decay: float,
    maximize: bool,
    grad_scale: Tensor | None,
    **kernel: Any,
) -> None:
    """Take a Nesterov step of coupling "gradient" for any ``alpha >= 0``; the buffers become the velocities."""
    if grad_scale is not None:  # in place, as the fused kernel leaves them
        for grad in grads:
            grad.div_(grad_scale)
    if maximize:
        grads = [-grad for grad in grads]
    if weight_decay != 0:
        # Autograd may want the parameters as they were before the step, if it differentiates by the decay.
        before = [p.clone() for p in params] if isinstance(weight_decay, Tensor) else params
        grads = [grad + weight_decay * param for grad, param in zip(grads, before, strict=True)]
    kernel.update(weight_decay=0.0, maximize=False, nesterov=False)
    sgd(params, grads, [None] * len(params), lr=lr * rate, momentum=0.0, dampening=0.0, **kernel)
    sgd(params, grads, buffers, lr=lr * momentum, momentum=momentum * unit, dampening=1.0 - rate, **kernel)
