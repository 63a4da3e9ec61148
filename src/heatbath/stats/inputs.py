"""Numbers as people have them: lists, arrays, dictionaries by seed, data frames, records of runs."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np

from heatbath.stats.samples import Sample

DEFAULT_METRIC = "test_accuracy"  # of records
_LOWER = ("loss", "error", "err", "perplexity", "nll", "mse", "rmse", "mae", "seconds", "time")
_DERIVED = ("final", "best", "tail")  # what the methods of a record take of a curve


def read_sample(name: str, source: Any, metric: str | None = None) -> Sample:
    """Return a group from whatever holds its numbers.

    Args:
        name: of the group.
        source: numbers in a list, tuple or array; a mapping from seeds to numbers; a data frame with a column of the
            metric, and perhaps one called ``seed``; a series, whose index has the seeds if it is called so; or records
            of runs. None stands for a run without a number.
        metric: the column, or what is taken of records: a curve (its last value), or ``best_`` or ``tail_`` with its
            name.

    Raises:
        TypeError: it is nothing of the kind.
        ValueError: a seed appears twice, the metric does not exist, or runs of a group differ in more than the seed.
    """
    if isinstance(source, Sample):
        return source
    if isinstance(source, Mapping):
        return _checked(name, source.values(), list(source))
    if hasattr(source, "columns"):
        return _read_frame(name, source, metric)
    index = getattr(source, "index", None)
    if index is not None and not callable(index):  # a series; the index of a list is a method
        return _checked(name, list(source), list(index) if getattr(index, "name", None) == "seed" else None)
    if isinstance(source, str | bytes) or not isinstance(source, Iterable):
        raise TypeError(
            f"group {name} must be numbers, a mapping from seeds to numbers, a data frame or records, got {source!r}"
        )
    items = source.tolist() if hasattr(source, "tolist") else list(source)
    if not isinstance(items, list):
        raise TypeError(f"group {name} must have one number for each seed, got the single {items!r}")
    if items and all(hasattr(item, "config") and hasattr(item, "final") for item in items):
        return _read_records(name, items, metric or DEFAULT_METRIC)
    return _checked(name, items, None)


def is_lower_better(metric: str) -> bool:
    """Return whether a metric of this name is better when it is lower, as losses and errors are."""
    return any(word in _LOWER for word in metric.lower().replace("-", "_").replace(" ", "_").split("_"))


def digest(contents: object) -> str:
    """Return 16 hexadecimal digits that any change of the contents changes."""
    return hashlib.sha256(repr(contents).encode()).hexdigest()[:16]


def _read_frame(name: str, frame: Any, metric: str | None) -> Sample:
    columns = [str(column) for column in frame.columns]
    if metric is None:
        others = [column for column in columns if column != "seed"]
        if len(others) != 1:
            raise ValueError(f"say which metric of group {name}: its columns are {', '.join(columns)}")
        metric = others[0]
    if metric not in columns:
        raise ValueError(f"group {name} has no column {metric!r}: choose one of {', '.join(columns)}")
    sample = _checked(name, list(frame[metric]), list(frame["seed"]) if "seed" in columns else None)
    return replace(sample, metric=metric)


def _read_records(name: str, records: Sequence[Any], metric: str) -> Sample:
    settings = [{k: v for k, v in record.config.settings().items() if k != "seed"} for record in records]
    mixed = [key for key in settings[0] if len({str(own.get(key)) for own in settings}) > 1]
    if mixed:
        values = {key: sorted({str(own.get(key)) for own in settings}) for key in mixed}
        words = "; ".join(f"{key} is {', '.join(some[:3])}{' ...' * (len(some) > 3)}" for key, some in values.items())
        raise ValueError(f"the runs of group {name} differ in more than the seed: {words}")
    ended = [record for record in records if record.status in ("finished", "diverged")]
    notes = f"{len(records) - len(ended)} of {len(records)} runs of {name} have not ended and are left out"
    ended.sort(key=lambda record: record.config.seed)
    sample = _checked(name, [_of_record(record, metric) for record in ended], [r.config.seed for r in ended])
    return replace(
        sample,
        metric=metric,
        settings=repr(sorted(settings[0].items())),
        digests=tuple(digest([record.run, record.status, _numbers(record)]) for record in ended),
        versions=tuple(sorted({f"{key} {value}" for r in ended for key, value in r.versions.items()})),
        notes=(notes,) if len(ended) < len(records) else (),
    )


def _numbers(record: Any) -> list[Any]:
    return [(epoch.rate, sorted(epoch.metrics.items())) for epoch in record.epochs]


def _of_record(record: Any, metric: str) -> float | None:
    derived, _, curve = metric.partition("_")
    if metric == "chosen_test_accuracy":
        value = record.chosen_test_accuracy
    else:
        value = getattr(record, derived)(curve) if derived in _DERIVED else record.final(metric)
    return math.nan if record.status == "diverged" else value  # its curves end before they are no numbers


def _checked(name: str, values: Iterable[Any], seeds: Sequence[Hashable] | None) -> Sample:
    """Return the group, in the order of its seeds: numbers by their size, others by their text."""
    numbers = [math.nan if value is None else value for value in values]
    for value in numbers:
        if type(value) is not float and (isinstance(value, bool) or not isinstance(value, Real)):
            raise TypeError(f"group {name} must have one number for each seed, got {value!r}")
    sample = Sample(name, np.array(numbers, dtype=np.float64))
    if seeds is None:
        return sample
    if len(set(seeds)) != len(seeds):
        twice = next(seed for seed, count in Counter(seeds).items() if count > 1)
        raise ValueError(f"group {name} has seed {twice} more than once")
    sample = replace(sample, seeds=tuple(seeds))
    order = sorted(
        range(len(seeds)), key=lambda k: (0, seeds[k], "") if isinstance(seeds[k], Real) else (1, 0, str(seeds[k]))
    )
    return sample if order == list(range(len(seeds))) else sample.take(order)
