"""`heatbath runs list`, `show` and `resume`: what is in a store, and the end of what is not finished."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from heatbath.cli.run_filters import Filters, open_store
from heatbath.cli.screens import Answer, count, print_table, say, warn
from heatbath.cli.summaries import SHORTEST, answer_with_runs, cell, describe_settings, print_groups, title
from heatbath.cli.training import SafeTraining
from heatbath.laws import parse_law
from heatbath.runs import rows
from heatbath.runs.collection import changed_tasks, main_metric, varying
from heatbath.runs.configs import RunConfig
from heatbath.runs.records import STATUSES, TAIL, Record
from heatbath.runs.store import Store

_EPOCHS_SHOWN = 5
_NOT_VERIFIED = "no, heatbath 0.1.0 stored no digests"
_LEFT = ("model", "dataset", "protocol")  # words, of which a config has these first


def list_runs(filters: Filters) -> Answer:
    """List the runs of a store with their final and best test accuracy, oldest first.

    Runs without an accuracy show the first metric of their task. Settings that all runs share are printed above the
    table; the others are its columns.
    """
    with open_store(filters.store) as results:
        records, names = filters.select(results), list(results.statuses())
    show = partial(_show_list, records, names, filters.store)
    return Answer(lambda: [record.summary() for record in records], show)


def _show_list(records: Sequence[Record], names: Sequence[str], store: Path) -> None:
    if not records:
        say(f"no such run among the {len(names)} in {store}" if names else f"no runs in {store}")
        return
    digits = _unique_digits(names)
    configs = [record.config for record in records]
    # Law and coupling stand in the protocol's column, and epochs have one in any case.
    differing = ("protocol" if name in ("law", "coupling") else name for name in varying(configs))
    knobs = [name for name in dict.fromkeys(differing) if name != "epochs"]
    metric = main_metric(records)
    lines = []
    for record in records:
        ends = [derive(metric) if metric in record.curves else None for derive in (record.final, record.best)]
        epochs = f"{len(record.epochs)}/{record.config.epochs}"
        cells = (_knob(record.config, name) for name in knobs)
        lines.append((record.run[:digits], *cells, record.status, epochs, *(_number(end, ".4f") for end in ends)))
    headings = ("run", *map(title, knobs), "status", "epochs", "test", "best")
    say(describe_settings(configs))
    spare = ("best", "test", *map(title, reversed(knobs)))
    print_table(headings, lines, left=1 + sum(name in _LEFT for name in knobs), spare=spare)
    say(f"\n{len(records)} of {len(names)} runs in {store}: {_count_statuses(records)}")
    if not all(record.verified for record in records):
        say(f"verified: {_NOT_VERIFIED}")
    say(*changed_tasks(records))


def show_run(run: str, store: Path = Path("runs")) -> Answer:
    """Show all details of one run; --json includes its curves."""
    with open_store(store) as results:
        if not run.strip():  # with which every name begins
            raise ValueError(f"no run '' in {store}; 'heatbath runs list' shows their names")
        record = results.find(run.strip().lower())
        traces = results.traces(record.run)
    found: dict[str, Any] = {name: getattr(record, name) for name in ("device", "versions", "seconds", "precision")}
    for name in ("added", "updated"):  # where the reader is
        found[name] = datetime.fromtimestamp(getattr(traces, name)).astimezone().isoformat(" ", "seconds")
    found |= {"checkpoint": traces.checkpoint, "origins": record.origins}
    curves = {name: record.curve(name) for name in record.curves}
    return Answer({**record.summary(), **found, "curves": curves}, partial(_show_run, record, found))


def _show_run(record: Record, found: dict[str, Any]) -> None:
    config = {**record.config.to_dict(), "weights": record.config.weights or "from the seed"}
    if record.precision:
        config["precision"] = f"{record.precision}{' (auto)' * (record.config.precision == 'auto')}"
    facts = {
        "run": record.run,
        "status": f"{record.status}, {len(record.epochs)} of {record.config.epochs} epochs",
        "device": record.device,
        "versions": ", ".join(f"{name} {version}" for name, version in record.versions.items()),
        "origins": _mixed_origins(record),
        "verified": "" if record.verified else _NOT_VERIFIED,
        "seconds": f"{record.seconds:.1f}" if record.epochs else "",
        **{name: found[name] or "" for name in ("added", "updated", "checkpoint")},
        **{name.replace("_", " "): str(value) for name, value in config.items()},
    }
    indent = max(map(len, facts)) + 2
    say(*(f"{name:<{indent}}{text}" for name, text in facts.items() if text))
    if record.epochs:
        _show_curves(record)


def resume_runs(*, task: str | None = None, training: SafeTraining) -> Answer:
    """Resume all unfinished runs that no other process is training. Damaged runs start over.

    The exit status is 3 if a run diverged.
    """
    store = training.store
    with open_store(store) as results:
        records, damaged = results.survey()
    pending = [record.config for record in records if record.status == "pending"]
    pending += [damage.config for damage in damaged.values() if damage.config is not None]
    given = None if task is None else training.import_task(task)
    left_out = Counter(config.model for config in pending if config.task not in (None, given))
    able = [config for config in pending if config.task in (None, given)]
    reason = "its code is needed: name it with --task" if given is None else "it is not the one named, or has changed"
    told = [f"{count(number, 'run')} of the task {name} left out, as {reason}" for name, number in left_out.items()]
    training.options()
    done = training.complete([c if c.task is None else c.with_(task=given) for c in able]) if able else []

    def show() -> None:
        for text in told:
            warn(text)
        if done:
            print_groups(done)
            say(f"\n{count(len(done), 'run')} completed in {store}")
        elif not damaged:
            say(f"nothing to go on with in {store}: {_count_statuses(records) or 'no runs'}")

    lost = {run: damage for run, damage in damaged.items() if damage.config is None}
    return answer_with_runs(done, show)._replace(after=lambda: rows.refuse(lost, store / Store.FILE))


def _count_statuses(records: Iterable[Record]) -> str:
    counts = Counter(record.status for record in records)
    return ", ".join(f"{counts[name]} {name}" for name in STATUSES if counts[name])


def _knob(config: RunConfig, name: str) -> str:
    """A field of the config; with a random protocol its law and coupling, unless they are the usual ones."""
    words = cell(config, name)
    if name != "protocol" or words != "random":
        return words
    if config.law != parse_law("uniform"):
        words = cell(config, "law")
    return words if config.coupling == "gradient" else f"{words} update"


def _unique_digits(names: Sequence[str]) -> int:
    """How many digits tell the runs apart."""
    digits = SHORTEST
    while len({name[:digits] for name in names}) < len(names):
        digits += 1
    return digits


def _mixed_origins(record: Record) -> str:
    """Which epochs were made where, in the words that differ; nothing if all have one origin."""
    origins = [(number, origin) for number, origin in record.origins if number]
    words = dict.fromkeys(name for _, origin in origins for name in origin)
    varying = [name for name in words if len({origin.get(name) for _, origin in origins}) > 1]
    told, first = [], 1
    for number, origin in origins:
        differing = ", ".join(f"{name} {origin.get(name, 'unknown')}" for name in varying)
        told.append(f"epochs {first} to {first + number - 1}: {differing}")
        first += number
    return "; ".join(told) if varying else ""


def _show_curves(record: Record) -> None:
    """The last epochs, and what is derived from all; five digits, as late losses are small."""
    names = record.curves
    last = list(enumerate(record.epochs, start=1))[-_EPOCHS_SHOWN:]
    lines = [(str(number), *(_number(getattr(epoch, name), ".5g") for name in names)) for number, epoch in last]
    summaries = {"final": record.final, "best": record.best}
    if len(record.epochs) > TAIL:  # else it is the mean of them all
        summaries[f"last {TAIL}"] = record.tail
    for words, derive in summaries.items():
        lines.append((words, *("" if name == "rate" else _number(derive(name), ".5g") for name in names)))
    say("")
    print_table(("epoch", *(name.replace("_", " ") for name in names)), lines)
    if record.chosen_test_accuracy is not None:
        say(f"\ntest accuracy at the best epoch of the validation split: {record.chosen_test_accuracy:.4f}")


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
