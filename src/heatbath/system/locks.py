"""Who is alive: an owner holds a lock of the operating system, which ends with its process, however that ends."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from heatbath.system.disks import ADVICE

OWNER = r"\d+-[0-9a-f]{16}"  # the pattern of a name: the process, and a random number
_PRIVATE: set[int] = set()


class Owner:
    """The right of one process to what it claims in a folder; it lasts until `close`, or until the process is gone.

    A child that is forked from the process has no part in it. The folder is made if need be.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            self.name = f"{os.getpid()}-{secrets.token_hex(8)}"
            self._file = folder / f"{self.name}.lock"
            handle = os.open(self._file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
            self._handle, self._process = keep_private(handle), os.getpid()
            try:
                lock(handle, folder)
            except OSError:
                self.close()
                raise
            if self._file.exists():  # else somebody tidied it away between the two calls
                return
            close_private(handle)

    def close(self) -> None:
        """Give everything up; a second call does nothing, nor does one in a child that was forked."""
        if self._handle >= 0 and self._process == os.getpid():
            self._file.unlink(missing_ok=True)
            close_private(self._handle)
        self._handle = -1


def keep_private(handle: int) -> int:
    """Close a handle in every child that is forked from here on: it must not keep a lock or a pipe alive."""
    _PRIVATE.add(handle)
    return handle


def close_private(handle: int) -> None:
    """Close a private handle, in the process that opened it."""
    _PRIVATE.discard(handle)
    os.close(handle)


def _close_in_child() -> None:
    for handle in _PRIVATE:
        with suppress(OSError):
            os.close(handle)
    _PRIVATE.clear()


os.register_at_fork(after_in_child=_close_in_child)


def lock(handle: int, folder: Path) -> None:
    """Lock an open file, or folder, for this process alone; wait until nobody else has it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:
        raise OSError(f"{folder} cannot be locked ({error.strerror}): {ADVICE}") from None


def is_lock_name(name: str) -> bool:
    """Return whether a file of this name may be the lock of an owner."""
    return re.fullmatch(rf"{OWNER}\.lock", name) is not None


def is_alive(folder: Path, owner: str) -> bool:
    """Return whether an owner's process still runs and has not closed it. Nothing is written.

    Somebody whose lock may not be looked at is taken to be alive.
    """
    try:
        handle = _open(folder, f"{owner}.lock", os.O_RDONLY)
    except PermissionError:
        return True
    except OSError:  # it is gone, or something else
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: those who ask are not taken for owners
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def tidy(folder: Path) -> None:
    """Remove the lock files of owners that are gone, and nothing else."""
    for file in folder.glob("*.lock"):
        try:
            handle = _open(folder, file.name, os.O_RDWR)  # over NFS only a file that may be written to is locked
        except OSError:
            continue
        try:
            # Removed under the lock: an owner who has made the file and waits for it then sees that it is gone.
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_size == 0:
                file.unlink(missing_ok=True)
        except OSError:  # somebody has it, or the folder is another user's
            pass
        finally:
            os.close(handle)


def _open(folder: Path, name: str, access: int) -> int:
    """Open the lock of an owner, and nothing else: it neither waits for a pipe nor follows a link."""
    if not is_lock_name(name):
        raise FileNotFoundError(name)
    handle = os.open(folder / name, access | os.O_NONBLOCK | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FileNotFoundError(name)
    return handle
