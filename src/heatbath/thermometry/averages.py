"""Averages over a training run: exponential ones without start-up bias, and a ratio of means with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

_BATCHES = 10  # few enough to be long, many enough for a spread


class Estimate(float):
    """A number that knows the interval it was measured to: ``low <= value <= high``.

    It is a float in every computation. An interval of infinite length says that the data do not bound it yet.
    """

    low: float
    high: float

    def __new__(cls, value: float, low: float = -math.inf, high: float = math.inf) -> Estimate:
        """Return ``value`` with its interval."""
        self = super().__new__(cls, value)
        self.low, self.high = float(low), float(high)
        return self

    def contains(self, value: float) -> bool:
        """Return whether ``value`` lies in the interval."""
        return self.low <= value <= self.high

    def __getnewargs__(self) -> tuple[float, float, float]:  # type: ignore[override]
        return float(self), self.low, self.high

    def __repr__(self) -> str:
        return f"{float(self):.4g} [{self.low:.4g}, {self.high:.4g}]"


class ExponentialAverage:
    """Exponential averages ``m <- beta m + (1 - beta) x`` of several numbers, divided by ``1 - beta^k``.

    The division makes the weights of the ``k`` values add up to one, so that the average of values of equal mean is
    unbiased from the first on. Before that it is ``nan``.
    """

    def __init__(self, decay: float) -> None:
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"decay must be a number with 0 <= decay < 1, got {decay!r}")
        self.decay = float(decay)
        self.clear()

    def clear(self) -> None:
        """Forget all values."""
        self.count = 0
        self._sums: list[float] = []

    def update(self, values: Sequence[float]) -> None:
        """Add one value of each number."""
        sums = self._sums or [0.0] * len(values)
        self._sums = [self.decay * s + (1.0 - self.decay) * float(v) for s, v in zip(sums, values, strict=True)]
        self.count += 1

    def __getitem__(self, index: int) -> float:
        if self.count == 0:
            return math.nan
        return self._sums[index] / -math.expm1(self.count * math.log(self.decay)) if self.decay else self._sums[index]

    def state_dict(self) -> dict[str, Any]:
        """Return the state: numbers only."""
        return {"count": self.count, "sums": list(self._sums)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.count, self._sums = int(state["count"]), [float(s) for s in state["sums"]]


def ratio_of_means(above: Sequence[float], below: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Return ``R = mean(above) / mean(below)`` of two correlated series, with an interval by batch means.

    The series is cut into ``m <= 10`` batches of consecutive values. If these are longer than the correlation time,
    the batch means ``r_j`` of ``above - R below`` are independent, whatever happens inside a batch, and

        R +- t_{m-1} sd(r) / (sqrt(m) |mean(below)|).

    With fewer than four values the interval is unbounded, with none the value is ``nan``.
    """
    a, b = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    if a.size == 0 or b.mean() == 0.0:
        return Estimate(math.nan)
    ratio = float(a.mean() / b.mean())
    if a.size < 4:
        return Estimate(ratio)
    batches = min(_BATCHES, a.size // 2)
    length = a.size // batches
    rest = (a - ratio * b)[a.size - batches * length :].reshape(batches, length).mean(axis=1)
    error = float(rest.std(ddof=1)) / math.sqrt(batches) / abs(float(b.mean()))
    reach = error * _student_quantile(0.5 + 0.5 * confidence, batches - 1)
    return Estimate(ratio, ratio - reach, ratio + reach)


def _student_quantile(probability: float, degrees: int) -> float:
    """Student's t quantile: exact for 1 and 2 degrees of freedom, else Fisher's expansion, to 0.3 % at 0.975."""
    if degrees == 1:
        return math.tan(math.pi * (probability - 0.5))
    if degrees == 2:
        return (2.0 * probability - 1.0) / math.sqrt(2.0 * probability * (1.0 - probability))
    z = NormalDist().inv_cdf(probability)
    terms = (
        z,
        (z**3 + z) / 4.0,
        (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / 96.0,
        (3.0 * z**7 + 19.0 * z**5 + 17.0 * z**3 - 15.0 * z) / 384.0,
        (79.0 * z**9 + 776.0 * z**7 + 1482.0 * z**5 - 1920.0 * z**3 - 945.0 * z) / 92160.0,
    )
    return float(sum(term / degrees**k for k, term in enumerate(terms)))
