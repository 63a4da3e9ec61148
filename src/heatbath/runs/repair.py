"""Saves what is sound in the database of a store, however damaged that is.

The file is read page by page, so that a torn page, or a wrong pointer to one, costs no others. The trees are not
followed: SQLite reads each page as if it were a whole table, whose root the schema is made to name
(https://www.sqlite.org/fileformat.html). Nothing but the digests vouches for what is found.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import struct
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path

from heatbath.runs import old_rows, rows
from heatbath.runs.records import Record
from heatbath.runs.store import Store
from heatbath.system import sqlite_files
from heatbath.system.locks import is_alive

_TABLE_LEAF, _INDEX_LEAF, _INDEX_INNER = 0x0D, 0x0A, 0x02


@dataclass(frozen=True)
class Repaired:
    """What a repair found."""

    whole: int  # runs that are as they were
    mended: dict[str, int]  # of the runs that were damaged, how many epochs are kept; those that lack none have ended
    lost: tuple[str, ...]  # the runs whose config cannot be read: they have to be asked for again
    damaged: Path | None  # where the damaged database is now; None if there was nothing to repair


def repair(store: Path) -> Repaired:
    """Put every run whose digest holds, and the sound epochs of the others, into a new database.

    The damaged one is kept beside it. A store that has no damage stays as it is.
    """
    database, owners = store / Store.FILE, store / "owners"
    if not database.is_file():
        raise FileNotFoundError(f"there is no store in {store}")
    if any(is_alive(owners, file.stem) for file in owners.glob("*.lock")):
        raise OSError(f"a process is at work in {store}: end it first")
    with sqlite_files.locked(store):
        content = _whole_content(database)
        if int.from_bytes(content[60:64]) == old_rows.VERSION and content.startswith(b"SQLite format 3\0"):
            raise OSError(f"{database} is of heatbath 0.1.0, which kept no digests: put back a copy of it")
        found, lost = _read(content)
        records, damaged = found.sort_out(lambda _owner: False)
        mended = {run: damage.mend(damage.config) for run, damage in damaged.items() if damage.config is not None}
        lost |= damaged.keys() - mended.keys()
        if not damaged and not lost and _is_readable(store, len(records)):
            return Repaired(len(records), {}, (), None)
        kept = _keep(database)
        _write(database, found, records, mended)
        lengths = {run: len(record.epochs) for run, record in mended.items()}
        return Repaired(len(records), lengths, tuple(sorted(lost)), kept)


def _whole_content(database: Path) -> bytes:
    """The file, with what is only in the write-ahead log so far, and without what a journal takes back."""
    with tempfile.TemporaryDirectory(prefix="heatbath-") as place:
        copy = Path(place) / database.name
        for suffix in ("", "-wal", "-journal"):
            with suppress(FileNotFoundError):
                shutil.copyfile(f"{database}{suffix}", f"{copy}{suffix}")
        with suppress(sqlite3.Error), closing(sqlite3.connect(copy)) as connection:
            connection.execute("PRAGMA user_version").fetchone()  # whoever reads first rolls a journal back
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return copy.read_bytes()


def _read(content: bytes) -> tuple[rows.Selection, set[str]]:
    """The rows of runs, of each the latest sound one, and of their epochs; and runs of which there are epochs alone."""
    heads: dict[str, tuple[int, rows.Row, bytes]] = {}
    numbers: dict[str, dict[int, set[bytes]]] = {}
    for values in scan(content, {name: rows.TABLES[name] for name in ("runs", "epochs")}):
        match values:
            case (int(number), str(run), *columns, bytes(digest)):
                row = rows.Row(run, *columns)  # type: ignore[arg-type]
                before = heads.get(run)
                if before is None or _rank(row, digest) > _rank(*before[1:]):
                    heads[run] = number, row, digest
            case (str(run), int(number), bytes(packed)):
                numbers.setdefault(run, {}).setdefault(number, set()).add(packed)
    epochs = {}
    for run, found in numbers.items():  # up to the first that is missing, or of which there are two
        unique = takewhile(lambda number: len(found.get(number, ())) == 1, count(1))  # noqa: B023
        epochs[run] = [(run, number, next(iter(found[number]))) for number in unique]
    ordered = [(row, digest) for _, row, digest in sorted(heads.values(), key=lambda head: head[0])]
    alone = {run for run in numbers.keys() - heads.keys() if re.fullmatch("[0-9a-f]{16}", run)}
    return rows.Selection(ordered, epochs), alone


def _rank(row: rows.Row, digest: bytes) -> tuple[bool, float]:
    sound = row.digest == digest
    return sound, row.updated if sound else 0.0


def _is_readable(store: Path, runs: int) -> bool:
    try:
        with Store(store, read_only=True) as opened:
            return len(opened.records()) == runs
    except OSError:
        return False


def _write(database: Path, found: rows.Selection, sound: Iterable[Record], mended: dict[str, Record]) -> None:
    records = {record.run: record for record in sound} | mended
    kept = []
    for row, _ in found.runs:
        if row.run in records:
            row = rows.to_row(mended[row.run], row.created, time.time()) if row.run in mended else row
            row = row._replace(status="pending" if row.status == "running" else row.status, owner=None)
            kept.append((row, row.digest))
    with closing(sqlite3.connect(":memory:")) as memory:
        memory.executescript(rows.SCHEMA)
        rows.insert_rows(memory, kept)
        for run, record in records.items():
            rows.insert_epochs(memory, rows.epoch_rows(run, record.epochs))
        memory.commit()
        for suffix in ("-wal", "-shm", "-journal"):  # they belong to the damaged one
            Path(f"{database}{suffix}").unlink(missing_ok=True)
        sqlite_files.write_file(memory, database)


def _keep(database: Path) -> Path:
    """Copy a damaged database to a name of its own, and return that."""
    names = (database.with_name(f"{database.name}.damaged{f'-{k}' * (k > 1)}") for k in count(1))
    kept = next(name for name in names if not name.exists())
    for suffix in ("-wal", "-journal", ""):
        with suppress(FileNotFoundError):
            shutil.copy2(f"{database}{suffix}", f"{kept}{suffix}")
    return kept


def scan(content: bytes, schema: Mapping[str, str]) -> Iterator[tuple[object, ...]]:
    """Yield what looks like a row in all pages of a database that are in use.

    The schema has the statements that make a table with row numbers, which stand before the values, and one without.
    """
    size = int.from_bytes(content[16:18])
    size = size if size in {1 << power for power in range(9, 16)} else 4096
    content = content.ljust(4 * size, b"\0")  # room for the schema
    pages = [bytearray(content[at : at + size].ljust(size, b"\0")) for at in range(0, len(content), size)]
    free = _free_pages(pages)
    for page in pages:
        if page[0] in (_TABLE_LEAF, _INDEX_LEAF, _INDEX_INNER):
            most = (size - 12) // 6  # of more rows SQLite reads none, and the number may be what is damaged
            page[3:5] = min(int.from_bytes(page[3:5]), most).to_bytes(2)
        if page[0] == _INDEX_INNER:
            _make_leaf(page)
    with closing(sqlite3.connect(":memory:")) as new:
        new.executescript(";".join((f"PRAGMA page_size = {size}", *schema.values())))
        pages[0] = bytearray(new.serialize()[:size])
    pages[0][28:32] = len(pages).to_bytes(4)
    columns = dict(zip((_TABLE_LEAF, _INDEX_LEAF), zip(schema, ("rowid, *", "*"), strict=True), strict=True))
    with closing(sqlite_files.connect(":memory:")) as connection:
        connection.deserialize(b"".join(pages))
        for number, page in enumerate(pages[1:], start=2):
            if number in free or page[0] not in columns:
                continue
            table, wanted = columns[page[0]]
            connection.execute("PRAGMA writable_schema = ON")
            connection.execute("UPDATE sqlite_master SET rootpage = ? WHERE name = ?", (number, table))
            connection.execute("PRAGMA writable_schema = RESET")  # it is read again
            for k in range(int.from_bytes(page[3:5])):
                with suppress(sqlite3.Error):  # then it is no row
                    yield from connection.execute(f"SELECT {wanted} FROM {table} LIMIT 1 OFFSET ?", (k,))


def _free_pages(pages: Sequence[bytearray]) -> set[int]:
    """The pages that the list of free ones names, as far as it can be followed: they have rows that were deleted."""
    free: set[int] = set()
    trunk = int.from_bytes(pages[0][32:36])
    while 0 < trunk <= len(pages) and trunk not in free:
        following, count, *leaves = struct.unpack(f">{len(pages[0]) // 4}I", pages[trunk - 1])
        free |= {trunk, *leaves[:count]}
        trunk = following
    return free


def _make_leaf(page: bytearray) -> None:
    """Take from an inner page of a tree its pointers to other pages, so that its own rows can be read."""
    cells: list[int] = []
    for (at,) in struct.iter_unpack(">H", page[12 : 12 + 2 * int.from_bytes(page[3:5])]):
        if 12 + 2 * len(cells) >= min(cells, default=len(page)):  # where the rows begin
            break
        cells.append(at)
    struct.pack_into(f">{len(cells)}H", page, 8, *(min(at + 4, 0xFFFF) for at in cells))
    page[0], page[3:5] = _INDEX_LEAF, len(cells).to_bytes(2)
