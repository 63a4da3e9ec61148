"""`heatbath runs`: what is in a store."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from heatbath.cli.run_filters import (
    DatasetFilter,
    ExistingStore,
    ModelFilter,
    ProtocolFilter,
    StatusFilter,
    open_store,
    runs_in_words,
    select_runs,
)
from heatbath.cli.screens import console, print_table, terminal_width, warn, write
from heatbath.cli.summaries import SHORTEST, cell, describe_settings, print_groups, title
from heatbath.cli.training import (
    CheckpointOption,
    DataOption,
    DeviceOption,
    MixOption,
    QuietOption,
    StackOption,
    TaskOption,
    WorkersOption,
    complete,
    import_task,
    read_options,
)
from heatbath.laws import parse_law
from heatbath.runs import rows
from heatbath.runs.collection import changed_tasks, main_metric, varying
from heatbath.runs.configs import RunConfig
from heatbath.runs.records import STATUSES, TAIL, Record
from heatbath.runs.store import Store

_EPOCHS_SHOWN = 5
_NOT_VERIFIED = "no, heatbath 0.1.0 stored no digests"
_LEFT = ("model", "dataset", "protocol")  # words, of which a config has these first

app = typer.Typer(
    help="What is in a store: list, show, resume, merge, export and repair runs.",
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def _runs(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        write(context.get_help())


@app.command("list", short_help="List runs.")
def list_runs(
    model: ModelFilter = None,
    dataset: DatasetFilter = None,
    protocol: ProtocolFilter = None,
    status: StatusFilter = None,
    store: ExistingStore = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, a list with an object for each run.")] = False,
) -> None:
    """List runs, in the order in which they came to the store, with their final (test) and best test accuracy.

    Runs of tasks that measure no accuracy show the first metric that they have.

    What they have in common stands above the table, which has a column for each setting in which they differ.
    """
    with open_store(store) as results:
        records, names = select_runs(results, model, dataset, protocol, status), list(results.statuses())
    if as_json:
        write(json.dumps([record.summary() for record in records], indent=2))
        return
    if not records:
        console().print(f"no such run among the {len(names)} in {store}" if names else f"no runs in {store}")
        return
    digits = _unique_digits(names)
    configs = [record.config for record in records]
    knobs = _knobs(configs)
    metric = main_metric(records)
    headings = ("run", *map(title, knobs), "status", "epochs", "test", "best")
    rows = [
        (
            *(record.run[:digits], *(_knob(record.config, name) for name in knobs), record.status),
            f"{len(record.epochs)}/{record.config.epochs}",
            *(_number(derive(metric) if metric in record.curves else None) for derive in (record.final, record.best)),
        )
        for record in records
    ]
    console(wrap=terminal_width() is not None).print(describe_settings(configs))
    spare = ("best", "test", *map(title, reversed(knobs)))
    print_table(headings, rows, left=1 + sum(name in _LEFT for name in knobs), spare=spare)
    counts = Counter(record.status for record in records)
    told = ", ".join(f"{counts[name]} {name}" for name in STATUSES if counts[name])
    console().print(f"\n{len(records)} of {len(names)} runs in {store}: {told}")
    if not all(record.verified for record in records):
        console().print(f"verified: {_NOT_VERIFIED}")
    for sentence in changed_tasks(records):
        console().print(sentence)


@app.command("show", short_help="All that is known of one run.")
def show_run(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The name of the run, or as much of its beginning as no other shares.")
    ],
    store: ExistingStore = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with all curves.")] = False,
) -> None:
    """Show all that is known of one run."""
    with open_store(store) as results:
        if not run.strip():  # with which every name begins
            raise ValueError(f"no run '' in {store}; 'heatbath runs list' shows their names")
        record = results.find(run.strip().lower())
        traces = results.traces(record.run)
    times = {name: _time(getattr(traces, name)) for name in ("added", "updated")}
    if as_json:
        words = {name: getattr(record, name) for name in ("device", "versions", "seconds", "precision", "origins")}
        words |= {**times, "checkpoint": traces.checkpoint}
        curves = {name: record.curve(name) for name in record.curves}
        write(json.dumps({**record.summary(), **words, "curves": curves}, indent=2))
        return
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
        **times,
        "checkpoint": traces.checkpoint or "",
        **{name.replace("_", " "): str(value) for name, value in config.items()},
    }
    screen, indent = console(), max(map(len, facts)) + 2
    for name, text in facts.items():
        if text:
            screen.print(f"{name:<{indent}}{text}")
    if record.epochs:
        _print_curves(record)


@app.command("resume", short_help="Go on with what is not finished.")
def resume_runs(
    task: TaskOption = None,
    store: ExistingStore = Path("runs"),
    device: DeviceOption = "auto",
    data_dir: DataOption = None,
    workers: WorkersOption = None,
    stack: StackOption = None,
    checkpoint_seconds: CheckpointOption = 0.0,
    mix_origins: MixOption = False,
    quiet: QuietOption = False,
) -> None:
    """Go on with everything that is not finished and that no other process is training; what is damaged starts over."""
    with open_store(store) as results:
        records, damaged = results.survey()
    pending = [record.config for record in records if record.status == "pending"]
    pending += [damage.config for damage in damaged.values() if damage.config is not None]
    given = None if task is None else import_task(task)
    left_out = Counter(config.model for config in pending if config.task not in (None, given))
    able = [config for config in pending if config.task in (None, given)]
    pending = [config if config.task is None else config.with_(task=given) for config in able]
    reason = "its code is needed: name it with --task" if given is None else "it is not the one named, or has changed"
    for name, count in left_out.items():
        warn(f"{runs_in_words(count)} of the task {name} left out, as {reason}")
    options = read_options(device, data_dir, workers, stack, checkpoint_seconds, mix_origins=mix_origins)
    if pending:
        print_groups(complete(pending, store, options, quiet=quiet))
        console().print(f"\n{runs_in_words(len(pending))} completed in {store}")
    elif not damaged:
        counts = Counter(record.status for record in records)
        told = ", ".join(f"{counts[name]} {name}" for name in STATUSES if counts[name]) or "no runs"
        console().print(f"nothing to go on with in {store}: {told}")
    rows.refuse({run: damage for run, damage in damaged.items() if damage.config is None}, store / Store.FILE)


def _knobs(configs: Sequence[RunConfig]) -> list[str]:
    """Where they differ; law and coupling stand in the protocol's column, and epochs have one in any case."""
    names = ("protocol" if name in ("law", "coupling") else name for name in varying(configs))
    return [name for name in dict.fromkeys(names) if name != "epochs"]


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
    origins = [(count, origin) for count, origin in record.origins if count]
    words = dict.fromkeys(name for _, origin in origins for name in origin)
    varying = [name for name in words if len({origin.get(name) for _, origin in origins}) > 1]
    told, first = [], 1
    for count, origin in origins:
        differing = ", ".join(f"{name} {origin.get(name, 'unknown')}" for name in varying)
        told.append(f"epochs {first} to {first + count - 1}: {differing}")
        first += count
    return "; ".join(told) if varying else ""


def _print_curves(record: Record) -> None:
    names = record.curves
    last = list(enumerate(record.epochs, start=1))[-_EPOCHS_SHOWN:]
    rows = [(str(number), *(_five_digits(getattr(epoch, name)) for name in names)) for number, epoch in last]
    summaries = {"final": record.final, "best": record.best}
    if len(record.epochs) > TAIL:  # else it is the mean of them all
        summaries[f"last {TAIL}"] = record.tail
    for words, derive in summaries.items():
        rows.append((words, *("" if name == "rate" else _five_digits(derive(name)) for name in names)))
    console().print()
    print_table(("epoch", *(name.replace("_", " ") for name in names)), rows)
    if record.chosen_test_accuracy is not None:
        console().print(f"\ntest accuracy at the best epoch of the validation split: {record.chosen_test_accuracy:.4f}")


def _time(seconds: float) -> str:
    """A time of the store, where the reader is."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _five_digits(value: float | None) -> str:
    """For losses too, of which late ones are small."""
    return "-" if value is None else f"{value:.5g}"
