"""Verdicts, for people and for programs."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from heatbath.cli.screens import console, terminal_width

if TYPE_CHECKING:
    from heatbath.report.panels import Judged

_STYLES = {"confirmed": "green", "contradicted": "red", "undecided": "yellow"}
_NARROW = 90  # columns below which a table of sentences is no pleasure


def print_verdicts(verdicts: Sequence[tuple[str, Judged]]) -> None:
    """Print figure, verdict, claim and our numbers, and how many verdicts there are of each kind.

    They are cells of several lines in a wide terminal, paragraphs in a narrow one, and a line each elsewhere.
    """
    width, screen = terminal_width(), console(wrap=terminal_width() is not None)
    if width is None:
        names = max((len(figure) for figure, _ in verdicts), default=0)
        for figure, verdict in verdicts:
            needs = f" ({verdict.needs})" if verdict.needs else ""
            text = f"{verdict.claim}. {_numbers(verdict)}{needs}"
            screen.print(f"{figure:<{names}}  {verdict.outcome:<12}  {text}")
    elif width < _NARROW:
        for number, (figure, verdict) in enumerate(verdicts):
            head = Text.assemble((figure, "bold"), ": ", (verdict.text, _STYLES[verdict.outcome]))
            screen.print(head if number == 0 else Text("\n").append_text(head))
            screen.print(f"{verdict.claim}. {_numbers(verdict)}")
    else:
        screen.print(_table(verdicts))
    counts = Counter(verdict.outcome for _, verdict in verdicts)
    screen.print(f"\n{', '.join(f'{counts[name]} {name}' for name in _STYLES if counts[name])}")


def verdicts_to_json(verdicts: Sequence[tuple[str, Judged]], **more: str) -> str:
    """Return verdicts as JSON, and what else is to be told."""
    rows = []
    for figure, verdict in verdicts:
        found = verdict.interval
        ends = [end if math.isfinite(end) else None for end in (found.low, found.high)] if found else None
        row = {"figure": figure, "claim": verdict.claim, "outcome": verdict.outcome, "needs": verdict.needs}
        rows.append({**row, "interval": ends, "level": found.level if found else None, "detail": verdict.detail})
    return json.dumps({**more, "verdicts": rows}, indent=2, allow_nan=False)


def _table(verdicts: Sequence[tuple[str, Judged]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("figure", no_wrap=True)
    for name, ratio in (("claim", 4), ("verdict", 2), ("our numbers", 4)):
        table.add_column(name, ratio=ratio)
    last = ""
    for figure, verdict in verdicts:
        if last not in ("", figure):
            table.add_row("", "", "", "")
        shown = "" if figure == last else figure
        table.add_row(shown, verdict.claim, Text(verdict.text, _STYLES[verdict.outcome]), _numbers(verdict))
        last = figure
    return table


def _numbers(verdict: Judged) -> str:
    """Our numbers without the margin and the p-value, which the report has."""
    numbers = verdict.numbers
    return numbers[:1].upper() + numbers[1:]
