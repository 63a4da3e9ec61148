"""Exponential averages without a bias, and intervals of ratios that cover what they promise."""

import copy
import json
import math
import pickle

import numpy as np
import pytest

from heatbath.thermometry.averages import Estimate, ExponentialAverage, ratio_of_means


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
