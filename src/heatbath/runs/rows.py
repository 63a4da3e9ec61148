"""Runs as rows of a database: how they are written, and what is refused when they are read back.

Each row of a run carries a digest over all its columns, and each epoch one of its own (`heatbath.runs.packing`). The
manifest counts the runs, so that one whose row is gone is missed.
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from heatbath.runs import packing
from heatbath.runs.configs import RunConfig, read_config
from heatbath.runs.records import ENDED, METRICS, NOT_A_RECORD, Epoch, Origin, Record, check_record, join_origins

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
FIRST_ENTRY = "INSERT INTO manifest VALUES (0, '0000000000000000')"
SCHEMA = ";\n".join(
    (
        f"PRAGMA application_id = {APPLICATION}",
        f"PRAGMA user_version = {VERSION}",
        *TABLES.values(),
        FIRST_ENTRY,
    )
)


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
        return blake2b(json.dumps(self).encode(), digest_size=16).digest()

    def fits(self, digest: bytes) -> bool:
        """Return whether this is the row that was written."""
        try:
            return digest == self.digest
        except TypeError:  # a column is bytes, which no JSON has
            return False


_COLUMNS = ", ".join((*Row._fields, "digest"))
_MARKS = ", ".join("?" * (len(Row._fields) + 1))


@dataclass(frozen=True)
class Damage:
    """What is wrong with the rows of a run, and what is sound of them.

    Attributes:
        reason: what is wrong.
        config: None where it cannot be read.
        epochs: the first ones, up to the first that is damaged or missing.
        seconds: 0 where the row does not vouch for them.
    """

    reason: str
    config: RunConfig | None
    epochs: tuple[Epoch, ...] = ()
    seconds: float = 0.0

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


@dataclass(frozen=True)
class Selection:
    """Rows of runs and their epochs as the database has them, sound or not."""

    runs: Sequence[tuple[Row, bytes]]
    epochs: Mapping[str, Sequence[tuple[str, int, bytes]]]

    def sort_out(self, is_alive: Callable[[str], bool]) -> tuple[list[Record], dict[str, Damage]]:
        """Return the records, and the runs whose rows are damaged.

        Args:
            is_alive: whether an owner is; a run whose owner is not counts as pending.
        """
        owners = {row.owner for row, _ in self.runs if row.status == "running" and row.owner}
        alive = {owner for owner in owners if is_alive(owner)}
        records, damaged = [], {}
        for row, digest in self.runs:
            try:
                if not row.fits(digest):
                    raise ValueError("its digest does not fit")
                now = "pending" if row.status == "running" and row.owner not in alive else row.status
                records.append(_to_record(row, now, self.epochs.get(row.run, ())))
            except NOT_A_RECORD as error:
                damaged[row.run] = self._examine(row, digest, str(error))
        return records, damaged

    def _examine(self, row: Row, digest: bytes, reason: str) -> Damage:
        """Find what is sound of a damaged run. The names of its metrics may be among what is not."""
        fits = row.fits(digest)
        found = self.epochs.get(row.run, ())
        packed = [content for k, (_, number, content) in enumerate(found, start=1) if k == number]
        origins = packing.read_origins(row.origins) if fits else []
        names = [METRICS[:4], METRICS]
        with suppress(*NOT_A_RECORD):
            names.append(tuple(map(str, json.loads(row.metrics))))
        epochs = max((packing.unpack(row.run, each, packed, origins) for each in names), key=len)
        return Damage(reason, readable_config(row.run, row.config), tuple(epochs), row.seconds if fits else 0.0)


def select(connection: sqlite3.Connection, runs: Iterable[str] | None) -> Selection:
    """Return the rows of some runs, or of all, in the order in which they came.

    Raises:
        OSError: all runs are asked for, and the manifest knows more or others.
    """
    names = None if runs is None else json.dumps(list(runs))
    # The plus sign forbids the index, in which a flipped bit would hide a run.
    clause = "" if names is None else "WHERE +run IN (SELECT value FROM json_each(?))"
    values = () if names is None else (names,)
    query = f"SELECT {_COLUMNS} FROM runs {clause} ORDER BY rowid"
    found = [(Row(*columns), digest) for *columns, digest in connection.execute(query, values)]
    if names is None:
        _check_manifest(connection, [row.run for row, _ in found])
    query = f"SELECT run, epoch, numbers FROM epochs {clause.replace('+', '')} ORDER BY run, epoch"
    rows = groupby(connection.execute(query, values), key=itemgetter(0))
    return Selection(found, {run: list(epochs) for run, epochs in rows})


def sound_rows(connection: sqlite3.Connection, condition: str, values: Sequence[object]) -> list[Row]:
    """Return the rows of runs for which a condition of SQL holds, to be changed and written back.

    Raises:
        DamagedRowError: a new digest would hide that one is damaged.
    """
    found = connection.execute(f"SELECT {_COLUMNS} FROM runs WHERE {condition} ORDER BY rowid", values).fetchall()
    rows = []
    for *columns, digest in found:
        rows.append(Row(*columns))
        if not rows[-1].fits(digest):
            raise DamagedRowError(f"run {rows[-1].run!r} is damaged")
    return rows


def write_rows(connection: sqlite3.Connection, rows: Iterable[Row]) -> None:
    """Put rows into the place of those of the same runs."""
    change = f"UPDATE runs SET ({_COLUMNS}) = ({_MARKS}) WHERE run = ?"
    connection.executemany(change, [(*row, row.digest, row.run) for row in rows])


def insert_runs(connection: sqlite3.Connection, configs: Iterable[RunConfig]) -> None:
    """Add runs as pending ones; those that are there stay as they are."""
    now = time.time()
    there = {run for (run,) in connection.execute("SELECT run FROM runs")}
    new = {config.run: config for config in configs if config.run not in there}
    insert_rows(connection, [to_row(Record(config, "pending"), now) for config in new.values()])


def insert_rows(connection: sqlite3.Connection, rows: Sequence[Row], digest: bytes | None = None) -> None:
    """Add rows of runs that are not there; by default with the digests that fit."""
    insert = f"INSERT INTO runs ({_COLUMNS}) VALUES ({_MARKS})"
    connection.executemany(insert, [(*row, row.digest if digest is None else digest) for row in rows])
    _count(connection, [row.run for row in rows])


def insert_epochs(connection: sqlite3.Connection, run: str, first: int, epochs: Sequence[Epoch]) -> None:
    """Add the epochs that follow the first ones, in the place of any that are there."""
    packed = enumerate(packing.pack(run, epochs, first), start=first + 1)
    insert = "INSERT OR REPLACE INTO epochs (run, epoch, numbers) VALUES (?, ?, ?)"
    connection.executemany(insert, [(run, number, content) for number, content in packed])


def append(connection: sqlite3.Connection, row: Row, first: int, epochs: Sequence[Epoch], origin: Origin) -> Row:
    """Write what was measured, in the place of epochs of the same numbers, and return the row that says so.

    Args:
        connection: in a transaction.
        row: of the run; the caller writes the one that is returned.
        first: how many epochs came before.
        epochs: what was measured.
        origin: what worked on the run now.
    """
    if first > row.epochs:
        raise ValueError(f"run {row.run} has {row.epochs} epochs; number {first + 1} cannot follow")
    names = json.dumps(list(epochs[0].metrics)) if epochs else row.metrics
    if first and names != row.metrics:
        raise ValueError(f"run {row.run}: the metrics {names} follow {row.metrics}")
    insert_epochs(connection, row.run, first, epochs)
    made = [where for count, where in packing.read_origins(row.origins) for _ in range(count)]
    made[first : first + len(epochs)] = [epoch.origin for epoch in epochs]
    return row._replace(epochs=len(made), metrics=names, origins=json.dumps(join_origins(made, origin)))


def cut(connection: sqlite3.Connection, row: Row, count: int) -> Row:
    """Remove the epochs beyond the first ones, and return the row that says so."""
    connection.execute("DELETE FROM epochs WHERE run = ? AND epoch > ?", (row.run, count))
    origins = packing.read_origins(row.origins)
    made = [where for each, where in origins for _ in range(each)][:count]
    return row._replace(epochs=count, origins=json.dumps(join_origins(made, origins[-1][1] if origins else {})))


def overwrite(connection: sqlite3.Connection, record: Record) -> None:
    """Put a record into the place of what is there of its run."""
    (created,) = connection.execute("SELECT created FROM runs WHERE run = ?", (record.run,)).fetchone()
    write_rows(connection, [to_row(record, time_or_now(created), time.time())])
    connection.execute("DELETE FROM epochs WHERE run = ?", (record.run,))
    insert_epochs(connection, record.run, 0, record.epochs)


def refuse(damaged: Mapping[str, Damage], database: Path) -> None:
    """Raise for the first damaged run, if there is one.

    Raises:
        OSError: the message names the run, and what to do.
    """
    for run, damage in damaged.items():
        advice = "'heatbath runs repair' keeps what is sound, 'heatbath runs merge' takes it from a copy of the store"
        again = "'heatbath runs resume' trains it again, " if damage.config else ""
        raise OSError(f"run {run} in {database} is damaged ({damage.reason}): {again}{advice}")


def from_page(values: Sequence[object]) -> tuple[Row, bytes]:
    """Return a row and its digest from what a page has of them: a whole number in the place of any other."""
    columns: list[Any] = [
        float(value) if name in ("seconds", "created", "updated") and isinstance(value, int) else value
        for name, value in zip((*Row._fields, "digest"), values, strict=True)
    ]
    return Row(*columns[:-1]), columns[-1]


def is_run_name(name: str) -> bool:
    """Return whether a run may be called so."""
    return re.fullmatch("[0-9a-f]{16}", name) is not None


def time_or_now(value: object) -> float:
    """Return a time that may be damaged, or else the present one."""
    now = time.time()
    return value if isinstance(value, float) and 0.0 <= value <= now else now


def to_row(record: Record, created: float, updated: float | None = None) -> Row:
    """Return the row of a record that nobody works on."""
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
        created=created,
        updated=created if updated is None else updated,
    )


def readable_config(run: str, text: str) -> RunConfig | None:
    """Return the config of a damaged run, if its name vouches for it."""
    try:
        return read_config(json.loads(text), run)
    except NOT_A_RECORD:
        return None


def _to_record(row: Row, status: str, rows: Sequence[tuple[str, int, bytes]]) -> Record:
    config = read_config(json.loads(row.config), row.run)
    origins = packing.read_origins(row.origins)
    missing = set(range(1, row.epochs + 1)) - {number for _, number, _ in rows}
    if missing:
        raise ValueError(f"its epoch {min(missing)} is missing")
    epochs = packing.unpack(row.run, json.loads(row.metrics), [content for *_, content in rows], origins)
    if len(epochs) < len(rows) or len(rows) != row.epochs:
        raise ValueError(f"its epoch {len(epochs) + 1} is damaged")
    record = Record(config, status, tuple(epochs), row.seconds, origins[-1][1] if origins else {})
    check_record(record)
    return record


def _count(connection: sqlite3.Connection, runs: Sequence[str]) -> None:
    """Enter runs into the manifest."""
    count, names = connection.execute("SELECT runs, names FROM manifest").fetchone()
    connection.execute("UPDATE manifest SET runs = ?, names = ?", (count + len(runs), _mix(runs, names)))


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
