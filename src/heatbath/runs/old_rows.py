"""Stores of heatbath 0.1.0 (schema 1), with a column for each number and no digests: read as rows of today.

A run that is damaged keeps its first sound epochs, and gets no digest that would vouch for the rest.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby, takewhile
from operator import itemgetter
from typing import Any

from heatbath.runs import rows
from heatbath.runs.configs import read_config
from heatbath.runs.records import METRICS, NOT_A_RECORD, Epoch, Record, check_record, old_origin

VERSION = 1
_COLUMNS = "run, config, status, device, versions, precision, seconds, owner, checkpoint, created, updated"
_TABLES = {"runs": f"SELECT {_COLUMNS}", "epochs": f"SELECT run, epoch, rate, {', '.join(METRICS)}"}


def select(connection: sqlite3.Connection, runs: Iterable[str] | None) -> rows.Selection:
    """Return the rows of some runs, or of all, in the order in which they came, and why some are damaged."""
    clause = "" if runs is None else "WHERE run IN (SELECT value FROM json_each(?))"
    values = () if runs is None else (json.dumps(list(runs)),)
    found = connection.execute(f"{_TABLES['epochs']} FROM epochs {clause} ORDER BY run, epoch", values)
    numbers = {run: list(group) for run, group in groupby(found, key=itemgetter(0))}
    heads: list[tuple[rows.Row, bytes]] = []
    epochs, reasons = {}, {}
    for columns in connection.execute(f"{_TABLES['runs']} FROM runs {clause} ORDER BY rowid", values):
        run, config, status, *_, owner, checkpoint, created, updated = columns
        measured = numbers.get(run, ())
        try:
            record = _to_record(columns, measured)
            row = rows.to_row(record, created, updated)._replace(checkpoint=checkpoint)
            row = row._replace(status="running", owner=owner) if status == "running" else row
            heads.append((row, row.digest))
            epochs[run] = rows.epoch_rows(run, record.epochs)
        except NOT_A_RECORD as error:
            reasons[run] = str(error)
            epochs[run] = rows.epoch_rows(run, sound := _first_sound(measured))
            names = json.dumps(list(sound[0].metrics) if sound else [])
            row = rows.Row(run, config, status, len(sound), names, "[]", 0.0, owner, checkpoint, created, updated)
            heads.append((row, b""))
    return rows.Selection(heads, epochs, reasons, verified=False)


def is_schema(tables: Mapping[str, str]) -> bool:
    """Return whether these are the tables of schema 1, and no views."""
    return set(tables) == set(_TABLES) and all(statement.startswith("CREATE TABLE ") for statement in tables.values())


def migrate(connection: sqlite3.Connection, is_alive: Callable[[str], bool]) -> None:
    """Turn the tables into today's, inside the caller's transaction; refuse if that version is at work."""
    selection = select(connection, None)
    for row, _ in selection.runs:
        if row.status == "running" and row.owner and is_alive(row.owner):
            raise OSError(f"an older heatbath is training run {row.run} in this store: wait until it has ended")
    for table in _TABLES:
        connection.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
    for statement in rows.STATEMENTS:
        connection.execute(statement)
    rows.insert_rows(connection, selection.runs)
    for epochs in selection.epochs.values():
        rows.insert_epochs(connection, epochs)
    for table in _TABLES:
        connection.execute(f"DROP TABLE old_{table}")


def _to_record(columns: Sequence[Any], numbers: Sequence[tuple[Any, ...]]) -> Record:
    run, text, status, device, versions, precision, seconds, *_ = columns
    origin = old_origin(json.loads(versions), device, precision)
    config = read_config(json.loads(text), run)
    missing = set(range(1, len(numbers) + 1)) - {number for _, number, *_ in numbers}
    if missing:
        raise ValueError(f"its epoch {min(missing)} is missing")
    epochs = [_to_epoch(values, origin) for _, _, *values in numbers]
    # SQLite keeps NaN as NULL: where images are held out but have no loss, the run has diverged.
    kept = tuple(takewhile(lambda epoch: not config.validation or epoch.validation_loss is not None, epochs))
    if len(kept) < len(epochs) and status == "finished":
        status = "diverged"
    record = Record(config, status, kept, seconds, origin)
    check_record(record)
    return record


def _to_epoch(values: Sequence[Any], origin: Mapping[str, str]) -> Epoch:
    rate, *metrics = values
    return Epoch(rate, {name: value for name, value in zip(METRICS, metrics, strict=True) if value is not None}, origin)


def _first_sound(numbers: Sequence[tuple[Any, ...]]) -> list[Epoch]:
    epochs: list[Epoch] = []
    for _, number, *values in numbers:
        epoch = _to_epoch(values, {})
        sound = all(isinstance(value, float) for value in (epoch.rate, *epoch.metrics.values()))
        if number != len(epochs) + 1 or not sound or (epochs and epoch.metrics.keys() != epochs[0].metrics.keys()):
            break
        epochs.append(epoch)
    return epochs
