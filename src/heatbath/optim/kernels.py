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

`capturable_sgd` takes it as a tensor that a CUDA graph or a compiled step may change under the hood.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import sgd as torch_sgd

sgd: Any = torch_sgd.sgd  # it takes tensors as rates too, its annotations do not say so
_LOW, _HIGH = 2.0**-6, 2.0**6  # how far alpha may lie from the buffer's unit, and the square of the next from 1


def random_sgd(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Any],
    unit: float | None,
    rate: float,
    settings: Mapping[str, Any],
    has_sparse_grad: bool = False,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    moves_unit: bool = True,
) -> float:
    """Take one step in place, with torch's kernels.

    Args:
        params: what is stepped.
        grads: their gradients.
        buffers: their momentum buffers; all None before the first step, filled in here; empty without momentum.
        unit: the velocities over the buffers; None if there are no buffers yet. It is 1 everywhere but with Nesterov
            in coupling "gradient".
        rate: the multiplier ``alpha >= 0``.
        settings: ``coupling``, ``lr``, ``momentum``, ``dampening``, ``nesterov``, ``weight_decay``, ``maximize``,
            ``foreach`` and ``fused``, as in a group of `heatbath.RandomSGD`.
        has_sparse_grad: whether any gradient is sparse.
        grad_scale: what the fused kernel divides the gradients by first.
        found_inf: where it is 1, the fused kernel does nothing.
        moves_unit: whether the unit may move; if not, it must be 1.

    Returns:
        The unit of the buffers after the step.
    """
    lr, momentum = settings["lr"], settings["momentum"]
    if isinstance(lr, Tensor) and lr.ndim:  # one element, which torch's kernels take without dimensions since 2.8 only
        lr = lr.reshape(())
        settings = {**settings, "lr": lr}
    damp, nesterov = settings["dampening"], settings["nesterov"]
    after, enters_velocity = 1.0, momentum != 0 and settings["coupling"] == "gradient"
    if unit is None or not enters_velocity:
        lr = lr * rate
        if unit is None and momentum != 0 and found_inf is not None:
            damp = _start_at_rest(buffers, grads)
    elif not nesterov:
        damp = 1.0 - rate * (1.0 - damp)
    elif (moves_unit or rate == unit) and _LOW < rate * unit < _HIGH and _LOW * unit < rate < _HIGH * unit:
        after = math.sqrt(rate * unit)
        lr, momentum, damp = lr * rate, momentum * unit / after, 1.0 - rate / after
    else:
        _step_in_two_calls(params, grads, buffers, unit, rate, settings, has_sparse_grad, grad_scale)
        return 1.0
    # What _call does, written out: on a small network one more Python frame is 1 or 2 % of the step.
    sgd(
        params,
        grads,
        buffers,
        has_sparse_grad,
        settings["foreach"],
        settings["fused"],
        grad_scale,
        found_inf,
        weight_decay=settings["weight_decay"],
        momentum=momentum,
        lr=lr,
        dampening=damp,
        nesterov=nesterov,
        maximize=settings["maximize"],
    )
    if unit is None and enters_velocity:
        # Torch's first step sets b = g and moves by r g, or r (g + mu g): the move is ours, b lacks its alpha.
        for buffer in buffers:
            buffer.mul_(rate)
    return after


