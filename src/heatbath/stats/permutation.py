"""Permutation tests of a difference of means: exact for few values, by a fixed sample of permutations for more."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np

from heatbath.draws import uniform
from heatbath.stats.t_tests import Floats

MOST_VALUES = 2_000  # beyond which the t test needs no check, and permutations take long
_MOST = 10_000  # permutations
_ROUNDING = 1e-12  # of a statistic: permutations that only change the order of a sum count as ties
_STREAMS = {"signs": 0, "orders": 1}


def p_greater(a: Floats, b: Floats, *, paired: bool) -> float:
    """Return how likely differences as large as ``mean(a) - mean(b)`` are if the labels mean nothing.

    Pairs change their signs, and their mean difference is the statistic. Otherwise values change groups, and Welch's t
    is the statistic, which keeps the test right for large groups of unlike spread.
    """
    return _flip_signs(a - b) if paired else _regroup(a, b)


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
