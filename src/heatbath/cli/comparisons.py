"""What the commands that compare groups of runs share: their options, and how comparisons are printed."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heatbath.cli.screens import console, print_table, terminal_width

if TYPE_CHECKING:
    from heatbath.stats.comparison import Comparisons

_SENTENCES = 10  # the most that anybody reads
SOURCES = "A store, a file or folder of 'runs export', or a table (.csv[.gz] or .jsonl[.gz])."
MARGINS = "How far means may be apart and count as equal: 0.002, or 5% for the ratio of geometric means (losses)."
DivergedOption = Annotated[
    str,
    typer.Option(metavar="HOW", help="Runs without a number: tell, exclude, worst, or a number that they count as."),
]
WhereOption = Annotated[
    list[str] | None,
    typer.Option("--where", metavar="KEY=VALUE", help="Only runs with this setting; may be given several times."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_comparisons(found: Comparisons) -> None:
    """Print a sentence for each comparison, and first one for all if there are several; of many comparisons a table."""
    many = len({one.metric for one in found}) > 1
    if len(found) > _SENTENCES:
        print_lines([found.sentence, ""])
        rows = [(one.a.name, one.b.name, one.metric, one.verdict, str(one.interval)) for one in found]
        print_table(("a", "b", "metric", "a is", "difference"), rows, left=4)
        return
    lines = [f"{one.metric}: {one.sentence}" if many else one.sentence for one in found]
    print_lines([found.sentence, *lines] if len(found) > 1 else lines)


def parse_where(texts: Sequence[str] | None) -> dict[str, str]:
    """Return settings and their values from ``KEY=VALUE``."""
    pairs = [text.partition("=") for text in texts or ()]
    for key, equals, _ in pairs:
        if not equals or not key:
            raise ValueError(f"--where must be KEY=VALUE, got {key!r}")
    return {key: value for key, _, value in pairs}


def parse_looks(text: str) -> tuple[int, ...]:
    """Return planned looks from numbers with commas between them."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise ValueError(f"--looks must be numbers of seeds such as 5,10,20,40, got {text!r}") from None


def parse_diverged(text: str) -> str | float:
    """Return what to do with diverged runs: a word, or a number."""
    try:
        return float(text)
    except ValueError:
        return text


def print_lines(lines: Sequence[str]) -> None:
    """Print sentences, wrapped at words in a terminal."""
    screen = console(wrap=terminal_width() is not None)
    for line in lines:
        screen.print(line)


def with_record(source: Path, make: Any) -> tuple[Any, str | None]:
    """Compare with the record of looks of a store; without one, and a word, where it cannot be written."""
    from heatbath.runs.store import Store
    from heatbath.stats.looks import FILE

    if not (source / Store.FILE).exists():
        return make(None), None
    try:
        return make(source / FILE), None
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return make(None), f"nothing can be written to {source}, so that this look is not kept"
