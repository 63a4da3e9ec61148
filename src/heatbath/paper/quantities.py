"""Numbers that one run has, by which groups of runs are compared."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from heatbath.runs.records import TAIL, Record

_LEAST_LOSS = 1e-30  # as losses are compared by their ratio


@dataclass(frozen=True)
class Quantity:
    """A number that one run has: its name in claims, how a record tells it, and what an axis and a panel say of it.

    With ``by_ratio`` groups are compared by the ratio of geometric means, as losses are.
    """

    name: str
    of: Callable[[Record], float]
    axis: str
    title: str
    by_ratio: bool = False


def _tail_mean(name: str) -> Callable[[Record], float]:
    return lambda record: float(record.tail(name) or 0.0)


def _loss_at(part: float) -> Callable[[Record], float]:
    """The training loss, between epochs, where the sum of the rates is a part of what it is for a constant rate.

    No number where the first epoch goes beyond that part already.
    """

    def loss(record: Record) -> float:
        sums = list(accumulate(record.curve("rate")))
        logarithms = [math.log(max(loss, _LEAST_LOSS)) for loss in record.curve("train_loss")]
        return math.exp(np.interp(part * record.config.lr * record.config.epochs, sums, logarithms, left=math.nan))

    return loss


def _roughness(record: Record) -> float:
    """The standard deviation of the steps of the training loss over the last epochs."""
    steps = [after - before for before, after in pairwise(record.curve("train_loss")[-TAIL - 1 :])]
    mean = math.fsum(steps) / max(len(steps), 1)
    return math.sqrt(math.fsum((step - mean) ** 2 for step in steps) / max(len(steps) - 1, 1))


def _mean_test(record: Record) -> float:
    return math.fsum(record.curve("test_accuracy")) / len(record.epochs)


def _overfit(record: Record) -> float:
    return float(record.epochs[-1].train_accuracy - record.epochs[-1].test_accuracy)


def _late_loss(record: Record) -> float:
    return max(float(record.tail("train_loss") or 0.0), _LEAST_LOSS)


_TEST, _LOSS, _LATE = "test accuracy", "train loss", "mean of the last 20 epochs"
FINAL_TEST = Quantity("final test accuracy", lambda r: float(r.final("test_accuracy") or 0.0), _TEST, "final")
BEST_TEST = Quantity("best test accuracy", lambda r: float(r.best("test_accuracy") or 0.0), _TEST, "best")
TAIL_TEST = Quantity("late test accuracy", _tail_mean("test_accuracy"), _TEST, _LATE)
TAIL_TRAIN = Quantity("late train accuracy", _tail_mean("train_accuracy"), "train accuracy", _LATE)
TAIL_LOSS = Quantity("late training loss", _late_loss, _LOSS, _LATE, by_ratio=True)
LOSSES_AT_SUMMED_RATES = tuple(
    Quantity(f"training loss at {part:g} of the summed rate", _loss_at(part), _LOSS, f"at {part:g} of the sum", True)
    for part in (0.25, 0.5, 0.75)
)
MEAN_TEST = Quantity("mean test accuracy", _mean_test, _TEST, "mean over all epochs")
GENERALISATION_ERROR = Quantity("generalisation error", _overfit, "train less test accuracy", "generalisation error")
ROUGHNESS = Quantity("roughness of the training loss", _roughness, "standard deviation of its steps", "roughness")
