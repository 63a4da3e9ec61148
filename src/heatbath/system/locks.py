"""Who is alive: an owner holds a lock of the operating system, which ends with its process, however that ends."""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path


class Owner:
    """The right of one process to what it claims in a folder; it lasts until `close`, or until the process is gone.

    Args:
        folder: where the lock files of all owners are; made if need be.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            self.name = f"{os.getpid()}-{secrets.token_hex(8)}"
            self._file = folder / f"{self.name}.lock"
            self._handle = os.open(self._file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
            fcntl.flock(self._handle, fcntl.LOCK_EX)
            if self._file.exists():  # else somebody tidied it away between the two calls
                return
            os.close(self._handle)

    def close(self) -> None:
        """Give everything up; a second call does nothing."""
        if self._handle >= 0:
            self._file.unlink(missing_ok=True)
            os.close(self._handle)
            self._handle = -1


def is_alive(folder: Path, owner: str) -> bool:
    """Return whether an owner's process still runs and has not closed it. Nothing is written."""
    try:
        handle = os.open(folder / f"{Path(owner).name}.lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: those who ask do not take each other for owners
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def tidy(folder: Path) -> None:
    """Remove the lock files of owners that are gone."""
    for file in folder.glob("*.lock"):
        try:
            handle = os.open(file, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            # Removed under the lock: an owner who has made the file and waits for it then sees that it is gone.
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.unlink(missing_ok=True)
        except BlockingIOError:
            pass
        finally:
            os.close(handle)
