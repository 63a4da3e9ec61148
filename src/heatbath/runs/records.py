"""What is known of one training run: its config, its curves, and what derives from them.

The database and the checkpoints keep epochs as bytes: the rate and the metrics as float64 in little-endian order,
followed by a digest over them, the run's name, the epoch's number and the names of the metrics. So a bit that has
flipped is noticed, and costs one epoch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from itertools import chain, groupby, repeat
from struct import Struct
from typing import Any, TypeAlias

from heatbath.runs.configs import RunConfig

TAIL = 20  # epochs at the end whose mean is reported
ENDED = ("finished", "diverged")
STATUSES = ("pending", "running", *ENDED)
NOT_A_RECORD = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""What reading a record raises where a file, or a row of a database, is damaged."""

Origin: TypeAlias = Mapping[str, str]
"""What made a number: the versions of heatbath, torch and Python, the ``device``, its driver, the ``precision``."""

METRICS = tuple(f"{split}_{what}" for split in ("train", "test", "validation") for what in ("loss", "accuracy"))
"""What the networks of the paper measure; those of validation only where images are held out."""
_DIGEST = 8  # bytes of an epoch's digest
_RANGES = {"accuracy": (0.0, 1.0), "loss": (0.0, math.inf)}  # by the last word of a metric's name


@dataclass(frozen=True, slots=True)
class Epoch:
    """What was measured after one epoch: the mean rate of its mini-batches, and metrics by name.

    A metric is an attribute too: ``epoch.test_accuracy``. Those of ``train`` are over all training images, without
    dropout. Two epochs with the same numbers are equal, wherever they were computed; an origin may be empty.
    """

    rate: float
    metrics: Mapping[str, float]
    origin: Origin = field(default_factory=dict, compare=False)

    def __getattr__(self, name: str) -> Any:
        # By way of `object`: a copy that is being unpickled has no metrics yet.
        metrics: Mapping[str, float] = object.__getattribute__(self, "metrics")
        if name in metrics:
            return metrics[name]
        if name in METRICS:  # nothing was held out
            return None
        raise AttributeError(f"this epoch has no {name}; it has rate, {', '.join(metrics)}")

    @property
    def is_finite(self) -> bool:
        """Whether the losses are numbers still."""
        return all(math.isfinite(value) for name, value in self.metrics.items() if name.endswith("loss"))


@dataclass(frozen=True, repr=False)
class Record:
    """One run as the store knows it.

    Attributes:
        config: what was run; ``config.run`` is its name.
        status: ``"pending"`` (asked for, no worker on it; it may have epochs already), ``"running"``, ``"finished"`` or
            ``"diverged"`` (the loss is not a number after the last epoch kept here).
        epochs: what was measured, in order; each knows its origin.
        seconds: of training and evaluation, the run's share of its stack.
        origin: what worked on it last; it may have other epochs, and none before the first.
        verified: whether a digest vouches for all this; stores and exports of heatbath 0.1.0 have none.
    """

    config: RunConfig
    status: str
    epochs: tuple[Epoch, ...] = ()
    seconds: float = 0.0
    origin: Origin = field(default_factory=dict)
    verified: bool = field(default=True, compare=False)

    def __repr__(self) -> str:
        last = self.epochs[-1].metrics.items() if self.epochs else ()
        numbers = "".join(f", {name} {value:.4g}" for name, value in last if name.startswith("test_"))
        epochs = f"{len(self.epochs)} of {self.config.epochs} epochs"
        what = f"{self.config.model} on {self.config.dataset}, seed {self.config.seed}"
        return f"Record({self.run}: {what}, {self.status}, {epochs}{numbers})"

    @property
    def run(self) -> str:
        """The name of the run."""
        return self.config.run

    @property
    def device(self) -> str:
        """On which it ran last, in words."""
        return self.origin.get("device", "")

    @property
    def precision(self) -> str:
        """Which one ``auto`` was."""
        return self.origin.get("precision", "")

    @property
    def versions(self) -> dict[str, str]:
        """Of what worked on it last: heatbath (with the commit, if it is a checkout), torch, Python, and a driver."""
        return {name: words for name, words in self.origin.items() if name not in ("device", "precision")}

    @property
    def origins(self) -> list[tuple[int, Origin]]:
        """What made its epochs: how many in a row, and where. The last entry is its `origin`, perhaps of no epoch."""
        return join_origins([epoch.origin for epoch in self.epochs], self.origin)

    @property
    def curves(self) -> tuple[str, ...]:
        """The names that `curve` takes: the rate and every metric."""
        return ("rate", *(self.epochs[0].metrics if self.epochs else ()))

    def curve(self, name: str) -> list[Any]:
        """Return the rate or one metric, epoch by epoch; None where it was not measured."""
        if name == "rate":
            return [epoch.rate for epoch in self.epochs]
        if name not in self.curves and name not in METRICS:
            known = ", ".join(dict.fromkeys((*self.curves, *METRICS)))
            raise ValueError(f"unknown curve {name!r}: choose one of {known}")
        return [epoch.metrics.get(name) for epoch in self.epochs]

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
        chosen = self._derive("validation_accuracy", lambda values: values.index(max(values)))
        return None if chosen is None else self.curve("test_accuracy")[int(chosen)]

    def summary(self) -> dict[str, Any]:
        """Return the numbers that tables and ``--json`` show, None where there are none."""
        accuracy = "test_accuracy"
        return {
            **{"run": self.run, "seed": self.config.seed, "status": self.status, "epochs": len(self.epochs)},
            **{f"{how}_{accuracy}": getattr(self, how)(accuracy) for how in ("final", "best", "tail")},
            "chosen_test_accuracy": self.chosen_test_accuracy,
            **{f"final_{name}": self.final(name) for name in ("train_accuracy", "train_loss", "test_loss")},
            **{"verified": self.verified, "config": self.config.to_dict()},
        }

    def _derive(self, name: str, function: Callable[[list[Any]], float]) -> float | None:
        values = self.curve(name)
        return None if not values or None in values else function(values)


