"""Welch's t and its power, against SciPy and against tests that are really made."""

import math

import numpy as np
import pytest
from scipy import stats

from heatbath.stats.t_tests import seeds_needed, welch
from samples import normals


@pytest.mark.parametrize(("n_a", "n_b", "sd"), [(5, 5, 1.0), (4, 17, 0.02), (30, 3, 7.0), (2, 2, 1.5)])
def test_welch_is_scipys(n_a, n_b, sd):
    a, b = normals(1, n_a, mean=3.0, sd=2.0), normals(2, n_b, mean=2.5, sd=sd)
    test = welch(a, b)
    known = stats.ttest_ind(a, b, equal_var=False)
    np.testing.assert_allclose(test.difference / test.error, known.statistic, rtol=1e-12)
    np.testing.assert_allclose(test.df, known.df, rtol=1e-12)
    np.testing.assert_allclose(2.0 * test.tail(abs(test.difference)), known.pvalue, rtol=1e-10)
    low, high = known.confidence_interval(0.9)
    np.testing.assert_allclose(test.reach(0.9), (high - low) / 2.0, rtol=1e-10)


@pytest.mark.parametrize(("shift", "scale"), [(10.0, 1.0), (0.0, 1e-100), (-3.0, 1e100), (0.5, -2.0)])
def test_shift_and_unit_do_not_matter(shift, scale):
    a, b = normals(3, 6, mean=0.4), normals(4, 9, sd=3.0)
    plain, moved = welch(a, b), welch(scale * (a + shift), scale * (b + shift))
    np.testing.assert_allclose(moved.difference, scale * plain.difference, rtol=1e-12)
    np.testing.assert_allclose(moved.error, abs(scale) * plain.error, rtol=1e-12)
    np.testing.assert_allclose(moved.df, plain.df, rtol=1e-12)


@pytest.mark.parametrize(
    ("a", "b"),
    [([], [1.0, 2.0]), ([1.0], [1.0, 2.0]), ([1.0, math.nan], [1.0, 2.0]), ([0.3] * 3, [0.3, 0.1 + 0.2, 0.3])],
    ids=["none", "one", "nan", "rounding"],
)
def test_nothing_is_known_without_a_spread(a, b):
    test = welch(np.array(a), np.array(b))
    assert not test.is_known
    assert test.tail(100.0) == 1.0
    assert test.reach(0.9) == math.inf


def test_one_group_without_spread_is_students_test():
    a = normals(5, 8, mean=0.5)
    test = welch(a, np.array([0.1, 0.1]))
    known = stats.ttest_1samp(a, 0.1)
    np.testing.assert_allclose(2.0 * test.tail(abs(test.difference)), known.pvalue, rtol=1e-10)


def reject_rate(n, sds, difference, level, margin, trials=20_000):
    """How often the test passes on normal data."""
    a = normals(n, trials, n, mean=difference, sd=sds[0])
    b = normals(n + 10**6, trials, n, sd=sds[1])
    va, vb = a.var(axis=1, ddof=1) / n, b.var(axis=1, ddof=1) / n
    t_of = stats.t((va + vb) ** 2 / ((va**2 + vb**2) / (n - 1)))
    d, s = a.mean(axis=1) - b.mean(axis=1), np.sqrt(va + vb)
    if abs(difference) > margin:
        p = t_of.sf((np.abs(d) - margin) / s) + t_of.sf((np.abs(d) + margin) / s)
    else:
        p = t_of.sf((margin - np.abs(d)) / s)
    return np.mean(p < 1.0 - level), math.sqrt(0.09 / trials)


@pytest.mark.parametrize(
    ("sds", "difference", "level", "margin"),
    [
        ((1.0, 1.0), 0.7, 0.95, 0.0),
        ((0.3, 1.2), -0.9, 0.9, 0.0),
        ((1.0, 1.0), 2.5, 0.99, 0.0),
        ((1.0, 1.0), 0.0, 0.95, 0.8),
        ((0.5, 1.5), 0.3, 0.975, 1.2),
        ((1.0, 0.7), -0.9, 0.95, 1.5),
        ((1.0, 1.0), 1.2, 0.99, 0.8),
        ((0.4, 1.0), -1.0, 0.95, 0.3),
        ((1.0, 1.0), 0.6, 0.95, 0.001),
    ],
)
def test_the_seeds_give_the_power(sds, difference, level, margin):
    n = seeds_needed(*sds, difference, power=0.9, level=level, margin=margin)
    rate, error = reject_rate(n, sds, difference, level, margin)
    fewer, _ = reject_rate(n - 1, sds, difference, level, margin)
    assert rate > 0.9 - 4.0 * error
    assert fewer < 0.9 + 4.0 * error


def test_seeds_for_a_textbook_case():
    """Cohen's d = 0.5 at 5 %, two-sided: 64 per group for a power of 0.8, 86 for 0.9."""
    assert seeds_needed(2.0, 2.0, 1.0, power=0.8) == 64
    assert seeds_needed(2.0, 2.0, -1.0, power=0.9) == 86


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 0.0, 1.0), "sd_a and sd_b must be finite, not negative and not both 0, got 0.0 and 0.0"),
        ((1.0, math.nan, 1.0), "sd_a and sd_b must be"),
        ((1.0, 1.0, 0.0), "difference must be finite and not the margin 0.0 itself, got 0.0"),
        ((1.0, 1.0, 0.5, 0.9, 0.95, 0.5), "difference must be finite and not the margin 0.5 itself, got 0.5"),
        ((1.0, 1.0, 0.5, 0.9, 0.95, -0.1), "margin must be a finite number with margin >= 0, got -0.1"),
        ((1.0, 1.0, 0.5, 1.0), "power must be a number with 0 < power < 1, got 1.0"),
        ((1.0, 1.0, 0.5, 0.9, 95), "level must be a number with 0 < level < 1, got 95"),
    ],
)
def test_what_no_seeds_can_settle_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        seeds_needed(*arguments)
