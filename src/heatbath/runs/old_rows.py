"""Stores of heatbath 0.1.0 (schema 1), with a column for each number and no digests: read, and turned into today's."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from operator import itemgetter
from typing import Any

from heatbath.runs import rows
from heatbath.runs.configs import read_config
from heatbath.runs.records import METRICS, NOT_A_RECORD, Epoch, Record, check_record

VERSION = 1
_COLUMNS = "run, config, status, device, versions, precision, seconds, owner, checkpoint, created, updated"
_TABLES = {"runs": f"SELECT {_COLUMNS}", "epochs": f"SELECT run, epoch, rate, {', '.join(METRICS)}"}


@dataclass(frozen=True)
class OldSelection:
    """Rows of schema 1; see `heatbath.runs.rows.Selection`."""

    runs: Sequence[tuple[Any, ...]]
    epochs: Mapping[str, Sequence[tuple[Any, ...]]]

    def sort_out(self, is_alive: Callable[[str], bool]) -> tuple[list[Record], dict[str, rows.Damage]]:
        """Return the records, none of them verified, and the runs whose rows are damaged."""
        records, damaged = [], {}
        for run, config, status, device, versions, precision, seconds, owner, *_ in self.runs:
            now = "pending" if status == "running" and not (owner and is_alive(owner)) else status
            try:
                words = {**_versions(versions), "device": device, "precision": precision}
                origin = {name: word for name, word in words.items() if word != ""}
                records.append(_to_record(run, config, now, self.epochs.get(run, ()), seconds, origin))
            except NOT_A_RECORD as error:
                damaged[run] = rows.Damage(str(error), rows.readable_config(run, config))
        return records, damaged


def select(connection: sqlite3.Connection, runs: Iterable[str] | None) -> OldSelection:
    """Return the rows of some runs, or of all, in the order in which they came."""
    clause = "" if runs is None else "WHERE run IN (SELECT value FROM json_each(?))"
    values = () if runs is None else (json.dumps(list(runs)),)
    epochs = connection.execute(f"{_TABLES['epochs']} FROM epochs {clause} ORDER BY run, epoch", values)
    grouped = {run: list(group) for run, group in groupby(epochs, key=itemgetter(0))}
    return OldSelection(
        connection.execute(f"{_TABLES['runs']} FROM runs {clause} ORDER BY rowid", values).fetchall(), grouped
    )


def is_schema(tables: Mapping[str, str]) -> bool:
    """Return whether these are the tables of schema 1, and no views."""
    return set(tables) == set(_TABLES) and all(statement.startswith("CREATE TABLE ") for statement in tables.values())


def migrate(connection: sqlite3.Connection, is_alive: Callable[[str], bool]) -> None:
    """Turn the tables into today's, inside the caller's transaction. A run that is damaged stays so.

    Raises:
        OSError: a process of that version is at work.
    """
    selection = select(connection, None)
    for columns in selection.runs:
        if columns[2] == "running" and columns[7] and is_alive(columns[7]):
            raise OSError(f"an older heatbath is training run {columns[0]} in this store: wait until it has ended")
    records, _ = selection.sort_out(is_alive)
    sound = {record.run: record for record in records}
    for table in _TABLES:
        connection.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
    for statement in (*rows.TABLES.values(), rows.FIRST_ENTRY):
        connection.execute(statement)
    for run, config, status, *_, checkpoint, created, updated in selection.runs:
        if run in sound:
            row = rows.to_row(sound[run], created, updated)._replace(checkpoint=checkpoint)
            rows.insert_rows(connection, [row])
            rows.insert_epochs(connection, run, 0, sound[run].epochs)
        else:  # with its first sound epochs, and no digest that would vouch for the rest
            epochs = _first_sound(selection.epochs.get(run, ()))
            names = json.dumps(list(epochs[0].metrics) if epochs else [])
            row = rows.Row(run, config, status, len(epochs), names, "[]", 0.0, None, checkpoint, created, updated)
            rows.insert_rows(connection, [row], digest=b"")
            rows.insert_epochs(connection, run, 0, epochs)
    for table in _TABLES:
        connection.execute(f"DROP TABLE old_{table}")
    connection.execute(f"PRAGMA user_version = {rows.VERSION}")


def _to_record(
    run: str, text: str, status: str, numbers: Sequence[tuple[Any, ...]], seconds: float, origin: Mapping[str, str]
) -> Record:
    config = read_config(json.loads(text), run)
    missing = set(range(1, len(numbers) + 1)) - {number for _, number, *_ in numbers}
    if missing:
        raise ValueError(f"its epoch {min(missing)} is missing")
    epochs = [_to_epoch(values, origin) for _, _, *values in numbers]
    # SQLite keeps NaN as NULL: where images are held out but have no loss, the run has diverged.
    kept = tuple(takewhile(lambda epoch: not config.validation or epoch.validation_loss is not None, epochs))
    if len(kept) < len(epochs) and status == "finished":
        status = "diverged"
    record = Record(config, status, kept, seconds, origin, verified=False)
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


def _versions(text: str) -> dict[str, str]:
    versions = json.loads(text)
    if not isinstance(versions, dict):
        raise ValueError(f"its versions are {versions!r}")
    return versions
