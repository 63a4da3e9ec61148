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
    """A number that one run has, by which groups are compared.

    Attributes:
        name: in full, as claims say it.
        of: takes it from a record.
        axis: what an axis says; the title of its panel says the rest.
        title: of a panel of it.
    """

    name: str
    of: Callable[[Record], float]
    axis: str
    title: str


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
    """The root mean square of the steps of the training loss over the last epochs, without their mean."""
    losses = record.curve("train_loss")[-TAIL - 1 :]
    steps = [after - before for before, after in pairwise(losses)]
    mean = math.fsum(steps) / max(len(steps), 1)
    return math.sqrt(math.fsum((step - mean) ** 2 for step in steps) / max(len(steps) - 1, 1))


FINAL_TEST = Quantity("final test accuracy", lambda r: float(r.final("test_accuracy") or 0.0), "test accuracy", "final")
BEST_TEST = Quantity("best test accuracy", lambda r: float(r.best("test_accuracy") or 0.0), "test accuracy", "best")
TAIL_TEST = Quantity("late test accuracy", _tail_mean("test_accuracy"), "test accuracy", "mean of the last 20 epochs")
TAIL_TRAIN = Quantity("late train accuracy", _tail_mean("train_accuracy"), "train accuracy", TAIL_TEST.title)
TAIL_LOSS = Quantity(
    "late training loss",
    lambda record: max(_tail_mean("train_loss")(record), _LEAST_LOSS),
    "train loss",
    TAIL_TEST.title,
)
LOSSES_AT_SUMMED_RATES = tuple(
    Quantity(f"training loss at {part:g} of the summed rate", _loss_at(part), "train loss", f"at {part:g} of the sum")
    for part in (0.25, 0.5, 0.75)
)
MEAN_TEST = Quantity(
    "mean test accuracy",
    lambda record: math.fsum(record.curve("test_accuracy")) / len(record.epochs),
    "test accuracy",
    "mean over all epochs",
)
GENERALISATION_ERROR = Quantity(
    "generalisation error",
    lambda record: float(record.epochs[-1].train_accuracy - record.epochs[-1].test_accuracy),
    "train less test accuracy",
    "generalisation error",
)
ROUGHNESS = Quantity("roughness of the training loss", _roughness, "standard deviation of its steps", "roughness")
