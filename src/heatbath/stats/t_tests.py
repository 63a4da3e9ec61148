"""Welch's t: the difference of two means whose spreads differ, its p-values and power; and Student's, of pairs."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Any, NamedTuple

import numpy as np

from heatbath.laws import check_number

Floats = np.ndarray[Any, np.dtype[np.float64]]
_ROUNDING = 16 * np.finfo(np.float64).eps  # a spread below this part of the values is that of their rounding
_SURE = 30.0  # standard errors beyond which a noncentral t is on its side with certainty, and its series fails


class Welch(NamedTuple):
    """A difference of means, its standard error and degrees of freedom; NaN where the data do not tell."""

    difference: float
    error: float
    df: float

    @property
    def is_known(self) -> bool:
        """Whether there is a spread to judge the difference by."""
        return not math.isnan(self.error)

    def tail(self, distance: float) -> float:
        """Return the p-value of a difference that lies ``distance`` beyond what the null hypothesis allows, or 1."""
        from scipy.special import stdtr

        return float(stdtr(self.df, -distance / self.error)) if self.is_known else 1.0

    def reach(self, level: float) -> float:
        """Return the half width of the two-sided interval; infinity where the data do not tell."""
        return self.error * student_quantile(0.5 + 0.5 * level, self.df) if self.is_known else math.inf


def welch(a: Floats, b: Floats) -> Welch:
    """Return the difference of two means: ``s^2 = v_a + v_b``, ``df = s^4 / (v_a^2/(n_a - 1) + v_b^2/(n_b - 1))``.

    Here ``v = sd^2 / n``, the variance of a mean.
    """
    if not a.size or not b.size or not np.isfinite(a).all() or not np.isfinite(b).all():
        return Welch(math.nan, math.nan, math.nan)
    difference = float(a.mean() - b.mean())
    if min(a.size, b.size) < 2:
        return Welch(difference, math.nan, math.nan)
    error_a, error_b = (float(group.std(ddof=1)) / math.sqrt(group.size) for group in (a, b))
    error = math.hypot(error_a, error_b)
    if error <= _ROUNDING * max(np.abs(a).max(), np.abs(b).max()):
        return Welch(difference, math.nan, math.nan)
    share = (error_a / error) ** 2  # of the variance: no fourth powers that could underflow
    return Welch(difference, error, 1.0 / (share**2 / (a.size - 1) + (1.0 - share) ** 2 / (b.size - 1)))


def paired(a: Floats, b: Floats) -> Welch:
    """Return the difference of two means by the spread of the differences of their pairs, with ``n - 1`` of freedom."""
    test = welch(a - b, np.zeros_like(b))
    known = test.error > _ROUNDING * max(np.abs(a).max(initial=0.0), np.abs(b).max(initial=0.0))
    return test if known else test._replace(error=math.nan, df=math.nan)


def seeds_needed(
    sd_a: float, sd_b: float, difference: float, power: float = 0.9, level: float = 0.95, margin: float = 0.0
) -> int:
    """Return the number of seeds per group with which a test passes with the chance ``power``, by the noncentral t.

    The tests of ``|difference| <= margin`` are the two one-sided ones that confirm it where the true difference is
    within, and the one that rejects it where it is beyond; a margin of 0 is the two-sided test of a difference. A
    one-sided test at ``level`` needs as many as a two-sided one at ``2 level - 1``.
    """
    check_number("level", level, above=0.0, below=1.0)
    check_number("power", power, above=0.0, below=1.0)
    if not (math.isfinite(sd_a) and math.isfinite(sd_b) and sd_a >= 0.0 and sd_b >= 0.0 and sd_a + sd_b > 0.0):
        raise ValueError(f"sd_a and sd_b must be finite, not negative and not both 0, got {sd_a!r} and {sd_b!r}")
    check_number("margin", margin, least=0.0)
    if not math.isfinite(difference) or abs(difference) == margin:
        raise ValueError(f"difference must be finite and not the margin {margin!r} itself, got {difference!r}")

    def is_enough(n: int) -> bool:
        return _predict_power(n, (sd_a, sd_b), difference, margin, 1.0 - level) >= power

    high = 2
    while not is_enough(high):
        high *= 2
    return bisect_left(range(high), True, lo=high // 2 + 1, key=is_enough)


def student_quantile(probability: float, df: float) -> float:
    """Return the quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(df, probability))


def _predict_power(n: int, sds: tuple[float, float], difference: float, margin: float, error: float) -> float:
    """Return the chance that the test of ``|difference| <= margin`` tells what is true, with n values in each group.

    Within the margin both one-sided tests have to pass. ``1 - (chance that the first fails) - (that the second does)``
    is a lower bound, and exact unless both fail at once, as they do for few values only. Beyond the margin, with
    ``t = (|d| - margin)/s``, the p-value is ``S(t) + S(t + 2 margin/s)``. The second term, of the far side, is taken
    at the two-sided quantile: that is exact for margins of no and of many standard errors.
    """
    from scipy.special import nctdtr, stdtr

    def below(shift: float, value: float) -> float:
        return 0.0 if shift > value + _SURE else float(nctdtr(df, shift, value))

    share = (sds[0] / math.hypot(*sds)) ** 2
    scale, df = math.hypot(*sds) / math.sqrt(n), (n - 1) / (share**2 + (1.0 - share) ** 2)
    if abs(difference) < margin:
        critical = student_quantile(1.0 - error, df)
        return max(0.0, 1.0 - sum(below((margin - side * difference) / scale, critical) for side in (1.0, -1.0)))
    far = float(stdtr(df, -student_quantile(1.0 - error / 2.0, df) - 2.0 * margin / scale))
    return 1.0 - below((abs(difference) - margin) / scale, student_quantile(1.0 - (error - far), df))
