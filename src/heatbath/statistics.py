"""Numbers over seeds and what follows from them: intervals, tests of pairs and groups, power, verdicts on claims.

Distributions come from SciPy, imported when one is needed: the results themselves can be read without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from heatbath.draws import uniform
from heatbath.welch import Floats, Welch, check_margin, check_probability, paired, student_quantile, welch
from heatbath.welch import seeds_needed as seeds_needed

_NO_GAP = 1e-4  # standard deviations between a difference and its margin that no number of seeds will tell apart


@dataclass(frozen=True)
class Interval:
    """An estimate with ends that enclose the truth with probability ``level``; infinite ones bound nothing yet."""

    estimate: float
    low: float
    high: float
    level: float

    def contains(self, value: float) -> bool:
        """Return whether ``value`` lies in the interval."""
        return self.low <= value <= self.high

    def __str__(self) -> str:
        reach = (self.high - self.low) / 2.0
        number = known_digits(reach)
        ends = f"{self.low:{number}} to {self.high:{number}}" if reach < math.inf else "unbounded"
        return f"{self.estimate:{number}} ({100.0 * self.level:.4g} %: {ends})"


def known_digits(error: float) -> str:
    """Return how to format a number that is known to ``error``: to its second digit, which says all that is known."""
    return f"z.{max(0, 1 - math.floor(math.log10(error)))}f" if 0.0 < error < math.inf else ".4g"


@dataclass(frozen=True)
class Summary:
    """A sample: mean, standard deviation (of ``n - 1``), standard error of the mean and Student's t interval."""

    n: int
    mean: float
    sd: float
    sem: float
    interval: Interval


@dataclass(frozen=True)
class Comparison:
    """Welch's test of two means: interval of ``mean(a) - mean(b)``, ``t``, ``df``, two-sided p, pooled Cohen's d."""

    interval: Interval
    t: float
    df: float
    p_value: float
    cohen_d: float


@dataclass(frozen=True)
class MarginTest:
    """A test of ``mean(a) - mean(b)`` against a margin; ``interval`` passes it just when ``p_value < 1 - level``."""

    interval: Interval
    margin: float
    p_value: float

    @property
    def difference(self) -> float:
        """The difference of the means."""
        return self.interval.estimate


@dataclass(frozen=True)
class Verdict:
    """What the runs say of one claim; made by `judge`, never by hand.

    Attributes:
        claim: what is claimed, one sentence.
        outcome: settled for the claim, settled against it, or open.
        detail: our numbers with their interval, the margin and the adjusted p-value, or why nothing can be said.
        interval: of what is judged, as a rule a difference of means; its ends are the one-sided bounds that decide.
        margin: by how much (or, of a ratio, by what factor) two means may differ and still count as equal, or must
            differ to count as different.
        p_value: the smaller one of those for and against the claim, adjusted for the family.
        seeds_needed: of an open claim: about how many seeds per group would settle it; None where nobody can say.
    """

    claim: str
    outcome: Literal["confirmed", "contradicted", "undecided"]
    detail: str
    interval: Interval | None = None
    margin: float | None = None
    p_value: float | None = None
    seeds_needed: int | None = None

    @property
    def text(self) -> str:
        """The verdict in words, such as ``undecided (needs about 40 seeds)``."""
        if self.outcome != "undecided" or self.seeds_needed is None:
            return self.outcome
        unit = 10 ** max(0, len(str(self.seeds_needed)) - 2)
        return f"{self.outcome} (needs about {-(-self.seeds_needed // unit) * unit} seeds)"


class Evidence(NamedTuple):
    """What the data of one claim say.

    Attributes:
        p_if_false: how likely data this much in favour are if the claim is false; a small one confirms.
        p_if_true: how likely data this much against it are if it is true; a small one contradicts.
        interval: of what is judged.
        numbers: the same in words.
        seeds_needed: about how many seeds per group would settle the claim; None where nobody can say.
    """

    p_if_false: float
    p_if_true: float
    interval: Interval
    numbers: str
    seeds_needed: int | None


