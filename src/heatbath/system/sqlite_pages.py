"""The rows of a damaged SQLite file, page by page: a torn page, or a wrong pointer to one, costs no others.

The trees are not followed. Every page that is a leaf is read by itself (of a table without rowids the inner pages too,
which have rows), as https://www.sqlite.org/fileformat.html describes them. Nothing vouches for what is found: whoever
reads it must be able to tell.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate, pairwise
from typing import NamedTuple

_TABLE_LEAF, _INDEX_LEAF, _INDEX_INNER = 0x0D, 0x0A, 0x02
_SIZES = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)  # bytes of the values of a kind
_LONGEST = 1 << 26  # bytes in a row


class Cell(NamedTuple):
    """A row: its number, which tables without rowids do not have (0), and its values."""

    rowid: int
    values: tuple[object, ...]


def scan(content: bytes) -> Iterator[Cell]:
    """Yield what looks like a row in all pages of a database that are in use."""
    pages = _Pages(content)
    for number in sorted(set(range(1, pages.count + 1)) - pages.free()):
        yield from pages.cells(number)


class _Pages:
    def __init__(self, content: bytes) -> None:
        self._content = content
        size = int.from_bytes(content[16:18])
        size = 65536 if size == 1 else size
        sound = size in {1 << power for power in range(9, 17)}
        self._size = size if sound else 4096
        self._usable = self._size - (content[20] if sound and content[20] < 32 else 0)
        self.count = -(-len(content) // self._size)

    def free(self) -> set[int]:
        """The pages that the list of free ones names, as far as it can be followed."""
        free: set[int] = set()
        trunk = int.from_bytes(self._content[32:36])
        while 0 < trunk <= self.count and trunk not in free:
            page = self._page(trunk)
            leaves = min(int.from_bytes(page[4:8]), self._usable // 4 - 2)
            free |= {trunk, *(int.from_bytes(page[at : at + 4]) for at in range(8, 8 + 4 * leaves, 4))}
            trunk = int.from_bytes(page[:4])
        return free

    def cells(self, number: int) -> Iterator[Cell]:
        page, start = self._page(number), 100 * (number == 1)
        kind = page[start] if len(page) > start else None
        if kind not in (_TABLE_LEAF, _INDEX_LEAF, _INDEX_INNER):
            return
        inner = 4 * (kind == _INDEX_INNER)  # bytes of a pointer to another page
        pointers = start + 8 + inner
        for k in range(min(int.from_bytes(page[start + 3 : start + 5]), self._usable // 4)):
            with suppress(IndexError, ValueError, struct.error, OverflowError):  # then it is no row
                at = int.from_bytes(page[pointers + 2 * k : pointers + 2 * k + 2])
                yield self._cell(page, at + inner, kind == _TABLE_LEAF)

    def _page(self, number: int) -> bytes:
        return self._content[(number - 1) * self._size : number * self._size]

    def _cell(self, page: bytes, at: int, in_table: bool) -> Cell:
        length, at = _varint(page, at)
        rowid, at = _varint(page, at) if in_table else (0, at)
        if length > _LONGEST:
            raise ValueError("it is too long")
        least = (self._usable - 12) * 32 // 255 - 23
        most = self._usable - 35 if in_table else (self._usable - 12) * 64 // 255 - 23
        spilled = least + (length - least) % (self._usable - 4)  # bytes on this page, if it goes on elsewhere
        local = length if length <= most else spilled if spilled <= most else least
        payload = page[at : at + local]
        following = int.from_bytes(page[at + local : at + local + 4])
        while len(payload) < length:
            if not 0 < following <= self.count:
                raise ValueError("its end is missing")
            page = self._page(following)
            following, payload = int.from_bytes(page[:4]), payload + page[4 : self._usable]
        return Cell(rowid, tuple(_values(payload[:length])))


def _values(payload: bytes) -> Iterator[object]:
    end, at = _varint(payload, 0)
    kinds = []
    while at < end:
        kind, at = _varint(payload, at)
        kinds.append(kind)
    starts = list(accumulate((_SIZES[kind] if kind < 10 else (kind - 12) // 2 for kind in kinds), initial=end))
    if at != end or starts[-1] > len(payload):
        raise ValueError("its header does not fit")
    for kind, (start, stop) in zip(kinds, pairwise(starts), strict=True):
        content = payload[start:stop]
        if kind == 0:
            yield None
        elif kind == 7:
            yield struct.unpack(">d", content)[0]
        elif kind < 10:
            yield kind - 8 if kind > 7 else int.from_bytes(content, signed=True)
        else:
            yield content.decode(errors="surrogateescape") if kind % 2 else content


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """A number of SQLite's own form, and where the next thing begins."""
    value = 0
    for k in range(8):
        value = value << 7 | content[at + k] & 0x7F
        if content[at + k] < 0x80:
            return value, at + k + 1
    return value << 8 | content[at + 8], at + 9
