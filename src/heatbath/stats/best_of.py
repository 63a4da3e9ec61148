"""Which of several groups is the best? Multiple comparisons with the best (Hsu 1984), each by its own t test.

For every group the interval of "its mean less the best mean of the others" follows from one-sided bounds of all
differences. If ``b`` is the truly best group, all these intervals hold once the bounds of ``b`` against every other
group do: ``k - 1`` one-sided bounds at ``(1 - level) / (k - 1)``, however many groups and statements there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from heatbath.stats import wording
from heatbath.stats.comparison import Comparison, Several
from heatbath.stats.intervals import Interval

Place = Literal["best", "not the best", "within the margin of the best", "undecided"]


class Standing(NamedTuple):
    """Where one group stands."""

    name: str  # of the group
    mean: float  # of its values; geometric with a relative margin
    # of its mean less the best mean of the others (their ratio, with a relative margin), with the sign turned where
    # lower is better: positive is better. It is cut at no difference, as there is nothing to say about by how much the
    # best one leads beyond its bound
    interval: Interval
    verdict: Place  # certainly the best; certainly not; certainly within the margin of the best one; or undecided


@dataclass(frozen=True, repr=False)
class BestOf(Several[Standing]):
    """Where each group stands; the chance that any of it is wrong is at most ``1 - level``.

    Attributes:
        members: the groups, the best mean first.
        level: the chance that all is right.
        metric: what is compared.
        margin: within which a group is as good as the best.
        notes: what was left out, replaced or not paired, in words.
    """

    metric: str
    margin: float | None
    notes: tuple[str, ...] = ()

    @property
    def candidates(self) -> tuple[str, ...]:
        """The groups that may be the best."""
        return tuple(one.name for one in self.members if one.verdict != "not the best")

    @property
    def sentence(self) -> str:
        """Which groups may be the best, in words."""
        near = [one.name for one in self.members if one.verdict == "within the margin of the best"]
        return wording.best(self.candidates, near, len(self), self.level, self.margin)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON knows it."""
        groups = [
            {"name": g.name, "mean": g.mean, "verdict": g.verdict, "interval": [g.interval.low, g.interval.high]}
            for g in self.members
        ]
        return {
            "metric": self.metric,
            "level": self.level,
            "sentence": self.sentence,
            "candidates": list(self.candidates),
            "groups": groups,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        return f"{self.sentence}{wording.notes(self.notes)}"

    def _table(self) -> wording.Table:
        rows = [(g.name, f"{g.mean:.5g}", g.verdict, str(g.interval)) for g in self.members]
        return ("group", f"mean {self.metric}".strip(), "verdict", "against the best other"), rows


def find_best(tests: Sequence[Comparison], level: float) -> BestOf:
    """Return where each group stands, from the comparisons of each two, which need the error ``2 (1 - level)/(k - 1)``.

    Groups without a test, of which a value is no number or the spread is zero, leave everything open.
    """
    first = tests[0]
    bounds: dict[str, list[tuple[float, float, float]]] = {}
    means: dict[str, float] = {}
    for test in tests:
        for group, mean, turned in zip((test.a, test.b), test.above.means, (False, True), strict=True):
            means[group.name] = mean
            bounds.setdefault(group.name, []).append(_lead(test, turned != first.lower_is_better))
    even = 1.0 if first.is_relative else 0.0
    lowest = even if first.margin is None else 1.0 / first.margin if first.is_relative else -first.margin
    members = []
    for name, others in bounds.items():
        low, middle, high = (min(column) for column in zip(*others, strict=True))
        verdict: Place = "within the margin of the best" if low > lowest else "undecided"
        verdict = "not the best" if high < even else "best" if low > even else verdict
        interval = Interval(middle, min(low, even), max(high, even), level)
        members.append(Standing(name, means[name], interval, verdict))
    # The best is certain where all others are out, which their bounds say more sharply than its own.
    if [one.verdict for one in members].count("not the best") == len(members) - 1:
        members = [one if one.verdict == "not the best" else one._replace(verdict="best") for one in members]
    members.sort(key=lambda one: one.mean, reverse=not first.lower_is_better)
    notes = dict.fromkeys(note for test in tests for note in test.notes)
    notes |= dict.fromkeys(wording.lacks_numbers(s) for test in tests for s in (test.a, test.b) if s.broken)
    return BestOf(tuple(members), level, first.metric, first.margin, tuple(notes))


def _lead(test: Comparison, turned: bool) -> tuple[float, float, float]:
    """Low end, estimate and high end of the difference or ratio of two groups, or of the second and the first."""
    ends = test.interval.low, test.interval.estimate, test.interval.high
    if not turned:
        return ends
    low, middle, high = (1.0 / max(end, 1e-300) if test.is_relative else -end for end in reversed(ends))
    return low, middle, high
