"""Groups of numbers, one for each seed: from whatever holds them, without diverged runs or with, and in pairs."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np

from heatbath.stats.t_tests import Floats

DEFAULT_METRIC = "test_accuracy"  # of records
_LOWER = ("loss", "error", "err", "perplexity", "nll", "mse", "rmse", "mae", "seconds", "time")
_CHOSEN = "chosen_test_accuracy"
_DERIVED = ("final", "best", "tail")  # what the methods of a record take of a curve


@dataclass(frozen=True, eq=False)  # arrays have no single truth to compare
class Sample:
    """One group: a name and one number for each seed."""

    name: str  # what the group is called in words
    values: Floats  # NaN where a run has no number
    seeds: tuple[Hashable, ...] | None = None  # of the values, in their order; None where they are not known
    metric: str = ""  # what the numbers are; empty where it is not known
    settings: str = ""  # what all runs of the group have in common, as text; empty where it is not known
    digests: tuple[str, ...] = ()  # of the records that the numbers come from
    versions: tuple[str, ...] = ()  # of the programs that made them
    notes: tuple[str, ...] = ()  # what was left out or replaced, in words

    @property
    def broken(self) -> list[str]:
        """The values that are no numbers, by seed where it is known, else by their place."""
        names = self.seeds or range(len(self.values))
        return [str(name) for name, value in zip(names, self.values, strict=True) if not math.isfinite(value)]

    def take(self, places: Sequence[int]) -> Sample:
        """Return the values at some places."""
        seeds = None if self.seeds is None else tuple(self.seeds[k] for k in places)
        digests = tuple(self.digests[k] for k in places) if self.digests else ()
        return replace(self, values=self.values[list(places)], seeds=seeds, digests=digests)


def read_sample(name: str, source: Any, metric: str | None = None) -> Sample:
    """Return a group from whatever holds its numbers; None stands for a run without one.

    That is a list, tuple or array; a mapping from seeds; a data frame with a column of the metric, and perhaps one
    called ``seed``; a series, whose index has the seeds if it is called so; or records of runs. The metric of records
    is a curve (its last value), or ``best_`` or ``tail_`` with its name.
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


def treat_diverged(samples: Sequence[Sample], treatment: str | float, *, lower_is_better: bool) -> list[Sample]:
    """Return the groups with their values that are no numbers kept (``"tell"``), left out (``"exclude"``) or replaced.

    What replaces them is a number, or for ``"worst"`` the worst one of all groups. A group without a single number has
    no worst one to count: it keeps none, so that nothing is decided of it.
    """
    is_number = isinstance(treatment, int | float) and not isinstance(treatment, bool)
    if not is_number and treatment not in ("tell", "exclude", "worst"):
        raise ValueError(f"diverged must be tell, exclude, worst or a number, got {treatment!r}")
    if treatment == "tell" or not any(sample.broken for sample in samples):
        return list(samples)
    if treatment == "exclude":
        return [_replace_broken(sample, None) for sample in samples]
    if isinstance(treatment, str):
        known = np.concatenate([sample.values[np.isfinite(sample.values)] for sample in samples])
        if not known.size:
            return list(samples)
        treatment = float(known.max() if lower_is_better else known.min())
    if not math.isfinite(treatment):
        raise ValueError(f"diverged must be tell, exclude, worst or a finite number, got {treatment!r}")
    lost = [len(sample.broken) == len(sample.values) and not is_number for sample in samples]
    return [s if is_lost else _replace_broken(s, float(treatment)) for s, is_lost in zip(samples, lost, strict=True)]


def _replace_broken(sample: Sample, worst: float | None) -> Sample:
    """Count values that are no numbers as the worst one, or leave them out."""
    if not sample.broken:
        return sample
    good, fate = np.isfinite(sample.values), "are left out" if worst is None else f"count as {worst:.4g}"
    note = f"{len(sample.broken)} of {len(sample.values)} runs of {sample.name} diverged and {fate}"
    noted = replace(sample, notes=(*sample.notes, note))
    if worst is None:
        return noted.take(np.flatnonzero(good).tolist())
    return replace(noted, values=np.where(good, sample.values, worst))


def pair(a: Sample, b: Sample, paired: bool | None = None) -> tuple[Sample, Sample, bool, tuple[str, ...]]:
    """Return two groups in the same order of seeds where they are to be compared by seed, whether they are, and notes.

    By default they are if both know their seeds and have at least half of them in common; those of one group alone are
    then left out. Groups that are not paired keep all their values. ``paired=True`` asks for pairs: by seed, or by
    place where no seeds are known; False forbids them.
    """
    notes = (*a.notes, *b.notes)
    if paired is False:
        return a, b, False, notes
    if a.seeds is None or b.seeds is None:
        if paired and len(a.values) != len(b.values):
            sizes = f"{len(a.values)} and {len(b.values)}"
            raise ValueError(f"pairs need seeds, or as many values of {a.name} as of {b.name}: got {sizes}")
        return a, b, bool(paired), notes
    if a.seeds == b.seeds:
        return a, b, True, notes
    place = {seed: k for k, seed in enumerate(b.seeds)}
    common = [k for k, seed in enumerate(a.seeds) if seed in place]
    if paired and len(common) < 2:
        raise ValueError(f"{a.name} and {b.name} have {len(common)} seeds in common; pairs need two or more")
    if paired is None and 2 * len(common) < max(len(a.seeds), len(b.seeds)):
        some = f"only {len(common)} seed{'s' * (len(common) > 1)}" if common else "no seed"
        return a, b, False, (*notes, f"{a.name} and {b.name} have {some} in common")
    left_out = [f"{len(s.values) - len(common)} of {s.name}" for s in (a, b) if len(s.values) > len(common)]
    note = f"seeds of one group alone are left out: {' and '.join(left_out)}"
    return a.take(common), b.take([place[a.seeds[k]] for k in common]), True, (*notes, note)


