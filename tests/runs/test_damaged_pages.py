"""Rows are found page by page, whatever has become of the rest of the file."""

import random
import sqlite3
from contextlib import closing

import pytest

from heatbath.runs.repair import scan

SCHEMA = {
    "a": "CREATE TABLE a (k INTEGER, number, real REAL, text TEXT, blob BLOB)",
    "b": "CREATE TABLE b (k, blob, PRIMARY KEY (k)) WITHOUT ROWID",
}
NUMBERS = [None, 0, 1, -3, 300, 70_000, 2**40, -(2**62)]


@pytest.fixture(params=[512, 4096, 32768])
def database(request, tmp_path):
    """Tables with and without rowids, values of every kind, and rows that go on in other pages."""
    rng = random.Random(3)
    rows = [
        (k, rng.choice(NUMBERS), rng.random(), "ü" * rng.randrange(40), rng.randbytes(n))
        for k, n in enumerate([3, 50, 900, 5_000, 200_000] * 40)
    ]
    with closing(sqlite3.connect(tmp_path / "a.sqlite")) as connection, connection:
        connection.execute(f"PRAGMA page_size = {request.param}")
        for statement in SCHEMA.values():
            connection.execute(statement)
        connection.executemany("INSERT INTO a VALUES (?, ?, ?, ?, ?)", rows)
        connection.executemany("INSERT INTO b VALUES (?, ?)", [(f"run {k}", blob[:600]) for k, *_, blob in rows])
        connection.execute("DELETE FROM a WHERE k % 7 = 0")
    left = [row for row in rows if row[0] % 7]
    return tmp_path / "a.sqlite", left, {(f"run {k}", blob[:600]) for k, *_, blob in rows}, request.param


def test_all_rows_are_found(database):
    file, rows, keyed, _ = database
    found = list(scan(file.read_bytes(), SCHEMA))
    assert {row[0]: row[1:] for row in found if len(row) == 6} == {row[0] + 1: row for row in rows}
    assert {row for row in found if len(row) == 2} == keyed


def test_a_torn_page_costs_what_it_has(database):
    file, rows, _, size = database
    content = bytearray(file.read_bytes())
    rng = random.Random(4)
    pages = len(content) // size
    for page in rng.sample(range(1, pages), max(1, pages // 20)):
        content[page * size : (page + 1) * size] = rng.randbytes(size)
    found = {row[1:] for row in scan(bytes(content), SCHEMA)}
    assert len(found & set(rows)) > len(rows) // 2 or size == 32768


def test_a_wrong_number_of_rows_in_a_page_costs_none(database):
    file, rows, keyed, size = database
    content = bytearray(file.read_bytes())
    for at in range(size, len(content), size):
        if content[at] in (0x0D, 0x0A, 0x02):
            content[at + 3] |= 0x80
    found = set(scan(bytes(content), SCHEMA))
    assert found >= keyed
    assert {row[1:] for row in found} >= set(rows)


@pytest.mark.parametrize("seed", range(20))
def test_garbage_is_read_without_an_error(database, seed):
    file, *_ = database
    content, rng = bytearray(file.read_bytes()), random.Random(seed)
    for _ in range(2_000):
        content[rng.randrange(len(content))] = rng.randrange(256)
    for cut in (len(content), len(content) // 3, 100, 1, 0):
        assert all(len(row) in (2, 6) for row in scan(bytes(content[:cut]), SCHEMA))
