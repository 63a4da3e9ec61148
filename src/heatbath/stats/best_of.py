"""Which of several groups is the best? Multiple comparisons with the best (Hsu 1984), each by its own t test.

For every group the interval of "its mean less the best mean of the others" follows from one-sided bounds of all
differences. If ``b`` is the truly best group, all these intervals hold once the bounds of ``b`` against every other
group do: ``k - 1`` one-sided bounds at ``(1 - level) / (k - 1)``, however many groups and statements there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

from heatbath.stats import wording
from heatbath.stats.intervals import Interval
from heatbath.stats.pair_test import PairTest
from heatbath.stats.verdicts import Factor

Place = Literal["best", "not the best", "within the margin of the best", "undecided"]


@dataclass(frozen=True)
class Standing:
    """Where one group stands.

    Attributes:
        name: of the group.
        mean: of its values; geometric with a relative margin.
        interval: of its mean less the best mean of the others (their ratio, with a relative margin), with the sign
            turned where lower is better: positive is better. It is cut at no difference, as there is nothing to say
            about by how much the best one leads beyond its bound.
        verdict: certainly the best; certainly not; certainly within the margin of the best one; or undecided.
    """

    name: str
    mean: float
    interval: Interval
    verdict: Place


@dataclass(frozen=True, repr=False)
class BestOf(Sequence[Standing]):
    """Where each group stands; the chance that any of it is wrong is at most ``1 - level``.

    Attributes:
        metric: what is compared.
        members: the groups, the best mean first.
        level: the chance that all is right.
        margin: within which a group is as good as the best.
        notes: what was left out, replaced or not paired, in words.
    """

    metric: str
    members: tuple[Standing, ...]
    level: float
    margin: float | None
    notes: tuple[str, ...] = ()

    @overload
    def __getitem__(self, index: int) -> Standing: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Standing, ...]: ...
    def __getitem__(self, index: int | slice) -> Standing | tuple[Standing, ...]:
        return self.members[index]

    def __len__(self) -> int:
        return len(self.members)

    @property
    def candidates(self) -> tuple[str, ...]:
        """The groups that may be the best."""
        return tuple(one.name for one in self.members if one.verdict != "not the best")

    @property
    def sentence(self) -> str:
        """Which groups may be the best, in words."""
        few = self.candidates
        promise = f"wrong with a chance of at most {100.0 * (1.0 - self.level):.3g} %"
        if len(few) == 1:
            return f"{few[0]} is the best of {len(self.members)} ({promise})."
        near = [one.name for one in self.members if one.verdict == "within the margin of the best"]
        within = (
            f" Within {wording.margin_in_words(self.margin)} of the best: {', '.join(near)}."
            if near and self.margin
            else ""
        )
        return f"The best of {len(self.members)} is one of {', '.join(few)} ({promise}).{within}"

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

    def _repr_html_(self) -> str:
        return wording.table_html(self.sentence, *self._table())

    def to_latex(self) -> str:
        """Return a table with a row for each group for LaTeX, with the rules of the package booktabs."""
        return wording.table_latex(*self._table())

    def __str__(self) -> str:
        return " ".join([self.sentence, *(f"{note[:1].upper()}{note[1:]}." for note in self.notes)])

    def __repr__(self) -> str:
        return f"<BestOf: {self.sentence}>"

    def _table(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        rows = [(g.name, f"{g.mean:.5g}", g.verdict, str(g.interval)) for g in self.members]
        return ("group", f"mean {self.metric}".strip(), "verdict", "against the best other"), list(rows)


def find_best(tests: Sequence[PairTest], level: float) -> BestOf:
    """Return where each group stands, from the comparisons of each two, which need the error ``2 (1 - level)/(k - 1)``.

    Groups without a test, of which a value is no number or the spread is zero, leave everything open.
    """
    first = tests[0]
    bounds: dict[str, list[tuple[float, float, float]]] = {}
    means: dict[str, float] = {}
    even = 1.0 if first.is_relative else 0.0
    for test in tests:
        found = test.interval
        for name, mean, turned in ((test.a.name, test.above.means[0], False), (test.b.name, test.above.means[1], True)):
            means[name] = mean
            bounds.setdefault(name, []).append(_turn(found, turned != first.lower_is_better, first.is_relative))
    members = []
    for name, others in bounds.items():
        low, middle, high = (min(column) for column in zip(*others, strict=True))
        interval = Interval(middle, min(low, even), max(high, even), level)
        members.append(Standing(name, means[name], interval, _place(low, high, first.margin, even)))
    # The best is certain where all others are out, which their bounds say more sharply than its own.
    if [one.verdict for one in members].count("not the best") == len(members) - 1:
        members = [
            one if one.verdict == "not the best" else Standing(one.name, one.mean, one.interval, "best")
            for one in members
        ]
    members.sort(key=lambda one: one.mean, reverse=not first.lower_is_better)
    notes = tuple(dict.fromkeys(note for test in tests for note in test.notes))
    return BestOf(first.metric, tuple(members), level, first.margin, notes)


def _turn(found: Interval, turned: bool, relative: bool) -> tuple[float, float, float]:
    ends = found.low, found.estimate, found.high
    if not turned:
        return ends
    low, middle, high = (1.0 / max(end, 1e-300) if relative else -end for end in reversed(ends))
    return low, middle, high


def _place(low: float, high: float, margin: float | None, even: float) -> Place:
    if high < even:
        return "not the best"
    if low > even:
        return "best"
    if margin is not None and low > (1.0 / margin if isinstance(margin, Factor) else -margin):
        return "within the margin of the best"
    return "undecided"
