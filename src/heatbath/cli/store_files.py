"""`heatbath runs merge`, `export` and `repair`: runs that come from files, go to files, or are saved from one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
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
from heatbath.cli.screens import console, warn, write
from heatbath.cli.summaries import name_some
from heatbath.runs import export
from heatbath.runs.records import Record
from heatbath.runs.sources import exported_files
from heatbath.runs.store import Store
from heatbath.system.folders import check_folder

_TABLES = {".csv": export.write_csv, ".parquet": export.write_parquet}
_EXPORTS = (*_TABLES, ".jsonl", ".jsonl.gz")


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
                (took.differing, "with other numbers here and there; ours were kept"),
                (took.busy, "being trained here; merge again when they have ended"),
            ):
                if runs:
                    console().print(f"  {len(runs)} {words}: {name_some(runs)}")
        for source in others:
            if source.is_dir() and (copied := copy_results(source, store)):
                console().print(f"{source / 'calculations'}: {copied} added")
            for file in damaged_results(source):
                warn(f"{file} is damaged, and was left out")


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
    with open_store(store) as results:
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
        console().print(f"wrote {runs_in_words(len(records) - empty)} to {file}")
    if empty:  # not among the rows, where these are printed
        typer.echo(f"{runs_in_words(empty)} without an epoch, and so without a row", err=file == "-")


def repair_store(store: ExistingStore = Path("runs")) -> None:
    """Save what is sound in a damaged store: every run whose digest holds, and the sound epochs of the others.

    The damaged database is kept beside the new one. A store without damage stays as it is.
    """
    from heatbath.runs.repair import repair

    found = repair(store)
    if found.damaged is None:
        console().print(f"nothing to repair in {store}: {runs_in_words(found.whole)}, all sound")
        return
    whole = f"{runs_in_words(found.whole)} whole in {store}"
    console().print(f"{whole}; the damaged database is kept as {found.damaged.name}")
    for run, epochs in found.mended.items():
        console().print(f"  {run} was damaged: {epochs} sound epoch{'s' * (epochs != 1)} kept")
    if found.mended:
        console().print(f"'heatbath runs resume --store {store}' trains what is lacking")
    if found.lost:
        warn(f"the configs of {runs_in_words(len(found.lost))} are lost; train them again: {', '.join(found.lost)}")


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
