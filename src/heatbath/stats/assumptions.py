"""Where the t test's assumptions look broken: few seeds, outliers, skewness that does not average out."""

from __future__ import annotations

import math
from itertools import combinations, product
from typing import NamedTuple

import numpy as np

from heatbath.draws import uniform
from heatbath.stats.t_tests import Floats

_FEW = 5  # seeds, below which the spread itself is hardly known
_FALSE_ALARM = 0.01  # the chance that a normal group is said to have an outlier
_NEAR = 1.9  # standard deviations, within which no value of five or more is an outlier
_SKEWED = 0.15  # skewness of the mean difference: about where a tail of 2.5 % is off by half
_SURE = 2.5  # standard errors of that skewness
_MOST_VALUES = 2_000  # beyond which the t test needs no check, and permutations take long
_MOST = 10_000  # permutations
_ROUNDING = 1e-12  # of a statistic: permutations that only change the order of a sum count as ties
_STREAMS = {"signs": 0, "orders": 1}


class Check(NamedTuple):
    """What speaks against the t test."""

    few: bool  # whether a group has fewer than five seeds
    # for each group the places of values that do not belong to a normal group; of pairs, in the first
    outliers: tuple[tuple[int, ...], tuple[int, ...]]
    skewness: float  # of the difference of means, where it is large enough to matter; else 0
    # of a permutation test of no difference, or of equality where a margin was given to it; None where nothing calls
    # for one, or there are too few or too many values for it to say anything
    p: float | None


def check_assumptions(a: Floats, b: Floats, *, paired: bool, margin: float | None = None) -> Check:
    """Return what speaks against the t test of two groups, and the p-value of a permutation test if something does.

    It is the two-sided test of no difference, or with a margin that of equality within it.
    """
    groups = (a - b,) if paired else (a, b)
    outliers = tuple(map(find_outliers, groups))
    skewness = _skewness_of_difference(groups)
    few = min(map(len, groups)) < _FEW
    p = None
    if (any(outliers) or skewness) and not few and sum(map(len, groups)) <= _MOST_VALUES:
        sides = (a, b), (b, a)
        if margin is None:
            p = min(1.0, 2.0 * min(p_greater(x, y, paired=paired) for x, y in sides))
        else:
            p = max(p_greater(x + margin, y, paired=paired) for x, y in sides)
    return Check(few, (outliers[0], outliers[1] if len(outliers) > 1 else ()), skewness, p)


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


def p_greater(a: Floats, b: Floats, *, paired: bool) -> float:
    """Return how likely differences as large as ``mean(a) - mean(b)`` are if the labels mean nothing.

    Pairs change their signs, and their mean difference is the statistic. Otherwise values change groups, and Welch's t
    is the statistic, which keeps the test right for large groups of unlike spread.
    """
    return _flip_signs(a - b) if paired else _regroup(a, b)


def _skewness_of_difference(groups: tuple[Floats, ...]) -> float:
    """Return the skewness of the difference of two means, or of a mean, if it is certain and matters, else 0.

    A tail of the t test is off by about ``g (2 z^2 + 1) / 6 phi(z)``, with ``g`` this skewness: groups that are skewed
    alike and large groups do no harm. For normal groups its variance is ``sum(6 sd^6 / n^5) / v^3``, with ``v`` the
    variance of the difference.
    """
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


def _flip_signs(differences: Floats) -> float:
    n = len(differences)
    exact = 2**n <= _MOST
    if exact:
        signs = np.array(list(product((1.0, -1.0), repeat=n)))
    else:
        draws = np.asarray(uniform(0, _STREAMS["signs"], np.arange(_MOST * n))).reshape(_MOST, n)
        signs = np.where(draws < 0.5, -1.0, 1.0)
    return _share(signs @ differences, float(differences.sum()), float(np.abs(differences).sum()), exact)


def _regroup(a: Floats, b: Floats) -> float:
    values, n = np.concatenate((a, b)), len(a)
    values = values - values.mean()  # so that squares lose no digits
    exact = math.comb(len(values), n) <= _MOST
    if exact:
        chosen = np.array(list(combinations(range(len(values)), n)))
        rest = np.array([np.setdiff1d(np.arange(len(values)), row, assume_unique=True) for row in chosen])
        order = np.concatenate((chosen, rest), axis=1)
    else:
        count = min(_MOST, 2_000_000 // len(values))
        draws = np.asarray(uniform(0, _STREAMS["orders"], np.arange(count * len(values))))
        order = np.argsort(draws.reshape(count, -1), axis=1)
    return _share(_t_values(values[order], n), float(_t_values(values[None], n)[0]), 1.0, exact)


def _t_values(rows: Floats, n: int) -> Floats:
    """Welch's t of the first n values of each row against the others; without any spread it is infinite or 0."""
    first, second = rows[:, :n], rows[:, n:]
    difference = first.mean(axis=1) - second.mean(axis=1)
    error = np.sqrt(first.var(axis=1, ddof=1) / n + second.var(axis=1, ddof=1) / second.shape[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        t_values: Floats = np.nan_to_num(difference / error, nan=0.0)
    return t_values


def _share(statistics: Floats, found: float, scale: float, exact: bool) -> float:
    """The part of the permutations that are as extreme; a sample counts the one that was found as well."""
    extreme = int(np.count_nonzero(statistics >= found - _ROUNDING * scale))
    return extreme / len(statistics) if exact else (1 + extreme) / (1 + len(statistics))
