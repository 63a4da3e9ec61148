"""How far the work is: a live bar in a terminal or notebook, a line now and then in a log, or nothing."""

from __future__ import annotations

import html
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.table import Table

    from heatbath.engine.progress import Progress

_WINDOW = 60.0  # seconds over which the speed is taken
_FIRST_SIGN = 1.0  # seconds after which a log says that the work has begun: to import torch takes longer
_LOG_SECONDS = 30.0  # between two lines of a log
_WORTH_A_LOG = 5.0  # seconds from which on a log tells how far the work is
_PAUSE = 0.1  # seconds between two pictures in a notebook: more often nobody sees
_NARROWEST_BAR, _WIDEST_BAR, _ROOM_FOR_PERCENT = 10, 40, 60
_TELLING = 0.02  # the fraction from which on the time left can be told


class Display:
    """Knows how far the work is and how long it will take; shows nothing."""

    def __init__(self) -> None:
        self.fraction: float | None = None
        self._start = time.monotonic()
        self._before: tuple[str, ...] = ()
        self._after: tuple[str, ...] = ()
        self._samples: deque[tuple[float, float]] = deque()

    def __enter__(self) -> Display:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Show the end."""

    def show(self, fraction: float | None, before: Sequence[str], after: Sequence[str] = ()) -> None:
        """Take note of the fraction done, None if nobody knows it, and what to say before and after the time left."""
        if fraction is not None and (self.fraction is None or fraction < self.fraction):
            self._samples.clear()
        self.fraction, self._before, self._after = fraction, tuple(before), tuple(after)
        if fraction is not None:
            now = time.monotonic()
            self._samples.append((now, fraction))
            while len(self._samples) > 2 and self._samples[1][0] < now - _WINDOW:
                self._samples.popleft()
        self.refresh()

    def follow_training(self, state: Progress) -> None:
        """Show how far a call of `heatbath.run` is."""
        if state.download is not None:
            self.follow_download(*state.download)
            return
        if state.message is not None:
            self.say(state.message, routine=state.routine)
        total = max(state.epochs_total, 1)
        accuracy = "" if state.test_accuracy is None else f"test accuracy {state.test_accuracy:.4f}"
        epochs = f"{state.epochs_done} of {state.epochs_total} epochs"
        rate = "" if self.speed is None else f"{self.speed * total:.3g} epochs/s"
        runs = f"{state.runs_done} of {state.runs_total} runs"
        self.show(state.epochs_done / total, (runs,), (accuracy, epochs, rate))

    def follow_download(self, name: str, here: int, size: int) -> None:
        """Show how much of a file is here."""
        self.show(here / max(size, 1), (f"downloading {name}", f"{here / 1e6:.1f} of {size / 1e6:.1f} MB"))

    def follow_fraction(self, fraction: float, what: str) -> None:
        """Show how far a simulation or measurement is, and what is being done."""
        self.show(fraction, (what,))

    def refresh(self) -> None:
        """Something has changed."""

    def say(self, message: str, *, routine: bool = False) -> None:
        """Show a message that stays; one of the usual course of things only where it is not in the way."""

    @property
    def speed(self) -> float | None:
        """The fraction done in a second, of late; None before anything was."""
        (start, low), (end, high) = (self._samples[0], self._samples[-1]) if self._samples else ((0.0, 0.0),) * 2
        return (high - low) / (end - start) if high > low and end > start else None

    @property
    def words(self) -> list[str]:
        """What there is to say, the most important first."""
        left = ""
        if self.speed is not None and self.fraction is not None and _TELLING <= self.fraction < 1.0:
            seconds = (1.0 - self.fraction) / self.speed - (time.monotonic() - self._samples[-1][0])
            left = f"{clock(max(seconds, 0.0))} left"
        return [text for text in (*self._before, left, *self._after) if text]

    @property
    def timed_words(self) -> list[str]:
        """The words, with the time since the work began."""
        words = self.words
        if self.elapsed >= 1.0 or self.fraction == 1.0:
            words.insert(1 + any(text.endswith(" left") for text in words), f"{clock(self.elapsed)} elapsed")
        return words

    @property
    def elapsed(self) -> float:
        """Seconds since the work began."""
        return time.monotonic() - self._start


class _TerminalDisplay(Display):
    """A bar with words behind it, as many as there is room for.

    In a script it stays at the end, and the usual course of things is not told.
    """

    def __init__(self, in_script: bool) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__()
        self._screen, self._in_script = Console(stderr=True, highlight=False, markup=False, emoji=False), in_script
        settings: dict[str, Any] = {"console": self._screen, "redirect_stdout": False, "refresh_per_second": 8}
        self._live = Live(self, transient=not in_script, **settings)

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def refresh(self) -> None:
        self._live.start()  # if it has not begun yet

    def say(self, message: str, *, routine: bool = False) -> None:
        if not (routine and self._in_script):
            self._screen.print(message)

    def __rich__(self) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        words, room = self.timed_words, self._screen.width - _NARROWEST_BAR - 2
        percent = ""
        if self.fraction is not None and self._screen.width >= _ROOM_FOR_PERCENT:
            percent = f"{100.0 * self.fraction:3.0f} %  "
        while len(words) > 1 and len(percent + ", ".join(words)) > room:
            words.pop()
        text = (percent + ", ".join(words))[: max(room, 1)]
        width = max(1, min(_WIDEST_BAR, self._screen.width - len(text) - 2))
        unknown = self.fraction is None
        bar = ProgressBar(1.0, self.fraction or 0.0, width, pulse=unknown, animation_time=time.monotonic())
        grid = Table.grid(padding=(0, 1))
        grid.add_row(bar, Text(text, no_wrap=True, overflow="crop"))
        return grid


class _NotebookDisplay(Display):
    """A bar that needs no widgets: the cell's output is replaced, and is kept in the saved notebook."""

    def __init__(self) -> None:
        super().__init__()
        self._handle: Any = None
        self._drawn = -_PAUSE

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            self._draw()

    def refresh(self) -> None:
        if time.monotonic() - self._drawn >= _PAUSE:
            self._drawn = time.monotonic()
            self._draw()

    def say(self, message: str, *, routine: bool = False) -> None:
        if not routine:
            print(message, file=sys.stderr, flush=True)

    def _draw(self) -> None:
        from IPython.display import HTML, display

        value = "" if self.fraction is None else f' value="{self.fraction:.3f}" max="1"'
        shown = HTML(f"<progress{value}></progress> {html.escape(', '.join(self.timed_words))}")
        if self._handle is None:
            self._handle = display(shown, display_id=True)
        else:
            self._handle.update(shown)


