"""How far a command is: a live bar in a terminal or notebook, a line now and then in a log, or nothing."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from heatbath.engine.progress import Progress

_WINDOW = 60.0  # seconds over which the speed is taken
_LOG_SECONDS = 30.0  # between two lines of a log
_WORTH_A_LOG = 5.0  # seconds from which on a log tells of the work at all
_NARROWEST_BAR, _WIDEST_BAR = 10, 40
_TELLING = 0.02  # the fraction from which on the time left can be told


class Display:
    """Knows how far the work is and how long it will take; shows nothing."""

    def __init__(self) -> None:
        self.fraction: float | None = None
        self._start = time.monotonic()
        self._before: tuple[str, ...] = ()
        self._after: tuple[str, ...] = ()
        self._samples: deque[tuple[float, float]] = deque()

    def show(self, fraction: float | None, before: Sequence[str], after: Sequence[str] = ()) -> None:
        """Take note of how far the work is.

        Args:
            fraction: from 0 to 1, or None where nobody knows.
            before: what to say, the most important first; the time left comes after it.
            after: what to say if there is room.
        """
        if fraction is not None and (self.fraction is None or fraction < self.fraction):
            self._samples.clear()
        self.fraction, self._before, self._after = fraction, tuple(before), tuple(after)
        if fraction is not None:
            now = time.monotonic()
            self._samples.append((now, fraction))
            while len(self._samples) > 2 and self._samples[1][0] < now - _WINDOW:
                self._samples.popleft()
        self._refresh()

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
        return [text for text in (*self._before, self._left(), *self._after) if text]

    def finish(self) -> None:
        """The work is over."""

    def _refresh(self) -> None:
        """Something has changed."""

    def _left(self) -> str:
        speed = self.speed
        if speed is None or self.fraction is None or not _TELLING <= self.fraction < 1.0:
            return ""
        left = (1.0 - self.fraction) / speed - (time.monotonic() - self._samples[-1][0])
        return f"{clock(max(left, 0.0))} left"


class _LiveDisplay(Display):
    """A bar with words behind it, as many as there is room for."""

    def __init__(self, screen: Console) -> None:
        super().__init__()
        self._screen = screen

    def say(self, message: str, *, routine: bool = False) -> None:
        del routine
        self._screen.print(message)

    def __rich__(self) -> Table:
        words, room = self.words, self._screen.width - _NARROWEST_BAR - 2
        while len(words) > 1 and len(", ".join(words)) > room:
            words.pop()
        text = ", ".join(words)[: max(room, 1)]
        width = max(1, min(_WIDEST_BAR, self._screen.width - len(text) - 2))
        unknown = self.fraction is None
        bar = ProgressBar(1.0, self.fraction or 0.0, width, pulse=unknown, animation_time=time.monotonic())
        grid = Table.grid(padding=(0, 1))
        grid.add_row(bar, Text(text, no_wrap=True, overflow="crop"))
        return grid


class _LogDisplay(Display):
    """A line every half minute and one at the end, of work that takes some seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._last = self._start - _LOG_SECONDS + _WORTH_A_LOG
        self._held: list[str] = []

    def say(self, message: str, *, routine: bool = False) -> None:
        if routine and self._elapsed < _WORTH_A_LOG:
            self._held.append(message)
        else:
            self._print(message)

    def finish(self) -> None:
        if self._elapsed >= _WORTH_A_LOG and self.fraction is not None:
            self._print(", ".join([*self._before, f"after {clock(self._elapsed)}"]))

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._start

    def _refresh(self) -> None:
        going_on = self.fraction is not None and self.fraction < 1.0  # `finish` tells of the end
        if going_on and time.monotonic() - self._last >= _LOG_SECONDS:
            self._last = time.monotonic()
            self._print(f"{100.0 * (self.fraction or 0.0):.0f} %: {', '.join(self.words)}")

    def _print(self, text: str) -> None:
        held, self._held = self._held, []
        with suppress(OSError):  # whoever read this has gone; the work goes on
            for line in (*held, text):
                print(f"heatbath: {line}", file=sys.stderr, flush=True)


@contextmanager
def display(*, quiet: bool = False, log: bool = True) -> Iterator[Display]:
    """Show how far the work is that is done meanwhile, on the standard error.

    Args:
        quiet: show nothing anywhere.
        log: write lines where there is no terminal.
    """
    screen = Console(stderr=True, highlight=False, markup=False, emoji=False)
    live = screen.is_jupyter or (sys.stderr.isatty() and not screen.is_dumb_terminal)
    if quiet or not (live or log):
        yield Display()
    elif not live:
        shown: Display = _LogDisplay()
        yield shown
        shown.finish()
    else:
        shown = _LiveDisplay(screen)
        with Live(shown, console=screen, transient=True, redirect_stdout=False, refresh_per_second=8):
            yield shown


def follow_training(shown: Display) -> Callable[[Progress], None]:
    """Return what `heatbath.run` is to call with its progress."""
    shown.show(None, ("starting",))
    fetch = follow_download(shown)

    def follow(state: Progress) -> None:
        if state.download is not None:
            fetch(*state.download)
            return
        if state.message is not None:
            shown.say(state.message, routine=state.routine)
        total = max(state.epochs_total, 1)
        accuracy = "" if state.test_accuracy is None else f"test accuracy {state.test_accuracy:.4f}"
        epochs = f"{state.epochs_done} of {state.epochs_total} epochs"
        rate = "" if shown.speed is None else f"{shown.speed * total:.3g} epochs/s"
        runs = f"{state.runs_done} of {state.runs_total} runs"
        shown.show(state.epochs_done / total, (runs,), (accuracy, epochs, rate))

    return follow


def follow_download(shown: Display) -> Callable[[str, int, int], None]:
    """Return what a download is to call: with the file's name, the bytes that are here and the bytes in all."""

    def follow(name: str, here: int, size: int) -> None:
        shown.show(here / size, (f"downloading {name}", f"{here / 1e6:.1f} of {size / 1e6:.1f} MB"))

    return follow


def follow_fraction(shown: Display) -> Callable[[float, str], None]:
    """Return what simulations and measurements are to call: with the fraction done and what is being done."""
    return lambda fraction, what: shown.show(fraction, (what,))


def clock(seconds: float) -> str:
    """Return a time as hours, minutes and seconds."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
