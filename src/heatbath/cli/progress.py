"""How far a command is: a live bar in a terminal or notebook, a line now and then in a log, or nothing."""

from __future__ import annotations

import sys
import threading
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
_FIRST_SIGN = 1.0  # seconds after which a log says that the work has begun: to import torch takes longer
_LOG_SECONDS = 30.0  # between two lines of a log
_WORTH_A_LOG = 5.0  # seconds from which on a log tells how far the work is
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
    def elapsed(self) -> float:
        """Seconds since the work began."""
        return time.monotonic() - self._start


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
        if self.elapsed >= 1.0:
            words.insert(1 + any(text.endswith(" left") for text in words), f"{clock(self.elapsed)} elapsed")
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


@contextmanager
def display(*, quiet: bool = False) -> Iterator[Display]:
    """Show how far the work is that is done meanwhile, on the standard error; or nothing, if it is to be quiet."""
    screen = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if quiet:
        yield Display()
    elif screen.is_jupyter or (sys.stderr.isatty() and not screen.is_dumb_terminal):
        live = _LiveDisplay(screen)
        with Live(live, console=screen, transient=True, redirect_stdout=False, refresh_per_second=8):
            yield live
    else:
        with _LogDisplay() as log:
            yield log


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
    shown.show(None, ("starting",))
    return lambda fraction, what: shown.show(fraction, (what,))


def clock(seconds: float) -> str:
    """Return a time as hours, minutes and seconds."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
