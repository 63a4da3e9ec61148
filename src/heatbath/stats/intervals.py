"""Intervals: an estimate with its ends, that of a mean, and how either is written."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from heatbath.laws import check_number
from heatbath.stats.t_tests import Floats, student_quantile

_TINY = 1e-6  # below which the zeros behind the point are more than can be read


@dataclass(frozen=True)
class Interval:
    """An estimate with ends that enclose the truth with probability ``level``; infinite ones bound nothing yet."""

    estimate: float
    low: float
    high: float
    level: float

    def contains(self, value: float) -> bool:
        """Return whether ``value`` lies in the interval."""
        return self.low <= value <= self.high

    def __str__(self) -> str:
        reach = (self.high - self.low) / 2.0
        number = known_digits(reach) if max(abs(self.low), abs(self.high)) >= _TINY else ".3g"
        ends = f"{self.low:{number}} to {self.high:{number}}" if reach < math.inf else "unbounded"
        return f"{self.estimate:{number}} ({_percent(self.level)} %: {ends})"


def ratio_in_words(ratio: Interval) -> str:
    """Return the interval of a ratio in words; ends that lie decades apart have two digits each."""
    if not 0.0 < ratio.low < (ratio.high - ratio.low) / 20.0 < math.inf:
        return str(ratio)
    middle, low, high = (f"{float(f'{x:.2g}'):.6g}" for x in (ratio.estimate, ratio.low, ratio.high))
    return f"{middle} ({_percent(ratio.level)} %: {low} to {high})"


def _percent(level: float) -> str:
    """A level in percent, with as many digits as it takes not to look like certainty."""
    texts = (f"{100.0 * level:.{digits}g}" for digits in (4, 6, 8, 17))
    return next((text for text in texts if text != "100"), "100")


def known_digits(error: float) -> str:
    """Return how to format a number that is known to ``error``: to its second digit, which says all that is known."""
    return f"z.{max(0, 1 - math.floor(math.log10(error)))}f" if 0.0 < error < math.inf else ".4g"


@dataclass(frozen=True)
class Summary:
    """A sample: mean, standard deviation (of ``n - 1``), standard error of the mean and Student's t interval."""

    n: int
    mean: float
    sd: float
    sem: float
    interval: Interval


def summarize(values: Iterable[float], level: float = 0.95) -> Summary:
    """Return mean, spread and t interval; those that the data do not tell are NaN, and their interval is unbounded.

    Any NaN makes the mean NaN; exclude diverged runs explicitly.
    """
    check_number("level", level, above=0.0, below=1.0)
    sample = as_sample(values)
    n = sample.size
    mean = float(sample.mean()) if n and np.isfinite(sample).all() else math.nan
    if n < 2 or math.isnan(mean):
        return Summary(n, mean, math.nan, math.nan, Interval(mean, -math.inf, math.inf, level))
    sd = float(sample.std(ddof=1))
    sem = sd / math.sqrt(n)
    reach = sem * student_quantile(0.5 + 0.5 * level, n - 1)
    return Summary(n, mean, sd, sem, Interval(mean, mean - reach, mean + reach, level))


def as_sample(values: Iterable[float]) -> Floats:
    """Return one sample as float64; None, a run without a value, becomes NaN."""
    return np.asarray(values if isinstance(values, np.ndarray) else list(values), dtype=np.float64)
