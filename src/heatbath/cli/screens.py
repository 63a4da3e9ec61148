"""What is printed on: the console, and tables that fit it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave a reader who has gone to `main`; Rich would exit with an error."""
        raise BrokenPipeError

    def print(self, *objects: Any, **options: Any) -> None:
        with printing():
            super().print(*objects, **options)


@contextmanager
def printing() -> Iterator[None]:
    """Around what prints: an error of the system is told to be the output's, and not of some file."""
    try:
        yield
    except BrokenPipeError:
        raise BrokenPipeError from None  # without its number, at which typer would exit with an error
    except OSError as error:
        raise OSError(error.errno, error.strerror, "the output") from None


def console(*, wrap: bool = False) -> Console:
    """Return the console to print on: it cuts no line, as a terminal wraps better than we could; or wraps at words."""
    measured = _Console(highlight=False, soft_wrap=not wrap, markup=False, emoji=False)
    if not wrap:
        measured.width = max(measured.width, 100) if measured.is_terminal else 240
    return measured


def write(text: str) -> None:
    """Print a plain text, such as JSON, on the standard output."""
    with printing():
        print(text)


def terminal_width() -> int | None:
    """Return the columns of the terminal that is printed on, or None where it is a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, spare: Sequence[str] = ()
) -> None:
    """Print a table that fits the terminal.

    Args:
        headings: of the columns.
        rows: a text for each column.
        left: how many columns, from the first, are aligned to the left.
        spare: headings of columns that may be left out, with a word, where there is no room, the first of them first;
            a terminal that is too narrow even so gets row after row, with a line for each column.
    """
    widths = {column: max(cell_len(row[column]) for row in (headings, *rows)) for column in range(len(headings))}
    screen, room = console(), terminal_width()
    left_out = []
    for heading in spare:
        if room is not None and _table_width(widths) > room:
            del widths[headings.index(heading)]
            left_out.append(heading)
    if room is not None and _table_width(widths) > room:
        _print_stacked(screen, headings, rows)
        return
    lines = [_line(row, widths, left) for row in (headings, *rows)]
    screen.print(Text(lines[0], "bold"))
    screen.print(("─" if screen.encoding.startswith("utf") else "-") * _table_width(widths))
    for line in lines[1:]:
        screen.print(line)
    if left_out:
        screen.print(f"no room for: {', '.join(left_out)}")


def warn(text: str) -> None:
    """Print a warning among the results."""
    console().print(Text.assemble(("Warning:", "bold yellow"), f" {text}"))


def either(names: Iterable[str]) -> str:
    """Return names as a choice in words: ``a, b or c``."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def folder_option(name: str, words: str) -> Any:
    """Return typer's option for a folder; an empty name, as of a variable that is unset, is refused.

    Args:
        name: of the option, such as ``--out``.
        words: for the help.
    """

    def parse(text: str | Path) -> Path:
        if not str(text):  # which Path would take for the working folder
            raise typer.BadParameter("it is empty; name a folder, or . for this one")
        return Path(text)

    return typer.Option(name, metavar="DIR", parser=parse, help=words)


def check_data_dir(data_dir: Path | None) -> None:
    """Refuse a folder of data that is not there."""
    from heatbath.data import downloads

    downloads.check_data_dir(data_dir, "--data-dir")


def _table_width(widths: Mapping[int, int]) -> int:
    return sum(widths.values()) + 2 * (len(widths) - 1)


def _line(cells: Sequence[str], widths: Mapping[int, int], left: int) -> str:
    gaps = {column: " " * (width - cell_len(cells[column])) for column, width in widths.items()}
    aligned = (cells[column] + gap if column < left else gap + cells[column] for column, gap in gaps.items())
    return "  ".join(aligned).rstrip()


def _print_stacked(screen: Console, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    indent = max(map(cell_len, headings)) + 2
    for number, row in enumerate(rows):
        if number:
            screen.print()
        for heading, cell in zip(headings, row, strict=True):
            if cell:
                screen.print(heading + " " * (indent - cell_len(heading)) + cell if heading else cell)
