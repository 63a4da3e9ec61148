"""Folders that files are to go to."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def check_folder(path: Path, name: str) -> None:
    """Refuse a folder that could not be made or written to, before any work is done for it.

    Args:
        path: the folder.
        name: of the option or argument, for the message.
    """
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


def _is_taken(path: Path) -> bool:
    """Whether something has this name, be it a link to nowhere; a name that none can have is an error."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
