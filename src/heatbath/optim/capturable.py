"""Steps that a CUDA graph replays or a compiler traces: draws and multipliers that live in tensors.

A number in such a step is a constant for ever; a tensor may change under the hood.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from heatbath.draws import uniform
from heatbath.laws import Constant
from heatbath.optim.sgd_step import sgd, start_at_rest


def draw_on_device(group: dict[str, Any], found_inf: Tensor | None) -> float | Tensor:
    """Draw by integer arithmetic on the group's device, from a counter that lives there and advances itself.

    It stands still where ``found_inf`` is 1. The tensor is filled anew each time; a constant law has the number 1.
    """
    device = group["params"][0].device
    counter, multiplier = group["step"], group["multiplier"]
    if not isinstance(counter, Tensor) or counter.device != device or not isinstance(multiplier, Tensor):
        refuse_capture(device)
        group["step"] = counter = torch.tensor(int(counter), device=device)
        group["multiplier"] = multiplier = torch.ones((), dtype=torch.float64, device=device)
    constant = type(group["law"]) is Constant
    if not constant:
        multiplier.copy_(group["law"].quantile(uniform(group["seed"], 0, counter)))
    counter.add_(1 if found_inf is None else (found_inf == 0).reshape(()).to(device))
    return 1.0 if constant else multiplier


def refuse_capture(device: torch.device) -> None:
    """Raise if a CUDA graph is being captured, by a step that has something to make first."""
    # The compiler must not see the question: it would break its graph over it.
    if device.type == "cuda" and not torch.compiler.is_compiling() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "take one step before the capture: the draws and the velocities are not there to be captured yet"
        )


def capturable_sgd(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor | None],
    *,
    multiplier: Tensor,
    found_inf: Tensor | None = None,
    has_sparse_grad: bool = False,
    **settings: Any,
) -> None:
    """Take one step in place with ``alpha`` in a 0-dimensional tensor; arguments as in `heatbath.optim.sgd_step`.

    In a compiled step the multiplication is merged into its neighbours; in an eager one, as in a captured graph, it
    is a pass over the gradients of its own. The fused kernel skips the step where ``found_inf`` is 1.
    """
    if has_sparse_grad:
        raise RuntimeError("sparse gradients need an uncompiled step with capturable=False")
    if found_inf is not None and not settings["fused"]:
        raise RuntimeError("only fused steps can skip by found_inf: make every group fused, or none")
    kinds = [(p.device, bool(buffers) and buffers[i] is None) for i, p in enumerate(params)]
    for kind in dict.fromkeys(kinds):
        members = [i for i, other in enumerate(kinds) if other == kind]
        some_buffers = [buffers[i] for i in members] if buffers else []
        some = [params[i] for i in members], [grads[i] for i in members], some_buffers
        _step_alike(*some, multiplier=multiplier.to(kind[0]), found_inf=found_inf, **settings)
        for i, buffer in zip(members, some_buffers, strict=False):
            buffers[i] = buffer


def _step_alike(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Any],
    *,
    multiplier: Tensor,
    coupling: str,
    lr: Any,
    momentum: float,
    dampening: float,
    nesterov: bool,
    weight_decay: Any,
    maximize: bool,
    foreach: bool | None,
    fused: bool | None,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """Step parameters of one device, all of which have a velocity or none."""
    lr = lr.reshape(()) if isinstance(lr, Tensor) else lr
    if fused and momentum != 0 and buffers[0] is None:
        dampening = start_at_rest(buffers, grads)
    kernel: dict[str, Any] = {"momentum": momentum, "dampening": dampening, "nesterov": nesterov}
    kernel |= {"foreach": foreach, "fused": fused, "found_inf": found_inf}
    if coupling == "update":
        lr = lr * multiplier
        if fused:
            lr = lr if params[0].is_cpu else lr.float()  # off the CPU the kernel reads a float32
            kernel |= {"weight_decay": weight_decay, "maximize": maximize, "grad_scale": grad_scale}
            sgd(params, grads, buffers, lr=lr, **kernel)
            return
    if grad_scale is not None:
        torch._foreach_div_(grads, grad_scale.reshape(()))
    if maximize:
        grads = list(torch._foreach_neg(grads))
    if weight_decay != 0:
        grads = list(torch._foreach_add(grads, params, alpha=weight_decay))
    if coupling == "gradient":
        # A 0-dimensional one would take on the float64 of the multiplier.
        grads = [new.to(old.dtype) for new, old in zip(torch._foreach_mul(grads, multiplier), grads, strict=True)]
    if fused:
        sgd(params, grads, buffers, lr=lr, weight_decay=0.0, maximize=False, **kernel)
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
