"""Inputs and targets of a task, held in memory as two tensors, from whatever form they are given in."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import data as torch_data

from heatbath.system.machine import available_memory
from heatbath.tasks.fingerprints import tensor_bytes

FORMS = "(inputs, targets) as tensors or arrays, a torch Dataset, a list of pairs, or a function that returns them"
_PARTS = ("inputs", "targets")


@dataclass(frozen=True, eq=False, repr=False)
class Samples:
    """One part of a task's data: inputs of single precision, int64 or bytes, and targets of the first two kinds."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        return f"Samples({' to '.join(f'{tuple(one.shape)} {kind(one)}' for one in (self.inputs, self.targets))})"

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


def kind(tensor: Tensor) -> str:
    """Return the name of a tensor's type, such as float32."""
    return str(tensor.dtype).removeprefix("torch.")


def size_in_words(count: int) -> str:
    """Return so many bytes in MB or GB."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def failure(what: str, error: Exception) -> str:
    """Return in one line that a part of the user's code has raised."""
    return f"{what} fails: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]:.300}"


def resolve(path: str, name: str) -> Any:
    """Return what ``package.module:attribute`` names; raise ValueError where there is no such thing."""
    module, _, attribute = path.partition(":")
    if not module or not attribute:
        raise ValueError(f"{name} {path!r}: name it as package.module:attribute")
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(f"{name} {path!r}: there is no module {error.name}") from None
    except Exception as error:
        raise ValueError(f"{name} {path!r}: {failure(f'the import of {module}', error)}") from error
    try:
        return attrgetter(attribute)(found)
    except AttributeError:
        raise ValueError(f"{name} {path!r}: {module} has no {attribute}") from None


def gather(given: Any, name: str) -> Samples:
    """Return a copy of the samples that ``given`` stands for, one of `FORMS`: what changes later changes no run.

    Raises:
        TypeError: it is none of these.
        ValueError: inputs and targets do not fit, are empty or not finite, or the user's code raises.
        MemoryError: they are too large for the memory of this machine.
    """
    if isinstance(given, str):
        given = resolve(given, name)
    if callable(given) and not isinstance(given, torch_data.Dataset):
        try:
            given = given()
        except Exception as error:
            raise ValueError(failure(f"{name}: its function", error)) from error
    copy = True
    if isinstance(given, torch_data.TensorDataset):
        given = given.tensors
    elif isinstance(given, torch_data.Dataset) or _is_like_a_dataset(given):
        given, copy = _materialize(given, name), False
    if not isinstance(given, tuple | list) or len(given) != 2:
        advice = ": give its dataset" if isinstance(given, torch_data.DataLoader) else ""
        raise TypeError(f"{name} must be {FORMS}, got {_describe(given)}{advice}")
    inputs, targets = (_as_tensor(part, f"{name} {what}", copy=copy) for part, what in zip(given, _PARTS, strict=True))
    if inputs.ndim == 0 or targets.ndim == 0 or len(inputs) == 0:
        raise ValueError(f"{name} has no samples")
    if len(inputs) != len(targets):
        several = ": several inputs of a model must be joined into one" if isinstance(given[0], tuple) else ""
        raise ValueError(f"{name} has {len(inputs):,} inputs and {len(targets):,} targets{several}")
    return Samples(inputs, targets.long() if targets.dtype == torch.uint8 else targets)


def _is_like_a_dataset(given: Any) -> bool:
    """Whether it has samples, each an input and a target, and is not two tensors."""
    if isinstance(given, list):
        return all(isinstance(pair, tuple) and len(pair) == 2 for pair in given)
    indexed = hasattr(given, "__getitem__") and hasattr(given, "__len__")
    return indexed and not isinstance(given, tuple | list | Tensor | np.ndarray | dict)


def _materialize(dataset: Any, name: str) -> tuple[Tensor, Tensor]:
    """Read every sample of a data set, once."""
    try:
        count = len(dataset)
    except TypeError:
        raise TypeError(f"{name} has no length: data is held in memory; give list(dataset) if it ends") from None
    if count == 0:
        raise ValueError(f"{name} has no samples")
    whole: list[Tensor] = []
    for index in range(count):
        try:
            pair = dataset[index]
        except Exception as error:
            raise ValueError(failure(f"{name}: sample {index}", error)) from error
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"{name}: sample {index} is {_describe(pair)}, expected an input and a target")
        parts = [_as_tensor(part, f"{name}: sample {index}", whole=False, copy=False) for part in pair]
        if not whole:
            _check_memory(count, sum(part.nbytes for part in parts), name)
            whole = [torch.empty((count, *part.shape), dtype=part.dtype) for part in parts]
        shapes, first = ([tuple(one.shape) for one in parts], [tuple(one.shape[1:]) for one in whole])
        if shapes != first:
            words = " and ".join(map(str, shapes)), " and ".join(map(str, first))
            raise ValueError(f"{name}: sample {index} has the shapes {words[0]}, the first one {words[1]}")
        for one, part in zip(whole, parts, strict=True):
            one[index] = part
    return whole[0], whole[1]


def _check_memory(count: int, size: int, name: str) -> None:
    free = available_memory()
    if count * size > 0.8 * free:
        whole = f"{count:,} samples of {size:,} bytes are {count * size / 1e9:.1f} GB"
        raise MemoryError(f"{name}: {whole}, and {free / 1e9:.1f} GB are free: heatbath holds data in memory")


def _as_tensor(given: Any, what: str, whole: bool = True, copy: bool = True) -> Tensor:
    try:
        found = given.detach().to("cpu", copy=copy) if isinstance(given, Tensor) else torch.as_tensor(np.array(given))
    except (TypeError, ValueError):
        raise TypeError(f"{what} must be numbers, got {_describe(given)}") from None
    if found.is_complex():
        raise TypeError(f"{what} must be real numbers, got {found.dtype}")
    if not found.is_floating_point():
        return found if found.dtype == torch.uint8 else found.long()
    found = found.float()
    if whole and not found.isfinite().all():
        raise ValueError(f"{what} are not all finite numbers")
    return found


def _describe(given: Any) -> str:
    if isinstance(given, Tensor | np.ndarray):
        return f"a {type(given).__name__} of shape {tuple(given.shape)}"
    if isinstance(given, dict):
        return f"a dict with {', '.join(map(str, given))}"
    if isinstance(given, Sequence) and not isinstance(given, str):
        return f"a {type(given).__name__} of {len(given)}"
    words = f"{given!r:.80}".partition("\n")[0]
    return f"a {type(given).__name__}" if " object at 0x" in words else words
