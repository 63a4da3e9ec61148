"""`heatbath compare` and `gate`: is one group of runs better than another, or no worse?"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from heatbath.cli.options import read_diverged, read_looks, read_where
from heatbath.cli.screens import Answer, print_table, say_verdicts, warn

if TYPE_CHECKING:
    from heatbath.stats.comparison import Comparisons

_STATUS = {"not worse": 0, "worse": 1, "undecided": 3}
_SENTENCES = 10  # the most that anybody reads


def compare_runs(
    source: Path,
    by: list[str],
    metric: Annotated[list[str] | None, "The metric to compare, test_accuracy by default."] = None,
    margin: str | None = None,
    level: float = 0.95,
    against: str | None = None,
    looks: str | None = None,
    where: list[str] | None = None,
    diverged: str = "tell",
    lower_is_better: bool | None = None,
    export: Path | None = None,
) -> Answer:
    """Say whether one group of runs is better than another, equal within a margin, or undecided.

    Groups are compared seed by seed where their seeds match. A store remembers each comparison: if you compare again
    with more seeds, the test becomes stricter, unless you planned these looks with --looks.
    """
    from heatbath import __version__, compare
    from heatbath.stats.comparison import BestOf
    from heatbath.stats.gate import write_verdict

    groups = read_two_groups(source, by, read_where(where))
    options: dict[str, Any] = {"metric": metric[0] if metric and len(metric) == 1 else metric or None}
    options |= {"margin": margin, "level": level, "against": against, "looks": read_looks(looks)}
    options |= {"diverged": read_diverged(diverged), "lower_is_better": lower_is_better}
    found, told = with_record(source, lambda history: compare(groups, **options, history=history))
    if export is not None:
        if isinstance(found, BestOf):
            raise ValueError("--export writes comparisons: leave out --against best")
        write_verdict(export, found, __version__)

    def show() -> None:
        if isinstance(found, BestOf):
            say_verdicts(str(found))
            print_table(("group", "mean", "verdict"), [(g.name, f"{g.mean:.5g}", g.verdict) for g in found])
        else:
            print_comparisons(found)
        if told:
            warn(told)

    return Answer(found.to_dict(), show)


def gate_runs(
    verdict: Path,
    new_runs: Path,
    margin: Annotated[str | None, "How much worse the new runs may be; by default the margin of the verdict."] = None,
    against: Annotated[str | None, "The group of the verdict to compare with; by default the better one."] = None,
    level: Annotated[float, "Confidence of the answer."] = 0.95,
    where: list[str] | None = None,
    diverged: str = "worst",
) -> Answer:
    """Check that new runs are not worse than a saved verdict: exit with 0 if not, 1 if they are, 3 if undecided.

    Diverged runs count as the worst value of both groups.
    """
    from heatbath.runs.sources import read_groups
    from heatbath.stats import wording
    from heatbath.stats.gate import gate, read_baseline
    from heatbath.stats.samples import read_sample, treat_diverged
    from heatbath.stats.verdicts import parse_margin

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
    return Answer({**data, "sentence": found.sentence}, lambda: say_verdicts(*told), status)


def read_two_groups(source: Path, by: list[str], where: Mapping[str, str]) -> dict[str, Any]:
    """Return the groups of runs that differ in some settings; a single one is refused."""
    from heatbath.runs.sources import read_groups

    groups = read_groups(source, by, where)
    if len(groups) < 2:
        raise ValueError(f"{source} has one group only, {next(iter(groups))}: choose another --by")
    return groups


def print_comparisons(found: Comparisons) -> None:
    """Print a sentence for each comparison, and first one for all if there are several; of many comparisons a table."""
    if len(found) > _SENTENCES:
        say_verdicts(found.sentence, "")
        rows = [(one.a.name, one.b.name, one.metric, one.verdict, str(one.interval)) for one in found]
        print_table(("a", "b", "metric", "a is", "difference"), rows, left=4)
        return
    many = len({one.metric for one in found}) > 1
    lines = [f"{one.metric}: {one.sentence}" if many else one.sentence for one in found]
    say_verdicts(*[found.sentence] * (len(found) > 1), *lines)


def with_record(source: Path, make: Callable[[Path | None], Any]) -> tuple[Any, str | None]:
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
