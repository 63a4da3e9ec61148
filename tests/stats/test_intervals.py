"""Intervals that cover, against SciPy's."""

import math

import numpy as np
import pytest
from scipy import stats

from heatbath.stats.intervals import Interval, ratio_in_words, summarize
from samples import LEFT, normals


def test_interval_in_words():
    assert str(Interval(0.730412, 0.725121, 0.7357, 0.95)) == "0.7304 (95 %: 0.7251 to 0.7357)"
    assert str(Interval(1234.5, 1100.0, 1369.0, 0.9)) == "1234 (90 %: 1100 to 1369)"
    assert str(Interval(0.5, -math.inf, math.inf, 0.975)) == "0.5 (97.5 %: unbounded)"
    assert str(Interval(8.1e-10, 3e-11, 1.59e-9, 0.95)) == "8.1e-10 (95 %: 3e-11 to 1.59e-09)"
    assert str(Interval(0.5, 0.0, 1.0, 1.0 - 0.05 / 1225)) == "0.50 (99.9959 %: 0.00 to 1.00)"
    assert str(Interval(0.25, 0.25, 0.25, 0.95)) == "0.25 (95 %: 0.25 to 0.25)"
    assert Interval(1.0, 0.5, 2.0, 0.9).contains(2.0)
    assert not Interval(1.0, 0.5, 2.0, 0.9).contains(2.1)


def test_a_ratio_in_words():
    assert ratio_in_words(Interval(1.63, 0.0862, 31.2, 0.95)) == "1.6 (95 %: 0.086 to 31)"
    assert ratio_in_words(Interval(303.0, 1.26, 73042.0, 0.95)) == "300 (95 %: 1.3 to 73000)"
    near = Interval(1.81, 0.79, 4.12, 0.95)
    assert ratio_in_words(near) == str(near) == "1.8 (95 %: 0.8 to 4.1)"
    assert ratio_in_words(Interval(1.0, -math.inf, math.inf, 0.95)) == "1 (95 %: unbounded)"


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
    with pytest.raises(ValueError, match=r"level must be a number with 0 < level < 1, got 1\.0"):
        summarize(LEFT, level=1.0)


def test_t_interval_covers():
    trials = 2000
    covered = sum(summarize(row, 0.9).interval.contains(2.0) for row in normals(0, trials, 4, mean=2.0, sd=3.0))
    assert abs(covered / trials - 0.9) < 4.0 * math.sqrt(0.09 / trials)
