"""Steps that belong to no mini-batch: whoever draws, counts or measures at an optimizer's steps leaves them out."""

from __future__ import annotations

import sys
from functools import cache
from inspect import unwrap
from types import FrameType
from typing import Any

import torch
from torch import Tensor

# Its public name is torch.compiler.disable, which imports torch._dynamo at once and so takes seconds; this decorator
# waits until something is compiled.
from torch._compile import _disable_dynamo as outside_graphs
from torch.optim.optimizer import Optimizer

__all__ = ["is_nested", "is_rehearsal", "outside_graphs"]

_WITH_HOOKS = Optimizer.profile_hook_step(lambda _: None).__code__  # what torch wraps around a step, to run the hooks


def is_nested(optimizer: Optimizer) -> bool:
    """Return whether the hook that asks runs for a step within a step, which is none of its own.

    If a class calls the ``step`` of its parent, torch runs the hooks in both, once an optimizer of the parent's class
    has been built somewhere.
    """
    kind: Any = type(optimizer)
    if not _can_nest(kind):
        return False
    frame: FrameType | None = sys._getframe()
    steps = 0
    while frame is not None and steps < 2:
        steps += frame.f_code is _WITH_HOOKS and frame.f_locals["args"][0] is optimizer
        frame = frame.f_back
    return steps > 1


@cache
def _can_nest(kind: Any) -> bool:
    """Whether a step of this class names another one, as it must to call it."""
    code = getattr(unwrap(kind.step), "__code__", None)
    return code is None or "step" in code.co_names


def is_rehearsal(optimizer: Optimizer) -> bool:
    """Return whether the step under way is one that `torch.distributed.checkpoint` takes to make a state.

    When it saves or loads an optimizer without state and finds no gradients, it takes a step at rate 0, as a number or
    a tensor on the CPU, with gradients of zero for all parameters. Other steps are told from it by their first rate
    that is not zero; gradients are read only if there is none, and rates on an accelerator never. May be asked before
    the step, when the gradients are there, and after it.
    """
    for group in optimizer.param_groups:
        lr = group.get("lr", 1.0)
        if (isinstance(lr, Tensor) and not lr.is_cpu) or lr != 0:
            return False
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if any(p.is_cuda for p in parameters) and torch.cuda.is_current_stream_capturing():
        return False  # nothing can be read then, and nobody rehearses
    return all(p.grad is not None and not p.grad.is_sparse and _is_zero(p.grad) for p in parameters)


def _is_zero(grad: Tensor) -> bool:
    """Whether all of it is zero; of a sharded one, on all ranks of its mesh, who get the same answer.

    `torch.equal` would ask all ranks that there are, and wait for those which have no part of this parameter.
    """
    size = torch.linalg.vector_norm(grad, 1)
    return bool((size.full_tensor() if hasattr(size, "full_tensor") else size) == 0)
