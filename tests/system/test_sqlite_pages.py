"""Rows are found page by page, whatever has become of the rest of the file."""

import random
import sqlite3
from contextlib import closing

import pytest

from heatbath.system.sqlite_pages import scan

NUMBERS = [None, 0, 1, -3, 300, 70_000, 2**40, -(2**62)]


@pytest.fixture(params=[512, 4096, 65536])
def database(request, tmp_path):
    """Tables with and without rowids, values of every kind, and rows that go on in other pages."""
    rng = random.Random(3)
    rows = [
        (k, rng.choice(NUMBERS), rng.random(), "ü" * rng.randrange(40), rng.randbytes(n))
        for k, n in enumerate([3, 50, 900, 5_000, 200_000] * 40)
    ]
    with closing(sqlite3.connect(tmp_path / "a.sqlite")) as connection, connection:
        connection.execute(f"PRAGMA page_size = {request.param}")
        connection.execute("CREATE TABLE a (k INTEGER, number, real REAL, text TEXT, blob BLOB)")
        connection.execute("CREATE TABLE b (k, blob, PRIMARY KEY (k)) WITHOUT ROWID")
        connection.executemany("INSERT INTO a VALUES (?, ?, ?, ?, ?)", rows)
        connection.executemany("INSERT INTO b VALUES (?, ?)", [(f"run {k}", blob[:600]) for k, *_, blob in rows])
        connection.execute("DELETE FROM a WHERE k % 7 = 0")
    left = [row for row in rows if row[0] % 7]
    return tmp_path / "a.sqlite", left, {(f"run {k}", blob[:600]) for k, *_, blob in rows}, request.param


def test_all_rows_are_found(database):
    file, rows, keyed, _ = database
    found = list(scan(file.read_bytes()))
    numbered = {cell.rowid: cell.values for cell in found if isinstance(cell.values[0], int)}
    assert numbered == {row[0] + 1: row for row in rows}
    assert {cell.values for cell in found if len(cell.values) == 2} == keyed


def test_a_torn_page_costs_what_it_has(database):
    file, rows, _, size = database
    content = bytearray(file.read_bytes())
    rng = random.Random(4)
    pages = len(content) // size
    for page in rng.sample(range(1, pages), max(1, pages // 20)):
        content[page * size : (page + 1) * size] = rng.randbytes(size)
    found = {cell.values for cell in scan(bytes(content))}
    assert len(found & set(rows)) > len(rows) // 2 or size == 65536


@pytest.mark.parametrize("seed", range(20))
def test_garbage_is_read_without_an_error(database, seed):
    file, *_ = database
    content, rng = bytearray(file.read_bytes()), random.Random(seed)
    for _ in range(2_000):
        content[rng.randrange(len(content))] = rng.randrange(256)
    for cut in (len(content), len(content) // 3, 100, 1, 0):
        assert all(isinstance(cell.values, tuple) for cell in scan(bytes(content[:cut])))
