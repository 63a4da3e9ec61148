"""File handles that belong to one process: a child that is forked from it must not keep a lock or a pipe alive."""

from __future__ import annotations

import os
from contextlib import suppress

_PRIVATE: set[int] = set()


def keep_private(handle: int) -> int:
    """Close a handle in every child that is forked from here on, as it is closed in those that execute a program."""
    _PRIVATE.add(handle)
    return handle


def close(handle: int) -> None:
    """Close a private handle, in the process that opened it."""
    _PRIVATE.discard(handle)
    os.close(handle)


def _close_in_child() -> None:
    for handle in _PRIVATE:
        with suppress(OSError):
            os.close(handle)
    _PRIVATE.clear()


os.register_at_fork(after_in_child=_close_in_child)
