"""`heatbath runs merge`, `export` and `repair`: runs that come from files, go to files, or are saved from one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import typer

from heatbath.cli.run_filters import Filters, open_store
from heatbath.cli.screens import Answer, count, say, warn, write
from heatbath.cli.summaries import name_some
from heatbath.engine.progress_bar import display
from heatbath.runs import export
from heatbath.runs.sources import exported_files
from heatbath.runs.store import Store
from heatbath.system.whole_files import check_folder

_TABLES = {".csv": export.write_csv, ".parquet": export.write_parquet}
_EXPORTS = (*_TABLES, ".jsonl", ".jsonl.gz")


def merge_stores(others: list[Path], store: Path = Path("runs"), create: bool = False) -> Answer:
    """Copy runs from other stores or exported files into a store. Runs that it already has are not copied again."""
    if not create and not (store / Store.FILE).exists():
        raise FileNotFoundError(f"there is no store in {store}; name one with --store, or add --create to make it")
    check_folder(store, "--store")
    with display("merging"):
        from heatbath.paper.calculations import copy_results, damaged_results

        for other in others:  # all of them before the first is taken over
            _check_source(other)
        with Store(store) as results:
            merged = {str(part): results.merge(part) for source in others for part in _parts(source)}
    folders = [source for source in others if source.is_dir()]
    copied = {str(source / "calculations"): number for source in folders if (number := copy_results(source, store))}
    damaged = [str(file) for source in others for file in damaged_results(source)]

    def show() -> None:
        for part, took in merged.items():
            say(f"{part}: {took.added} added, {took.improved} improved, {took.known} known already")
            for runs, words in (
                (took.differing, "with other numbers here and there; ours were kept"),
                (took.busy, "being trained here; merge again when they have ended"),
            ):
                say(*[f"  {len(runs)} {words}: {name_some(runs)}"] * bool(runs))
        say(*(f"{folder}: {number} added" for folder, number in copied.items()))
        for file in damaged:
            warn(f"{file} is damaged, and was left out")

    data = {part: vars(took) for part, took in merged.items()}
    status = int(any(took.differing for took in merged.values()))
    return Answer({"merged": data, "calculations": copied, "damaged": damaged}, show, status)


def export_runs(file: str, filters: Filters) -> Answer:
    """Write runs to a file: tables with a row for each epoch (CSV, Parquet), or lines to merge elsewhere (JSONL)."""
    kind = next((ending for ending in _EXPORTS if file.endswith(ending)), None)
    path = Path(file)
    if kind is None and file != "-":
        raise ValueError(f"{file}: the ending must be one of {', '.join(_EXPORTS)}; or - to print CSV")
    if file != "-" and not path.parent.is_dir():
        raise ValueError(f"{file}: there is no folder {path.parent}")
    if file != "-" and not os.access(path.parent, os.W_OK | os.X_OK):
        raise ValueError(f"{file}: {path.parent} cannot be written to")
    with open_store(filters.store) as results:
        records = filters.select(results)
    if not records:
        asked = f"no run in {filters.store} matches {filters}"
        raise ValueError(f"{asked if str(filters) else f'there are no runs in {filters.store}'}; nothing was written")
    write_file = _TABLES.get(kind or ".csv", export.write_lines)
    empty = 0 if write_file is export.write_lines else sum(not record.epochs for record in records)
    if file != "-":
        write_file(records, path)

    def show() -> None:
        if file == "-":
            with tempfile.TemporaryDirectory(prefix="heatbath-") as folder:
                export.write_csv(records, Path(folder) / "runs.csv")
                write((Path(folder) / "runs.csv").read_bytes().decode().rstrip("\n"))
        else:
            say(f"wrote {count(len(records) - empty, 'run')} to {file}")
        if empty:  # not among the rows, where these are printed
            typer.echo(f"{count(empty, 'run')} without an epoch, and so without a row", err=file == "-")

    return Answer({"file": file, "runs": len(records) - empty, "without_a_row": empty}, show)


def repair_store(store: Path = Path("runs")) -> Answer:
    """Recover a damaged store: every intact run, and the intact epochs of the others.

    The damaged database is kept beside the new one. A store without damage is not changed. The exit status is 1 if
    nothing could be recovered.
    """
    from heatbath.runs.repair import repair

    found = repair(store)
    lost = count(len(found.lost), "run")

    def show() -> None:
        if found.damaged is None:
            say(f"nothing to repair in {store}: {count(found.whole, 'run')}, all sound")
            return
        say(f"{count(found.whole, 'run')} whole in {store}; the damaged database is kept as {found.damaged.name}")
        for run, epochs in found.mended.items():
            say(f"  {run} was damaged: {count(epochs, 'sound epoch')} kept")
        if found.mended:
            say(f"'heatbath runs resume --store {store}' trains what is lacking")
        if found.lost:
            warn(f"the configs of {lost} are lost; train them again: {', '.join(found.lost)}")

    data: dict[str, Any] = {**vars(found), "damaged": found.damaged and str(found.damaged)}
    saved = found.damaged is None or found.whole or any(found.mended.values())
    return Answer(data, show, status=0 if saved else 1)


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
