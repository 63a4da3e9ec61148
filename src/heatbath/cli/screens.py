"""What is printed on: the console, tables that fit it, and the answer of a command."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

_UNITS = "s|min|h|[kMG]B|seeds?|runs?|pairs|epochs?|steps?|samples|claims?"
_JOINTS = re.compile(rf"(?<=[\d.]) (?=%|(?:{_UNITS})\b)| (?=[=±] )|(?<= [=±]) ")  # spaces that no line ends at


class Answer(NamedTuple):
    """What a command has found: as JSON knows it, as people read it, as an exit status; and what comes after it.

    ``data`` may be a function that makes it, where that takes long.
    """

    data: Any
    show: Callable[[], None]
    status: int = 0
    after: Callable[[], None] = lambda: None

    def tell(self, *, as_json: bool) -> None:
        """Print it, and exit with its status."""
        if as_json:
            data = self.data() if callable(self.data) else self.data
            write(json.dumps(data, indent=2, allow_nan=False))
        else:
            self.show()
        self.after()
        if self.status:
            raise typer.Exit(self.status)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave a reader who has gone to `main`; Rich would exit with an error."""
        raise BrokenPipeError


@contextmanager
def printing() -> Iterator[None]:
    """Around what prints: an error of the system is told to be the output's, and not of some file."""
    try:
        yield
    except BrokenPipeError:
        raise BrokenPipeError from None  # without its number, at which typer would exit with an error
    except OSError as error:
        raise OSError(error.errno, error.strerror, "the output") from None


def write(text: str) -> None:
    """Print a plain text, such as JSON, on the standard output."""
    with printing():
        print(text)


def say(*lines: str, styles: Sequence[tuple[str, int, int | None]] = (), width: int | None = None) -> None:
    """Print lines, wrapped at words in a terminal, where a long path still stays in one piece.

    A style of a part of each line has Rich's name, where it begins and where it ends. In a file or a pipe, lines are
    wrapped at ``width``; without it they stay whole.
    """
    room = terminal_width() or width
    screen = _Console(highlight=False, markup=False, emoji=False, width=room or 240)
    with printing():
        # A style is one of each line; without any, one call prints ten thousand lines as fast as it prints one.
        for line in lines if styles or not lines else ("\n".join(lines),):
            text = Text("\n".join(wrap(part, room) for part in line.split("\n")))
            for style, start, end in styles:
                text.stylize(style, start, end)
            screen.print(text, soft_wrap=True)


def say_verdicts(*texts: str) -> None:
    """Print verdicts as paragraphs, which are as easy to read in a file or a pipe as in a terminal."""
    say(*texts, width=80)


def warn(text: str) -> None:
    """Print a warning among the results."""
    say(f"Warning: {text}", styles=[("bold yellow", 0, 8)])


def wrap(line: str, room: int | None) -> str:
    """Return a line with breaks between words, so that it fits; no word is broken, and no number from its unit."""
    if room is None:
        return line
    joined = _JOINTS.sub("\N{NO-BREAK SPACE}", line)
    filled = textwrap.fill(joined, room, break_long_words=False, break_on_hyphens=False)
    return filled.replace("\N{NO-BREAK SPACE}", " ")


def terminal_width() -> int | None:
    """Return the columns of the terminal that is printed on, or None where it is a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, spare: Sequence[str] = ()
) -> None:
    """Print a table that fits the terminal, with the first ``left`` columns aligned to the left.

    Columns with ``spare`` headings may be left out, with a word, where there is no room, the first of them first; a
    terminal that is too narrow even so gets row after row, with a line for each column.
    """
    widths = {column: max(cell_len(row[column]) for row in (headings, *rows)) for column in range(len(headings))}
    room, left_out = terminal_width(), []
    for heading in spare:
        if room is not None and _table_width(widths) > room:
            del widths[headings.index(heading)]
            left_out.append(heading)
    if room is not None and _table_width(widths) > room:
        indent = max(map(len, headings)) + 2
        for number, row in enumerate(rows):
            cells = [(heading, cell) for heading, cell in zip(headings, row, strict=True) if cell]
            lines = [f"{heading:<{indent}}{cell}" if heading else cell for heading, cell in cells]
            say(*[""] * bool(number), *lines)
        return
    lines = [_line(row, widths, left) for row in (headings, *rows)]
    rule = "─" if (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf") else "-"
    say(lines[0], styles=[("bold", 0, None)])
    say(rule * _table_width(widths), *lines[1:])
    if left_out:
        say(f"no room for: {', '.join(left_out)}")


def either(names: Iterable[str]) -> str:
    """Return names as a choice in words: ``a, b or c``."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def count(number: int, noun: str) -> str:
    """Return so many of a thing: ``1 run``, ``2 runs``."""
    return f"{number} {noun}{'s' * (number != 1)}"


def _table_width(widths: Mapping[int, int]) -> int:
    return sum(widths.values()) + 2 * (len(widths) - 1)


def _line(cells: Sequence[str], widths: Mapping[int, int], left: int) -> str:
    gaps = {column: " " * (width - cell_len(cells[column])) for column, width in widths.items()}
    aligned = (cells[column] + gap if column < left else gap + cells[column] for column, gap in gaps.items())
    return "  ".join(aligned).rstrip()
