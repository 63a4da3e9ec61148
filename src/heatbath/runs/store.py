"""The one place where results live: a folder with an SQLite database, checkpoints and the locks of those at work."""

from __future__ import annotations

import gc
import json
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, get_args

from heatbath.runs import export, old_rows, rows
from heatbath.runs.checkpoints import Shelf
from heatbath.runs.configs import RunConfig
from heatbath.runs.database import Database
from heatbath.runs.records import ENDED, Epoch, Origin, Record
from heatbath.system.locks import Owner, tidy

Verdict: TypeAlias = Literal["added", "improved", "differing", "busy", "known"]
_ORDER = get_args(Verdict)


@dataclass(frozen=True)
class Update:
    """What a transaction adds to one run."""

    run: str
    first: int = 0  # how many epochs came before these
    epochs: Sequence[Epoch] = ()
    status: str = "running"  # or finished, or diverged
    seconds: float = 0.0  # to be added to the run's
    origin: Origin = field(default_factory=dict)  # what works on the run now; each epoch has its own
    checkpoint: str | None = None  # the file with its state, if it goes on


class Traces(NamedTuple):
    """What a run has left in a store besides its numbers."""

    added: float  # when it came to the store, in seconds since 1970
    updated: float  # when it was last claimed, recorded or merged
    checkpoint: str | None  # the name of the file with its state, if it has not ended and the file is there


@dataclass(frozen=True)
class Merged:
    """What a merge did: how many runs were new here, got better, were known already; and which were left alone."""

    added: int
    improved: int
    known: int
    differing: tuple[str, ...] = ()  # with other numbers here and there, as far as both go; ours were kept
    busy: tuple[str, ...] = ()  # being trained here; merge again when they have ended


