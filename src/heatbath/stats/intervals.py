"""Samples of numbers and what follows from them: summaries, intervals, tests of two means, multiple comparisons.

Distributions come from SciPy, imported when one is needed: the results themselves can be read without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heatbath.draws import uniform
from heatbath.stats.t_tests import Floats, Welch, check_margin, check_probability, student_quantile, welch

_TINY = 1e-6  # below which the zeros behind the point are more than can be read


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
        number = known_digits(reach) if max(abs(self.low), abs(self.high)) >= _TINY else ".3g"
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


def summarize(values: Iterable[float], level: float = 0.95) -> Summary:
    """Return mean, spread and t interval; those that the data do not tell are NaN, and their interval is unbounded.

    A value that is no number (a diverged run) leaves no mean: leave such runs out on purpose, or not at all.
    """
    check_probability("level", level)
    sample = as_sample(values)
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

    Of few values it is too short: 95 % intervals of the mean of 5, 10 and 20 normal ones covered it in 83, 90 and 91 %
    of simulations. For means take `summarize`, which covers at any number.
    """
    from scipy.special import ndtr, ndtri

    check_probability("level", level)
    sample = as_sample(values)
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
    first, second = as_sample(a), as_sample(b)
    test = welch(first, second)
    if not test.is_known:
        return Comparison(as_interval(test, level), math.nan, math.nan, 1.0, math.nan)
    freedom = first.size - 1, second.size - 1
    pooled = (freedom[0] * first.var(ddof=1) + freedom[1] * second.var(ddof=1)) / sum(freedom)
    p_value = min(1.0, 2.0 * test.tail(abs(test.difference)))
    effect = test.difference / math.sqrt(pooled)
    return Comparison(as_interval(test, level), test.difference / test.error, test.df, p_value, effect)


def equivalence(a: Iterable[float], b: Iterable[float], margin: float, level: float = 0.95) -> MarginTest:
    """Return the two one-sided Welch tests of ``|mean(a) - mean(b)| < margin``: the larger of their p-values.

    The interval has level ``2 level - 1`` (90 % for 95 %): it lies within the margins just when the test passes.
    """
    check_probability("level", level, above=0.5)
    check_margin(margin, positive=True)
    test = welch(as_sample(a), as_sample(b))
    return MarginTest(as_interval(test, 2.0 * level - 1.0), margin, test.tail(margin - abs(test.difference)))


def superiority(a: Iterable[float], b: Iterable[float], margin: float = 0.0, level: float = 0.95) -> MarginTest:
    """Return the one-sided Welch test of ``mean(a) - mean(b) > margin``; the interval has level ``2 level - 1``."""
    check_probability("level", level, above=0.5)
    check_margin(margin, positive=False)
    test = welch(as_sample(a), as_sample(b))
    return MarginTest(as_interval(test, 2.0 * level - 1.0), margin, test.tail(test.difference - margin))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for all of them by Holm's step-down, in the given order.

    Rejecting those up to ``alpha`` wrongly rejects any with a chance of at most ``alpha``.
    """
    adjusted, least = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = least
    return adjusted


def as_interval(test: Welch, level: float) -> Interval:
    """Return the interval of a difference of means; unbounded where the data do not tell."""
    if not test.is_known:
        return Interval(test.difference, -math.inf, math.inf, level)
    reach = test.reach(level)
    return Interval(test.difference, test.difference - reach, test.difference + reach, level)


def as_sample(values: Iterable[float]) -> Floats:
    """Return one sample as float64; None, a run without a value, becomes NaN."""
    return np.array(list(values), dtype=np.float64)
