"""Exponential averages without a bias, and intervals of ratios that cover what they promise."""

import copy
import json
import math
import pickle

import numpy as np
import pytest

from heatbath.thermometry.averages import Estimate, ExponentialAverage, PairedAverage, ratio_of_means, slope


def test_no_bias_from_the_first_value_on():
    average = ExponentialAverage(0.9)
    assert math.isnan(average[0])
    weights = {1: [1.0], 2: [0.9, 1.0], 3: [0.81, 0.9, 1.0]}
    for k, value in enumerate([3.0, -1.0, 5.0], start=1):
        average.update([value, 7.0])
        assert average[0] == pytest.approx(np.average([3.0, -1.0, 5.0][:k], weights=weights[k]), rel=1e-14)
        assert average[1] == pytest.approx(7.0, rel=1e-14)


def test_estimate_is_a_float():
    estimate = Estimate(2.0, 1.5, 2.5)
    assert estimate / 2 == 1.0
    assert estimate.contains(1.5)
    assert not estimate.contains(3.0)
    again = pickle.loads(pickle.dumps(copy.deepcopy(estimate)))
    assert (again, again.low, again.high) == (2.0, 1.5, 2.5)
    assert json.dumps(estimate) == "2.0"


def test_interval_covers_correlated_data():
    """An interval that took the values for independent would cover about 40 % here."""
    generator = np.random.default_rng(0)
    covered, naive = 0, 0
    for _ in range(300):
        noise = generator.normal(size=1000)
        for k in range(1, 1000):
            noise[k] += 0.9 * noise[k - 1]
        below = 10.0 + generator.normal(size=1000)
        above = 2.0 * below + noise
        ratio = ratio_of_means(above, below)
        covered += ratio.contains(2.0)
        naive += abs(ratio - 2.0) < 1.96 * (above - ratio * below).std() / math.sqrt(1000) / below.mean()
    assert 0.9 < covered / 300 < 0.99
    assert naive / 300 < 0.6


def test_few_values_bound_nothing():
    assert math.isnan(ratio_of_means([], []))
    ratio = ratio_of_means([1.0, 2.0, 3.0], [1.0, 1.0, 1.0])
    assert (ratio, ratio.low, ratio.high) == (2.0, -math.inf, math.inf)
    assert math.isfinite(ratio_of_means([1.0, 2.0, 3.0, 3.0], [1.0] * 4).high)


class TestPairedAverage:
    @pytest.mark.parametrize("decay", [0.6, 0.95])
    def test_intervals_cover_the_truth(self, decay):
        generator, held = np.random.default_rng(1), np.zeros(2)
        for _ in range(600):
            average = PairedAverage(decay)
            for a, b in zip(generator.gamma(4.0, 0.5, 60), generator.normal(0.8, 0.4, 60), strict=True):
                average.update(a, b)
            held += average.mean(0.9).contains(2.0), average.ratio(0.9).contains(2.5)
        assert np.all(abs(held / 600 - 0.9) < 4 * math.sqrt(0.09 / 600) + 0.02)  # Student's t knows a normal law only

    def test_it_is_the_exponential_average(self):
        pair, single = PairedAverage(0.7), ExponentialAverage(0.7)
        for a, b in ((1.0, 3.0), (4.0, 2.0), (-2.0, 5.0)):
            pair.update(a, b)
            single.update([a, b])
        assert pair.mean() == pytest.approx(single[0], rel=1e-14)
        assert pair.ratio() == pytest.approx(single[0] / single[1], rel=1e-14)
        again = PairedAverage(0.7)
        again.load_state_dict(json.loads(json.dumps(pair.state_dict())))
        assert repr(again.ratio()) == repr(pair.ratio())

    def test_little_data_bound_little(self):
        average = PairedAverage(0.9)
        assert math.isnan(average.mean())
        average.update(3.0, 1.0)
        assert (average.mean().low, average.ratio().high) == (-math.inf, math.inf)
        for b in (-1.0, 1.0, -2.0, 2.5):  # the divisor may be zero: the ratio has no upper end, but a lower one
            average.update(3.0 + 0.01 * b, b)
        ratio = average.ratio()
        assert 0.0 < ratio.low < 3.0 / 2.5
        assert ratio.high == math.inf
        for _ in range(50):
            average.update(3.0, -1.0)
        assert math.isnan(average.ratio())


def test_slopes_of_correlated_values_cover_the_truth():
    generator, held = np.random.default_rng(2), 0
    for _ in range(400):
        noise = generator.normal(size=200)
        for k in range(1, 200):
            noise[k] += 0.6 * noise[k - 1]
        times = np.arange(200) * 3.0 + 5.0
        held += slope(times, 0.01 * times + noise, 0.9).contains(0.01)
    assert abs(held / 400 - 0.9) < 4 * math.sqrt(0.09 / 400)
    assert math.isnan(slope([1], [2.0]))
    assert slope([0, 2, 4], [1.0, 2.0, 3.0]) == 0.5
    assert slope([0, 2, 4], [1.0, 2.0, 3.0]).high == math.inf
    assert slope(range(6), [1.0, 2.0, 3.0, 4.1, 5.0, 6.0]).high < 2.0


def test_a_denominator_that_seems_to_be_below_zero_bounds_nothing():
    """The squared length of a gradient is estimated without a bias, so that it may come out negative, and surely so."""
    average = PairedAverage(0.9)
    for a, b in ((2.0, -1.0), (2.1, -1.1), (1.9, -0.9)):
        average.update(a, b)
    ratio = average.ratio()
    assert math.isnan(ratio)
    assert (ratio.low, ratio.high) == (0.0, math.inf)
