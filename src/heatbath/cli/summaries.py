"""Runs in tables: those that differ in their seed alone as one row, with means and intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from heatbath.cli.screens import console, print_table
from heatbath.configs import RunConfig
from heatbath.records import TAIL, Record

SHORTEST = 8  # digits of a run's name in a table
_MOST_PLACES = 8
_TITLES = {"batch_size": "batch", "weight_decay": "decay"}
# The most important first, as the last ones are left out in a narrow terminal.
_COLUMNS: tuple[tuple[str, Callable[[Record], float | None]], ...] = (
    ("final test acc.", lambda record: record.final("test_accuracy")),
    ("best test acc.", lambda record: record.best("test_accuracy")),
    (f"last {TAIL} epochs", lambda record: record.tail("test_accuracy")),
    ("final train loss", lambda record: record.final("train_loss")),
    ("final train acc.", lambda record: record.final("train_accuracy")),
)
_NO_INTERVALS = "; their intervals need scipy: pip install 'heatbath[paper]'"


def print_groups(records: Sequence[Record]) -> None:
    """Print a row for each group of runs that differ in their seed alone: means with 95 % intervals over the seeds."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.config.with_(seed=0).run, []).append(record)
    first = [members[0].config for members in groups.values()]
    names = ["protocol", *(name for name in varying(first) if name != "protocol")]
    headings = [*(_TITLES.get(name, name) for name in names), "runs", *(title for title, _ in _COLUMNS)]
    ended = {run: [r for r in members if r.status == "finished"] for run, members in groups.items()}
    rows = []
    for config, members, finished in zip(first, groups.values(), ended.values(), strict=True):
        numbers = [mean_and_interval([value(record) for record in finished]) for _, value in _COLUMNS]
        rows.append([*(_value(config, name) for name in names), _count(members), *numbers])
    print_table(headings, rows, spare=[title for title, _ in reversed(_COLUMNS[2:])])
    if any(len(members) > 1 for members in ended.values()):
        console().print(f"\nMeans over seeds{', ± half the 95 % interval' if has_intervals() else _NO_INTERVALS}.")


def describe_settings(configs: Sequence[RunConfig]) -> str:
    """Return what the runs have in common, in one line."""
    differing, config = varying(configs), configs[0]
    random = next((config for config in configs if str(config.protocol) == "random"), None)
    form = f"{'Nesterov ' * config.nesterov}momentum {config.momentum:g}" if config.momentum else "no momentum"
    parts = {
        "protocol": str(config.protocol),
        "law": f"law {random.law}" if random else "",
        "coupling": f"coupling {random.coupling}" if random and random.coupling != "gradient" else "",
        "lr": f"lr {config.lr:g}",
        "batch_size": f"batch size {config.batch_size}",
        "momentum": form,
        "weight_decay": f"weight decay {config.weight_decay:g}" if config.weight_decay else "",
        "weights": f"weights from {config.weights}" if config.weights else "",
        "epochs": f"{config.epochs} epoch{'s' * (config.epochs != 1)}",
    }
    common = ", ".join(text for name, text in parts.items() if text and name not in differing)
    return f"{config.model} on {config.dataset}: {common}"


def varying(configs: Iterable[RunConfig]) -> list[str]:
    """Return the fields, except the seed, in which configs differ; the law's only where random ones do."""
    every = [config.to_dict() for config in configs]
    random = [values for values in every if values["protocol"] == "random"]
    names = []
    for name in every[0]:
        among = random if name in ("law", "coupling") else every
        # By their text: 0 and False, or 1 and True, are not the same here.
        if name != "seed" and len({str(values[name]) for values in among}) > 1:
            names.append(name)
    return names


def mean_and_interval(values: Sequence[float | None]) -> str:
    """Return a mean with half the width of its 95 % interval; the value itself where there is only one."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    mean = sum(known) / len(known)
    if len(known) == 1 or not has_intervals():
        return _decimal(mean)
    from heatbath.statistics import summarize

    interval = summarize(known).interval
    half = (interval.high - interval.low) / 2.0
    # Two digits of the interval, which of small losses and many seeds lie behind the fourth place.
    places = min(max(4, 1 - math.floor(math.log10(half))), _MOST_PLACES) if 0.0 < half < math.inf else 4
    return " ± ".join(f"{number:.{places}f}" if abs(mean) < 1e4 else _decimal(number) for number in (mean, half))


def has_intervals() -> bool:
    """Whether Student's t is at hand: a base installation has no SciPy."""
    from importlib.util import find_spec

    return find_spec("scipy") is not None


def name_some(runs: Sequence[str]) -> str:
    """Return the beginnings of the names of runs, of the first few if there are many."""
    names = [run[:SHORTEST] for run in runs]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _decimal(number: float) -> str:
    return f"{number:.4f}" if number == 0.0 or 0.1 <= abs(number) < 1e4 else f"{number:.4g}"


def _value(config: RunConfig, name: str) -> str:
    value: Any = getattr(config, name)
    return f"{value:g}" if isinstance(value, float) else "-" if value is None else str(value)


def _count(members: Sequence[Record]) -> str:
    diverged = sum(record.status == "diverged" for record in members)
    return f"{len(members)}, {diverged} diverged" if diverged else str(len(members))
