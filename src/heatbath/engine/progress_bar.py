"""The progress bar that `heatbath.run` shows where somebody watches: in a notebook or in a terminal."""

from __future__ import annotations

import html
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal

from heatbath.engine.progress import Progress

Follower = Callable[[Progress], None]
_PAUSE = 0.1  # seconds between two pictures: more often nobody sees


@contextmanager
def watch(progress: Follower | Literal[False] | None) -> Iterator[Follower | None]:
    """Yield what is to be called with the progress of a training: a bar, if nobody asked for anything else.

    Args:
        progress: what the caller follows it with; None for a bar in a notebook or terminal, False for nothing.
    """
    bar = None if progress is not None else _notebook_bar() or _terminal_bar()
    if bar is None:
        yield progress or None
        return
    try:
        yield bar.follow
    finally:
        bar.close()


class _Bar:
    """Draws the last state, but not more often than anybody can see."""

    def __init__(self) -> None:
        self._state: Progress | None = None
        self._drawn = -_PAUSE

    def follow(self, state: Progress) -> None:
        """Take note of how far the training is."""
        if state.message is not None and not state.routine:
            self._say(state.message)
        self._state = state
        if time.monotonic() - self._drawn >= _PAUSE:
            self._drawn = time.monotonic()
            self._draw(_fraction(state), _words(state))

    def close(self) -> None:
        """Show the last state, which stays."""
        if self._state is not None:
            self._draw(_fraction(self._state), _words(self._state))

    def _draw(self, fraction: float, words: str) -> None:
        raise NotImplementedError

    def _say(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)


class _TerminalBar(_Bar):
    def close(self) -> None:
        super().close()
        if self._state is not None:
            print(file=sys.stderr, flush=True)

    def _draw(self, fraction: float, words: str) -> None:
        bar = ("#" * round(20 * fraction)).ljust(20, ".")
        line = f"[{bar}] {words}"[: shutil.get_terminal_size().columns - 1]
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)

    def _say(self, message: str) -> None:
        super()._say(f"\r\x1b[K{message}")


class _NotebookBar(_Bar):
    """Needs no widgets: the cell's output is replaced, and is kept in the saved notebook."""

    def __init__(self) -> None:
        super().__init__()
        self._handle: Any = None

    def _draw(self, fraction: float, words: str) -> None:
        from IPython.display import HTML, display

        shown = HTML(f'<progress value="{fraction:.3f}" max="1"></progress> {html.escape(words)}')
        if self._handle is None:
            self._handle = display(shown, display_id=True)
        else:
            self._handle.update(shown)


def _notebook_bar() -> _Bar | None:
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return _NotebookBar() if hasattr(shell, "kernel") else None  # which the shell of a terminal does not have


def _terminal_bar() -> _Bar | None:
    watched = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return _TerminalBar() if watched else None


def _fraction(state: Progress) -> float:
    if state.download is not None:
        return state.download[1] / max(state.download[2], 1)
    return state.epochs_done / max(state.epochs_total, 1)


def _words(state: Progress) -> str:
    if state.download is not None:
        name, here, size = state.download
        return f"downloading {name}, {here / 1e6:.1f} of {size / 1e6:.1f} MB"
    words = [f"{state.runs_done} of {state.runs_total} runs", f"{_clock(state.seconds)} elapsed"]
    if 0 < state.epochs_done < state.epochs_total:
        left = state.seconds * (state.epochs_total - state.epochs_done) / state.epochs_done
        words.append(f"{_clock(left)} left")
    if state.test_accuracy is not None:
        words.append(f"test accuracy {state.test_accuracy:.4f}")
    return ", ".join(words)


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
