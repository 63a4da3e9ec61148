"""The one place where results live: a folder with an SQLite database, the checkpoints and the locks of those at work.

One transaction per epoch and stack. The database is in WAL mode, so that readers never wait for a training, nor a
training for them.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from heatbath.runs import export, rows
from heatbath.runs.configs import RunConfig
from heatbath.runs.records import ENDED, Epoch, Record
from heatbath.system import sqlite_files
from heatbath.system.locks import Owner, is_alive

_T = TypeVar("_T")
_VERDICTS = ("added", "improved", "differing", "busy", "known")  # of a merge; a run counts for the first that it has


@dataclass(frozen=True)
class Update:
    """What a transaction adds to one run.

    Attributes:
        first: how many epochs came before these.
        epochs: what was measured.
        status: ``"running"``, ``"finished"`` or ``"diverged"``.
        seconds: to be added to the run's.
        checkpoint: the file with its state, if it goes on.
    """

    run: str
    first: int = 0
    epochs: Sequence[Epoch] = ()
    status: str = "running"
    seconds: float = 0.0
    device: str = ""
    precision: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    checkpoint: str | None = None


@dataclass(frozen=True)
class Traces:
    """What a run has left in a store besides its numbers.

    Attributes:
        added: when it came to the store, in seconds since 1970.
        updated: when it was last claimed, recorded or merged.
        checkpoint: the name of the file with its state, if it has not ended and the file is there.
    """

    added: float
    updated: float
    checkpoint: str | None


@dataclass(frozen=True)
class Merged:
    """What a merge did: how many runs were new here, got better, were known already; and which were left alone.

    Attributes:
        differing: finished here and there, with other numbers; ours were kept.
        busy: being trained here; merge again when they have ended.
    """

    added: int
    improved: int
    known: int
    differing: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()


class Store:
    """Runs and their curves, in a folder that several processes may use at once.

    Args:
        path: the folder; made by the first transaction if it is not there, unless only to be read.
        read_only: neither write nor create anything; works on a folder that cannot be written to.

    Raises:
        OSError: there is no store to be read, or the database is not ours or of a later version.
    """

    FILE = "heatbath.sqlite"

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self._named = Path(path)  # in messages, as the caller knows it
        self.path = self._named.absolute()  # the working folder may change while a store is open
        self.checkpoints = self.path / "checkpoints"
        self.owners = self.path / "owners"
        self._database = self.path / self.FILE
        self._read_only = read_only
        self._connection: sqlite3.Connection | None = None
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(f"{self._named} is a file; a store is a folder")
        if self._database.exists():
            sqlite_files.check_header(self._database, rows.APPLICATION, rows.VERSION)
        elif read_only:
            raise FileNotFoundError(f"there is no store in {self._named}")

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the database; the store cannot be used any more."""
        if self._connection is not None:
            self._connection.close()

    def records(
        self,
        runs: Iterable[str] | None = None,
        *,
        status: str | None = None,
        where: Callable[[RunConfig], bool] | None = None,
    ) -> list[Record]:
        """Return the records, in the order in which the runs came here.

        Args:
            runs: their names; all by default. A name that is not here is left out.
            status: only those that are so. A run whose process is gone counts as ``"pending"``.
            where: only those whose config it likes.

        Raises:
            OSError: the rows of a run are damaged; the message says what to do.
        """
        records, damaged = self.survey(runs)
        rows.refuse(damaged, self._named / self.FILE)
        return [
            record
            for record in records
            if (status is None or record.status == status) and (where is None or where(record.config))
        ]

    def survey(self, runs: Iterable[str] | None = None) -> tuple[list[Record], dict[str, rows.Damage]]:
        """Return the records, as `records` does, and what is known of those runs whose rows are damaged."""
        names = None if runs is None else list(runs)
        return self._sort_out(self._read(lambda connection: rows.select(connection, names)))

    def find(self, start: str) -> Record:
        """Return the one run whose name begins so.

        Raises:
            ValueError: there is none, or more than one.
        """
        names = [run for run in self.statuses() if run.startswith(start)]
        if len(names) != 1:
            many = f"{len(names)} runs begin with '{start}' in {self._named}: give more of the name"
            raise ValueError(many if names else f"no run {start} in {self._named}")
        return self.records(names)[0]

    def traces(self, run: str) -> Traces:
        """Return when the run of this full name came here and was last touched, and where its state is.

        Raises:
            ValueError: there is none.
        """
        query = "SELECT created, updated, status, checkpoint FROM runs WHERE run = ?"
        row = self._read(lambda connection: connection.execute(query, (run,)).fetchone())
        if row is None:
            raise ValueError(f"no run {run} in {self._named}")
        added, updated, status, checkpoint = row
        name = Path(checkpoint).name if checkpoint and status not in ENDED else ""
        return Traces(added, updated, name if name and (self.checkpoints / name).is_file() else None)

    def statuses(self) -> dict[str, str]:
        """Return what each run's row says: ``"running"`` also where the process is gone."""
        return dict(self._read(lambda connection: connection.execute("SELECT run, status FROM runs").fetchall()))

    def add(self, configs: Iterable[RunConfig]) -> dict[str, str]:
        """Ask for runs; those that are here stay as they are.

        Only those whose rows are damaged lose them, to be trained again; what was wrong with them is returned.
        """
        asked = list(configs)
        with self._transaction() as connection:
            damaged = self._remove_damaged(connection, [config.run for config in asked])[1]
            rows.insert_runs(connection, asked)
        return damaged

    def claim(self, runs: Iterable[str], owner: Owner) -> dict[str, int]:
        """Take those of the runs that have not ended and that nobody alive is at; return how many epochs each has."""
        with self._transaction() as connection:
            query = "SELECT run, owner FROM runs WHERE status NOT IN (?, ?) AND run IN (SELECT value FROM json_each(?))"
            owned = connection.execute(query, (*ENDED, json.dumps(list(runs)))).fetchall()
            alive = {name: name != owner.name and is_alive(self.owners, name) for _, name in owned if name}
            free = [run for run, name in owned if not alive.get(name)]
            change = "UPDATE runs SET status = 'running', owner = ?, updated = ? WHERE run = ?"
            connection.executemany(change, [(owner.name, time.time(), run) for run in free])
            count = "SELECT run, COUNT(*) FROM epochs WHERE run IN (SELECT value FROM json_each(?)) GROUP BY run"
            recorded = dict(connection.execute(count, (json.dumps(free),)).fetchall())
        return {run: recorded.get(run, 0) for run in free}

    def save(self, owner: Owner, updates: Iterable[Update]) -> None:
        """Add what was measured, all in one transaction.

        Raises:
            OSError: a run is not (any more) this owner's, or there is no room; nothing was changed.
        """
        with self._transaction() as connection:
            for update in updates:
                ended = update.status in ENDED
                done = connection.execute(
                    "UPDATE runs SET status = ?, device = ?, precision = ?, versions = ?, seconds = seconds + ?, "
                    "checkpoint = ?, owner = ?, updated = ? WHERE run = ? AND owner = ?",
                    (
                        *(update.status, update.device, update.precision, json.dumps(update.versions), update.seconds),
                        *(None if ended else update.checkpoint, None if ended else owner.name, time.time()),
                        *(update.run, owner.name),
                    ),
                )
                if done.rowcount != 1:
                    raise OSError(f"run {update.run} in {self._named} has been taken over by another process")
                rows.insert_epochs(connection, update.run, update.first, update.epochs)
                if ended:  # what an earlier attempt recorded beyond, before it lost its checkpoints
                    past = (update.run, update.first + len(update.epochs))
                    connection.execute("DELETE FROM epochs WHERE run = ? AND epoch > ?", past)

    def release(self, owner: Owner) -> None:
        """Give the owner's runs back. Where the disk is full they become free when the owner closes."""
        with suppress(OSError), self._transaction() as connection:
            change = "UPDATE runs SET status = 'pending', owner = NULL WHERE owner = ? AND status = 'running'"
            connection.execute(change, (owner.name,))

    def merge(self, other: str | os.PathLike[str]) -> Merged:
        """Take over the runs of another store, or of a file of `heatbath.runs.export.write_lines`; neither is changed.

        Twice is as good as once. A finished run beats a diverged or partial one, and a longer one a shorter one; also
        in a file that has a run twice. All beat a run whose rows are damaged.
        """
        source = Path(other)
        if source.exists() and not source.is_dir():
            theirs = export.read_lines(source)
        else:
            with Store(source, read_only=True) as opened:
                theirs = opened.records()
        verdicts: dict[str, list[str]] = {}  # more than one, where a file has a run twice
        with self._transaction() as connection:
            records, damaged = self._remove_damaged(connection, [record.run for record in theirs])
            ours = {record.run: record for record in records}
            ours |= {their.run: Record(their.config, "pending") for their in theirs if their.run in damaged}
            rows.insert_runs(connection, [record.config for record in theirs])
            for their in theirs:
                verdict = _compare(ours.get(their.run), their)
                verdicts.setdefault(their.run, []).append(verdict)
                if verdict in ("added", "improved"):
                    rows.overwrite(connection, their)
                    ours[their.run] = their
        counts = Counter(min(several, key=_VERDICTS.index) for several in verdicts.values())
        differing, busy = (
            tuple(run for run, several in verdicts.items() if word in several) for word in ("differing", "busy")
        )
        return Merged(counts["added"], counts["improved"], counts["known"], differing, busy)

    def _sort_out(self, selected: rows.Rows) -> tuple[list[Record], dict[str, rows.Damage]]:
        return rows.sort_out(selected, lambda owner: is_alive(self.owners, owner))

    def _remove_damaged(
        self, connection: sqlite3.Connection, runs: Sequence[str]
    ) -> tuple[list[Record], dict[str, str]]:
        """Remove what cannot be read of some runs; return the records of the others, and what was wrong with these."""
        selected = rows.select(connection, runs)
        records, damaged = self._sort_out(selected)
        owners = {row[0]: row[3] for row in selected.runs if row[0] in damaged and row[3]}
        busy = {run: damaged[run] for run, owner in owners.items() if is_alive(self.owners, owner)}
        rows.refuse(busy, self._named / self.FILE)
        rows.remove(connection, damaged)
        return records, {run: damage.reason for run, damage in damaged.items()}

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        if self._read_only:
            raise ValueError(f"the store in {self._named} was opened to be read only")
        with self._plain_errors():
            if self._connection is None:
                sqlite_files.create(self._database, rows.SCHEMA)
                self._connection = sqlite_files.connect(self._database)
                self._connection.execute("PRAGMA synchronous = FULL")
            connection = self._connection
            try:
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def _read(self, select: Callable[[sqlite3.Connection], _T]) -> _T:
        with self._plain_errors():
            if self._connection is not None:
                return sqlite_files.snapshot(self._connection, select)
            if self._database.exists():
                return sqlite_files.read_only(self._database, select)
            with closing(sqlite3.connect(":memory:")) as empty:
                empty.executescript(rows.SCHEMA)
                return select(empty)

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        """Turn what SQLite says into one line."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the second from what a damaged file calls its columns
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            full = code == sqlite3.SQLITE_IOERR and shutil.disk_usage(self.path).free < 1 << 20
            if code == sqlite3.SQLITE_FULL or full:
                raise OSError(no_space(self._named)) from None
            broken = code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or not isinstance(error, sqlite3.Error)
            advice = "; it is damaged: put back a copy of it, or choose another folder" if broken else ""
            raise OSError(f"the store in {self._named} cannot be used: {error}{advice}") from None


def no_space(path: Path) -> str:
    """The line for a full disk."""
    return f"no space left in {path}; what was finished is safe; free space and run again"


def _compare(our: Record | None, their: Record) -> str:
    """What a merge does with their record; the keys are those of `Merged`."""
    if our is None:
        return "added"
    if our.status == their.status == "finished":
        return "known" if export.same_curves(our, their) else "differing"
    if _rank(their) <= _rank(our):
        return "known"
    return "busy" if our.status == "running" else "improved"


def _rank(record: Record) -> tuple[bool, int, bool]:
    """What beats what: finished first, then the longer, then the diverged one, which will get no longer."""
    return record.status == "finished", len(record.epochs), record.status == "diverged"
