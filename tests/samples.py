"""Samples that the tests of statistics and verdicts share."""

import math

import numpy as np

LEFT = (0.731, 0.725, 0.738, 0.729, 0.733)
RIGHT = (0.712, 0.716, 0.719, 0.708, 0.722, 0.714)


def normals(seed, *shape, mean=0.0, sd=1.0):
    return np.random.default_rng(seed).normal(mean, sd, shape)


def check_rate_at_most(count, trials, chance):
    """A count of independent events has no more than the given chance: z-score below 3."""
    assert count < trials * chance + 3.0 * math.sqrt(trials * chance * (1.0 - chance))


def standardized(n):
    """n numbers of mean 0 and variance 1."""
    numbers = np.arange(n) - (n - 1) / 2.0
    return numbers / numbers.std(ddof=1)