class _LogDisplay(Display):
    """A line at the beginning, one every half minute and one at the end, of work that takes some seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._last = self._start - _LOG_SECONDS + _WORTH_A_LOG
        self._held: list[str] = []
        self._sign = threading.Timer(_FIRST_SIGN, lambda: self._print(", ".join(self.words)))
        self._sign.daemon = True

    def say(self, message: str, *, routine: bool = False) -> None:
        if routine and self.elapsed < _WORTH_A_LOG:
            self._held.append(message)
        else:
            self._print(message)

    def __enter__(self) -> _LogDisplay:
        self._sign.start()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._sign.cancel()
        if error is None and self.elapsed >= _WORTH_A_LOG and self.fraction is not None:
            self._print(", ".join([*self._before, f"after {clock(self.elapsed)}"]))

    def refresh(self) -> None:
        going_on = self.fraction is not None and self.fraction < 1.0  # `__exit__` tells of the end
        if going_on and time.monotonic() - self._last >= _LOG_SECONDS:
            self._last = time.monotonic()
            self._print(f"{100.0 * (self.fraction or 0.0):.0f} %: {', '.join(self.words)}")

    def _print(self, text: str) -> None:
        self._sign.cancel()
        held, self._held = self._held, []
        with suppress(OSError):  # whoever read this has gone; the work goes on
            for line in (*held, text):
                print(f"heatbath: {line}", file=sys.stderr, flush=True)


def display(doing: str = "starting", *, quiet: bool = False) -> Display:
    """Return what shows how far a command is, on the standard error; or nothing, if it is to be quiet."""
    shown = Display() if quiet else _live_display(in_script=False) or _LogDisplay()
    shown.show(None, (doing,))
    return shown


@contextmanager
def watch(
    progress: Callable[[Progress], None] | Literal[False] | None,
) -> Iterator[Callable[[Progress], None] | None]:
    """Yield what is to be called with the progress of a training: that of the caller, or nothing if it is False.

    If it is None, that is a bar in a notebook or terminal.
    """
    bar = _live_display(in_script=True) if progress is None else None
    if bar is None:
        yield progress or None
        return
    with bar:
        yield bar.follow_training


def clock(seconds: float) -> str:
    """Return a time as hours, minutes and seconds."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _live_display(in_script: bool) -> Display | None:
    """A bar where somebody watches."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if hasattr(shell, "kernel"):  # which the shell of a terminal does not have
        return _NotebookDisplay()
    watched = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
    return _TerminalDisplay(in_script) if watched else None
