"""Intervals that cover, and tests against SciPy and by hand."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from heatbath.stats.intervals import Interval, bootstrap_interval, compare, equivalence, holm, summarize, superiority
from samples import LEFT, RIGHT, normals, standardized


def test_interval_in_words():
    assert str(Interval(0.730412, 0.725121, 0.7357, 0.95)) == "0.7304 (95 %: 0.7251 to 0.7357)"
    assert str(Interval(1234.5, 1100.0, 1369.0, 0.9)) == "1234 (90 %: 1100 to 1369)"
    assert str(Interval(0.5, -math.inf, math.inf, 0.975)) == "0.5 (97.5 %: unbounded)"
    assert str(Interval(8.1e-10, 3e-11, 1.59e-9, 0.95)) == "8.1e-10 (95 %: 3e-11 to 1.59e-09)"
    assert str(Interval(0.25, 0.25, 0.25, 0.95)) == "0.25 (95 %: 0.25 to 0.25)"
    assert Interval(1.0, 0.5, 2.0, 0.9).contains(2.0)
    assert not Interval(1.0, 0.5, 2.0, 0.9).contains(2.1)


def test_summary():
    summary = summarize(LEFT, level=0.9)
    known = stats.ttest_1samp(LEFT, 0.0).confidence_interval(0.9)
    assert summary.n == 5
    np.testing.assert_allclose(summary.mean, 0.7312)
    np.testing.assert_allclose(summary.sd, np.std(LEFT, ddof=1))
    np.testing.assert_allclose(summary.sem, stats.sem(LEFT))
    np.testing.assert_allclose((summary.interval.low, summary.interval.high), known, rtol=1e-12)
    assert summary.interval.level == 0.9


def test_summary_of_too_little():
    one, none, diverged = summarize([0.7]), summarize([]), summarize([0.7, math.nan, 0.8])
    assert one.mean == 0.7
    assert [one.n, none.n, diverged.n] == [1, 0, 3]
    assert math.isnan(none.mean)
    assert math.isnan(diverged.mean)
    for summary in (one, none, diverged):
        assert math.isnan(summary.sd)
        assert (summary.interval.low, summary.interval.high) == (-math.inf, math.inf)
    with pytest.raises(ValueError, match=r"level must be a probability with 0 < level < 1, got 1\.0"):
        summarize(LEFT, level=1.0)


def test_t_interval_covers():
    trials = 2000
    covered = sum(summarize(row, 0.9).interval.contains(2.0) for row in normals(0, trials, 4, mean=2.0, sd=3.0))
    assert abs(covered / trials - 0.9) < 4.0 * math.sqrt(0.09 / trials)


@pytest.mark.parametrize("statistic", [np.mean, np.median, lambda v: np.std(v) / np.mean(v)], ids=["mean", "med", "cv"])
def test_bootstrap_is_scipys(statistic):
    """Both are random: their ends agree to the noise of the quantiles of 20,000 resamples."""
    values = np.random.default_rng(7).gamma(2.0, size=25)
    ours = bootstrap_interval(values, statistic, level=0.9, resamples=20_000, seed=5)
    known = stats.bootstrap(
        (values,), statistic, vectorized=False, confidence_level=0.9, n_resamples=20_000, method="BCa", rng=0
    )
    assert ours.estimate == statistic(values)
    tolerance = 0.06 * known.standard_error
    np.testing.assert_allclose((ours.low, ours.high), known.confidence_interval, atol=tolerance)


def test_bootstrap_is_a_pure_function():
    values = normals(9, 12)
    once, again, other = (bootstrap_interval(values, resamples=500, seed=seed) for seed in (3, 3, 4))
    assert once == again != other


def test_bootstrap_of_a_skewed_sample_covers():
    """Better than the percentiles would: BCa is correct to second order; 30 values of an exponential law."""
    trials, rng = 400, np.random.default_rng(11)
    covered = sum(
        bootstrap_interval(rng.exponential(2.0, 30), level=0.9, resamples=400, seed=k).contains(2.0)
        for k in range(trials)
    )
    assert 0.9 - covered / trials < 0.02 + 3.0 * math.sqrt(0.09 / trials)


@pytest.mark.parametrize(("count", "part"), [(5, 0.83), (20, 0.91)])
def test_bootstrap_of_few_values_is_too_short(count, part):
    rng = np.random.default_rng(1)
    covered = np.mean(
        [bootstrap_interval(rng.standard_normal(count), resamples=400, seed=k).contains(0.0) for k in range(800)]
    )
    assert abs(covered - part) < 3.5 * math.sqrt(part * (1 - part) / 800)


def test_bootstrap_of_too_little():
    assert bootstrap_interval([0.4]) == Interval(0.4, -math.inf, math.inf, 0.95)
    assert bootstrap_interval([0.25] * 3) == Interval(0.25, 0.25, 0.25, 0.95)
    for values in ([], [1.0, math.nan], [math.inf, 2.0]):
        assert str(bootstrap_interval(values)) == "nan (95 %: unbounded)"


def test_comparison_is_scipys():
    ours, known = compare(LEFT, RIGHT, level=0.99), stats.ttest_ind(LEFT, RIGHT, equal_var=False)
    np.testing.assert_allclose((ours.t, ours.df, ours.p_value), (known.statistic, known.df, known.pvalue), rtol=1e-10)
    np.testing.assert_allclose((ours.interval.low, ours.interval.high), known.confidence_interval(0.99), rtol=1e-10)
    pooled = math.sqrt((4 * np.var(LEFT, ddof=1) + 5 * np.var(RIGHT, ddof=1)) / 9)
    np.testing.assert_allclose(ours.cohen_d, (np.mean(LEFT) - np.mean(RIGHT)) / pooled)


def test_comparison_changes_sign_with_its_sides():
    one, other = compare(LEFT, RIGHT), compare(RIGHT, LEFT)
    np.testing.assert_allclose((one.t, one.cohen_d), (-other.t, -other.cohen_d))
    np.testing.assert_allclose((one.interval.low, one.p_value), (-other.interval.high, other.p_value))


@pytest.mark.parametrize("b", [[], [0.7], [0.7, math.nan]], ids=["none", "one", "nan"])
def test_comparison_of_too_little(b):
    ours = compare(LEFT, b)
    assert ours.p_value == 1.0
    assert (ours.interval.low, ours.interval.high) == (-math.inf, math.inf)
    assert equivalence(LEFT, b, 0.5).p_value == superiority(LEFT, b, -9.0).p_value == 1.0


def test_equivalence_by_hand():
    """Means 10 and 10.5, variances 4 and 9, n = 16 and 36: s^2 = 0.25 + 0.25, df = 0.25 / (0.0625/15 + 0.0625/35).

    So s = 0.7071, df = 42, and for the margin 2 the two tests have t = 2.5/0.7071 = 3.536 and 1.5/0.7071 = 2.121.
    """
    a = 10.0 + 2.0 * standardized(16)
    b = 10.5 + 3.0 * standardized(36)
    test = equivalence(a, b, margin=2.0)
    np.testing.assert_allclose(test.difference, -0.5)
    np.testing.assert_allclose(test.p_value, stats.t(42).sf(1.5 / math.sqrt(0.5)), rtol=1e-9)
    np.testing.assert_allclose(test.p_value, 0.01993, atol=2e-5)
    reach = 1.68195 * math.sqrt(0.5)  # the 95 % quantile for df = 42, from tables
    np.testing.assert_allclose((test.interval.low, test.interval.high), (-0.5 - reach, -0.5 + reach), atol=1e-5)
    np.testing.assert_allclose(test.interval.level, 0.9)


def test_equivalence_is_two_one_sided_tests():
    for margin in (0.005, 0.017, 0.03, 0.05):
        sides = (
            stats.ttest_ind(np.add(LEFT, margin), RIGHT, equal_var=False, alternative="greater").pvalue,
            stats.ttest_ind(np.subtract(LEFT, margin), RIGHT, equal_var=False, alternative="less").pvalue,
        )
        ours = equivalence(LEFT, RIGHT, margin, level=0.975)
        np.testing.assert_allclose(ours.p_value, max(sides), rtol=1e-9)
        assert (ours.p_value < 0.025) == (-margin < ours.interval.low and ours.interval.high < margin)


def test_superiority():
    for margin in (-0.01, 0.0, 0.012, 0.02):
        known = stats.ttest_ind(np.subtract(LEFT, margin), RIGHT, equal_var=False, alternative="greater")
        ours = superiority(LEFT, RIGHT, margin)
        np.testing.assert_allclose(ours.p_value, known.pvalue, rtol=1e-9)
        assert (ours.p_value < 0.05) == (ours.interval.low > margin)


def test_holm_by_its_definition():
    """The adjusted p-value is the least level at which the step-down rejects: by hand, and by closing all subsets."""
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    p_values = [0.2, 0.013, 0.5, 0.013, 0.0004]
    closed = [
        max(
            min(1.0, len(family) * min(p_values[k] for k in family))
            for size in range(1, 6)
            for family in itertools.combinations(range(5), size)
            if index in family
        )
        for index in range(5)
    ]
    np.testing.assert_allclose(holm(p_values), closed)
    assert holm([]) == []


def test_errors():
    with pytest.raises(ValueError, match=r"margin must be a positive finite number, got -0\.1"):
        equivalence(LEFT, RIGHT, -0.1)
