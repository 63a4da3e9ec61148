"""Runs as rows of a database: how they are written, and what is refused when they are read back."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from heatbath.runs.configs import RunConfig, read_config
from heatbath.runs.records import ENDED, EPOCH_FIELDS, NOT_A_RECORD, Epoch, Record, check_record

APPLICATION, VERSION = 0x68656174, 1  # "heat"
_EPOCH_COLUMNS = ", ".join(EPOCH_FIELDS)
SCHEMA = f"""
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
PRAGMA journal_mode = WAL;
CREATE TABLE runs (
    run TEXT NOT NULL PRIMARY KEY, config TEXT NOT NULL, status TEXT NOT NULL, device TEXT NOT NULL DEFAULT '',
    versions TEXT NOT NULL DEFAULT '{{}}', precision TEXT NOT NULL DEFAULT '', seconds REAL NOT NULL DEFAULT 0,
    owner TEXT, checkpoint TEXT, created REAL NOT NULL, updated REAL NOT NULL
);
CREATE TABLE epochs (
    run TEXT NOT NULL REFERENCES runs, epoch INTEGER NOT NULL,
    {", ".join(f"{name} REAL{'' if name.startswith('validation') else ' NOT NULL'}" for name in EPOCH_FIELDS)},
    PRIMARY KEY (run, epoch)
) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Rows:
    """Runs and their epochs as the database has them, sound or not."""

    runs: Sequence[tuple[Any, ...]]
    epochs: dict[str, list[tuple[Any, ...]]]


def insert_runs(connection: sqlite3.Connection, configs: Iterable[RunConfig]) -> None:
    """Add runs as pending ones; those that are there stay as they are."""
    now = time.time()
    insert = "INSERT OR IGNORE INTO runs (run, config, status, created, updated) VALUES (?, ?, 'pending', ?, ?)"
    connection.executemany(insert, [(config.run, json.dumps(config.to_dict()), now, now) for config in configs])


def insert_epochs(connection: sqlite3.Connection, run: str, first: int, epochs: Sequence[Epoch]) -> None:
    """Add the epochs that follow the first ones, in the place of any that are there."""
    marks = ", ".join("?" * (2 + len(EPOCH_FIELDS)))
    insert = f"INSERT OR REPLACE INTO epochs (run, epoch, {_EPOCH_COLUMNS}) VALUES ({marks})"
    rows = [
        (run, number, *(getattr(epoch, name) for name in EPOCH_FIELDS))
        for number, epoch in enumerate(epochs, start=first + 1)
    ]
    connection.executemany(insert, rows)


def overwrite(connection: sqlite3.Connection, record: Record) -> None:
    """Put a record into the place of what is there of its run."""
    status = record.status if record.status in ENDED else "pending"
    words = (status, record.device, record.precision, json.dumps(record.versions), record.seconds, time.time())
    change = (
        "UPDATE runs SET status = ?, device = ?, precision = ?, versions = ?, seconds = ?, updated = ?, owner = NULL"
    )
    connection.execute(f"{change} WHERE run = ?", (*words, record.run))
    connection.execute("DELETE FROM epochs WHERE run = ?", (record.run,))
    insert_epochs(connection, record.run, 0, record.epochs)


def select(connection: sqlite3.Connection, runs: Sequence[str] | None) -> Rows:
    """Return the rows of some runs, or of all, in the order in which they came."""
    clause = "" if runs is None else "WHERE run IN (SELECT value FROM json_each(?))"
    values = () if runs is None else (json.dumps(runs),)
    epochs: dict[str, list[tuple[Any, ...]]] = {}
    query = f"SELECT run, epoch, {_EPOCH_COLUMNS} FROM epochs {clause} ORDER BY run, epoch"
    for run, *numbers in connection.execute(query, values):
        epochs.setdefault(run, []).append(tuple(numbers))
    columns = "run, config, status, owner, device, versions, seconds, precision"
    return Rows(connection.execute(f"SELECT {columns} FROM runs {clause} ORDER BY rowid", values).fetchall(), epochs)


@dataclass(frozen=True)
class Damage:
    """What is wrong with the rows of a run, and its config where that can still be read."""

    reason: str
    config: RunConfig | None


def sort_out(rows: Rows, is_alive: Callable[[str], bool]) -> tuple[list[Record], dict[str, Damage]]:
    """Return the records, and the runs whose rows are damaged.

    Args:
        rows: of `select`.
        is_alive: whether an owner is; a run whose owner is not counts as pending.
    """
    owners = {row[3] for row in rows.runs if row[2] == "running" and row[3]}
    alive = {owner for owner in owners if is_alive(owner)}
    records, damaged = [], {}
    for run, config, status, owner, *words in rows.runs:
        now = "pending" if status == "running" and owner not in alive else status
        try:
            records.append(_to_record(run, config, now, words, rows.epochs.get(run, [])))
        except NOT_A_RECORD as error:
            damaged[run] = Damage(str(error), _readable_config(run, config))
    return records, damaged


def refuse(damaged: Mapping[str, Damage], database: Path) -> None:
    """Raise for the first damaged run, if there is one.

    Raises:
        OSError: the message names the run, and what to do.
    """
    for run, damage in damaged.items():
        again = (
            "'heatbath runs resume' trains it again" if damage.config else "delete its rows (tables runs and epochs)"
        )
        advice = f"{again}, or 'heatbath runs merge' takes it from a copy of the store"
        raise OSError(f"run {run} in {database} is damaged ({damage.reason}): {advice}")


def remove(connection: sqlite3.Connection, runs: Iterable[str]) -> None:
    """Remove all rows of some runs."""
    names = [(run,) for run in runs]
    for table in ("epochs", "runs"):
        connection.executemany(f"DELETE FROM {table} WHERE run = ?", names)


def _readable_config(run: str, text: str) -> RunConfig | None:
    try:
        return read_config(json.loads(text), run)
    except NOT_A_RECORD:
        return None


def _to_record(run: str, text: str, status: str, words: Sequence[Any], rows: Sequence[tuple[Any, ...]]) -> Record:
    config = read_config(json.loads(text), run)
    missing = set(range(1, len(rows) + 1)) - {number for number, *_ in rows}
    if missing:
        raise ValueError(f"its epoch {min(missing)} is missing")
    epochs = tuple(Epoch(*numbers) for _, *numbers in rows)
    # SQLite keeps NaN as NULL: where images are held out but have no loss, the run has diverged.
    kept = tuple(takewhile(lambda epoch: not config.validation or epoch.validation_loss is not None, epochs))
    if len(kept) < len(epochs) and status == "finished":
        status = "diverged"
    device, versions, seconds, precision = words
    record = Record(config, status, kept, device, json.loads(versions), seconds, precision)
    check_record(record)
    return record
