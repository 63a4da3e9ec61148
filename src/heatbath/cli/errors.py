"""What went wrong, as one line for the person at the keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

# What a missing module is installed with.
_EXTRAS = {"scipy": "paper", "matplotlib": "paper", "mlxtend": "paper"}


class Interruption(Exception):  # noqa: N818 - it is none
    """Ctrl-C, with how to go on."""


def explain(error: Exception) -> str | None:
    """Return one line, or None for what is a defect of the program."""
    if hasattr(error, "format_message"):  # what typer raises for wrong usage, in all its versions
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "heatbath"
        text = " ".join(str(error.format_message()).split()).rstrip(".")
        return f"{text}; see '{command} --help'"
    if isinstance(error, ModuleNotFoundError) and error.name in _EXTRAS:
        return f"this needs {error.name}: pip install 'heatbath[{_EXTRAS[error.name]}]'"
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}; ask for less"
    if isinstance(error, ValueError | TypeError | OSError):
        return " ".join(str(error).split())
    return None


@contextmanager
def resumable() -> Iterator[None]:
    """Around work that the same command goes on with: Ctrl-C then says so, and how far it came if that is known."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        how = str(interrupt).removeprefix("stopped: ") or "what is finished is safe"
        how = how.partition(";")[0]
        raise Interruption(f"interrupted; {how}: run the same command again to go on") from None
