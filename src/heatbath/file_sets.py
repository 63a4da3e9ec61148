"""Files that belong together: all of them appear, or none."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def write_together(folder: str | Path, draw: Callable[[Path], object]) -> list[Path]:
    """Let ``draw`` write files into a hidden folder, move them into ``folder`` when all are complete, and return them.

    An error or an interrupt leaves what was there before.
    """
    folder = Path(folder)
    existed = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".partial-") as partial:
            draw(Path(partial))
            names = sorted(path.name for path in Path(partial).iterdir())
            for name in names:
                os.replace(Path(partial) / name, folder / name)
    except BaseException:
        if not existed and not any(folder.iterdir()):
            folder.rmdir()
        raise
    return [folder / name for name in names]