class Judgeable(Protocol):
    """A claim that can weigh its own data."""

    @property
    def statement(self) -> str:
        """The claim in one sentence."""

    @property
    def margin(self) -> float:
        """The margin, in the units of what is judged."""

    def weigh(self, error: float, power: float) -> Evidence | str:
        """Return the evidence, or in words why there is none.

        Args:
            error: the chance of a wrong verdict that this claim may take; its interval has level ``1 - 2 error``.
            power: the chance to settle the claim with the number of seeds that the evidence names.
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
    a: Sequence[float]
    b: Sequence[float]
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

    def weigh(self, error: float, power: float) -> Evidence | str:
        """Return the evidence by Welch's t, or by Student's of the differences of pairs.

        With ``d`` the difference, ``s`` its standard error and ``S`` the upper tail of Student's t, the p-values of
        ``|d| < margin`` are ``S((margin - |d|)/s)`` if it is false (the larger one of two one-sided tests), and
        ``S((|d| - margin)/s) + S((|d| + margin)/s)`` if it is true (a test that rejects on either side).
        """
        a, b = (_logarithms(x) if self._is_ratio else x for x in (_array(self.a), _array(self.b)))
        broken = int(np.count_nonzero(~np.isfinite(np.concatenate((a, b)))))
        if broken:
            return f"no number in {broken} of {a.size + b.size} values: runs diverged or are missing"
        if not a.size or not b.size:
            return f"nothing to compare yet: n = {a.size} against n = {b.size}"
        test = paired(a, b) if self.paired else welch(a, b)
        difference = _interval(test, 1.0 - 2.0 * error)
        interval, numbers = self._tell(a, b, difference)
        seeds = self._seeds(a, b, error, power)
        if not test.is_known:
            one = min(a.size, b.size) == 1
            reason = "one seed does not tell the spread" if one else "without a spread between seeds there is no test"
            return Evidence(1.0, 1.0, interval, f"{numbers}: {reason}", seeds if one else None)
        if self.kind == "equal":
            size = abs(test.difference)
            if_true = min(1.0, test.tail(size - self._margin) + test.tail(size + self._margin))
            return Evidence(test.tail(self._margin - size), if_true, interval, numbers, seeds)
        beyond = (test.difference if self.kind == "greater" else -test.difference) - self._margin
        return Evidence(test.tail(beyond), test.tail(-beyond), interval, numbers, seeds)

    @property
    def _is_ratio(self) -> bool:
        return isinstance(self.margin, Factor)

    @property
    def _margin(self) -> float:
        """The margin of the numbers that are tested."""
        return math.log(self.margin) if self._is_ratio else self.margin

    def _tell(self, a: Floats, b: Floats, difference: Interval) -> tuple[Interval, str]:
        """The interval of what is judged, and all numbers in words."""
        interval, name, digits, means = difference, "difference", 5, (float(a.mean()), float(b.mean()))
        if self._is_ratio:
            middle, low, high = (_exp(end) for end in (difference.estimate, difference.low, difference.high))
            interval, name, digits = Interval(middle, low, high, difference.level), "ratio", 4
            means = _exp(means[0]), _exp(means[1])
        first, second = (f"{mean:.{digits}g}" for mean in means)
        if self.paired:
            return interval, f"{first} against {second} (n = {a.size} pairs), {name} {interval}"
        return interval, f"{first} (n = {a.size}) against {second} (n = {b.size}), {name} {interval}"

    def _seeds(self, a: Floats, b: Floats, error: float, power: float) -> int | None:
        """Return how many seeds per group settle the claim if difference and spreads are what they seem."""
        a, b = (a - b, np.zeros_like(b)) if self.paired else (a, b)
        spreads = [float(group.std(ddof=1)) for group in (a, b) if group.size > 1]
        difference = float(a.mean() - b.mean())
        gap = {"equal": abs(difference), "greater": difference, "less": -difference}[self.kind] - self._margin
        sds = (spreads[0], spreads[-1]) if spreads else (0.0, 0.0)  # a single seed is lent the spread of the others
        if not any(sds) or abs(gap) < _NO_GAP * max(sds):
            return None
        if self.kind != "equal":
            needed = seeds_needed(*sds, gap, power, 1.0 - 2.0 * error)
        elif gap < 0.0:
            needed = seeds_needed(*sds, difference, power, 1.0 - error, self._margin)
        else:
            needed = seeds_needed(*sds, gap, power, 1.0 - error)
        return max(needed, min(a.size, b.size) + 1)


def judge(claims: Iterable[Judgeable], level: float = 0.95, power: float = 0.9) -> tuple[Verdict, ...]:
    """Return the verdicts on a family of claims, such as all of one figure.

    A claim is confirmed if the data reject that it is false, contradicted if they reject that it is true, and
    undecided otherwise. Each test has the error ``(1 - level) / k`` in a family of ``k`` claims. Of the two tests of a
    claim only one can err, as the claim is either true or false; hence the chance that any claim of the family is
    wrongly settled is at most ``k (1 - level) / k = 1 - level``, however the claims depend on each other (they often
    share a group of runs). Holm's step-down, which strikes a rejected hypothesis off the count, would break this
    promise: of a settled claim the other hypothesis remains, and is true. Claims without data count as well, so that
    verdicts do not change when their runs come in.

    The promise is for one look at the data. Adding seeds until a claim is settled makes errors more frequent: decide
    on the number first, ``seeds_needed`` says which.

    Args:
        claims: the family.
        level: the chance that no verdict of confirmed or contradicted is wrong.
        power: the chance to settle an open claim with ``seeds_needed``, if all is as it seems.
    """
    check_probability("level", level, above=0.5)
    check_probability("power", power)
    family = tuple(claims)
    error = (1.0 - level) / max(len(family), 1)
    return tuple(_settle(claim, claim.weigh(error, power), error, len(family)) for claim in family)


def judge_equal(statement: str, a: Sequence[float], b: Sequence[float], margin: float, level: float = 0.95) -> Verdict:
    """Return the verdict on "the means differ by less than the margin", a family of its own: see `judge`."""
    return judge([Claim(statement, "equal", a, b, margin)], level)[0]


def judge_greater(
    statement: str, a: Sequence[float], b: Sequence[float], margin: float = 0.0, level: float = 0.95
) -> Verdict:
    """Return the verdict on "mean(a) exceeds mean(b) by more than the margin", a family of its own: see `judge`."""
    return judge([Claim(statement, "greater", a, b, margin)], level)[0]


def summarize(values: Iterable[float], level: float = 0.95) -> Summary:
    """Return mean, spread and t interval; those that the data do not tell are NaN, and their interval is unbounded.

    A value that is no number (a diverged run) leaves no mean: leave such runs out on purpose, or not at all.
    """
    check_probability("level", level)
    sample = _array(values)
    n = sample.size
    if n == 0 or not np.isfinite(sample).all():
        return Summary(n, math.nan, math.nan, math.nan, Interval(math.nan, -math.inf, math.inf, level))
    mean = float(sample.mean())
    if n == 1:
        return Summary(n, mean, math.nan, math.nan, Interval(mean, -math.inf, math.inf, level))
    sd = float(sample.std(ddof=1))
    sem = sd / math.sqrt(n)
    reach = sem * student_quantile(0.5 + 0.5 * level, n - 1)
    return Summary(n, mean, sd, sem, Interval(mean, mean - reach, mean + reach, level))


def bootstrap_interval(
    values: Iterable[float],
    statistic: Callable[[Floats], Any] = np.mean,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Return the bias-corrected and accelerated bootstrap interval (Efron 1987) of a statistic of one sample.

    The ends are the quantiles ``Phi(z0 + (z0 + z) / (1 - a (z0 + z)))`` of the resampled statistic, for the normal
    quantiles ``z`` of both ends. ``Phi(z0)`` is the part of the resamples below the estimate; the acceleration is
    ``a = sum u^3 / (6 (sum u^2)^(3/2))`` with ``u_i`` the mean of all leave-one-out values less the ``i``-th. A pure
    function of values and seed. With fewer than two values, or one that is no number, the interval is unbounded.
    """
    from scipy.special import ndtr, ndtri

    check_probability("level", level)
    sample = _array(values)
    if sample.size < 2 or not np.isfinite(sample).all():
        known = sample.size == 1 and math.isfinite(sample[0])
        return Interval(float(statistic(sample)) if known else math.nan, -math.inf, math.inf, level)
    estimate = float(statistic(sample))
    picks = np.asarray(uniform(seed, 0, np.arange(resamples * sample.size))) * sample.size
    replicates = np.array([statistic(row) for row in sample[picks.astype(np.intp)].reshape(resamples, -1)])
    left_out = np.array([statistic(np.delete(sample, k)) for k in range(sample.size)])
    u = left_out.mean() - left_out
    squares = float((u**2).sum())
    acceleration = float((u**3).sum()) / (6.0 * squares**1.5) if squares > 0.0 else 0.0
    below = (np.count_nonzero(replicates < estimate) + np.count_nonzero(replicates <= estimate)) / 2.0
    bias = ndtri(np.clip(below, 0.5, resamples - 0.5) / resamples)
    z = bias + ndtri([0.5 - 0.5 * level, 0.5 + 0.5 * level])
    low, high = np.quantile(replicates, ndtr(bias + z / (1.0 - acceleration * z)))
    return Interval(estimate, float(low), float(high), level)


