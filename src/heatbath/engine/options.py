"""The options of a training call: checked once, and carried as one object from the command line to the worker."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heatbath.draws import check_integer
from heatbath.system.machine import check_device


@dataclass(frozen=True, kw_only=True)
class Options:
    """How runs are trained; none of their numbers depends on it.

    Attributes:
        device: "auto" (the GPUs, if there are any), "cpu", "cuda" (all GPUs that torch sees) or "cuda:1" (the second).
        data_dir: where to look for the data first.
        workers: how many processes, on a CPU; None takes as many as is fastest.
        stack: the most runs in one stack; None takes as many as there is memory for.
        checkpoint_seconds: the least time between two checkpoints of a stack.
        executor: who trains, see `heatbath.engine.executors.choice.find_executor`; None is this machine.
        mix_origins: whether a run may go on with another torch, precision or kind of device than it was begun with.

    Raises:
        ValueError: an option is not allowed, or there is no such folder of data.
        TypeError: ``checkpoint_seconds`` is no number.
    """

    device: str = "auto"
    data_dir: str | os.PathLike[str] | None = None
    workers: int | None = None
    stack: int | None = None
    checkpoint_seconds: float = 0.0
    executor: Any = None
    mix_origins: bool = False

    def __post_init__(self) -> None:
        check_device(self.device)
        for name in ("workers", "stack"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), least=1)
        seconds = self.checkpoint_seconds
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise TypeError(f"checkpoint_seconds must be a number, got {seconds!r}")
        if not 0.0 <= seconds < math.inf:
            raise ValueError(f"checkpoint_seconds must be finite and not negative, got {seconds!r}")
        from heatbath.data.downloads import check_data_dir  # it brings http and ssl, 13 ms of a command's start

        check_data_dir(self.data_dir)
        object.__setattr__(self, "data_dir", _absolute(self.data_dir))


def _absolute(data_dir: str | os.PathLike[str] | None) -> Path | None:
    """The folder to look in first, from here on: the working folder may change before the last run has ended."""
    if data_dir is not None:
        return Path(data_dir).expanduser().absolute()
    named = Path(os.environ.get("HEATBATH_DATA") or "/").expanduser()
    return None if named.is_absolute() or not named.is_dir() else named.absolute()
