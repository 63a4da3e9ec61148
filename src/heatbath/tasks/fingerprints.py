"""A digest of a value: of code with all of the user's code that it refers to, and of data.

What is installed (torch, NumPy, the standard library, ...) counts by its name alone, as records tell versions. What is
the user's counts by its source without comments and docstrings, or by its compiled code where there is no source, and
so does every function, class, module and value that it names.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import sys
import sysconfig
import textwrap
import types
from collections.abc import Iterator
from enum import Enum
from functools import cache
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch

_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, PurePath, torch.dtype, torch.device, np.dtype)
_OF_A_CLASS = {"__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__firstlineno__"}
_OF_A_CLASS |= {"__static_attributes__", "__annotations__", "__annotate_func__", "__annotations_cache__"}
_OF_A_CLASS |= {"__slotnames__", "_abc_impl"}  # which appear when a class is used


class NoFingerprintError(TypeError):
    """A value has no content that could be compared from one process to the next."""


def fingerprint(value: Any) -> str:
    """Return 16 hexadecimal digits that a change of the value, or of the user's code behind it, changes.

    Raise NoFingerprintError where it holds something without a content, such as an open file.
    """
    digest = hashlib.sha256()
    for piece in _pieces(value, {}):
        digest.update(len(piece).to_bytes(8, "little") + piece)
    return digest.hexdigest()[:16]


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the content of a tensor."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _pieces(value: Any, seen: dict[int, Any]) -> Iterator[bytes]:
    if isinstance(value, _PLAIN):
        yield repr((type(value).__name__, value)).encode()
        return
    if id(value) in seen:
        yield b"again"
        return
    seen[id(value)] = value  # which keeps it alive, and so its id its own
    yield type(value).__name__.encode()
    for part in _parts(value):
        if isinstance(part, memoryview):  # content that is taken as it is
            yield bytes(part)
        else:
            yield from _pieces(part, seen)


def _parts(value: Any) -> Iterator[Any]:
    """What a value is made of."""
    if isinstance(value, torch.Tensor):
        yield from (value.dtype, tuple(value.shape), tensor_bytes(value))
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield from (value.dtype, value.shape, memoryview(np.ascontiguousarray(value).tobytes()))
    elif isinstance(value, dict | types.MappingProxyType):
        yield from value.items()
    elif isinstance(value, set | frozenset):
        yield from sorted(value, key=repr)
    elif isinstance(value, tuple | list):
        yield from value
    elif isinstance(value, Enum):
        yield from (type(value).__qualname__, value.name)
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, types.MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, staticmethod | classmethod | functools.cached_property):
        yield getattr(value, "__func__", None) or getattr(value, "func", None)
    elif isinstance(value, property):
        yield from (value.fget, value.fset)
    elif isinstance(value, types.ModuleType | types.FunctionType | type):
        yield from _parts_of_code(value)
    elif hasattr(value, "__wrapped__"):
        yield value.__wrapped__
    elif isinstance(value, types.BuiltinFunctionType | types.MethodDescriptorType | types.WrapperDescriptorType):
        yield getattr(value, "__qualname__", repr(value))
    else:
        yield from _parts_of_object(value)


def _parts_of_object(value: Any) -> Iterator[Any]:
    """Of an object of any class what a pickle would keep."""
    yield type(value)
    if isinstance(value, torch.nn.Module):
        yield vars(value)
        return
    try:
        reduced = value.__reduce_ex__(2)
    except (TypeError, AttributeError, RuntimeError) as error:
        raise NoFingerprintError(f"a {type(value).__qualname__} ({error})") from None
    yield from (reduced,) if isinstance(reduced, str) else reduced[1:3]
    for items in () if isinstance(reduced, str) else reduced[3:5]:
        yield list(items or ())


def _parts_of_code(value: Any) -> Iterator[Any]:
    is_module = isinstance(value, types.ModuleType)
    module = value.__name__ if is_module else value.__module__
    made_here = isinstance(value, types.FunctionType) and module in (None, "builtins")  # by exec, without a module
    if not made_here and not _is_users(module):
        yield module if is_module else f"{module}.{value.__qualname__}"
    elif is_module:
        yield _without_comments(Path(str(value.__file__)).read_text())
        for one in vars(value).values():
            other = one.__name__ if isinstance(one, types.ModuleType) else getattr(one, "__module__", None)
            if isinstance(one, types.ModuleType | types.FunctionType | type) and other != value.__name__:
                yield one
    elif isinstance(value, type):
        yield from (value.__name__, value.__bases__)
        yield {name: one for name, one in vars(value).items() if name not in _OF_A_CLASS}
    else:
        yield from (_source(value), value.__defaults__, value.__kwdefaults__)
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not filled yet
                yield None
        named = _names(value.__code__) & value.__globals__.keys()
        yield {name: value.__globals__[name] for name in sorted(named)}


@cache
def _is_users(name: str) -> bool:
    """Whether a module is neither installed nor heatbath's own."""
    module = sys.modules.get(name)
    if module is None or name == "__main__":
        return True
    if name.partition(".")[0] == "heatbath" or not getattr(module, "__file__", None):
        return False
    file = Path(str(module.__file__)).resolve()
    if {"site-packages", "dist-packages"} & set(file.parts):  # of the user, of Debian, or of the parent of a venv
        return False
    installed = {Path(path).resolve() for path in sysconfig.get_paths().values()}
    return not any(file.is_relative_to(folder) for folder in installed if folder.name not in ("bin", "include", ""))


def _source(function: types.FunctionType) -> str:
    """The source of a function as Python would print it; its compiled code, where there is none or it is a lambda."""
    if function.__name__ != "<lambda>":
        try:
            return _without_comments(textwrap.dedent(inspect.getsource(function)))
        except (OSError, TypeError, SyntaxError):
            pass
    return repr([*_compiled(function.__code__)])


def _without_comments(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        match getattr(node, "body", None):
            case [ast.Expr(value=ast.Constant()), *rest] as body:
                body[:] = rest or [ast.Pass()]
    return ast.unparse(tree)


def _compiled(code: types.CodeType) -> Iterator[Any]:
    yield from (code.co_code, code.co_names, code.co_varnames[: code.co_argcount])
    for constant in code.co_consts:
        yield [*_compiled(constant)] if isinstance(constant, types.CodeType) else constant


def _names(code: types.CodeType) -> set[str]:
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*inner)
