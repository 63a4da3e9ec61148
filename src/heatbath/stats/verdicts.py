"""Claims on groups of runs with their margins, what the data say of them, and the verdicts.

A claim weighs its own data (`Judgeable`); `judge` settles a family of them and bounds the chance of any wrong verdict.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple, Protocol

import numpy as np

from heatbath.laws import check_number
from heatbath.stats.intervals import Interval, as_sample
from heatbath.stats.t_tests import Floats, Welch, paired, seeds_needed, welch

Margin = float | str | None
Measure = Literal["difference", "ratio", "explained", "lead"]
Obstacle = Literal["empty", "broken", "one seed", "no spread", "no order"]
_PERCENT = re.compile(r"\s*([0-9.eE+-]+)\s*%\s*")
_RANGE = 0.8  # the level of the range of seeds
_NO_GAP = 1e-4  # standard deviations between a difference and its margin that no number of seeds will tell apart


class Factor(float):
    """A margin of positive values: by what factor their geometric means may differ; written as ``a factor 1.105``."""

    def __format__(self, spec: str) -> str:
        return f"a factor {float(self):{spec}}"


@dataclass(frozen=True)
class Evidence:
    """What the data of one claim say."""

    p_if_false: float = 1.0  # how likely data this much in favour are if the claim is false; a small one confirms
    p_if_true: float = 1.0  # how likely data this much against it are if it is true; a small one contradicts
    interval: Interval | None = None  # of what is judged; None where there is nothing to judge
    # what the interval is of: a difference of two means, the ratio of two geometric means, the variance between groups
    # that an order explains, or by how much one order explains more than another
    measure: Measure = "difference"
    means: tuple[float, float] = (0.0, 0.0)  # of both groups, or of one group and the number it is compared with
    # the values in each group, of pairs or of groups, 0 for a number; of an order its groups and all values
    sizes: tuple[int, int] = (0, 0)
    paired: bool = False  # whether the groups are compared seed by seed
    obstacle: Obstacle | None = None  # why there is no test, if there is none
    broken: int = 0  # values that are no numbers
    part: str = ""  # the comparison that these numbers are of, for a claim that makes several
    parts: int = 0  # how many comparisons the claim makes

    @property
    def freedom(self) -> int:
        """The degrees of freedom of the spread between seeds."""
        first, second = self.sizes
        if self.measure in ("explained", "lead"):
            return second - first
        return first - 1 if self.paired or not second else first + second - 2


class SeedsNeeded(NamedTuple):
    """How many seeds per group would decide: if difference and spread are as they seem, and for other spreads.

    The range is for spreads between the ends of their own 80 % interval, which is wide when there are few seeds.
    """

    about: int
    low: int
    high: int


@dataclass(frozen=True)
class Verdict:
    """What the runs say of one claim, or of two groups; made by a test, never by hand."""

    claim: str  # what is claimed, one sentence, or what is compared
    outcome: str  # ``"confirmed"``, ``"contradicted"`` or ``"undecided"``; of two groups how the first one compares
    evidence: Evidence  # our numbers
    # by how much (or, of a ratio, by what factor) two means may differ and still count as equal, or must differ to
    # count as different
    margin: float
    family: int = 1  # how many claims were judged together
    # how many seeds per group would settle what is open; None where nothing is, or nobody can say
    seeds: SeedsNeeded | None = None
    planned: bool = True  # whether the claim was made before the runs were looked at
    told: str = ""  # all of it in words, in the place of those that the evidence has

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


class Judgeable(Protocol):
    """A claim that can weigh its own data."""

    @property
    def statement(self) -> str:
        """The claim in one sentence."""

    @property
    def margin(self) -> float:
        """The margin, in the units of what is judged."""

    def weigh(self, error: float) -> Evidence:
        """Return the evidence, for a chance ``error`` of a wrong verdict; its interval has level ``1 - 2 error``."""

    def seeds_needed(self, error: float, power: float, spread: float = 1.0) -> int | None:
        """Return about how many seeds per group settle the claim with a chance of ``power``; None if nobody can say.

        With ``spread`` they are spread that many times as far as it seems.
        """


@dataclass(frozen=True)
class Claim:
    """A claim on two groups of runs, ``a`` and ``b``, with one number for each seed."""

    statement: str  # the claim in one sentence
    # ``"equal"``: the means differ by less than the margin; ``"greater"``: mean(a) exceeds mean(b) by more than the
    # margin; ``"less"``: it falls short of mean(b) by more than the margin
    kind: Literal["equal", "greater", "less"]
    a: Sequence[float] | Floats  # values of the first group
    b: Sequence[float] | Floats  # values of the second group
    # positive for ``"equal"``; for the others 0 asks for any difference. A `Factor` is for positive values that may lie
    # decades apart, as losses do: what counts is the ratio of their geometric means, and the tests are on the
    # logarithms
    margin: float = 0.0
    # whether value k of both groups is of one seed, so that the test is on their differences. It says more where the
    # same start makes runs alike; where it does not, half the degrees of freedom are lost
    paired: bool = False

    def __post_init__(self) -> None:
        if self.kind not in ("equal", "greater", "less"):
            raise ValueError(f"unknown kind of claim {self.kind!r}: choose one of equal, greater, less")
        check_margin(self.margin, positive=self.kind == "equal")
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
        if broken or not a.size or not b.size:
            return Evidence(sizes=(a.size, b.size), obstacle="broken" if broken else "empty", broken=broken)
        test = paired(a, b) if self.paired else welch(a, b)
        reach = test.reach(1.0 - 2.0 * error)
        shown = _exp if self._is_ratio else float
        low, high = shown(test.difference - reach), shown(test.difference + reach)
        lack: Obstacle = "one seed" if min(a.size, b.size) == 1 else "no spread"
        return Evidence(
            *self._p_values(test),
            interval=Interval(shown(test.difference), low, high, 1.0 - 2.0 * error),
            measure="ratio" if self._is_ratio else "difference",
            means=(shown(float(a.mean())), shown(float(b.mean()))),
            sizes=(a.size, b.size),
            paired=self.paired,
            obstacle=None if test.is_known else lack,
        )

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

    def _p_values(self, test: Welch) -> tuple[float, float]:
        """Those if the claim is false, and if it is true."""
        if self.kind == "equal":
            size = abs(test.difference)
            both_sides = test.tail(size - self._margin) + test.tail(size + self._margin)
            return test.tail(self._margin - size), min(1.0, both_sides)
        beyond = (test.difference if self.kind == "greater" else -test.difference) - self._margin
        return test.tail(beyond), test.tail(-beyond)

    @cached_property
    def _samples(self) -> tuple[Floats, Floats]:
        """The numbers that are tested; no number where there is no logarithm."""
        a, b = as_sample(self.a), as_sample(self.b)
        if not self._is_ratio:
            return a, b
        return np.log(np.where(a > 0.0, a, math.nan)), np.log(np.where(b > 0.0, b, math.nan))

    @property
    def _is_ratio(self) -> bool:
        return isinstance(self.margin, Factor)

    @property
    def _margin(self) -> float:
        """The margin of the numbers that are tested."""
        return math.log(self.margin) if self._is_ratio else self.margin


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

    ``power`` is the chance to settle an open claim with ``seeds_needed``, if all is as it seems. Verdicts on claims
    that were not ``planned`` before the runs were looked at say so.
    """
    check_number("level", level, above=0.5, below=1.0)
    check_number("power", power, above=0.0, below=1.0)
    family = tuple(claims)
    error = (1.0 - level) / max(len(family), 1)
    return tuple(_settle(claim, error, power, len(family), planned) for claim in family)


