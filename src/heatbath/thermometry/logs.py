"""Where the readings of a `heatbath.Thermometer` go: CSV and TensorBoard.

A log is any callable that takes a reading, a flat dict of numbers (None where there is none yet). One for another
logger is five lines::

    def log(reading):
        numbers = {f"heatbath/{key}": value for key, value in reading.items() if value is not None}
        wandb.log(numbers, step=reading["step"])

    thermometer = heatbath.Thermometer(model, optimizer, callback=log)

Under DDP every rank takes the same readings: give the callback to rank 0 alone.
"""

from __future__ import annotations

import csv
import itertools
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

Reading = dict[str, float | int | str | None]  # text is a reason
Callback = Callable[[Reading], Any]


def check_callbacks(callback: Callback | Iterable[Callback]) -> list[Callback]:
    """Return one callback or several as a list; raise TypeError if one is no function."""
    given: Any = callback
    is_one = callable(given) or isinstance(given, str) or not isinstance(given, Iterable)
    found: list[Any] = [given] if is_one else list(given)
    for one in found:
        if not callable(one):
            raise TypeError(f"callback must be a function of a reading, such as hb.CSVLog('run.csv'), got {one!r}")
    return found


def one_line(error: Exception) -> str:
    """Return what an error says; that of other code with its kind."""
    text = " ".join(str(error).split())
    return text if text and isinstance(error, TypeError | ValueError) else f"{type(error).__name__}: {text}"


class WarnOnce:
    """Warns of each thing once, by the letters in it: its numbers may be others each time."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def __call__(self, what: str, message: str) -> None:
        """Warn of something."""
        if (key := "".join(filter(str.isalpha, what))) not in self._told:
            self._told.add(key)
            warnings.warn(message, RuntimeWarning, stacklevel=4)


def show_numbers(title: str, numbers: Mapping[str, Any]) -> str:
    """Return a small table in HTML, for notebooks."""
    shown = {name: f"{x:.4g}" if type(x) is float else str(x) for name, x in numbers.items() if x is not None}
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in shown.items())
    return f"<p>{escape(title)}</p><table><tbody>{rows}</tbody></table>"


class CSVLog:
    """Appends each reading to a CSV file as one row; the header is written once, so that a resumed run goes on.

    The columns are the keys of the first reading; None becomes an empty cell. Every row is on the disk when the call
    returns. A resumed run may repeat a step that it had logged before it was stopped: the later row is the right one.
    A run that is not that of the file goes to a file of its own, ``run-2.csv`` for ``run.csv``, and a warning says so.
    A `Thermometer` tells which run it is; else it is another one if its first step lies before those of the file or
    between them. ``path`` is where the rows go.

    Raises:
        ValueError: the file has other columns than the reading.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = self._asked = Path(path)
        self._columns: list[str] | None = None
        self._run: tuple[int, dict[Any, Reading]] | None = None  # its steps and readings so far, if somebody told

    def begin(self, step: int, history: Iterable[Reading]) -> None:
        """Tell which run comes now: one that is at ``step``, 0 if it is new, and had these readings."""
        self._columns, self._run = None, (step, {reading["step"]: reading for reading in history})

    def __call__(self, reading: Reading) -> None:
        """Append one row."""
        if self._columns is None or set(self._columns) != set(reading):  # which changes if a group is added
            self._columns = self._open(reading)
        if set(self._columns) != set(reading):
            raise ValueError(
                f"{self.path} has the columns {', '.join(self._columns)}, this reading has {', '.join(reading)}: "
                "log to another file"
            )
        with self.path.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._columns).writerow(reading)

    def _open(self, reading: Reading) -> list[str]:
        """Return the columns of the file of this run, whose header is written if it has none."""
        others = (self._asked.with_stem(f"{self._asked.stem}-{k}") for k in itertools.count(2))
        for path in itertools.chain([self._asked], others):
            columns, text = list(reading), path.read_bytes().decode() if path.exists() else ""
            whole = text[: text.rfind("\n") + 1]
            is_empty = not whole and ",".join(columns).startswith(text.rstrip("\r"))  # or it was killed in the header
            found, *rows = csv.reader(text.splitlines() or [""])
            if is_empty or self._is_ours(reading, found, rows):
                break
        if path not in (self.path, self._asked):
            message = f"{self._asked} holds another run, or other columns: this one goes to {path}"
            warnings.warn(message, UserWarning, stacklevel=4)
        self.path = path
        if is_empty:
            return self._header(columns)
        if whole != text and set(found) == set(columns):  # it was killed in a row
            os.truncate(self.path, len(whole.encode()))
        return found

    def _is_ours(self, reading: Reading, columns: list[str], rows: list[list[str]]) -> bool:
        """Whether a file is that of this run. If nobody told which that is, a file of others is kept, and told of."""
        if "step" not in columns or set(columns) != set(reading):
            return self._run is None
        found = [dict(zip(columns, row, strict=True)) for row in rows if len(row) == len(columns)]
        steps = [int(float(row["step"])) for row in found]
        if not steps:
            return True
        if self._run is None:
            step = int(reading["step"] or 0)
            return step > steps[0] and (step > steps[-1] or step in steps)
        now, earlier = self._run
        if steps[0] > now:  # it was saved before its first reading
            return now > 0
        return found[0] == {
            key: "" if x is None else str(x) for key, x in earlier.get(steps[0], {}).items() if key in columns
        }

    def _header(self, columns: list[str]) -> list[str]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("w", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, columns).writeheader()
        return columns


class TensorBoardLog:
    """Writes each number of a reading as a TensorBoard scalar, at the reading's step.

    Args:
        writer: a `torch.utils.tensorboard.SummaryWriter`, or the directory for one; anything with ``add_scalar`` does.
        prefix: what the names of the scalars begin with.

    Raises:
        ImportError: a directory is given and TensorBoard is not installed.
    """

    def __init__(self, writer: Any, prefix: str = "heatbath/") -> None:
        if isinstance(writer, str | os.PathLike):
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise ImportError("TensorBoardLog needs TensorBoard: pip install tensorboard") from error
            writer = SummaryWriter(os.fspath(writer))
        self.writer = writer
        self.prefix = prefix

    def __call__(self, reading: Reading) -> None:
        """Write what the reading has."""
        for key, value in reading.items():
            if key != "step" and value is not None:
                self.writer.add_scalar(self.prefix + key, value, reading["step"])
