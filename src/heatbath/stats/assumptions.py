"""Where the t test's assumptions look broken: few seeds, outliers, skewness that does not average out."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from heatbath.stats.permutation import MOST_VALUES, p_greater
from heatbath.stats.t_tests import Floats

_FEW = 5  # seeds, below which the spread itself is hardly known
_FALSE_ALARM = 0.01  # the chance that a normal group is said to have an outlier
_NEAR = 1.9  # standard deviations, within which no value of five or more is an outlier
_SKEWED = 0.15  # skewness of the mean difference: about where a tail of 2.5 % is off by half
_SURE = 2.5  # standard errors of that skewness


class Check(NamedTuple):
    """What speaks against the t test.

    Attributes:
        few: whether a group has fewer than five seeds.
        outliers: for each group the places of values that do not belong to a normal group; of pairs, in the first.
        skewness: of the difference of means, where it is large enough to matter; else 0.
        p: of a permutation test of no difference, or of equality where a margin was given to it; None where nothing
            calls for one, or there are too few or too many values for it to say anything.
    """

    few: bool
    outliers: tuple[tuple[int, ...], tuple[int, ...]]
    skewness: float
    p: float | None


def check_assumptions(a: Floats, b: Floats, *, paired: bool, margin: float | None = None) -> Check:
    """Return what speaks against the t test of two groups, and the p-value of a permutation test if something does.

    Args:
        a: the first group; finite, two values or more.
        b: the second group.
        paired: whether the test is on the differences.
        margin: None for the two-sided test of no difference, else for the test of equality within it.
    """
    groups = (a - b,) if paired else (a, b)
    found = [find_outliers(group) for group in groups]
    skewness = _skewness_of_difference(*groups)
    few = min(map(len, groups)) < _FEW
    wanted = (any(found) or skewness != 0.0) and not few and sum(map(len, groups)) <= MOST_VALUES
    outliers = (found[0], found[1] if len(found) > 1 else ())
    return Check(few, outliers, skewness, _permutation_p(a, b, paired, margin) if wanted else None)


def find_outliers(values: Floats) -> tuple[int, ...]:
    """Return the places of values that are too far from the others for a normal group, each by Student's t (Grubbs)."""
    from scipy.special import stdtr

    n = len(values)
    if n < _FEW:
        return ()
    deviations = values - values.mean()
    squares = float(deviations @ deviations)
    if squares == 0.0:
        return ()
    farthest = np.flatnonzero(np.abs(deviations) >= _NEAR * math.sqrt(squares / n))  # the others are none, and many
    far = deviations[farthest]
    others = np.maximum(squares - far**2 * n / (n - 1), 1e-12 * squares) / (n - 2)  # their variance
    chances = 2.0 * n * stdtr(n - 2, -np.abs(far) * np.sqrt(n / (n - 1) / others))
    return tuple(farthest[chances < _FALSE_ALARM].tolist())


def _skewness_of_difference(a: Floats, b: Floats | None = None) -> float:
    """Return the skewness of ``mean(a) - mean(b)`` if it is certain and matters, else 0.

    A tail of the t test is off by about ``g (2 z^2 + 1) / 6 phi(z)``, with ``g`` this skewness: groups that are skewed
    alike and large groups do no harm. For normal groups its variance is ``sum(6 sd^6 / n^5) / v^3``, with ``v`` the
    variance of the difference.
    """
    groups = [a] if b is None else [a, b]
    if min(map(len, groups)) < _FEW:
        return 0.0
    sizes = np.array([len(group) for group in groups], dtype=np.float64)
    spreads = np.array([group.var(ddof=1) for group in groups])
    centred = [group - group.mean() for group in groups]
    thirds = np.array([(one * one) @ one for one in centred]) * sizes / (sizes - 1) / (sizes - 2)
    scale = float((spreads / sizes).sum()) ** 1.5
    if scale == 0.0:
        return 0.0
    thirds[1:] *= -1.0
    skewness = float((thirds / sizes**2).sum()) / scale
    error = math.sqrt(float((6.0 * spreads**3 / sizes**5).sum())) / scale
    return skewness if abs(skewness) > max(_SKEWED, _SURE * error) else 0.0


def _permutation_p(a: Floats, b: Floats, paired: bool, margin: float | None) -> float:
    if margin is not None:
        return max(p_greater(a + margin, b, paired=paired), p_greater(b + margin, a, paired=paired))
    return min(1.0, 2.0 * min(p_greater(a, b, paired=paired), p_greater(b, a, paired=paired)))
