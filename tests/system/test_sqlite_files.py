import os
import sqlite3
import threading
from contextlib import closing

import pytest

from heatbath.system import sqlite_files

SCHEMA = "CREATE TABLE a (x)"


@pytest.fixture
def database(tmp_path):
    sqlite_files.create(tmp_path / "a.sqlite", SCHEMA)
    return tmp_path / "a.sqlite"


def test_what_a_killed_process_left_of_a_new_database_goes(tmp_path):
    contents = {".a.sqlite-12345678.part": b"SQLite format 3", ".a.sqlite-12345679.part": b"", "a.sqlite.part": b""}
    contents |= {".a.sqlite-letter.part": b"Dear SQLite"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / ".a.sqlite-link.part").symlink_to(tmp_path / ".a.sqlite-12345678.part")
    sqlite_files.create(tmp_path / "a.sqlite", SCHEMA)
    left = {"a.sqlite.part", ".a.sqlite-letter.part", ".a.sqlite-link.part", "a.sqlite"}
    assert set(os.listdir(tmp_path)) == left


def test_a_process_that_writes_is_waited_for(database):
    """It may have been stopped in the middle of a transaction, and go on."""
    with closing(sqlite_files.connect(database)) as ours, closing(sqlite_files.connect(database)) as theirs:
        ours.execute("PRAGMA busy_timeout = 5")
        theirs.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"), sqlite_files.transaction(ours, patience=0.05):
            pytest.fail("it is locked")
        going_on = threading.Timer(0.3, lambda: other_thread(database))
        theirs.execute("COMMIT")
        going_on.start()
        with sqlite_files.transaction(ours, patience=60.0):
            ours.execute("INSERT INTO a VALUES (1)")
        going_on.join()
        assert ours.execute("SELECT COUNT(*) FROM a").fetchone() == (2,)


def other_thread(database):
    with closing(sqlite_files.connect(database)) as connection, sqlite_files.transaction(connection):
        connection.execute("INSERT INTO a VALUES (2)")


def test_a_row_of_a_stranger_does_not_fill_the_memory(database):
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("INSERT INTO a VALUES (zeroblob(100000000))")
    with closing(sqlite_files.connect(database)) as connection, pytest.raises(sqlite3.DataError, match="too big"):
        connection.execute("SELECT x FROM a").fetchall()
