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
    """How runs are trained, see `heatbath.run`; none of their numbers depends on it.

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
        # From here on: the working folder may change before the last run has ended.
        folder = Path(self.data_dir or os.environ.get("HEATBATH_DATA") or "/").expanduser()
        if self.data_dir is not None or (not folder.is_absolute() and folder.is_dir()):
            object.__setattr__(self, "data_dir", folder.absolute())
