"""Averages over a training run, with intervals: exponential ones without start-up bias, ratios of means, slopes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from heatbath.laws import check_number

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
        self.decay = check_number("decay", decay, least=0.0, below=1.0)
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


class PairedAverage:
    """Exponential averages of ``a`` and ``b``, with intervals of ``<a>`` and ``<a>/<b>``.

    The values are taken as independent with weights ``w_k`` that add up to one: ``<a>`` has the variance
    ``sum w_k^2 (a_k - <a>)^2 n/(n - 1)``, where ``n = 1 / sum w_k^2`` is the number of values that count.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.clear()

    def clear(self) -> None:
        """Forget all values."""
        self._sums = np.zeros(3)  # of w (1, a, b)
        self._squares = np.zeros((3, 3))  # of w^2 times the products of these

    def update(self, a: float, b: float) -> None:
        """Add one value of each."""
        new = np.array([1.0, a, b])
        self._sums = self.decay * self._sums + (1.0 - self.decay) * new
        self._squares = self.decay**2 * self._squares + (1.0 - self.decay) ** 2 * np.outer(new, new)

    def mean(self, confidence: float = 0.95) -> Estimate:
        """Return ``<a>``; ``nan`` before the first value, unbounded with one."""
        means, variances, reach = self._moments(confidence)
        error = reach * math.sqrt(max(variances[0, 0], 0.0)) if math.isfinite(reach) else math.inf
        return Estimate(means[0], means[0] - error, means[0] + error)

    def ratio(self, confidence: float = 0.95) -> Estimate:
        """Return ``<a>/<b>`` of a positive quantity, ``nan`` unless ``<b> > 0``.

        The interval is Fieller's: all ``R`` for which ``<a> - R <b>`` is compatible with zero. It has no upper end
        where ``<b>`` is compatible with zero itself, and no end at all where it is surely below.
        """
        (a, b), variances, reach = self._moments(confidence)
        value = a / b if b > 0.0 else math.nan
        if not math.isfinite(reach):
            return Estimate(value)
        square, cross, rest = (np.outer([a, b], [a, b]) - reach**2 * variances)[[1, 0, 0], [1, 1, 0]]
        root = math.sqrt(max(cross**2 - square * rest, 0.0))
        if square > 0.0:
            if b < 0.0:
                return Estimate(value, 0.0)
            return Estimate(value, max((cross - root) / square, 0.0), (cross + root) / square)
        return Estimate(value, (cross - root) / square if rest > 0.0 > square else 0.0, math.inf)

    def _moments(self, confidence: float) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], float]:
        """The means, the covariance of their errors, and the reach of an interval in standard errors."""
        total = self._sums[0]
        if total == 0.0:
            return np.full(2, math.nan), np.zeros((2, 2)), math.inf
        means, squares = self._sums / total, self._squares / total**2
        count = 1.0 / squares[0, 0]
        if count < 1.5:
            return means[1:], np.zeros((2, 2)), math.inf
        shift = np.outer(means, squares[0])
        errors = squares - shift - shift.T + np.outer(means, means) * squares[0, 0]
        return means[1:], errors[1:, 1:] * count / (count - 1.0), student_quantile(confidence, count - 1.0)

    def state_dict(self) -> dict[str, Any]:
        """Return the state: numbers only."""
        return {"sums": self._sums.tolist(), "squares": self._squares.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._sums, self._squares = np.array(state["sums"], dtype=float), np.array(state["squares"], dtype=float)


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
    reach = error * student_quantile(confidence, batches - 1)
    return Estimate(ratio, ratio - reach, ratio + reach)


def slope(times: Sequence[float], values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Return the slope of a line through correlated values, with an interval by batch means, as in `ratio_of_means`.

    With fewer than six values the interval is unbounded, with fewer than two the slope is ``nan``.
    """
    t, y = np.asarray(times, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if t.size < 2 or t[0] == t[-1]:
        return Estimate(math.nan)
    batches = min(_BATCHES, t.size // 2) if t.size >= 6 else t.size
    length = t.size // batches
    t, y = (x[t.size - batches * length :].reshape(batches, length).mean(axis=1) for x in (t, y))
    t -= t.mean()
    value = float(t @ y / (t @ t))
    if length == 1:
        return Estimate(value)
    rest = y - y.mean() - value * t
    reach = math.sqrt(float(rest @ rest) / (batches - 2) / float(t @ t)) * student_quantile(confidence, batches - 2)
    return Estimate(value, value - reach, value + reach)


def student_quantile(confidence: float, degrees: float) -> float:
    """Return the reach of a two-sided interval in standard errors, by Student's t."""
    from scipy.special import stdtrit  # takes a tenth of a second, which waits for the first reading

    return float(stdtrit(degrees, 0.5 + 0.5 * confidence))
