"""Inputs and targets of a task, held in memory as two tensors, from whatever form they are given in."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import data as torch_data

from heatbath.system.machine import available_memory
from heatbath.tasks.fingerprints import tensor_bytes

FORMS = "(inputs, targets) as tensors or arrays, a torch Dataset, or a function that returns them"


@dataclass(frozen=True, eq=False, repr=False)
class Samples:
    """One part of a task's data.

    Attributes:
        inputs: of shape (samples, ...): single precision, int64, or bytes as they are.
        targets: of shape (samples, ...): single precision or int64.
    """

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        words = (f"{tuple(one.shape)} {str(one.dtype).removeprefix('torch.')}" for one in (self.inputs, self.targets))
        return f"Samples({' to '.join(words)})"

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return self.inputs.nbytes + self.targets.nbytes

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that any change of a number changes."""
        found = hashlib.sha256()
        for tensor in (self.inputs, self.targets):
            found.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            found.update(tensor_bytes(tensor))
        return found.hexdigest()[:16]

    def to(self, device: torch.device | str) -> Samples:
        """Return the same on another device."""
        return Samples(self.inputs.to(device), self.targets.to(device))

    def at(self, rows: Tensor) -> Samples:
        """Return some of the samples."""
        return Samples(self.inputs.index_select(0, rows), self.targets.index_select(0, rows))


def resolve(path: str, name: str) -> Any:
    """Return what ``package.module:attribute`` names.

    Raises:
        ValueError: it is not of that form, or there is no such module or attribute.
    """
    module, colon, attribute = path.partition(":")
    if not colon or not module or not attribute:
        raise ValueError(f"{name} {path!r}: name it as package.module:attribute")
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(f"{name} {path!r}: there is no module {error.name}") from None
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{name} {path!r}: {module} has no {attribute}")
        found = getattr(found, part)
    return found


def gather(given: Any, name: str) -> Samples:
    """Return the samples that ``given`` stands for: one of `FORMS`.

    Raises:
        TypeError: it is none of these.
        ValueError: inputs and targets do not fit, are empty or not finite.
        MemoryError: they are too large for the memory of this machine.
    """
    if isinstance(given, str):
        given = resolve(given, name)
    if callable(given) and not isinstance(given, torch_data.Dataset):
        given = given()
    if isinstance(given, torch_data.TensorDataset):
        given = given.tensors
    elif isinstance(given, torch_data.Dataset) or (hasattr(given, "__getitem__") and _holds_pairs(given)):
        given = _materialize(given, name)
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise TypeError(f"{name} must be {FORMS}, got {_describe(given)}")
    inputs, targets = (
        _as_tensor(part, f"{name} {what}") for part, what in zip(given, ("inputs", "targets"), strict=True)
    )
    if inputs.ndim == 0 or targets.ndim == 0 or len(inputs) == 0:
        raise ValueError(f"{name} has no samples")
    if len(inputs) != len(targets):
        raise ValueError(f"{name} has {len(inputs):,} inputs and {len(targets):,} targets")
    if targets.dtype == torch.uint8:
        targets = targets.long()
    return Samples(inputs, targets)


def _holds_pairs(given: Any) -> bool:
    """Whether it is a data set by its behaviour, not two tensors: it has samples, each an input and a target."""
    return not isinstance(given, tuple | list | Tensor | np.ndarray | dict) and hasattr(given, "__len__")


def _materialize(dataset: Any, name: str) -> tuple[Any, Any]:
    """Read every sample of a data set, once."""
    try:
        count = len(dataset)
    except TypeError:
        raise TypeError(f"{name} has no length: a data set is held in memory, so that it must have one") from None
    if count == 0:
        raise ValueError(f"{name} has no samples")
    inputs: Tensor | None = None
    targets: Tensor | None = None
    for index in range(count):
        pair = dataset[index]
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"{name}: sample {index} is {_describe(pair)}, expected an input and a target")
        x, y = (_as_tensor(part, f"{name}: sample {index}", check=False) for part in pair)
        if inputs is None or targets is None:
            _check_memory(count, x.nbytes + y.nbytes, name)
            inputs, targets = (torch.empty((count, *one.shape), dtype=one.dtype) for one in (x, y))
        if x.shape != inputs.shape[1:] or y.shape != targets.shape[1:]:
            shapes = (
                f"{tuple(x.shape)} and {tuple(y.shape)}",
                f"{tuple(inputs.shape[1:])} and {tuple(targets.shape[1:])}",
            )
            raise ValueError(f"{name}: sample {index} has the shapes {shapes[0]}, the first one {shapes[1]}")
        inputs[index], targets[index] = x, y
    return inputs, targets


def _check_memory(count: int, size: int, name: str) -> None:
    free = available_memory()
    if count * size > 0.8 * free:
        whole = f"{count:,} samples of {size:,} bytes are {count * size / 1e9:.1f} GB"
        raise MemoryError(f"{name}: {whole}, and {free / 1e9:.1f} GB are free: heatbath holds data in memory")


def _as_tensor(given: Any, what: str, check: bool = True) -> Tensor:
    try:
        array = given.detach().cpu() if isinstance(given, Tensor) else torch.as_tensor(np.array(given))
    except (TypeError, ValueError):
        raise TypeError(f"{what} must be numbers, got {_describe(given)}") from None
    if array.is_complex():
        raise TypeError(f"{what} must be real numbers, got {array.dtype}")
    if array.is_floating_point():
        array = array.float()
        if check and not array.isfinite().all():
            raise ValueError(f"{what} are not all finite numbers")
    elif array.dtype != torch.uint8:
        array = array.long()
    return array


def _describe(given: Any) -> str:
    if isinstance(given, Tensor | np.ndarray):
        return f"a {type(given).__name__} of shape {tuple(given.shape)}"
    if isinstance(given, Sequence) and not isinstance(given, str):
        return f"a {type(given).__name__} of {len(given)}"
    return f"{given!r:.80}"
