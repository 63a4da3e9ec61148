"""`heatbath gate`: are new runs no worse than those of a verdict? Its exit status is the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from heatbath.cli.options import read_diverged, read_where
from heatbath.cli.screens import Answer, say

_STATUS = {"not worse": 0, "worse": 1, "undecided": 3}


def gate_runs(
    verdict: Path,
    new_runs: Path,
    margin: Annotated[str | None, "How much worse is no matter; by default the verdict's margin."] = None,
    against: Annotated[str | None, "The group of the verdict; by default the better one."] = None,
    level: Annotated[float, "The chance that the answer is right."] = 0.95,
    where: list[str] | None = None,
    diverged: str = "worst",
) -> Answer:
    """Exit with 0 if new runs are not worse than a group of a verdict by a margin, 1 if they are, 3 if undecided.

    Diverged runs count as the worst number of both groups.
    """
    from heatbath.runs.sources import read_groups
    from heatbath.stats import wording
    from heatbath.stats.gate import gate, read_baseline
    from heatbath.stats.margins import parse_margin
    from heatbath.stats.samples import read_sample, treat_diverged

    baseline = read_baseline(verdict, against)
    allowed = baseline.margin if margin is None else parse_margin(margin)
    if allowed is None:
        raise ValueError(f"{verdict} has no margin: give --margin")
    (runs,) = read_groups(new_runs, (), read_where(where)).values()
    new = read_sample("the new runs", runs, baseline.metric or None)
    lower = baseline.lower_is_better
    new, old = treat_diverged([new, baseline.group], read_diverged(diverged), lower_is_better=lower)
    found = gate(baseline._replace(group=old), new, allowed, level)
    told = [found.sentence, *(wording.notes([note]).strip() for note in found.notes)]
    status = _STATUS[found.answer]
    data: dict[str, Any] = {"answer": found.answer, "status": status, "baseline": found.baseline}
    data |= {"metric": found.metric, "margin": float(allowed), "p": found.verdict.p_value, "notes": found.notes}
    return Answer({**data, "sentence": found.sentence}, lambda: say(*told), status)
