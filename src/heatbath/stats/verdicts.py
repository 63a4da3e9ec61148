"""Claims on groups of runs, what the data say of them, and the verdicts.

A claim weighs its own data (`Judgeable`); `judge` settles a family of them and bounds the chance of any wrong verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal, Protocol

import numpy as np

from heatbath.stats.evidence import Evidence, SeedsNeeded, seeds_in_words
from heatbath.stats.intervals import Interval, as_interval, as_sample
from heatbath.stats.t_tests import Floats, check_margin, check_probability, paired, seeds_needed, welch

_RANGE = 0.8  # the level of the range of seeds
_NO_GAP = 1e-4  # standard deviations between a difference and its margin that no number of seeds will tell apart


@dataclass(frozen=True)
class Verdict:
    """What the runs say of one claim; made by `judge`, never by hand.

    Attributes:
        claim: what is claimed, one sentence.
        outcome: settled for the claim, settled against it, or open.
        evidence: our numbers.
        margin: by how much (or, of a ratio, by what factor) two means may differ and still count as equal, or must
            differ to count as different.
        family: how many claims were judged together.
        seeds: of an open claim: how many seeds per group would settle it; None where nobody can say.
        planned: whether the claim was made before the runs were looked at.
    """

    claim: str
    outcome: Literal["confirmed", "contradicted", "undecided"]
    evidence: Evidence
    margin: float
    family: int = 1
    seeds: SeedsNeeded | None = None
    planned: bool = True

    @property
    def seeds_needed(self) -> int | None:
        """About how many seeds would settle an open claim; None where nobody can say."""
        return None if self.seeds is None else self.seeds.about

    @property
    def interval(self) -> Interval | None:
        """Of what is judged, as a rule a difference of means; its ends are the one-sided bounds that decide."""
        return self.evidence.interval

    @property
    def p_value(self) -> float | None:
        """The smaller one of those for and against the claim, adjusted for the family; None where nothing is judged."""
        if self.interval is None:
            return None
        return min(1.0, self.family * min(self.evidence.p_if_false, self.evidence.p_if_true))

    @property
    def needs(self) -> str:
        """What would settle an open claim, such as ``needs about 40 seeds``; empty where nobody can say."""
        return f"needs {seeds_in_words(*self.seeds)}" if self.outcome == "undecided" and self.seeds is not None else ""

    @property
    def numbers(self) -> str:
        """Our numbers with their interval, or why nothing can be said."""
        return str(self.evidence)

    @property
    def text(self) -> str:
        """The outcome in words, such as ``undecided: needs about 40 seeds (27 to 81)``."""
        return f"{self.outcome}: {self.needs}" if self.needs else self.outcome

    @property
    def detail(self) -> str:
        """Our numbers with their interval, the margin and the adjusted p-value, or why nothing can be said."""
        if self.p_value is None:
            return f"{self.evidence}."
        of_family = f" among {self.family} claims" if self.family > 1 else ""
        of_family += "" if self.planned else " added after looking"
        return f"{self.evidence}; margin {self.margin:.4g}, p = {self.p_value:.2g}{of_family}."


class Judgeable(Protocol):
    """A claim that can weigh its own data."""

    @property
    def statement(self) -> str:
        """The claim in one sentence."""

    @property
    def margin(self) -> float:
        """The margin, in the units of what is judged."""

    def weigh(self, error: float) -> Evidence:
        """Return the evidence.

        Args:
            error: the chance of a wrong verdict that this claim may take; its interval has level ``1 - 2 error``.
        """

    def seeds_needed(self, error: float, power: float, spread: float = 1.0) -> int | None:
        """Return about how many seeds per group settle the claim with a chance of ``power``; None if nobody can say.

        With ``spread`` they are spread that many times as far as it seems.
        """


class Factor(float):
    """A margin of positive values: by what factor their geometric means may differ; written as ``a factor 1.105``."""

    def __format__(self, spec: str) -> str:
        return f"a factor {float(self):{spec}}"


@dataclass(frozen=True)
class Claim:
    """A claim on two groups of runs, ``a`` and ``b``, with one number for each seed.

    Attributes:
        statement: the claim in one sentence.
        kind: ``"equal"``: the means differ by less than the margin; ``"greater"``: mean(a) exceeds mean(b) by more than
            the margin; ``"less"``: it falls short of mean(b) by more than the margin.
        a: values of the first group.
        b: values of the second group.
        margin: positive for ``"equal"``; for the others 0 asks for any difference. A `Factor` is for positive values
            that may lie decades apart, as losses do: what counts is the ratio of their geometric means, and the tests
            are on the logarithms.
        paired: whether value k of both groups is of one seed, so that the test is on their differences. It says more
            where the same start makes runs alike; where it does not, half the degrees of freedom are lost.
    """

    statement: str
    kind: Literal["equal", "greater", "less"]
    a: Sequence[float] | Floats
    b: Sequence[float] | Floats
    margin: float = 0.0
    paired: bool = False

    def __post_init__(self) -> None:
        if self.kind not in ("equal", "greater", "less"):
            raise ValueError(f"unknown kind of claim {self.kind!r}: choose one of equal, greater, less")
        least = 1.0 if self.kind == "equal" else 0.0
        if self._is_ratio and not least < self.margin < math.inf:
            raise ValueError(f"a factor must be a finite number above {least:g}, got {float(self.margin)!r}")
        check_margin(self._margin, positive=self.kind == "equal")
        if self.paired and len(self.a) != len(self.b):
            raise ValueError(f"pairs need a value of each group, got {len(self.a)} and {len(self.b)}")

    def weigh(self, error: float) -> Evidence:
        """Return the evidence by Welch's t, or by Student's of the differences of pairs.

        With ``d`` the difference, ``s`` its standard error and ``S`` the upper tail of Student's t, the p-values of
        ``|d| < margin`` are ``S((margin - |d|)/s)`` if it is false (the larger one of two one-sided tests), and
        ``S((|d| - margin)/s) + S((|d| + margin)/s)`` if it is true (a test that rejects on either side).
        """
        a, b = self._samples
        broken = int(np.count_nonzero(~np.isfinite(np.concatenate((a, b)))))
        if broken:
            return Evidence(sizes=(a.size, b.size), obstacle="broken", broken=broken)
        if not a.size or not b.size:
            return Evidence(sizes=(a.size, b.size), obstacle="empty")
        test = paired(a, b) if self.paired else welch(a, b)
        shown = self._show(a, b, as_interval(test, 1.0 - 2.0 * error))
        if not test.is_known:
            return replace(shown, obstacle="one seed" if min(a.size, b.size) == 1 else "no spread")
        if self.kind == "equal":
            size = abs(test.difference)
            if_true = min(1.0, test.tail(size - self._margin) + test.tail(size + self._margin))
            return replace(shown, p_if_false=test.tail(self._margin - size), p_if_true=if_true)
        beyond = (test.difference if self.kind == "greater" else -test.difference) - self._margin
        return replace(shown, p_if_false=test.tail(beyond), p_if_true=test.tail(-beyond))

    def seeds_needed(self, error: float, power: float, spread: float = 1.0) -> int | None:
        """Return how many seeds per group settle the claim if the difference is what it seems, and so are the spreads.

        With ``spread`` they are that many times as large.
        """
        if self.weigh(error).obstacle not in (None, "one seed"):
            return None
        a, b = self._samples
        a, b = (a - b, np.zeros_like(b)) if self.paired else (a, b)
        spreads = [spread * float(group.std(ddof=1)) for group in (a, b) if group.size > 1]
        difference = float(a.mean() - b.mean())
        gap = {"equal": abs(difference), "greater": difference, "less": -difference}[self.kind] - self._margin
        sds = (spreads[0], spreads[-1]) if spreads else (0.0, 0.0)  # a single seed is lent the spread of the others
        if not any(sds) or abs(gap) < _NO_GAP * max(sds):
            return None
        if self.kind == "equal":
            needed = seeds_needed(*sds, difference, power, 1.0 - error, self._margin)
        else:
            needed = seeds_needed(*sds, gap, power, 1.0 - 2.0 * error)
        return max(needed, min(a.size, b.size) + 1)

    @cached_property
    def _samples(self) -> tuple[Floats, Floats]:
        """The numbers that are tested."""
        a, b = (_logarithms(x) if self._is_ratio else x for x in (as_sample(self.a), as_sample(self.b)))
        return a, b

    @property
    def _is_ratio(self) -> bool:
        return isinstance(self.margin, Factor)

    @property
    def _margin(self) -> float:
        """The margin of the numbers that are tested."""
        return math.log(self.margin) if self._is_ratio else self.margin

    def _show(self, a: Floats, b: Floats, difference: Interval) -> Evidence:
        """The numbers in the units of the claim, without p-values."""
        means, sizes = (float(a.mean()), float(b.mean())), (a.size, b.size)
        if not self._is_ratio:
            return Evidence(interval=difference, means=means, sizes=sizes, paired=self.paired)
        middle, low, high = (_exp(end) for end in (difference.estimate, difference.low, difference.high))
        ratio, geometric = Interval(middle, low, high, difference.level), (_exp(means[0]), _exp(means[1]))
        return Evidence(interval=ratio, measure="ratio", means=geometric, sizes=sizes, paired=self.paired)


def judge(
    claims: Iterable[Judgeable], level: float = 0.95, power: float = 0.9, *, planned: bool = True
) -> tuple[Verdict, ...]:
    """Return the verdicts on a family of claims, such as all of one figure.

    A claim is confirmed if the data reject that it is false, contradicted if they reject that it is true, and
    undecided otherwise. Each test has the error ``(1 - level) / k`` in a family of ``k`` claims. Of the two tests of a
    claim only one can err, as the claim is either true or false; hence the chance that any claim of the family is
    wrongly settled is at most ``k (1 - level) / k = 1 - level``, however the claims depend on each other (they often
    share a group of runs). Holm's step-down, which strikes a rejected hypothesis off the count, would break this
    promise: of a settled claim the other hypothesis remains, and is true. Claims without data count as well, so that
    verdicts do not change when their runs come in.

    The promise is for one look at the data. Adding seeds until a claim is settled makes errors more frequent: decide
    on the number first, ``seeds_needed`` says which. Named from three to ten seeds it is a guess: in simulations of
    open claims, 62 to 97 % were then settled by as many new ones.

    The promise is for values that are about normally distributed. In simulations heavy tails kept it, and groups that
    are skewed alike. Groups of 5 and 3 values, the smaller one spread 4 times as far, had 7 % of wrong verdicts instead
    of 5 %, and twice as many as allowed in a large family. Skewed groups of which one is spread 4 times as far had up
    to 16 %, and one against a number up to 19 %.

    Args:
        claims: the family.
        level: the chance that no verdict of confirmed or contradicted is wrong.
        power: the chance to settle an open claim with ``seeds_needed``, if all is as it seems.
        planned: whether the claims were made before the runs were looked at; the verdicts say if not.
    """
    check_probability("level", level, above=0.5)
    check_probability("power", power)
    family = tuple(claims)
    error = (1.0 - level) / max(len(family), 1)
    return tuple(replace(_settle(claim, error, power, len(family)), planned=planned) for claim in family)


def _settle(claim: Judgeable, error: float, power: float, family: int) -> Verdict:
    evidence = claim.weigh(error)
    if evidence.p_if_false <= error:
        return Verdict(claim.statement, "confirmed", evidence, claim.margin, family)
    if evidence.p_if_true <= error:
        return Verdict(claim.statement, "contradicted", evidence, claim.margin, family)
    # This takes longer than the test, and is shown of open claims alone.
    seeds = range_of_seeds(partial(claim.seeds_needed, error, power), evidence.freedom)
    return Verdict(claim.statement, "undecided", evidence, claim.margin, family, seeds)


def range_of_seeds(needed: Callable[[float], int | None], freedom: int) -> SeedsNeeded | None:
    """Return how many seeds are needed, and how many for spreads between the ends of their own 80 % interval.

    Args:
        needed: returns the number for spreads that are so many times as large as they seem; None if nobody can say.
        freedom: the degrees of freedom of the spread.
    """
    from scipy.special import chdtri

    about = needed(1.0)
    if about is None:
        return None
    tails = 0.5 - 0.5 * _RANGE, 0.5 + 0.5 * _RANGE
    spreads = (math.sqrt(freedom / float(chdtri(freedom, tail))) for tail in tails) if freedom > 0 else ()
    others = [number for spread in spreads if (number := needed(spread)) is not None]
    return SeedsNeeded(about, min(about, *others), max(about, *others)) if others else SeedsNeeded(about, about, about)


def _logarithms(values: Floats) -> Floats:
    """The logarithms; no number where there is none."""
    return np.log(np.where(values > 0.0, values, math.nan))


def _exp(value: float) -> float:
    return math.exp(value) if value < 700.0 else math.inf
