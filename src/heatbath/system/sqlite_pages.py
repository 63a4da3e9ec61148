"""The rows of a damaged SQLite file, page by page: a torn page, or a wrong pointer to one, costs no others.

The trees are not followed. SQLite reads each page as if it were a whole table, whose root the schema is made to name
(https://www.sqlite.org/fileformat.html). Nothing vouches for what is found: whoever reads it must be able to tell.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress

from heatbath.system.sqlite_files import connect

_TABLE_LEAF, _INDEX_LEAF, _INDEX_INNER = 0x0D, 0x0A, 0x02


def scan(content: bytes, schema: Mapping[str, str]) -> Iterator[tuple[object, ...]]:
    """Yield what looks like a row in all pages of a database that are in use.

    Args:
        content: of the file.
        schema: the statements that make a table with row numbers, and one without, by name. A row of the first kind has
            its number before its values.
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
    with closing(connect(":memory:")) as connection:
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
