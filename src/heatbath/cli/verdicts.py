"""The verdicts on the paper's claims, as a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from heatbath.cli.screens import console, print_table, terminal_width

if TYPE_CHECKING:
    from heatbath.report.panels import Judged

_STYLES = {"confirmed": "green", "contradicted": "red", "undecided": "yellow", "better": "green", "worse": "red"}
_NARROW = 90  # columns below which a table of sentences is no pleasure


def print_verdicts(verdicts: Iterable[tuple[str, Judged]]) -> None:
    """Print figure, claim, verdict and our numbers: cells of several lines in a terminal, long lines elsewhere."""
    width = terminal_width()
    if width is None:
        rows = [(figure, verdict.claim, verdict.text, _numbers(verdict)) for figure, verdict in verdicts]
        print_table(("figure", "claim", "verdict", "our numbers"), rows, left=4)
        return
    screen = console(wrap=True)
    if width < _NARROW:
        for number, (figure, verdict) in enumerate(verdicts):
            head = Text.assemble((figure, "bold"), ": ", (verdict.text, _STYLES.get(verdict.outcome, "")))
            screen.print(head if number == 0 else Text("\n").append_text(head))
            screen.print(f"{verdict.claim}. {_numbers(verdict)}")
        return
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("figure", no_wrap=True)
    for name, ratio in (("claim", 4), ("verdict", 2), ("our numbers", 4)):
        table.add_column(name, ratio=ratio)
    last = ""
    for figure, verdict in verdicts:
        if last not in ("", figure):
            table.add_row("", "", "", "")
        shown = "" if figure == last else figure
        table.add_row(shown, verdict.claim, Text(verdict.text, _STYLES.get(verdict.outcome, "")), _numbers(verdict))
        last = figure
    screen.print(table)


def _numbers(verdict: Judged) -> str:
    """Our numbers without the margin and the p-value, which the report has."""
    numbers = verdict.numbers
    return numbers[:1].upper() + numbers[1:]
