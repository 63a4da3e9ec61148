"""SQLite files that are ours: made whole, known by their first bytes, read without a trace."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from heatbath.system.disks import find_disk
from heatbath.system.locks import lock
from heatbath.system.whole_files import whole_file

_T = TypeVar("_T")
_WAIT = 20.0  # seconds at a time for another process that writes
_WAL = b"\2\2"  # in the header of a file
_LONGEST = 1 << 26  # bytes in a row: no row of ours comes near, and one of a stranger must not fill the memory


def create(database: Path, schema: str) -> None:
    """Make a database, unless it is there. Nobody ever sees half of one."""
    folder = database.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise FileNotFoundError(
            f"{error.filename} is a link to a folder that is not there: make that folder, or remove the link"
        ) from None
    with locked(folder):
        if not database.exists():
            for left in folder.glob(f".{database.name}-*.part"):  # by a process that was killed here
                if not left.is_symlink() and left.read_bytes()[:6] in (b"SQLite", b""):
                    left.unlink()
            with closing(sqlite3.connect(":memory:")) as memory:
                memory.executescript(schema)
                write_file(memory, database)


def write_file(memory: sqlite3.Connection, database: Path) -> None:
    """Write a database to a file, with the journal that suits its disk: a WAL, if it is a local one."""
    content = bytearray(memory.serialize())
    content[18:20] = b"\1\1" if find_disk(database).is_network else _WAL
    with whole_file(database) as file:
        file.write(content)


def leave_wal(database: Path) -> None:
    """Give a database that has come to a network disk a rollback journal: the index of a WAL is memory, not shared."""
    if not _has_wal(database) or not find_disk(database).is_network:
        return
    with locked(database.parent), closing(connect(database)) as connection:
        try:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # then the index is in the memory of this process
            connection.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            why = "is on a network disk and must get another journal, but another process has it open"
            raise OSError(f"{database} {why}: end that first") from None


def header_numbers(database: Path) -> tuple[int, int]:
    """Return the application and the schema's version from the first bytes of a file, zeros if it is no database."""
    if not database.is_file():  # a pipe would be waited for
        return 0, 0
    with open(database, "rb") as file:
        header = file.read(100)
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        return 0, 0
    return int.from_bytes(header[68:72]), int.from_bytes(header[60:64])


def connect(database: Path | str) -> sqlite3.Connection:
    """Open a database by its path, or by an URI; transactions are the caller's.

    Text that is not UTF-8, as a damaged row may hold, is read all the same: it then fails where its run can be named.
    """
    connection = sqlite3.connect(database, uri=isinstance(database, str), timeout=_WAIT, isolation_level=None)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
    connection.text_factory = lambda content: content.decode(errors="surrogateescape")
    return connection


def snapshot(connection: sqlite3.Connection, select: Callable[[sqlite3.Connection], _T]) -> _T:
    """All queries of ``select`` see one state of the database."""
    connection.execute("BEGIN")
    try:
        return select(connection)
    finally:
        connection.execute("COMMIT")


@contextmanager
def transaction(connection: sqlite3.Connection, patience: float = 900.0) -> Iterator[None]:
    """Write all that is done inside, or nothing.

    Another process that writes is waited for, for as many seconds: it may have been stopped, as by Ctrl-Z.
    """
    until = time.monotonic() + patience
    try:
        _insist(connection, "BEGIN IMMEDIATE", until)
        yield
        _insist(connection, "COMMIT", until)  # with a rollback journal it waits for those who read
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _insist(connection: sqlite3.Connection, statement: str, until: float) -> None:
    while True:
        try:
            connection.execute(statement)
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= until:
                raise


def read_only(database: Path, select: Callable[[sqlite3.Connection], _T]) -> _T:
    """Read without leaving a trace.

    While a process has the database open, or was killed, there are a WAL and its index, and SQLite shares them. A
    database with a rollback journal is read under a lock. Where SQLite cannot do that (a WAL without index, as in a
    copy of the folder or on a network disk; a journal to be rolled back; a folder that may not be written to), it is
    read in a copy. With neither, the file is all there is, and is read as it lies. Both hold if it has not changed.
    """
    wal, index, journal = (database.with_name(database.name + suffix) for suffix in ("-wal", "-shm", "-journal"))
    name = _quoted(database.absolute())
    while True:
        before = _look(database), wal.exists()
        try:
            if (index.exists() and not find_disk(database).is_network) if wal.exists() else not _has_wal(database):
                with suppress(sqlite3.OperationalError), closing(connect(f"file:{name}?mode=ro")) as connection:
                    return snapshot(connection, select)
            if wal.exists() or journal.exists():
                result = _read_copy(database, "-wal" if wal.exists() else "-journal", select)
            else:
                with closing(connect(f"file:{name}?immutable=1")) as connection:
                    result = snapshot(connection, select)
            if (_look(database), wal.exists()) == before:
                return result
        except FileNotFoundError:  # the WAL or journal has just gone: a process has closed the database, or mended it
            continue
        except sqlite3.DatabaseError:
            if (_look(database), wal.exists()) == before:
                raise


def _read_copy(database: Path, suffix: str, select: Callable[[sqlite3.Connection], _T]) -> _T:
    """Read a database with its WAL or journal elsewhere, where both may be written to."""
    with tempfile.TemporaryDirectory(prefix="heatbath-") as folder:
        copy = Path(folder) / database.name
        shutil.copyfile(f"{database}{suffix}", f"{copy}{suffix}")
        shutil.copyfile(database, copy)
        with closing(connect(f"file:{_quoted(copy)}?mode=rw")) as connection:
            return snapshot(connection, select)


def _has_wal(database: Path) -> bool:
    """Whether a database has a WAL, or had one when it was last closed: its header says so."""
    with open(database, "rb") as file:
        return file.read(20)[18:] == _WAL


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let no other process make or exchange a database in a folder meanwhile."""
    network = find_disk(folder).is_network  # where no folder is locked, only a file that may be written to
    handle = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR, 0o644) if network else os.open(folder, os.O_RDONLY)
    try:
        lock(handle, folder)
        yield
    finally:
        os.close(handle)


def _look(file: Path) -> tuple[int, int, int]:
    status = file.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _quoted(path: Path) -> str:
    """For an URI; by its bytes, as a name need not be UTF-8."""
    return quote(os.fsencode(path))