def compare(a: Iterable[float], b: Iterable[float], level: float = 0.95) -> Comparison:
    """Return Welch's test of equal means, with the p-value 1 and an unbounded interval where the data say nothing."""
    check_probability("level", level)
    first, second = _array(a), _array(b)
    test = welch(first, second)
    if not test.is_known:
        return Comparison(_interval(test, level), math.nan, math.nan, 1.0, math.nan)
    freedom = first.size - 1, second.size - 1
    pooled = (freedom[0] * first.var(ddof=1) + freedom[1] * second.var(ddof=1)) / sum(freedom)
    p_value = min(1.0, 2.0 * test.tail(abs(test.difference)))
    effect = test.difference / math.sqrt(pooled)
    return Comparison(_interval(test, level), test.difference / test.error, test.df, p_value, effect)


def equivalence(a: Iterable[float], b: Iterable[float], margin: float, level: float = 0.95) -> MarginTest:
    """Return the two one-sided Welch tests of ``|mean(a) - mean(b)| < margin``: the larger of their p-values.

    The interval has level ``2 level - 1`` (90 % for 95 %): it lies within the margins just when the test passes.
    """
    check_probability("level", level, above=0.5)
    check_margin(margin, positive=True)
    test = welch(_array(a), _array(b))
    return MarginTest(_interval(test, 2.0 * level - 1.0), margin, test.tail(margin - abs(test.difference)))


