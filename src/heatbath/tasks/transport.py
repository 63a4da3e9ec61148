"""A task on its way to a worker process: code by reference or by value, data through memory that both can see."""

from __future__ import annotations

import io
import os
import pickle
import socket
import sys
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from heatbath.data.formats import DataError
from heatbath.tasks.samples import Samples

_FILES: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Packed:
    """Code as bytes, the file that has the data and the machine that has the file, and where modules are found."""

    code: bytes
    data: str
    machine: str
    path: tuple[str, ...]

    def unpack(self, name: str) -> Any:
        """Return the code.

        Raises:
            ValueError: a module of the code cannot be imported here.
        """
        sys.path.extend(folder for folder in self.path if folder not in sys.path)  # last, so that it shadows nothing
        try:
            return pickle.loads(self.code)
        except (ImportError, AttributeError) as error:
            remedy = "put it on PYTHONPATH, or train in this process with workers=1"
            raise ValueError(f"the code of task {name} cannot be imported in a worker ({error}): {remedy}") from None

    def load(self, name: str) -> tuple[Samples, Samples]:
        """Return the data to train and to test on.

        Raises:
            DataError: this is another machine.
        """
        if self.machine != _machine():
            raise DataError(f"the data of task {name} is on another machine")
        tensors = torch.load(self.data, mmap=True, weights_only=True)
        return Samples(*tensors[:2]), Samples(*tensors[2:])


def pack(owner: Any, code: Any, data: tuple[Samples, Samples]) -> Packed:
    """Return code, and data for the workers of this machine.

    What is defined in the main program, such as a notebook, goes by value, for which cloudpickle is needed.

    Raises:
        ValueError: the code cannot be sent; the message says what to do.
    """
    if owner not in _FILES:
        _FILES[owner] = _shared(owner, data)
    path = tuple(folder or os.getcwd() for folder in sys.path)
    return Packed(_pickle(code, owner.name), _FILES[owner], _machine(), path)


def _machine() -> str:
    """What tells this machine, and since when it runs, from others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}"


def _pickle(code: Any, name: str) -> bytes:
    try:
        import cloudpickle
    except ModuleNotFoundError:
        cloudpickle = None
    try:
        if cloudpickle is not None:
            by_value: bytes = cloudpickle.dumps(code)
            return by_value
        plain = pickle.dumps(code)
    except (pickle.PicklingError, AttributeError, TypeError, ValueError, RuntimeError) as error:
        reason, remedy = f"cannot be sent to a worker process ({error})", "train in this process with workers=1"
        if cloudpickle is None:
            remedy = f"pip install cloudpickle, put it into a module, or {remedy}"
        raise ValueError(f"the code of task {name} {reason}: {remedy}") from None
    if b"__main__" in plain:
        reason = "is defined in the main program, which workers do not run"
        remedy = "pip install cloudpickle, put it into a module, or train in this process with workers=1"
        raise ValueError(f"the code of task {name} {reason}: {remedy}")
    return plain


def _shared(owner: Any, data: tuple[Samples, Samples]) -> str:
    """Write the data where workers can map it into their memory, until the task is gone; return its path."""
    tensors = [tensor for part in data for tensor in (part.inputs, part.targets)]
    if hasattr(os, "memfd_create"):  # it has no name that a kill could leave behind
        handle = os.memfd_create("heatbath-task")
        path = f"/proc/{os.getpid()}/fd/{handle}"
        weakref.finalize(owner, os.close, handle)
    else:
        handle, path = tempfile.mkstemp(prefix="heatbath-task-")
        weakref.finalize(owner, os.unlink, path)
    with io.FileIO(os.dup(handle), "w") as file, io.BufferedWriter(file) as buffered:
        torch.save(tensors, buffered)
    return path
