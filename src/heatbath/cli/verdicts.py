"""Verdicts, for people and for programs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heatbath.cli.screens import Answer, say, say_verdicts, warn

if TYPE_CHECKING:
    from heatbath.report.panels import FigureData
    from heatbath.stats.verdicts import Verdict

_STYLES = {"confirmed": "green", "contradicted": "red", "undecided": "yellow"}


def print_verdicts(verdicts: Sequence[tuple[str, Verdict]]) -> None:
    """Print figure, verdict, claim and our numbers, and how many verdicts there are of each kind.

    Margins and p-values are in the report.
    """
    from heatbath.stats import wording

    for figure, verdict in verdicts:
        numbers = wording.numbers(verdict)
        styles = [("bold", 0, len(figure)), (_STYLES[verdict.outcome], len(figure) + 2, None)]
        say(f"{figure}: {wording.outcome(verdict)}", styles=styles)
        say_verdicts(f"{verdict.claim}. {numbers[:1].upper()}{numbers[1:]}", "")
    say(f"{', '.join(f'{number} {name}' for name, number in _count(verdicts).items() if number)}")


def describe_verdicts(verdicts: Sequence[tuple[str, Verdict]], **more: Any) -> dict[str, Any]:
    """Return verdicts as JSON knows them, and what else is to be told."""
    from heatbath.stats import wording

    rows = []
    for figure, verdict in verdicts:
        found = verdict.interval
        ends = [end if math.isfinite(end) else None for end in (found.low, found.high)] if found else None
        row = {"figure": figure, "claim": verdict.claim, "outcome": verdict.outcome, "needs": wording.needs(verdict)}
        row |= {"detail": wording.detail(verdict)}
        rows.append({**row, "interval": ends, "level": found.level if found else None})
    return {**more, "counts": _count(verdicts), "verdicts": rows}


def answer_with_figures(
    figures: Sequence[FigureData],
    page: Path,
    scale: str,
    *,
    warnings: Sequence[str] = (),
    empty: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Answer:
    """Return the verdicts on figures, but for those without any results, and what else is to be told."""
    verdicts = [(figure.name, one) for figure in figures if figure.name not in empty for one in figure.verdicts]
    missing = [figure.name for figure in figures if figure.missing and figure.name not in empty]

    def show() -> None:
        if verdicts:
            print_verdicts(verdicts)
        for text in warnings:
            say("")
            warn(text)
        if missing:
            say(f"\nNot complete: {', '.join(missing)}; the report says what is missing")
        say(*(f"\n{text}" for text in notes), f"\nThe report, at the scale {scale}: {page}")

    return Answer(describe_verdicts(verdicts, scale=scale, report=str(page), not_complete=missing), show)


def _count(verdicts: Sequence[tuple[str, Verdict]]) -> dict[str, int]:
    counts = Counter(verdict.outcome for _, verdict in verdicts)
    return {name: counts[name] for name in dict.fromkeys((*_STYLES, *counts))}