def superiority(a: Iterable[float], b: Iterable[float], margin: float = 0.0, level: float = 0.95) -> MarginTest:
    """Return the one-sided Welch test of ``mean(a) - mean(b) > margin``; the interval has level ``2 level - 1``."""
    check_probability("level", level, above=0.5)
    check_margin(margin, positive=False)
    test = welch(_array(a), _array(b))
    return MarginTest(_interval(test, 2.0 * level - 1.0), margin, test.tail(test.difference - margin))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for all of them by Holm's step-down, in the given order.

    Rejecting those up to ``alpha`` wrongly rejects any with a chance of at most ``alpha``.
    """
    adjusted, least = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = least
    return adjusted


def _settle(claim: Judgeable, evidence: Evidence | str, error: float, family: int) -> Verdict:
    if isinstance(evidence, str):
        return Verdict(claim.statement, "undecided", f"{evidence}.", margin=claim.margin)
    outcome: Literal["confirmed", "contradicted", "undecided"] = "undecided"
    if evidence.p_if_false <= error:
        outcome = "confirmed"
    elif evidence.p_if_true <= error:
        outcome = "contradicted"
    p_value = min(1.0, family * min(evidence.p_if_false, evidence.p_if_true))
    of_family = f" among {family} claims" if family > 1 else ""
    detail = f"{evidence.numbers}; margin {claim.margin:.4g}, p = {p_value:.2g}{of_family}."
    seeds = evidence.seeds_needed if outcome == "undecided" else None
    return Verdict(claim.statement, outcome, detail, evidence.interval, claim.margin, p_value, seeds)


def _interval(test: Welch, level: float) -> Interval:
    if not test.is_known:
        return Interval(test.difference, -math.inf, math.inf, level)
    reach = test.reach(level)
    return Interval(test.difference, test.difference - reach, test.difference + reach, level)


def _logarithms(values: Floats) -> Floats:
    """The logarithms; no number where there is none."""
    return np.log(np.where(values > 0.0, values, math.nan))


def _exp(value: float) -> float:
    return math.exp(value) if value < 700.0 else math.inf


def _array(values: Iterable[float]) -> Floats:
    """Return one sample as float64; None, a run without a value, becomes NaN."""
    return np.array(list(values), dtype=np.float64)
