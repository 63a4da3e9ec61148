"""Welch's t: the difference of two means whose spreads differ, its p-values and power; and Student's, of pairs."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

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

    Args:
        sd_a: standard deviation of the first group.
        sd_b: of the second group.
        difference: the true difference of the means.
        power: the chance to pass.
        level: of the test; a one-sided test at ``level`` needs as many as a two-sided one at ``2 level - 1``.
        margin: of the tests of ``|difference| <= margin``: the two one-sided ones that confirm it where the difference
            is within, the one that rejects it where it is beyond; 0 for the two-sided test of a difference.

    Raises:
        ValueError: no number of seeds will do, or an argument is out of range.
    """
    check_probability("level", level)
    check_probability("power", power)
    if not (math.isfinite(sd_a) and math.isfinite(sd_b) and sd_a >= 0.0 and sd_b >= 0.0 and sd_a + sd_b > 0.0):
        raise ValueError(f"sd_a and sd_b must be finite, not negative and not both 0, got {sd_a!r} and {sd_b!r}")
    if not math.isfinite(margin) or margin < 0.0:
        raise ValueError(f"margin must be a finite number, 0 or above, got {margin!r}")
    if not math.isfinite(difference) or abs(difference) == margin:
        raise ValueError(f"difference must be finite and not the margin {margin!r} itself, got {difference!r}")
    chance = _power_inside if abs(difference) < margin else _power_outside
    return _least_number(lambda n: chance(n, (sd_a, sd_b), difference, margin, 1.0 - level) >= power)


def student_quantile(probability: float, df: float) -> float:
    """Return the quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(df, probability))


def check_probability(name: str, value: Any, above: float = 0.0) -> None:
    """Refuse a level or power that is none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a probability with {above:g} < {name} < 1, got {value!r}")
    if not above < float(value) < 1.0:
        raise ValueError(f"{name} must be a probability with {above:g} < {name} < 1, got {value!r}")


def check_margin(margin: float, *, positive: bool) -> None:
    """Refuse a margin that is no number, or none to be equal within."""
    if not math.isfinite(margin) or (positive and margin <= 0.0):
        raise ValueError(f"margin must be a {'positive ' if positive else ''}finite number, got {margin!r}")


def _power_inside(n: int, sds: tuple[float, float], difference: float, margin: float, error: float) -> float:
    """Return the chance that both one-sided tests of ``|difference| < margin`` pass.

    It is the lower bound ``1 - (chance that the first fails) - (chance that the second fails)``, which is exact unless
    both fail at once, as they do for few values only.
    """
    scale, df = _predict_error(n, sds)
    critical = student_quantile(1.0 - error, df)
    fails = [_noncentral_cdf(df, (margin - side * difference) / scale, critical) for side in (1.0, -1.0)]
    return max(0.0, 1.0 - sum(fails))


def _power_outside(n: int, sds: tuple[float, float], difference: float, margin: float, error: float) -> float:
    """Return the chance that ``|difference| < margin`` is rejected, on the difference's own side.

    With ``t = (|d| - margin)/s`` the p-value is ``S(t) + S(t + 2 margin/s)``. The second term, of the far side, is
    taken at the two-sided quantile: that is exact for margins of no and of many standard errors. With no margin it is
    the two-sided test of a difference.
    """
    from scipy.special import stdtr

    scale, df = _predict_error(n, sds)
    far = float(stdtr(df, -student_quantile(1.0 - error / 2.0, df) - 2.0 * margin / scale))
    critical = student_quantile(1.0 - (error - far), df)
    return 1.0 - _noncentral_cdf(df, (abs(difference) - margin) / scale, critical)


def _least_number(is_enough: Callable[[int], bool]) -> int:
    """Return the least ``n >= 2`` that is enough, where all larger ones are."""
    high = 2
    while not is_enough(high):
        high *= 2
    return bisect_left(range(high), True, lo=high // 2 + 1, key=is_enough)


def _predict_error(n: int, sds: tuple[float, float]) -> tuple[float, float]:
    """Return standard error and degrees of freedom of a difference of two means of ``n`` values."""
    share = (sds[0] / math.hypot(*sds)) ** 2
    return math.hypot(*sds) / math.sqrt(n), (n - 1) / (share**2 + (1.0 - share) ** 2)


def _noncentral_cdf(df: float, shift: float, value: float) -> float:
    from scipy.special import nctdtr

    return 0.0 if shift > value + _SURE else float(nctdtr(df, shift, value))
