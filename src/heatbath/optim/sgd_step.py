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

`capturable_sgd` takes it as a tensor, for steps that a CUDA graph replays or a compiler traces: a number in such a step
is a constant for ever.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import sgd as torch_sgd

from heatbath.draws import uniform
from heatbath.laws import Constant

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
    """Take one step in place with ``alpha`` in a 0-dimensional tensor; other arguments as in `random_sgd`.

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
