"""What is known of one training run: its config, its curves, and what derives from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from heatbath.runs.configs import RunConfig

TAIL = 20  # epochs at the end whose mean is reported
ENDED = ("finished", "diverged")
STATUSES = ("pending", "running", *ENDED)
NOT_A_RECORD = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
"""What reading a record raises where a file, or a row of a database, is damaged."""


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
        losses = (self.train_loss, self.test_loss, self.validation_loss)
        return all(math.isfinite(loss) for loss in losses if loss is not None)


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
        """Return its last value; None before the first epoch, or where it is not measured after each."""
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
        return None if not values or None in values else function(values)


def check_record(record: Record) -> None:
    """Refuse what no run leaves behind, but a damaged file or database may hold.

    Raises:
        ValueError: a word or number is of another kind, or the epochs do not fit the config.
    """
    if record.status not in STATUSES:
        raise ValueError(f"unknown status {record.status!r}")
    for name in EPOCH_FIELDS:
        measured = record.config.validation > 0 or not name.startswith("validation")
        if not all(_is_number(value) if measured else value is None for value in record.curve(name)):
            raise ValueError(f"its {name} is not all {'numbers' if measured else 'null, though nothing is held out'}")
    count, whole = len(record.epochs), record.config.epochs
    if count > whole or (record.status == "finished" and count != whole):
        raise ValueError(f"it has {count} epochs, its config {whole}")
    if not _is_number(record.seconds) or record.seconds < 0.0:
        raise ValueError(f"its seconds are {record.seconds!r}")
    if not isinstance(record.versions, dict):
        raise ValueError(f"its versions are {record.versions!r}")
    for word in (record.device, record.precision, *record.versions, *record.versions.values()):
        if not isinstance(word, str):
            raise ValueError(f"{word!r} is in the place of a device, precision or version")
        word.encode()  # half of a surrogate pair, which JSON lets through, could be neither stored nor printed


def _is_number(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)