def join_origins(made: Iterable[Origin], last: Origin) -> list[tuple[int, Origin]]:
    """Return how many epochs in a row have the same origin, and which; at the end the last one, perhaps of none."""
    found: list[tuple[int, Origin]] = [(len(list(epochs)), origin) for origin, epochs in groupby(made)]
    return found if not last or (found and found[-1][1] == last) else [*found, (0, last)]


def old_origin(versions: Any, device: str, precision: str) -> Origin:
    """Return the one origin that a run had in stores and exports of heatbath 0.1.0."""
    if not isinstance(versions, dict):
        raise ValueError(f"its versions are {versions!r}")
    words = {**versions, "device": device, "precision": precision}
    return {name: word for name, word in words.items() if word != ""}


def check_record(record: Record) -> None:
    """Refuse what no run leaves behind, but a damaged file or database may hold."""
    if record.status not in STATUSES:
        raise ValueError(f"unknown status {record.status!r}")
    _check_numbers(record)
    count, whole = len(record.epochs), record.config.epochs
    if count > whole or (record.status == "finished" and count != whole):
        raise ValueError(f"it has {count} epochs, its config {whole}")
    if type(record.seconds) is not float or not 0.0 <= record.seconds < math.inf:
        raise ValueError(f"its seconds are {record.seconds!r}")
    for word in (word for _, origin in record.origins for pair in origin.items() for word in pair):
        if not isinstance(word, str):
            raise ValueError(f"{word!r} is in the place of a device, precision or version")
        if not word.isprintable():  # such as what moves the cursor of a terminal, or half of a surrogate pair
            raise ValueError(f"{word!r} cannot be printed")


def _check_numbers(record: Record) -> None:
    names = record.curves
    if any(len(epoch.metrics) + 1 != len(names) for epoch in record.epochs):
        raise ValueError("its epochs have different metrics")
    if not all(isinstance(name, str) and name.isprintable() for name in names):
        raise ValueError(f"its metrics are {names!r}")
    held_out = record.config.validation
    if record.epochs and (held_out > 0) is not any(name.startswith("validation") for name in names):
        raise ValueError(f"it has {'no ' * (held_out > 0)}metrics of validation, and holds out {held_out} images")
    for name in names if record.epochs else ():
        values = record.curve(name)
        if {*map(type, values)} != {float} or not all(map(math.isfinite, values)):
            raise ValueError(f"its {name} is not all numbers")
        # A user's loss may be negative, and accuracy be counted in points.
        known = name.rpartition("_")[2] if record.config.task is None else ""
        low, high = _RANGES.get(known, (-math.inf, math.inf))
        worst = min(values) if min(values) < low else max(values)
        if not low <= worst <= high:
            raise ValueError(f"its {name} is {worst:.6g} somewhere, which is out of range")


def pack(run: str, epochs: Sequence[Epoch], first: int = 0) -> list[bytes]:
    """Return one string of bytes for each epoch; ``first`` epochs came before these."""
    names = tuple(epochs[0].metrics) if epochs else ()
    form, context = Struct(f"<{1 + len(names)}d"), json.dumps([run, *names]).encode()
    packed = []
    for number, epoch in enumerate(epochs, start=first + 1):
        if tuple(epoch.metrics) != names:
            words = f"{', '.join(epoch.metrics)}, not {', '.join(names)}"
            raise ValueError(f"run {run}: epoch {number} has the metrics {words}")
        numbers = form.pack(epoch.rate, *epoch.metrics.values())
        packed.append(numbers + _digest(context, number, numbers))
    return packed


def unpack(
    run: str, names: Sequence[str], packed: Iterable[bytes], origins: Iterable[tuple[int, Origin]]
) -> list[Epoch]:
    """Return the epochs of `pack` from the first one on, up to the first one that is damaged.

    ``origins`` says how many epochs in a row were made where; epochs beyond have an empty origin.
    """
    form, context = Struct(f"<{1 + len(names)}d{_DIGEST}s"), json.dumps([run, *names]).encode()
    made = each_origin(origins)
    epochs = []
    for number, content in enumerate(packed, start=1):
        if not isinstance(content, bytes) or len(content) != form.size:  # a flipped bit may make a text of it
            break
        rate, *metrics, digest = form.unpack(content)
        if digest != _digest(context, number, content[:-_DIGEST]):
            break
        epochs.append(Epoch(rate, dict(zip(names, metrics, strict=True)), next(made, {})))
    return epochs


@lru_cache(maxsize=64)
def read_origins(text: str) -> list[tuple[int, Origin]]:
    """Return the origins of a run from their JSON. Runs of one campaign share the dictionaries."""
    parsed = json.loads(text)
    origins = [(count, origin) for count, origin in parsed]
    sound = all(isinstance(count, int) and count >= 0 and isinstance(origin, dict) for count, origin in origins)
    if not sound or not isinstance(parsed, list):
        raise ValueError("its origins are not counts of epochs with words")
    return origins


def each_origin(origins: Iterable[tuple[int, Origin]]) -> chain[Origin]:
    """Return the origin of each epoch, one after the other."""
    return chain.from_iterable(repeat(origin, count) for count, origin in origins)


def _digest(context: bytes, number: int, numbers: bytes) -> bytes:
    return blake2b(b"%b%d:%b" % (context, number, numbers), digest_size=_DIGEST).digest()