class Store(Database):
    """Runs and their curves, in a folder that several processes may use at once."""

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def records(
        self, runs: Iterable[str] | None = None, *, where: Callable[[RunConfig], bool] = lambda _: True
    ) -> list[Record]:
        """Return the records of some runs, or of all, in the order in which they came; a name not here is left out."""
        records, damaged = self.survey(runs)
        rows.refuse(damaged, self._named / self.FILE)
        return [record for record in records if where(record.config)]

    def survey(self, runs: Iterable[str] | None = None) -> tuple[list[Record], dict[str, rows.Damage]]:
        """Return the records, as `records` does, and what is known of those runs whose rows are damaged."""
        names = None if runs is None else list(runs)

        def select(connection: sqlite3.Connection, version: int) -> rows.Selection:
            of_version = old_rows.select if version == old_rows.VERSION else rows.select
            return of_version(connection, names)

        collects = gc.isenabled()
        gc.disable()  # reading makes many objects and no garbage; to look for it would take a quarter of the time
        try:
            return self.read(select).sort_out(self.is_alive)
        finally:
            if collects:
                gc.enable()

    def find(self, start: str) -> Record:
        """Return the one run whose name begins so."""
        names = [run for run in self.statuses() if run.startswith(start)]
        if len(names) != 1:
            many = f"{len(names)} runs begin with '{start}' in {self._named}: give more of the name"
            raise ValueError(many if names else f"no run {start} in {self._named}")
        return self.records(names)[0]

    def traces(self, run: str) -> Traces:
        """Return when the run of this full name came here and was last touched, and where its state is."""
        query = "SELECT created, updated, status, checkpoint FROM runs WHERE run = ?"
        row = self.read(lambda connection, _: connection.execute(query, (run,)).fetchone())
        if row is None:
            raise ValueError(f"no run {run} in {self._named}")
        added, updated, status, checkpoint = row
        name = Path(checkpoint).name if checkpoint and status not in ENDED else ""
        return Traces(added, updated, name if name and (self.checkpoints / name).is_file() else None)

    def statuses(self) -> dict[str, str]:
        """Return what each run's row says: ``"running"`` also where the process is gone."""
        query = "SELECT run, status FROM runs"
        return dict(self.read(lambda connection, _: connection.execute(query).fetchall()))

    def add(self, configs: Iterable[RunConfig]) -> dict[str, rows.Damage]:
        """Ask for runs; those that are here stay as they are.

        Of those whose rows are damaged the sound epochs are kept; what was wrong with them is returned.
        """
        asked = {config.run: config for config in configs}
        with self.transaction() as connection:
            _, damaged = self._mend(connection, asked)
            rows.insert_runs(connection, asked.values())
        return damaged

    def claim(self, runs: Iterable[str], owner: Owner) -> dict[str, int]:
        """Take those of the runs that have not ended and that nobody alive is at; return how many epochs each has."""
        with self.transaction() as connection:
            condition = "status NOT IN (?, ?) AND run IN (SELECT value FROM json_each(?))"
            found = rows.sound_rows(connection, condition, (*ENDED, json.dumps(list(runs))))
            alive = {row.owner for row in found if row.owner not in (None, owner.name) and self.is_alive(row.owner)}
            free = [row for row in found if row.owner not in alive]
            now = time.time()
            rows.write_rows(connection, [row._replace(status="running", owner=owner.name, updated=now) for row in free])
        return {row.run: row.epochs for row in free}

    def save(self, owner: Owner, updates: Iterable[Update]) -> None:
        """Add what was measured, all in one transaction, or nothing if a run is not this owner's any more."""
        measured = list(updates)  # before others have to wait
        with self.transaction() as connection:
            for update in measured:
                found = rows.sound_rows(connection, "run = ? AND owner = ?", (update.run, owner.name))
                if not found:
                    raise OSError(f"run {update.run} in {self._named} has been taken over by another process")
                ended = update.status in ENDED
                row = rows.append(connection, found[0], update.first, update.epochs, update.origin, ended=ended)
                row = row._replace(
                    status=update.status,
                    seconds=row.seconds + update.seconds,
                    owner=None if ended else owner.name,
                    checkpoint=None if ended else update.checkpoint,
                    updated=time.time(),
                )
                rows.write_rows(connection, [row])

    def release(self, owner: Owner) -> None:
        """Give the owner's runs back. Where the disk is full they become free when the owner closes."""
        with suppress(OSError), self.transaction() as connection:
            held = rows.sound_rows(connection, "owner = ? AND status = 'running'", (owner.name,))
            rows.write_rows(connection, [row._replace(status="pending", owner=None) for row in held])

    def clean(self) -> None:
        """Remove what a process left that was killed when all its runs had ended; no run is touched."""
        if not any(self.owners.glob("*.lock")):
            return
        with suppress(OSError):  # others may be at work, or the folder be another user's
            tidy(self.owners)
            shelf = Shelf(self.checkpoints)
            shelf.clean(run for run, status in self.statuses().items() if status in ENDED)
            shelf.remove_partial(self.is_alive)

    def merge(self, other: str | os.PathLike[str]) -> Merged:
        """Take over the runs of another store, or of a file of `heatbath.runs.export.write_lines`; neither is changed.

        Twice is as good as once. A longer record takes the place of a shorter one with the same numbers, also in a file
        that has a run twice. Where the numbers differ, ours are kept, and the run is told.
        """
        source = Path(other)
        if source.exists() and not source.is_dir():
            theirs = export.read_lines(source)
        else:
            with Store(source, read_only=True) as opened:
                theirs = opened.records()
        verdicts: dict[str, list[Verdict]] = {}
        with self.transaction() as connection:
            ours, _ = self._mend(connection, {record.run: record.config for record in theirs})
            rows.insert_runs(connection, [record.config for record in theirs])
            for their in theirs:
                verdict = judge(ours.get(their.run), their)
                verdicts.setdefault(their.run, []).append(verdict)
                if verdict in ("added", "improved"):
                    rows.overwrite(connection, their)
                    ours[their.run] = their
        return _count(verdicts)

    def _mend(
        self, connection: sqlite3.Connection, configs: Mapping[str, RunConfig]
    ) -> tuple[dict[str, Record], dict[str, rows.Damage]]:
        """Put what is sound of some runs into the place of what is damaged; return the records, and what was wrong."""
        selected = rows.select(connection, configs)
        records, damaged = selected.sort_out(self.is_alive)
        owners = {row.run: row.owner for row, _ in selected.runs if row.run in damaged and row.owner}
        busy = {run: damaged[run] for run, owner in owners.items() if self.is_alive(owner)}
        rows.refuse(busy, self._named / self.FILE)
        mended = {run: damage.mend(configs[run]) for run, damage in damaged.items()}
        for record in mended.values():
            rows.overwrite(connection, record)
        return {record.run: record for record in records} | mended, damaged


def judge(ours: Record | None, theirs: Record) -> Verdict:
    """Return what a merge does with their record of a run.

    Of two records that agree as far as both go the longer one is better. That a run has diverged is a statement of
    its own, which stands where its next epoch would.
    """
    if ours is None:
        return "added"
    mine, other = _statements(ours), _statements(theirs)
    if any(a != b for a, b in zip(mine, other, strict=False)):
        return "differing"
    if len(other) <= len(mine):
        return "known"
    return "busy" if ours.status == "running" else "improved"


def _count(verdicts: Mapping[str, Sequence[Verdict]]) -> Merged:
    """Return what happened to the runs. One that a file has more than once counts for the most that was done."""
    counts = Counter(min(found, key=_ORDER.index) for found in verdicts.values())
    differing, busy = (tuple(run for run, found in verdicts.items() if word in found) for word in ("differing", "busy"))
    return Merged(counts["added"], counts["improved"], counts["known"], differing, busy)


def _statements(record: Record) -> list[object]:
    """What a record says, epoch by epoch, to the digits that an export keeps."""
    curves = export.rounded_curves(record)
    epochs: list[object] = [dict(zip(curves, numbers, strict=True)) for numbers in zip(*curves.values(), strict=True)]
    return [*epochs, "diverged"] if record.status == "diverged" else epochs
