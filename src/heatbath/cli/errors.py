"""What went wrong, as one line for the person at the keyboard."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_EXTRAS = {"matplotlib": "paper", "mlxtend": "paper"}  # what a missing module is installed with
_NO_ROOM = re.compile("[Cc]annot allocate memory|failed to map segment")  # what the linker says


class Interruption(Exception):  # noqa: N818 - it is none
    """Ctrl-C, with how to go on."""


class Termination(KeyboardInterrupt):
    """SIGTERM, acted upon as Ctrl-C is.

    After a plain KeyboardInterrupt in source text that is executed, as dataclasses do on import, ``python -m`` ends
    the process by SIGINT, whatever its exit status.
    """


def is_interrupt(error: BaseException | None) -> bool:
    """Return whether it is Ctrl-C, or caused by it: Python 3.11 makes a RuntimeError of one in a ``__set_name__``."""
    return error is not None and (isinstance(error, KeyboardInterrupt) or is_interrupt(error.__cause__))


def explain(error: BaseException) -> str | None:
    """Return one line that a terminal only shows, or None for what is a defect of the program."""
    line = _explain(error)
    return line and "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def _explain(error: BaseException) -> str | None:
    if hasattr(error, "format_message"):  # what typer raises for wrong usage, in all its versions
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "heatbath"
        text = " ".join(str(error.format_message()).split()).rstrip(".")
        return f"{text}{_refused_value(error)}; see '{command} --help'"
    if isinstance(error, ModuleNotFoundError) and error.name in _EXTRAS:
        return f"this needs {error.name}: pip install 'heatbath[{_EXTRAS[error.name]}]'"
    if isinstance(error, ImportError) and _NO_ROOM.search(str(error)):
        return f"not enough memory to load {error.name or 'a library'}; raise the limit (ulimit -v)"
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}; ask for less"
    if isinstance(error, OSError) and error.strerror:  # the system's own, with a number and perhaps a file
        where = "" if error.filename is None else f"{error.filename}: "
        return f"{where}{error.strerror[0].lower()}{error.strerror[1:]}"
    if isinstance(error, ValueError | TypeError | OSError | FloatingPointError):
        return " ".join(str(error).split())
    return None


def _refused_value(error: BaseException) -> str:
    """What was typed, where typer's message does not have it: since it asks pydantic, whose error has it as input."""
    details = getattr(error.__cause__, "errors", None)
    found = details() if callable(details) else []
    return f", got {found[0]['input']!r}" if found and "input" in found[0] else ""


@contextmanager
def stoppable() -> Iterator[list[int]]:
    """Around a command: SIGTERM, of a job's scheduler or ``kill``, does what Ctrl-C does; a second one ends it at once.

    So files that are half written go, as do workers. Who ignores the signal, or has a handler, keeps that.

    Yields:
        The signals that came.
    """
    came: list[int] = []

    def interrupt(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        came.append(number)
        raise Termination

    # No other thread may set a handler.
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, interrupt)
    try:
        yield came
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def resumable() -> Iterator[None]:
    """Around work that the same command goes on with: Ctrl-C then says so, and how far it came if that is known."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        # It is a heatbath.engine.progress.Interrupted, which takes a while to import, or comes from elsewhere.
        done, total = (getattr(interrupt, name, None) for name in ("runs_done", "runs_total"))
        how = "what is finished is safe" if total is None else f"{done} of {total} runs are done"
        raise Interruption(f"interrupted; {how}: run the same command again to go on") from None
