"""Runs as rows of a database: how they are written, and what is refused when they are read back.

Each row of a run carries a digest over all its columns, and each epoch one of its own (`heatbath.runs.records`). The
manifest counts the runs, so that one whose row is gone is missed.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from heatbath.runs.configs import RunConfig, read_config
from heatbath.runs.records import (
    ENDED,
    METRICS,
    NOT_A_RECORD,
    Epoch,
    Origin,
    Record,
    check_record,
    each_origin,
    join_origins,
    pack,
    read_origins,
    unpack,
)

APPLICATION, VERSION = 0x68656174, 2  # "heat"
TABLES = {
    "runs": """CREATE TABLE runs (
    run TEXT NOT NULL PRIMARY KEY, config TEXT NOT NULL, status TEXT NOT NULL, epochs INTEGER NOT NULL,
    metrics TEXT NOT NULL, origins TEXT NOT NULL, seconds REAL NOT NULL, owner TEXT, checkpoint TEXT,
    created REAL NOT NULL, updated REAL NOT NULL, digest BLOB NOT NULL
)""",
    "epochs": """CREATE TABLE epochs (
    run TEXT NOT NULL, epoch INTEGER NOT NULL, numbers BLOB NOT NULL, PRIMARY KEY (run, epoch)
) WITHOUT ROWID""",
    "manifest": "CREATE TABLE manifest (runs INTEGER NOT NULL, names TEXT NOT NULL)",
}
STATEMENTS = (
    *TABLES.values(),
    "INSERT INTO manifest VALUES (0, '0000000000000000')",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {VERSION}",
)
SCHEMA = ";\n".join(STATEMENTS)
EpochRow: TypeAlias = tuple[str, int, bytes]  # the run, the number counted from 1, and what `packing` makes of it


_to_json = json.JSONEncoder(default=repr).encode  # a damaged row may have bytes, which no JSON has


class DamagedRowError(Exception):
    """A row that is to be changed is not the one that was written."""


class Row(NamedTuple):
    """What the table ``runs`` has of one run, besides the digest."""

    run: str
    config: str
    status: str
    epochs: int
    metrics: str
    origins: str
    seconds: float
    owner: str | None
    checkpoint: str | None
    created: float
    updated: float

    @property
    def digest(self) -> bytes:
        """Over all columns."""
        return blake2b(_to_json(self).encode(), digest_size=16).digest()


_COLUMNS = ", ".join((*Row._fields, "digest"))
_MARKS = ", ".join("?" * (len(Row._fields) + 1))


class Damage(NamedTuple):
    """What is wrong with the rows of a run, and what is sound of them."""

    reason: str
    config: RunConfig | None  # where it can be read
    epochs: tuple[Epoch, ...] = ()  # up to the first that is damaged or missing
    seconds: float = 0.0  # where the row vouches for them

    def mend(self, config: RunConfig) -> Record:
        """Return a record of what is sound: finished if no epoch is lacking, or else pending."""
        epochs = self.epochs[: config.epochs]
        status = "finished" if len(epochs) == config.epochs else "pending"
        record = Record(config, status, epochs, self.seconds, epochs[-1].origin if epochs else {})
        try:
            check_record(record)
        except NOT_A_RECORD:
            return Record(config, "pending")
        return record


class Selection(NamedTuple):
    """Rows of runs, each with its digest, and their epochs as the database has them, sound or not."""

    runs: Sequence[tuple[Row, bytes]]
    epochs: Mapping[str, Sequence[EpochRow]]
    reasons: Mapping[str, str] = {}  # why a digest does not fit, where that is known
    verified: bool = True  # whether the digests are the database's own

    def sort_out(self, is_alive: Callable[[str], bool]) -> tuple[list[Record], dict[str, Damage]]:
        """Return the records, and the runs whose rows are damaged; a run whose owner is not alive counts as pending."""
        owners = {row.owner for row, _ in self.runs if row.status == "running" and row.owner}
        alive = {owner for owner in owners if is_alive(owner)}
        records, damaged = [], {}
        for row, digest in self.runs:
            fits = digest == row.digest
            try:
                if not fits:
                    raise ValueError(self.reasons.get(row.run, "its digest does not fit"))
                now = "pending" if row.status == "running" and row.owner not in alive else row.status
                records.append(self._to_record(row, now))
            except NOT_A_RECORD as error:
                damaged[row.run] = self._examine(row, fits, str(error))
        return records, damaged

    def _to_record(self, row: Row, status: str) -> Record:
        config, origins = read_config(json.loads(row.config), row.run), read_origins(row.origins)
        found = self.epochs.get(row.run, ())
        missing = set(range(1, row.epochs + 1)) - {number for _, number, _ in found}
        if missing:
            raise ValueError(f"its epoch {min(missing)} is missing")
        epochs = unpack(row.run, json.loads(row.metrics), [content for *_, content in found], origins)
        if not len(epochs) == len(found) == row.epochs:
            raise ValueError(f"its epoch {len(epochs) + 1} is damaged")
        last = origins[-1][1] if origins else {}
        record = Record(config, status, tuple(epochs), row.seconds, last, self.verified)
        check_record(record)
        return record

    def _examine(self, row: Row, fits: bool, reason: str) -> Damage:
        """Find what is sound of a damaged run. The names of its metrics may be among what is not."""
        found = self.epochs.get(row.run, ())
        packed = [content for k, (_, number, content) in enumerate(found, start=1) if k == number]
        origins = read_origins(row.origins) if fits else []
        names, config = [METRICS[:4], METRICS], None
        with suppress(*NOT_A_RECORD):
            names.append(tuple(map(str, json.loads(row.metrics))))
        with suppress(*NOT_A_RECORD):
            config = read_config(json.loads(row.config), row.run)  # its name vouches for it
        epochs = max((unpack(row.run, each, packed, origins) for each in names), key=len)
        return Damage(reason, config, tuple(epochs), row.seconds if fits else 0.0)


def select(connection: sqlite3.Connection, runs: Iterable[str] | None) -> Selection:
    """Return the rows of some runs, or of all that the manifest knows, in the order in which they came."""
    # The plus sign forbids the index, in which a flipped bit would hide a run.
    clause = "" if runs is None else "WHERE +run IN (SELECT value FROM json_each(?))"
    values = () if runs is None else (json.dumps(list(runs)),)
    query = f"SELECT {_COLUMNS} FROM runs {clause} ORDER BY rowid"
    found = [(Row(*columns), digest) for *columns, digest in connection.execute(query, values)]
    if runs is None:
        _check_manifest(connection, [row.run for row, _ in found])
    query = f"SELECT run, epoch, numbers FROM epochs {clause.replace('+', '')} ORDER BY run, epoch"
    rows = groupby(connection.execute(query, values), key=itemgetter(0))
    return Selection(found, {run: list(epochs) for run, epochs in rows})


def sound_rows(connection: sqlite3.Connection, condition: str, values: Sequence[object]) -> list[Row]:
    """Return the rows of runs for which a condition of SQL holds, to be changed and written back."""
    found = connection.execute(f"SELECT {_COLUMNS} FROM runs WHERE {condition} ORDER BY rowid", values).fetchall()
    rows = []
    for *columns, digest in found:
        rows.append(Row(*columns))
        if rows[-1].digest != digest:  # a new digest would hide it
            raise DamagedRowError(f"run {rows[-1].run!r} is damaged")
    return rows


def write_rows(connection: sqlite3.Connection, rows: Iterable[Row]) -> None:
    """Put rows into the place of those of the same runs."""
    names = (*Row._fields[1:], "digest")  # with the run's name among them its index would be written too
    change = f"UPDATE runs SET {', '.join(f'{name} = ?' for name in names)} WHERE run = ?"
    connection.executemany(change, [(*row[1:], row.digest, row.run) for row in rows])


def insert_runs(connection: sqlite3.Connection, configs: Iterable[RunConfig]) -> None:
    """Add runs as pending ones; those that are there stay as they are."""
    now = time.time()
    there = {run for (run,) in connection.execute("SELECT run FROM runs")}
    new = {config.run: config for config in configs if config.run not in there}
    rows = [to_row(Record(config, "pending"), now, now) for config in new.values()]
    insert_rows(connection, [(row, row.digest) for row in rows])


def insert_rows(connection: sqlite3.Connection, rows: Sequence[tuple[Row, bytes]]) -> None:
    """Add rows of runs that are not there, with their digests, and enter them into the manifest."""
    connection.executemany(f"INSERT INTO runs ({_COLUMNS}) VALUES ({_MARKS})", [(*row, digest) for row, digest in rows])
    count, names = connection.execute("SELECT runs, names FROM manifest").fetchone()
    names = _mix([row.run for row, _ in rows], names)
    connection.execute("UPDATE manifest SET runs = ?, names = ?", (count + len(rows), names))


def epoch_rows(run: str, epochs: Sequence[Epoch], first: int = 0) -> list[EpochRow]:
    """Return the rows of epochs of a run, of which ``first`` came before."""
    return [(run, number, content) for number, content in enumerate(pack(run, epochs, first), start=first + 1)]


def insert_epochs(connection: sqlite3.Connection, epochs: Iterable[EpochRow]) -> None:
    """Add epochs, in the place of any that are there."""
    connection.executemany("INSERT OR REPLACE INTO epochs (run, epoch, numbers) VALUES (?, ?, ?)", epochs)


def append(
    connection: sqlite3.Connection, row: Row, first: int, epochs: Sequence[Epoch], origin: Origin, *, ended: bool
) -> Row:
    """Write what was measured, in the place of epochs of the same numbers, and return the row that says so.

    ``first`` epochs came before, and ``origin`` is what worked on the run now. Of a run that has ended, what an earlier
    attempt recorded beyond, before it lost its checkpoints, is removed.
    """
    if first > row.epochs:
        raise ValueError(f"run {row.run} has {row.epochs} epochs; number {first + 1} cannot follow")
    names = json.dumps(list(epochs[0].metrics)) if epochs else row.metrics
    if first and names != row.metrics:
        raise ValueError(f"run {row.run}: the metrics {names} follow {row.metrics}")
    insert_epochs(connection, epoch_rows(row.run, epochs, first))
    made = list(each_origin(read_origins(row.origins)))
    made[first : None if ended else first + len(epochs)] = [epoch.origin for epoch in epochs]
    if ended:
        connection.execute("DELETE FROM epochs WHERE run = ? AND epoch > ?", (row.run, len(made)))
    return row._replace(epochs=len(made), metrics=names, origins=json.dumps(join_origins(made, origin)))


def overwrite(connection: sqlite3.Connection, record: Record) -> None:
    """Put a record into the place of what is there of its run."""
    (created,) = connection.execute("SELECT created FROM runs WHERE run = ?", (record.run,)).fetchone()
    write_rows(connection, [to_row(record, created, time.time())])
    connection.execute("DELETE FROM epochs WHERE run = ?", (record.run,))
    insert_epochs(connection, epoch_rows(record.run, record.epochs))


def refuse(damaged: Mapping[str, Damage], database: Path) -> None:
    """Raise for the first damaged run, if there is one; the message names it, and what to do."""
    for run, damage in damaged.items():
        advice = "'heatbath runs repair' keeps what is sound, 'heatbath runs merge' takes it from a copy of the store"
        again = "'heatbath runs resume' trains it again, " if damage.config else ""
        raise OSError(f"run {run} in {database} is damaged ({damage.reason}): {again}{advice}")


def to_row(record: Record, created: Any, updated: float) -> Row:
    """Return the row of a record that nobody works on; the time at which it came may be damaged."""
    return Row(
        run=record.run,
        config=json.dumps(record.config.to_dict()),
        status=record.status if record.status in ENDED else "pending",
        epochs=len(record.epochs),
        metrics=json.dumps(record.curves[1:]),
        origins=json.dumps(record.origins),
        seconds=record.seconds,
        owner=None,
        checkpoint=None,
        created=created if isinstance(created, float) and 0.0 <= created <= updated else updated,
        updated=updated,
    )


def _check_manifest(connection: sqlite3.Connection, runs: Sequence[str]) -> None:
    expected = connection.execute("SELECT runs, names FROM manifest").fetchall()
    if expected != [(len(runs), _mix(runs))]:
        count = expected[0][0] if len(expected) == 1 else "an unknown number of"
        told = f"it lists {count} runs and has {len(runs)}"
        raise OSError(f"the store is damaged: {told}; 'heatbath runs repair' saves these")


def _mix(runs: Iterable[str], names: str = "0" * 16) -> str:
    """The names of runs in one word, whatever their order; twice the same is not there."""
    mixed = int(names, 16)
    for run in runs:
        mixed ^= int.from_bytes(blake2b(run.encode(errors="surrogateescape"), digest_size=8).digest())
    return f"{mixed:016x}"
