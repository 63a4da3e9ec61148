"""What is known of one training run: its config, its curves, and what derives from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from heatbath.configs import RunConfig

TAIL = 20  # epochs at the end whose mean is reported
ENDED = ("finished", "diverged")
STATUSES = ("pending", "running", *ENDED)


@dataclass(frozen=True)
class Epoch:
    """What was measured after one epoch; validation is None where nothing was held out.

    Attributes:
        rate: the mean rate of its mini-batches.
        train_loss: over all training images, as are the others, without dropout.
    """

    rate: float
    train_loss: float
    train_accuracy: float
    test_loss: float
    test_accuracy: float
    validation_loss: float | None = None
    validation_accuracy: float | None = None

    @property
    def is_finite(self) -> bool:
        """Whether the losses are numbers still."""
        return math.isfinite(self.train_loss) and math.isfinite(self.test_loss)


EPOCH_FIELDS = tuple(f.name for f in fields(Epoch))


@dataclass(frozen=True)
class Record:
    """One run as the store knows it.

    Attributes:
        config: what was run; ``config.run`` is its name.
        status: ``"pending"`` (asked for, no worker on it; it may have epochs already), ``"running"``, ``"finished"`` or
            ``"diverged"`` (the loss is no number after the last epoch kept here).
        epochs: what was measured, in order.
        device: on which it ran last, in words.
        versions: of heatbath, torch and Python.
        seconds: of training and evaluation, the run's share of its stack.
        precision: which one ``auto`` was.
    """

    config: RunConfig
    status: str
    epochs: tuple[Epoch, ...] = ()
    device: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    precision: str = ""

    @property
    def run(self) -> str:
        """The name of the run."""
        return self.config.run

    def curve(self, name: str) -> list[Any]:
        """Return one quantity of `Epoch`, epoch by epoch."""
        if name not in EPOCH_FIELDS:
            raise ValueError(f"unknown curve {name!r}: choose one of {', '.join(EPOCH_FIELDS)}")
        return [getattr(epoch, name) for epoch in self.epochs]

    def final(self, name: str) -> float | None:
        """Return its last value; None before the first epoch or where it is not measured."""
        return self._derive(name, lambda values: values[-1])

    def best(self, name: str) -> float | None:
        """Return its best value: the smallest loss, the largest of anything else."""
        return self._derive(name, min if name.endswith("loss") else max)

    def tail(self, name: str) -> float | None:
        """Return its mean over the last 20 epochs."""
        return self._derive(name, lambda values: math.fsum(values[-TAIL:]) / len(values[-TAIL:]))

    @property
    def chosen_test_accuracy(self) -> float | None:
        """The test accuracy at the epoch that the validation split likes best: not optimistic, as the best one is."""
        choice = self._derive("validation_accuracy", max)
        if choice is None:
            return None
        return self.epochs[self.curve("validation_accuracy").index(choice)].test_accuracy

    def summary(self) -> dict[str, Any]:
        """Return the numbers that tables and ``--json`` show, None where there are none."""
        return {
            "run": self.run,
            "seed": self.config.seed,
            "status": self.status,
            "epochs": len(self.epochs),
            "final_test_accuracy": self.final("test_accuracy"),
            "best_test_accuracy": self.best("test_accuracy"),
            "tail_test_accuracy": self.tail("test_accuracy"),
            "chosen_test_accuracy": self.chosen_test_accuracy,
            "final_train_accuracy": self.final("train_accuracy"),
            "final_train_loss": self.final("train_loss"),
            "final_test_loss": self.final("test_loss"),
            "config": self.config.to_dict(),
        }

    def _derive(self, name: str, function: Callable[[list[Any]], float]) -> float | None:
        values = self.curve(name)
        return None if not values or values[0] is None else function(values)
