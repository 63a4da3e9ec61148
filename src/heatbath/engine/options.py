"""The options of a training call: checked once, and carried as one object from the command line to the worker."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heatbath.draws import check_integer
from heatbath.laws import check_number
from heatbath.system.machine import check_device
from heatbath.system.whole_files import check_data_dir


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
        check_number("checkpoint_seconds", self.checkpoint_seconds, least=0.0)
        check_data_dir(self.data_dir)
        # From here on: the working folder may change before the last run has ended.
        folder = Path(self.data_dir or os.environ.get("HEATBATH_DATA") or "/").expanduser()
        if self.data_dir is not None or (not folder.is_absolute() and folder.is_dir()):
            object.__setattr__(self, "data_dir", folder.absolute())
