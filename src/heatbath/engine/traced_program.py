"""A function of tensors as a program without Python: traced once for each shape of its arguments, and compiled.

What the compiler could not follow (patched dropout, ``torch.func`` inside a user's model) has been executed by the time
that it sees the program, which is torch's basic operations in a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree


class TracedProgram:
    """Calls a function of nested tensors, on which alone it depends, as a compiled program, and as it is if that fails.

    ``reason`` says why it is no longer compiled; it is None while it is.
    """

    def __init__(self, function: Callable[..., Any], backend: str = "inductor") -> None:
        self._function, self._backend = function, backend
        self._programs: dict[tuple[Any, ...], tuple[Callable[..., list[Any]], Any]] = {}
        self.reason: str | None = None

    def __call__(self, *arguments: Any) -> Any:
        """Return what the function returns."""
        if self.reason is None:
            leaves, spec = pytree.tree_flatten(arguments)
            try:
                return self._run(leaves, spec)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # a compiler fails in many ways, and none of them is a reason not to train
                self.reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]:.200}"
                self._programs.clear()
        return self._function(*arguments)

    def _run(self, leaves: list[Any], spec: Any) -> Any:
        shapes = tuple((tuple(leaf.shape), leaf.dtype) for leaf in leaves)
        if shapes not in self._programs:
            self._programs[shapes] = self._trace(leaves, spec)
        program, out = self._programs[shapes]
        return pytree.tree_unflatten(list(program(*leaves)), out)

    def _trace(self, leaves: list[Any], spec: Any) -> tuple[Callable[..., list[Any]], Any]:
        found: list[Any] = []

        def flat(*values: Any) -> list[Any]:
            results, out = pytree.tree_flatten(self._function(*pytree.tree_unflatten(list(values), spec)))
            found.append(out)
            return results

        graph = make_fx(flat)(*leaves)
        program: Callable[..., list[Any]] = torch.compile(graph, dynamic=False, backend=self._backend)
        return program, found[-1]