def _settle(claim: Judgeable, error: float, power: float, family: int, planned: bool) -> Verdict:
    evidence = claim.weigh(error)
    open_ = Verdict(claim.statement, "undecided", evidence, claim.margin, family, planned=planned)
    if evidence.p_if_false <= error:
        return replace(open_, outcome="confirmed")
    if evidence.p_if_true <= error:
        return replace(open_, outcome="contradicted")
    # This takes longer than the test, and is shown of open claims alone.
    return replace(open_, seeds=range_of_seeds(claim, error, power, evidence.freedom))


def range_of_seeds(claim: Judgeable, error: float, power: float, freedom: int) -> SeedsNeeded | None:
    """Return how many seeds are needed, and how many for spreads between the ends of their own 80 % interval.

    The interval of the spread is that of its degrees of freedom.
    """
    from scipy.special import chdtri

    about = claim.seeds_needed(error, power)
    if about is None:
        return None
    tails = (0.5 - 0.5 * _RANGE, 0.5 + 0.5 * _RANGE) if freedom > 0 else ()
    spreads = [math.sqrt(freedom / float(chdtri(freedom, tail))) for tail in tails]
    found = [about, *(claim.seeds_needed(error, power, spread) for spread in spreads)]
    known = [number for number in found if number is not None]
    return SeedsNeeded(about, min(known), max(known))


def parse_margin(margin: Margin) -> float | None:
    """Return a margin, as a `Factor` if it is relative, such as ``"5 %"``; one that is not positive is refused."""
    if margin is None or isinstance(margin, Factor):
        return margin
    wrong = f"margin must be a positive number, or one with a percent sign, got {margin!r}"
    if isinstance(margin, bool):
        raise TypeError(wrong)
    percent = _PERCENT.fullmatch(margin) if isinstance(margin, str) else None
    try:
        value = float(percent.group(1) if percent else margin)
    except (TypeError, ValueError):
        raise ValueError(wrong) from None
    check_margin(value, positive=True)
    return Factor(1.0 + value / 100.0) if percent else value


def check_margin(margin: float, *, positive: bool) -> None:
    """Refuse a margin that is no number, or none to be equal within."""
    if isinstance(margin, Factor):
        least = 1.0 if positive else 0.0
        if not least < margin < math.inf:
            raise ValueError(f"a factor must be a finite number above {least:g}, got {float(margin)!r}")
    elif not math.isfinite(margin) or (positive and margin <= 0.0):
        raise ValueError(f"margin must be a {'positive ' if positive else ''}finite number, got {margin!r}")


def _exp(value: float) -> float:
    return math.exp(value) if value < 700.0 else math.inf
