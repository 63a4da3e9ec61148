"""Files that appear when they are whole, alone or all that belong together, or not at all; and folders for them."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def whole_file(path: Path, partial: Path | None = None) -> Iterator[IO[bytes]]:
    """Open a file that appears under its name at the end, with the rights of a new one; until then as ``partial``."""
    partial = partial or path.with_name(f".{path.name}-{uuid.uuid4().hex[:8]}.part")
    try:
        with open(partial, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        if error.filename == str(partial):  # nobody asked for a file of that name
            error.filename = str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)


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


def check_folder(path: Path, name: str) -> None:
    """Refuse a folder that could not be made or written to, before any work is done; ``name`` is of the option."""
    there = path
    try:
        while not _is_taken(there):
            there = there.absolute().parent
        if there.is_dir():
            # Permissions do not tell all: nobody writes to /proc, not even those who may.
            with tempfile.TemporaryFile(dir=there):
                return
    except OSError as error:
        raise ValueError(f"{name} {path}: {there} cannot be written to ({error.strerror})") from None
    link = "a link to a folder that is not there: make that folder, or remove the link"
    raise ValueError(f"{name} {path}: {there} is {'a file; name a folder' if there.exists() else link}")


def check_data_dir(data_dir: str | os.PathLike[str] | None, name: str = "data_dir") -> None:
    """Refuse a folder of data that is not there, before anything is done; the message calls it by ``name``."""
    if data_dir is not None and not Path(data_dir).expanduser().is_dir():
        raise ValueError(f"{name} {os.fspath(data_dir)} is not a folder")


def _is_taken(path: Path) -> bool:
    """Whether something has this name, be it a link to nowhere; a name that none can have is an error."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