def capturable_sgd(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor | None],
    rate: Tensor,
    settings: Mapping[str, Any],
    has_sparse_grad: bool = False,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """Take one step in place with ``alpha`` in a 0-dimensional tensor; other arguments as in `random_sgd`.

    In a compiled step the multiplication is merged into its neighbours; in an eager one, as in a captured graph, it
    is a pass over the gradients of its own. The fused kernel skips the step where ``found_inf`` is 1.
    """
    if not params:
        return
    if has_sparse_grad:
        raise RuntimeError("sparse gradients need an uncompiled step with capturable=False")
    if found_inf is not None and not settings["fused"]:
        raise RuntimeError("only fused steps can skip by found_inf: make every group fused, or none")
    kinds = [(p.device, bool(buffers) and buffers[i] is None) for i, p in enumerate(params)]
    if len(set(kinds)) > 1:
        for kind in dict.fromkeys(kinds):
            members = [i for i, other in enumerate(kinds) if other == kind]
            some_params, some_grads = [params[i] for i in members], [grads[i] for i in members]
            some_buffers = [buffers[i] for i in members] if buffers else []
            there = rate.to(kind[0])
            capturable_sgd(some_params, some_grads, some_buffers, there, settings, False, grad_scale, found_inf)
            for i, buffer in zip(members, some_buffers, strict=False):
                buffers[i] = buffer
        return
    lr: Any = settings["lr"].reshape(()) if isinstance(settings["lr"], Tensor) else settings["lr"]
    momentum, dampening, nesterov = settings["momentum"], settings["dampening"], settings["nesterov"]
    if settings["fused"] and momentum != 0 and buffers[0] is None:
        dampening = _start_at_rest(buffers, grads)
    if settings["coupling"] == "update":
        lr = lr * rate
        if settings["fused"]:
            lr = lr if params[0].is_cpu else lr.float()  # off the CPU the kernel reads a float32
            _call(params, grads, buffers, settings, lr, momentum, dampening, nesterov, False, grad_scale, found_inf)
            return
    if grad_scale is not None:
        torch._foreach_div_(grads, grad_scale.reshape(()))
    if settings["maximize"]:
        grads = list(torch._foreach_neg(grads))
    if settings["weight_decay"] != 0:
        grads = list(torch._foreach_add(grads, params, alpha=settings["weight_decay"]))
    if settings["coupling"] == "gradient":
        # A 0-dimensional one would take on the float64 of the rate.
        grads = [new.to(old.dtype) for new, old in zip(torch._foreach_mul(grads, rate), grads, strict=True)]
    if settings["fused"]:
        plain = {**settings, "weight_decay": 0.0, "maximize": False}
        _call(params, grads, buffers, plain, lr, momentum, dampening, nesterov, found_inf=found_inf)
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


def _start_at_rest(buffers: list[Any], grads: list[Tensor]) -> float:
    """Make velocities of zero, and return the dampening with which a step from them is a first step.

    Torch's own first step leaves the buffers unwritten, with whatever was in memory, if found_inf makes it skip.
    """
    buffers[:] = [torch.zeros_like(grad) for grad in grads]
    return 0.0


def _step_in_two_calls(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Any],
    unit: float,
    rate: float,
    settings: Mapping[str, Any],
    has_sparse_grad: bool,
    grad_scale: Tensor | None,
) -> None:
    """Take a Nesterov step of coupling "gradient" for any ``alpha >= 0``; the buffers become the velocities."""
    lr, momentum, weight_decay = settings["lr"], settings["momentum"], settings["weight_decay"]
    if grad_scale is not None:  # in place, as the fused kernel leaves them
        for grad in grads:
            grad.div_(grad_scale)
    if settings["maximize"]:
        grads = [-grad for grad in grads]
    if weight_decay != 0:
        # Autograd may want the parameters as they were before the step, if it differentiates by the decay.
        before = [p.clone() for p in params] if isinstance(weight_decay, Tensor) else params
        grads = [grad + weight_decay * param for grad, param in zip(grads, before, strict=True)]
    plain = {**settings, "weight_decay": 0.0, "maximize": False}
    if rate != 0:
        _call(params, grads, [], plain, lr * rate, 0.0, 0.0, False, has_sparse_grad)
    _call(params, grads, buffers, plain, lr * momentum, momentum * unit, 1.0 - rate, False, has_sparse_grad)


def _call(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Any],
    settings: Mapping[str, Any],
    lr: Any,
    momentum: float,
    dampening: float,
    nesterov: bool,
    has_sparse_grad: bool = False,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    sgd(
        params,
        grads,
        buffers,
        has_sparse_grad,
        settings["foreach"],
        settings["fused"],
        grad_scale,
        found_inf,
        weight_decay=settings["weight_decay"],
        momentum=momentum,
        lr=lr,
        dampening=dampening,
        nesterov=nesterov,
        maximize=settings["maximize"],
    )
