"""`heatbath runs`: what is in a store."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from heatbath.cli.run_filters import DatasetFilter, ModelFilter, ProtocolFilter, StatusFilter, select_runs
from heatbath.cli.screens import console, folder_option, print_table, terminal_width, warn, write
from heatbath.cli.summaries import SHORTEST, cell, describe_settings, name_some, print_groups, title
from heatbath.cli.training import (
    CheckpointOption,
    DataOption,
    DeviceOption,
    QuietOption,
    StackOption,
    TaskOption,
    WorkersOption,
    complete,
    import_task,
    read_options,
)
from heatbath.laws import parse_law
from heatbath.runs import export, rows
from heatbath.runs.collection import changed_tasks, main_metric, varying
from heatbath.runs.configs import RunConfig
from heatbath.runs.records import STATUSES, TAIL, Record
from heatbath.runs.sources import exported_files
from heatbath.runs.store import Store
from heatbath.system.folders import check_folder

_EPOCHS_SHOWN = 5
_NOT_VERIFIED = "no, heatbath 0.1.0 stored no digests"
_LEFT = ("model", "dataset", "protocol")  # words, of which a config has these first
_TABLES = {".csv": export.write_csv, ".parquet": export.write_parquet}
_EXPORTS = (*_TABLES, ".jsonl", ".jsonl.gz")

app = typer.Typer(
    help="What is in a store: list, show, resume, merge and export runs.",
    rich_markup_mode=None,
)
ExistingStore = Annotated[Path, folder_option("--store", "The folder of the store.")]


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
    with _open(store) as results:
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
    with _open(store) as results:
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
    quiet: QuietOption = False,
) -> None:
    """Go on with everything that is not finished and that no other process is training; what is damaged starts over."""
    with _open(store) as results:
        records, damaged = results.survey()
    pending = [record.config for record in records if record.status == "pending"]
    pending += [damage.config for damage in damaged.values() if damage.config is not None]
    given = None if task is None else import_task(task)
    left_out = Counter(config.model for config in pending if config.task not in (None, given))
    able = [config for config in pending if config.task in (None, given)]
    pending = [config if config.task is None else config.with_(task=given) for config in able]
    reason = "its code is needed: name it with --task" if given is None else "it is not the one named, or has changed"
    for name, count in left_out.items():
        warn(f"{_runs_in_words(count)} of the task {name} left out, as {reason}")
    options = read_options(device, data_dir, workers, stack, checkpoint_seconds)
    if pending:
        print_groups(complete(pending, store, options, quiet=quiet))
        console().print(f"\n{_runs_in_words(len(pending))} completed in {store}")
    elif not damaged:
        counts = Counter(record.status for record in records)
        told = ", ".join(f"{counts[name]} {name}" for name in STATUSES if counts[name]) or "no runs"
        console().print(f"nothing to go on with in {store}: {told}")
    rows.refuse({run: damage for run, damage in damaged.items() if damage.config is None}, store / Store.FILE)


@app.command("merge", short_help="Take over the runs of other stores.")
def merge_stores(
    others: Annotated[
        list[Path],
        typer.Argument(metavar="OTHER", help="Stores, .jsonl[.gz] files of 'runs export', or folders of such files."),
    ],
    store: ExistingStore = Path("runs"),
    create: Annotated[bool, typer.Option("--create", help="Make the store if it is not there.")] = False,
) -> None:
    """Take over the runs of other stores or exported files, which stay as they are; twice is as good as once."""
    if not create and not (store / Store.FILE).exists():
        raise FileNotFoundError(f"there is no store in {store}; name one with --store, or add --create to make it")
    check_folder(store, "--store")
    from heatbath.paper.calculations import copy_results, damaged_results

    for other in others:  # all of them before the first is taken over
        _check_source(other)
    with Store(store) as results:
        for other in (part for source in others for part in _parts(source)):
            took = results.merge(other)
            console().print(f"{other}: {took.added} added, {took.improved} improved, {took.known} known already")
            for runs, words in (
                (took.differing, "finished here and there with other numbers; ours were kept"),
                (took.busy, "being trained here; merge again when they have ended"),
            ):
                if runs:
                    console().print(f"  {len(runs)} {words}: {name_some(runs)}")
        for source in others:
            if source.is_dir() and (copied := copy_results(source, store)):
                console().print(f"{source / 'calculations'}: {copied} added")
            for file in damaged_results(source):
                warn(f"{file} is damaged, and was left out")


@app.command("export", short_help="Write runs to a file.")
def export_runs(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help=f"Its ending is the format: {', '.join(_EXPORTS)}; - prints CSV.")
    ],
    model: ModelFilter = None,
    dataset: DatasetFilter = None,
    protocol: ProtocolFilter = None,
    status: StatusFilter = None,
    store: ExistingStore = Path("runs"),
) -> None:
    """Write runs to a file: tables with a row for each epoch (CSV, Parquet), or lines to merge elsewhere (JSONL)."""
    kind = next((ending for ending in _EXPORTS if file.endswith(ending)), None)
    if kind is None and file != "-":
        raise ValueError(f"{file}: the ending must be one of {', '.join(_EXPORTS)}; or - to print CSV")
    path = Path(file)
    if file != "-":
        if not path.parent.is_dir():
            raise ValueError(f"{file}: there is no folder {path.parent}")
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise ValueError(f"{file}: {path.parent} cannot be written to")
    with _open(store) as results:
        records = select_runs(results, model, dataset, protocol, status)
    if not records:
        asked = zip(("--model", "--dataset", "--protocol", "--status"), (model, dataset, protocol, status), strict=True)
        filters = " ".join(f"{option} {value}" for option, value in asked if value is not None)
        found = f"no run in {store} matches {filters}" if filters else f"there are no runs in {store}"
        raise ValueError(f"{found}; nothing was written")
    write_file = _TABLES.get(kind or ".csv", export.write_lines)
    empty = 0 if write_file is export.write_lines else sum(not record.epochs for record in records)
    if file == "-":
        _print_csv(records)
    else:
        write_file(records, path)
        console().print(f"wrote {_runs_in_words(len(records) - empty)} to {file}")
    if empty:  # not among the rows, where these are printed
        typer.echo(f"{_runs_in_words(empty)} without an epoch, and so without a row", err=file == "-")


def _open(store: Path) -> Store:
    """To be read; a store that is not there is not made."""
    if store.is_dir() and (store / Store.FILE).exists():
        return Store(store, read_only=True)
    if store.is_dir() and exported_files(store):
        hint = f"its files of 'runs export' become one by 'heatbath runs merge {store} --create --store runs'"
    else:
        hint = "name one with --store, or make one with 'heatbath train'"
    raise FileNotFoundError(f"there is no store in {store}; {hint}")


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


def _check_source(other: Path) -> None:
    if not other.exists():
        raise ValueError(f"there is no '{other}' to merge")
    for part in _parts(other):
        if part.is_dir():
            with Store(part, read_only=True) as source:
                source.records()
        else:
            export.read_lines(part)


def _parts(other: Path) -> list[Path]:
    """The store or file itself, or the exported files in a folder that is no store."""
    files = exported_files(other) if other.is_dir() and not (other / Store.FILE).exists() else []
    return files or [other]


def _print_csv(records: Sequence[Record]) -> None:
    with tempfile.TemporaryDirectory(prefix="heatbath-") as folder:
        export.write_csv(records, Path(folder) / "runs.csv")
        with open(Path(folder) / "runs.csv", encoding="utf-8", newline="") as table:
            write(table.read().rstrip("\n"))


def _runs_in_words(number: int) -> str:
    return "1 run" if number == 1 else f"{number} runs"


def _time(seconds: float) -> str:
    """A time of the store, where the reader is."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _five_digits(value: float | None) -> str:
    """For losses too, of which late ones are small."""
    return "-" if value is None else f"{value:.5g}"
