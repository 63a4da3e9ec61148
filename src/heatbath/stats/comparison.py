"""Comparisons as they are shown: a sentence first, then the numbers, for terminals, notebooks, papers and programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar, overload

from heatbath.stats import wording
from heatbath.stats.pair_test import PairTest
from heatbath.stats.samples import Sample, describe_sample, finite

Member = TypeVar("Member")


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