def is_lower_better(metric: str) -> bool:
    """Return whether a metric of this name is better when it is lower, as losses and errors are."""
    return any(word in _LOWER for word in metric.lower().replace("-", "_").replace(" ", "_").split("_"))


def digest(contents: object) -> str:
    """Return 16 hexadecimal digits that any change of the contents changes."""
    return hashlib.sha256(repr(contents).encode()).hexdigest()[:16]


def describe_sample(sample: Sample) -> dict[str, Any]:
    """Return a group as JSON knows it."""
    return {
        "name": sample.name,
        "metric": sample.metric,
        "values": [finite(value) for value in sample.values.tolist()],
        "seeds": None if sample.seeds is None else list(sample.seeds),
        "digests": list(sample.digests),
        "versions": list(sample.versions),
    }


def finite(value: float) -> float | None:
    """Return a number as JSON knows it."""
    return value if math.isfinite(value) else None


def _read_frame(name: str, frame: Any, metric: str | None) -> Sample:
    columns = {str(column): column for column in frame.columns}
    if metric is None:
        others = [column for column in columns if column != "seed"]
        if len(others) != 1:
            raise ValueError(f"say which metric of group {name}: its columns are {', '.join(columns)}")
        metric = others[0]
    if metric not in columns:
        raise ValueError(f"group {name} has no column {metric!r}: choose one of {', '.join(columns)}")
    seeds = list(frame[columns["seed"]]) if "seed" in columns else None
    sample = _checked(name, list(frame[columns[metric]]), seeds)
    return replace(sample, metric=metric)


def _read_records(name: str, records: Sequence[Any], metric: str) -> Sample:
    settings = [{k: v for k, v in record.config.settings().items() if k != "seed"} for record in records]
    mixed = [key for key in settings[0] if len({str(own.get(key)) for own in settings}) > 1]
    if mixed:
        found = {key: sorted({str(own.get(key)) for own in settings}) for key in mixed}
        words = "; ".join(f"{key} is {', '.join(some[:3])}{' ...' * (len(some) > 3)}" for key, some in found.items())
        raise ValueError(f"the runs of group {name} differ in more than the seed: {words}")
    ended = [record for record in records if record.status in ("finished", "diverged")]
    notes = f"{len(records) - len(ended)} of {len(records)} runs of {name} have not ended and are left out"
    ended.sort(key=lambda record: record.config.seed)
    known = dict.fromkeys(curve for record in ended for curve in record.curves)
    derived, _, curve = metric.partition("_")
    how, curve = ("final", metric) if metric in known or derived not in _DERIVED else (derived, curve)
    needed = "validation_accuracy" if metric == _CHOSEN else curve
    if needed not in known and any(record.epochs for record in ended):
        choice = f"choose one of {', '.join(known)}, or best_ or tail_ with one of them"
        raise ValueError(f"unknown metric {metric!r}: {choice}")
    # The curves of a diverged run end before they are no numbers.
    values = [
        None if r.status == "diverged" else r.chosen_test_accuracy if metric == _CHOSEN else getattr(r, how)(curve)
        for r in ended
    ]
    return replace(
        _checked(name, values, [record.config.seed for record in ended]),
        metric=metric,
        settings=repr(sorted(settings[0].items())),
        digests=tuple(digest([record.run, record.status, _numbers(record)]) for record in ended),
        versions=tuple(sorted({f"{key} {value}" for r in ended for key, value in r.versions.items()})),
        notes=(notes,) if len(ended) < len(records) else (),
    )


def _numbers(record: Any) -> list[Any]:
    return [(epoch.rate, sorted(epoch.metrics.items())) for epoch in record.epochs]


def _checked(name: str, values: Iterable[Any], seeds: Sequence[Any] | None) -> Sample:
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
    seeds = [seed.item() if isinstance(seed, np.generic) else seed for seed in seeds]
    sample = replace(sample, seeds=tuple(seeds))
    keys = [(0, seed, "") if isinstance(seed, Real) else (1, 0, str(seed)) for seed in seeds]
    order = sorted(range(len(seeds)), key=keys.__getitem__)
    return sample if order == list(range(len(seeds))) else sample.take(order)
