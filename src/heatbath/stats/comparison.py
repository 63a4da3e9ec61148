"""Comparisons as they are shown: a sentence first, then the numbers, for terminals, notebooks, papers and programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeVar, overload

from heatbath.stats import wording
from heatbath.stats.intervals import Interval
from heatbath.stats.pair_test import PairTest
from heatbath.stats.samples import Sample, describe_sample, finite

Member = TypeVar("Member")
Place = Literal["best", "not the best", "within the margin of the best", "undecided"]


class Comparison(wording.Shown, PairTest):
    """What two groups say: the answer to "is ``a`` better than ``b``?"; made by `heatbath.compare`.

    Its ``verdict`` is better, worse, equal or undecided; ``difference``, ``interval``, ``p`` and ``seeds_needed`` are
    the numbers behind it, ``sentence`` is all of it in words.
    """

    @cached_property
    def sentence(self) -> str:
        """All of it in words, the verdict first."""
        return wording.sentence(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON knows it, with what it was made from."""
        return {**self.summary(), "groups": [describe_sample(group) for group in (self.a, self.b)]}

    def summary(self) -> dict[str, Any]:
        """Return verdict and numbers as JSON knows them, with the names of the groups."""
        interval, seeds = self.interval, self.seeds_needed
        return {
            "a": self.a.name,
            "b": self.b.name,
            "metric": self.metric,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "difference": finite(self.difference),
            "interval": [finite(interval.low), finite(interval.high)],
            "level": interval.level,
            "margin": None if self.margin is None else float(self.margin),
            "relative": self.is_relative,
            "p": self.p,
            "family": self.family,
            "paired": self.paired,
            "lower_is_better": self.lower_is_better,
            "seeds_needed": None if seeds is None else seeds._asdict(),
            "look": None if self.look is None else self.look._asdict(),
            "notes": list(self.notes),
        }

    def _table(self) -> wording.Table:
        return wording.table([self])

    def __bool__(self) -> bool:
        raise TypeError("a comparison is neither true nor false: ask for its verdict")


@dataclass(frozen=True, repr=False)
class Several(wording.Shown, Sequence[Member]):
    """Several findings that share one error."""

    members: tuple[Member, ...]
    level: float

    @overload
    def __getitem__(self, index: int) -> Member: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Member, ...]: ...
    def __getitem__(self, index: int | slice) -> Member | tuple[Member, ...]:
        return self.members[index]

    def __len__(self) -> int:
        return len(self.members)


class Comparisons(Several[Comparison]):
    """Comparisons that share one error: the chance that any of their verdicts is wrong is at most ``1 - level``.

    Attributes:
        members: the comparisons, in the order of groups and metrics.
        level: the chance that all verdicts are right.
    """

    @property
    def sentence(self) -> str:
        """What was decided, in words; the comparisons have sentences of their own."""
        return wording.family(self.members, self.level)

    def between(self, a: str, b: str, metric: str | None = None) -> Comparison:
        """Return the comparison of two groups by their names, in one of the metrics."""
        for one in self.members:
            if (one.a.name, one.b.name) == (a, b) and metric in (None, one.metric):
                return one
        known = ", ".join(f"{one.a.name} and {one.b.name} in {one.metric}" for one in self.members)
        raise KeyError(f"no comparison of {a} and {b}: there are {known}")

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON knows it; each group once, with all values that any comparison has of it."""
        groups: dict[tuple[str, str], Sample] = {}
        for one in self.members:
            for group in (one.a, one.b):
                known = groups.get((group.name, one.metric))
                if known is None or len(known.values) < len(group.values):
                    groups[group.name, one.metric] = replace(group, metric=one.metric)
        return {
            "level": self.level,
            "sentence": self.sentence,
            "comparisons": [one.summary() for one in self.members],
            "groups": [describe_sample(group) for group in groups.values()],
        }

    def _table(self) -> wording.Table:
        return wording.table(self.members)

    def __str__(self) -> str:
        return "\n".join([self.sentence, *(one.sentence for one in self.members)])


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

    These are multiple comparisons with the best (Hsu 1984). For every group the interval of "its mean less the best
    mean of the others" follows from one-sided bounds of all differences. If ``b`` is the truly best group, all these
    intervals hold once the bounds of ``b`` against every other group do: ``k - 1`` one-sided bounds at
    ``(1 - level) / (k - 1)``, however many groups and statements there are.

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
