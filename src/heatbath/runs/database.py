"""The database of a store: opened when it is needed, made or brought up to date, and refused where it is not ours."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from heatbath.runs import old_rows, rows
from heatbath.runs.checkpoints import is_checkpoint_name
from heatbath.system import sqlite_files
from heatbath.system.disks import check_locks
from heatbath.system.locks import is_alive, is_lock_name

_T = TypeVar("_T")
_CACHE = 64 * 1024  # kB at most, of the pages that runs lie in: names are hashes, so that each lies in another one
_ADVICE = "'heatbath runs repair' saves what can be saved; or put back a copy, or choose another folder"


class Database:
    """SQLite in WAL mode, so that readers never wait for a training, nor a training for them.

    On a network disk, where there is no WAL, it has a rollback journal, and they wait for each other. The folder is
    made by the first transaction. To be read only, it may be one that cannot be written to.
    """

    FILE = "heatbath.sqlite"

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self._named = Path(path)  # in messages, as the caller knows it
        self.path = self._named.absolute()  # the working folder may change while a store is open
        self.checkpoints, self.owners = self.path / "checkpoints", self.path / "owners"
        self._file, self._read_only = self.path / self.FILE, read_only
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(f"{self._named} is a file; a store is a folder")
        if self._file.exists():
            application, version = sqlite_files.header_numbers(self._file)
            if application != rows.APPLICATION:
                raise OSError(f"{self._named / self.FILE} is not a store of heatbath; choose another folder")
            self._check_version(version)
        elif read_only:
            raise FileNotFoundError(f"there is no store in {self._named}")

    def close(self) -> None:
        """Close it; it cannot be used any more."""
        if self._connection is not None:
            self._connection.close()

    def is_alive(self, owner: str) -> bool:
        """Return whether the process that claimed runs by this name still works on them."""
        return is_alive(self.owners, owner)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write all that is done inside, or nothing."""
        if self._read_only:
            raise ValueError(f"the store in {self._named} was opened to be read only")
        with self._plain_errors():
            connection = self._connection or self._open()
            with sqlite_files.transaction(connection):
                if _identity(self._file) != self._identity:  # what is written would be lost
                    lost = "was removed or replaced while it was in use; what was trained since is in the checkpoints"
                    raise OSError(f"{self._named / self.FILE} {lost}: put it back, or train again")
                self._check_schema(connection)
                yield connection

    def read(self, select: Callable[[sqlite3.Connection, int], _T]) -> _T:
        """Return what ``select`` finds in one state of the database, given the version of its schema.

        Where there is no database yet, that is an empty one.
        """

        def checked(connection: sqlite3.Connection) -> _T:
            return select(connection, self._check_schema(connection))

        with self._plain_errors():
            if self._connection is not None:
                return sqlite_files.snapshot(self._connection, checked)
            if self._file.exists():
                return sqlite_files.read_only(self._file, checked)
            with closing(sqlite3.connect(":memory:")) as empty:
                empty.executescript(rows.SCHEMA)
                return checked(empty)

    def _open(self) -> sqlite3.Connection:
        """Open it to be written to, after making it, or turning one of heatbath 0.1.0 into one of today."""
        self._check_folders()
        check_locks(self.path, self._named)
        sqlite_files.create(self._file, rows.SCHEMA)
        sqlite_files.leave_wal(self._file)
        self._identity = _identity(self._file)
        connection = sqlite_files.connect(self._file)
        try:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA cache_size = {-_CACHE}")
            if _version(connection) == old_rows.VERSION:
                with sqlite_files.transaction(connection):
                    if self._check_schema(connection) == old_rows.VERSION:  # else another process was faster
                        old_rows.migrate(connection, self.is_alive)
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the version is in the file's first bytes
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _check_folders(self) -> None:
        """Refuse to make a store where files of somebody else have the places of ours."""
        for folder, is_ours in ((self.checkpoints, is_checkpoint_name), (self.owners, is_lock_name)):
            shown = self._named / folder.name
            if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
                raise OSError(f"{shown} is a link or a file, where a store has a folder: choose another folder")
            inside = [] if self._file.exists() or not folder.exists() else sorted(os.listdir(folder))
            if foreign := [file for file in inside if not is_ours(file)]:
                raise OSError(f"{shown / foreign[0]} is not heatbath's: choose another folder for the store")

    def _check_schema(self, connection: sqlite3.Connection) -> int:
        """Refuse tables that are not ours: of a later version nothing is guessed, and a view may have no end."""
        version = _version(connection)
        self._check_version(version)
        tables = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall())
        if not (old_rows.is_schema(tables) if version == old_rows.VERSION else tables == rows.TABLES):
            raise OSError(f"{self._named / self.FILE} does not have the tables of a store: {_ADVICE}")
        return version

    def _check_version(self, version: int) -> None:
        if version > rows.VERSION:
            told = f"schema {version}, not {rows.VERSION}"
            raise OSError(f"{self._named / self.FILE} was made by a later heatbath ({told}): update heatbath")

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        """Turn what SQLite says into one line."""
        try:
            yield
        except rows.DamagedRowError as error:
            raise OSError(f"{error} in {self._named / self.FILE}: 'heatbath runs resume' trains it again") from None
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the second from what a damaged file calls its columns
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            full = code == sqlite3.SQLITE_IOERR and shutil.disk_usage(self.path).free < 1 << 20
            if code == sqlite3.SQLITE_FULL or full:
                raise OSError(no_space(self._named)) from None
            broken = code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or not isinstance(error, sqlite3.Error)
            advice = f"; it is damaged: {_ADVICE}" if broken else ""
            raise OSError(f"the store in {self._named} cannot be used: {error}{advice}") from None


def no_space(path: Path) -> str:
    """The line for a full disk."""
    return f"no space left in {path}; what was finished is safe; free space and run again"


def _version(connection: sqlite3.Connection) -> int:
    """The version of the schema; the first bytes of the file may not have it yet."""
    found: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return found


def _identity(file: Path) -> tuple[int, int] | None:
    """Which file it is, whatever its name; None if it is gone."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
