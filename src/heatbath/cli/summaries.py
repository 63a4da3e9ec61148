"""Runs in tables: those that differ in their seed alone as one row, with means and intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from heatbath.cli.screens import Answer, print_table, say, warn
from heatbath.laws import Law
from heatbath.runs.collection import concerned, main_metric, varying
from heatbath.runs.configs import RunConfig
from heatbath.runs.records import TAIL, Record
from heatbath.tasks.facts import AnyTask

SHORTEST = 8  # digits of a run's name in a table
_MOST_PLACES = 8
_TITLES = {"batch_size": "batch", "momentum": "mom.", "weight_decay": "decay"}
_SHARED = {
    **{"protocol": "{}", "law": "law {}", "coupling": "coupling {}", "lr": "lr {}", "batch_size": "batch size {}"},
    **{"momentum": "momentum {}", "weight_decay": "weight decay {}", "precision": "precision {}"},
    **{"weights": "weights from {}", "validation": "{} images held out", "optimizer": "{}", "schedule": "{} schedule"},
    **{"warmup": "warmup of {} steps", "clip_norm": "gradients clipped at {}", "sampling": "sampling with {}"},
    **{"beta2": "beta2 {}", "epochs": "{} epochs", "seed": "seed {}"},
}
_ALWAYS = ("protocol", "law", "lr", "batch_size", "momentum", "epochs", "seed")  # of others, nothing where usual
_GUESSING = math.log(10.0)  # the loss of ten classes that are equally likely


def answer_with_runs(records: Sequence[Record], show: Callable[[], None]) -> Answer:
    """Return runs as an answer, whose status tells whether one has diverged."""
    return Answer([record.summary() for record in records], show, diverged_status(records))


def diverged_status(records: Iterable[Record]) -> int:
    """Return the exit status: 3 if a run has diverged."""
    return 3 if any(record.status == "diverged" for record in records) else 0


def print_groups(records: Sequence[Record]) -> None:
    """Print a row for each group of runs that differ in their seed alone: means with 95 % intervals over the seeds.

    The mean of the last epochs is left out where it would be that of all of them.
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.config.with_(seed=0).run, []).append(record)
    first = [members[0].config.with_(seed=0) for members in groups.values()]
    names = ["protocol", *(name for name in varying(first) if name != "protocol")]
    columns = _columns(records)
    ended = {run: [r for r in members if r.status == "finished"] for run, members in groups.items()}
    rows = []
    for config, members, finished in zip(first, groups.values(), ended.values(), strict=True):
        values = ([derive(r, name) for r in finished if name in r.curves] for name, derive in columns.values())
        diverged = sum(record.status == "diverged" for record in members)
        runs = f"{len(members)}{f', {diverged} diverged' * bool(diverged)}"
        rows.append([*(cell(config, name) for name in names), runs, *map(mean_and_interval, values)])
    print_table([*map(title, names), "runs", *columns], rows, spare=list(columns)[:1:-1])
    if any(len(members) > 1 for members in ended.values()):
        say("\nMeans over seeds, ± half the 95 % interval.")
    losses = [record.final("train_loss") for one in ended.values() for record in one if record.config.task is None]
    if worse := sum(loss is not None and loss > _GUESSING for loss in losses):
        some = f"{worse} of {len(losses)} runs end{'s' * (worse == 1)}" if len(losses) > 1 else "the run ends"
        say("")
        warn(f"{some} with a train loss above {_GUESSING:.3f}, that of guessing: the rate may be too large")


def _columns(records: Sequence[Record]) -> Mapping[str, tuple[str, Callable[[Record, str], float | None]]]:
    """Headings, and of which curve what stands below, the most important first: the last ones may be left out."""
    curve = main_metric(records)
    trained = curve.replace("test_", "train_", 1)
    title, own = (name.replace("_", " ").replace("accuracy", "acc.") for name in (curve, trained))
    tail = {f"last {TAIL} epochs": (curve, Record.tail)} if any(len(record.epochs) > TAIL for record in records) else {}
    loss = {"final train loss": ("train_loss", Record.final)}
    found = {f"final {title}": (curve, Record.final), f"best {title}": (curve, Record.best), **tail, **loss}
    return found | {f"final {own}": (trained, Record.final)}


def describe_settings(configs: Sequence[RunConfig]) -> str:
    """Return what the runs have in common, in one line."""
    differing = varying(configs)
    same = {
        name: having[0]
        for name in configs[0].settings()
        if name not in differing and (having := concerned(configs, name))
    }
    words = {
        name: text.format(cell(same[name], name))
        for name, text in _SHARED.items()
        if name in same and (name in _ALWAYS or getattr(same[name], name) != getattr(RunConfig, name))
    }
    if "momentum" in same and not configs[0].momentum:
        words["momentum"] = "no momentum"
    if "nesterov" in same and same["nesterov"].nesterov:
        words["momentum"] = f"Nesterov {words.get('momentum', 'momentum')}"
    if words.get("epochs") == "1 epochs":
        words["epochs"] = "1 epoch"
    settings = ", ".join(words[name] for name in _SHARED if name in words)
    images = " on ".join(cell(same[name], name) for name in ("model", "dataset") if name in same)
    return ": ".join(text for text in (images, settings) if text)


def title(name: str) -> str:
    """Return the heading of a column with this field of the configs."""
    return _TITLES.get(name, name)


def cell(config: RunConfig, name: str) -> str:
    """Return a field of a config, for a table."""
    value: Any = getattr(config, name)
    if isinstance(value, AnyTask):
        return value.label
    if isinstance(value, Law):
        kind, _, number = str(value).partition(":")
        return f"{kind}:{float(number):.4g}" if number else kind
    return f"{value:g}" if isinstance(value, float) else "-" if value is None else str(value)


def mean_and_interval(values: Sequence[float | None]) -> str:
    """Return a mean with half the width of its 95 % interval; the value itself where there is only one."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    mean = sum(known) / len(known)
    if len(known) == 1:
        return _decimal(mean)
    from heatbath.stats.intervals import summarize

    interval = summarize(known).interval
    half = (interval.high - interval.low) / 2.0
    # Two digits of the interval, which of small losses and many seeds lie behind the fourth place.
    places = min(max(4, 1 - math.floor(math.log10(half))), _MOST_PLACES) if 0.0 < half < math.inf else 4
    return " ± ".join(f"{number:.{places}f}" if abs(mean) < 1e4 else _decimal(number) for number in (mean, half))


def name_some(runs: Sequence[str]) -> str:
    """Return the beginnings of the names of runs, of the first few if there are many."""
    names = [run[:SHORTEST] for run in runs]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _decimal(number: float) -> str:
    return f"{number:.4f}" if number == 0.0 or 0.1 <= abs(number) < 1e4 else f"{number:.4g}"
