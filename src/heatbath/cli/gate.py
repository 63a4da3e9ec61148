"""`heatbath gate`: are new runs no worse than those of a verdict? Its exit status is the answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from heatbath.cli.comparisons import SOURCES, DivergedOption, JsonOption, WhereOption, parse_diverged, parse_where
from heatbath.cli.screens import console, write

_STATUS = {"not worse": 0, "worse": 1, "undecided": 3}


def gate_runs(
    verdict: Annotated[Path, typer.Argument(metavar="VERDICT", help="A file of 'heatbath compare --export'.")],
    source: Annotated[Path, typer.Argument(metavar="NEW_RUNS", help=SOURCES)],
    margin: Annotated[
        str | None, typer.Option(metavar="X", help="How much worse is no matter; by default the verdict's margin.")
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="NAME", help="The group of the verdict; by default the better one.")
    ] = None,
    level: Annotated[float, typer.Option(help="The chance that the answer is right.")] = 0.95,
    where: WhereOption = None,
    diverged: DivergedOption = "worst",
    as_json: JsonOption = False,
) -> None:
    """Exit with 0 if new runs are not worse than a group of a verdict by a margin, 1 if they are, 3 if undecided.

    Diverged runs count as the worst number of both groups.
    """
    from heatbath.runs.read_groups import read_groups
    from heatbath.stats.compare import parse_margin
    from heatbath.stats.gate import gate, read_baseline
    from heatbath.stats.inputs import read_sample
    from heatbath.stats.samples import treat_diverged
    from heatbath.stats.wording import margin_in_words

    baseline = read_baseline(verdict, against)
    allowed = baseline.margin if margin is None else parse_margin(margin)
    if allowed is None:
        raise ValueError(f"{verdict} has no margin: give --margin")
    (runs,) = read_groups(source, (), parse_where(where)).values()
    new = read_sample("the new runs", runs, baseline.metric or None)
    lower = baseline.lower_is_better
    new, old = treat_diverged([new, baseline.group], parse_diverged(diverged), lower_is_better=lower)
    found = gate(baseline._replace(group=old), new, allowed, level)
    words = (
        f"{found.answer.capitalize()}: {found.verdict.evidence}; against {found.baseline} in {found.metric or 'values'}"
    )
    if as_json:
        answer: dict[str, Any] = {"answer": found.answer, "status": _STATUS[found.answer], "baseline": found.baseline}
        answer |= {"metric": found.metric, "margin": float(allowed), "p": found.verdict.p_value, "notes": found.notes}
        write(json.dumps({**answer, "sentence": f"{words}."}, indent=2))
    else:
        screen = console()
        needs = f"; {found.verdict.needs}" if found.verdict.needs else ""
        screen.print(f"{words}, margin {margin_in_words(allowed)}{needs}.")
        for note in found.notes:
            screen.print(f"{note[:1].upper()}{note[1:]}.")
    raise typer.Exit(_STATUS[found.answer])
