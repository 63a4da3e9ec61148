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
_HERE = "train in this process, on this machine with workers=1"
_BY_VALUE = f"pip install cloudpickle, put it into a module, or {_HERE}"


@dataclass(frozen=True)
class Packed:
    """Code as bytes, the file that has the data and the machine that has the file, and where modules are found."""

    code: bytes
    data: str
    machine: str
    path: tuple[str, ...]

    def unpack(self, name: str) -> Any:
        """Return the code; raise ValueError where a module of it cannot be imported here."""
        sys.path.extend(folder for folder in self.path if folder not in sys.path)  # last, so that it shadows nothing
        try:
            return pickle.loads(self.code)
        except (ImportError, AttributeError) as error:
            reason = f"the code of task {name} cannot be imported in a worker ({error})"
            raise ValueError(f"{reason}: put it on PYTHONPATH, or {_HERE}") from None

    def load(self, name: str) -> tuple[Samples, Samples]:
        """Return the data to train and to test on; raise DataError on another machine."""
        if self.machine != _machine():
            raise DataError(f"the data of task {name} is on another machine")
        tensors = torch.load(self.data, mmap=True, weights_only=True)
        return Samples(*tensors[:2]), Samples(*tensors[2:])


def pack(owner: Any, code: Any, data: tuple[Samples, Samples]) -> Packed:
    """Return code, and data for the workers of this machine; raise ValueError where the code cannot be sent.

    What is defined in the main program, such as a notebook, goes by value, for which cloudpickle is needed.
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
        import cloudpickle as pickler
    except ModuleNotFoundError:
        pickler = pickle
    try:
        found: bytes = pickler.dumps(code)
    except (pickle.PicklingError, AttributeError, TypeError, ValueError, RuntimeError) as error:
        reason = f"the code of task {name} cannot be sent to a worker process ({error})"
        raise ValueError(f"{reason}: {_BY_VALUE if pickler is pickle else _HERE}") from None
    if pickler is pickle and b"__main__" in found:
        reason = f"the code of task {name} is defined in the main program, which workers do not run"
        raise ValueError(f"{reason}: {_BY_VALUE}")
    return found


def _shared(owner: Any, data: tuple[Samples, Samples]) -> str:
    """Write the data where workers can map it into their memory, until the task is gone; return its path."""
    if hasattr(os, "memfd_create"):  # it has no name that a kill could leave behind
        handle = os.memfd_create("heatbath-task")
        path = f"/proc/{os.getpid()}/fd/{handle}"
        weakref.finalize(owner, os.close, handle)
    else:
        handle, path = tempfile.mkstemp(prefix="heatbath-task-")
        weakref.finalize(owner, os.unlink, path)
    with io.FileIO(os.dup(handle), "w") as file, io.BufferedWriter(file) as buffered:
        torch.save([tensor for part in data for tensor in (part.inputs, part.targets)], buffered)
    return path
