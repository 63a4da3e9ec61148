"""The formats that image data sets come in: read defensively, verified byte for byte.

Whatever a file's format, it is brought to one canonical content, the bytes of the original uncompressed file, and that
content is checked against a known SHA-256. So a data set is the same numbers wherever it was found. Nothing in a file
is trusted before: no more is read than the original has, archives are never unpacked to disk, and a pickle is opened
only where it is the published file, byte for byte.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import pickle
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

CIFAR_RECORD = 1 + 3 * 32 * 32


class DataError(ValueError):
    """A data file is missing, damaged or not what it claims: one line that names it and says what to do."""


@dataclass(frozen=True)
class KnownFile:
    """One file of a data set, by its uncompressed original; where there is a pickled form, that has an MD5.

    ``shape`` is of the unsigned bytes in it, without headers; ``source`` is told in errors.
    """

    name: str
    shape: tuple[int, ...]
    sha256: str
    source: str
    pickle_md5: str | None = None

    def damaged(self, where: object, cause: str) -> DataError:
        """The error to raise for a file that is not this one."""
        expected = f"{' x '.join(map(str, self.shape))} bytes of content with SHA-256 {self.sha256}"
        return DataError(f"{where} is damaged: {cause}; expected {expected}; delete it and get it from {self.source}")

    def check(self, content: Any, where: object) -> None:
        """Raise `DataError` unless ``content``, bytes or an array of them, is this file's."""
        found = hashlib.sha256(content).hexdigest()
        if found != self.sha256:
            raise self.damaged(where, f"its content has SHA-256 {found}")


def read_idx(path: Path, known: KnownFile) -> Bytes:
    """Return the array in an IDX file (MNIST's format), compressed (``.gz``) or not.

    Before the numbers, it has four bytes, of which the last is the number of dimensions, and each dimension as 32 bits.
    """
    offset = 4 + 4 * len(known.shape)
    content = read_content(path, offset + math.prod(known.shape), known)
    known.check(content, path)
    return np.frombuffer(content, np.uint8, offset=offset).reshape(known.shape)


def read_cifar_batch(content: bytes, known: KnownFile, where: object) -> tuple[Bytes, Bytes]:
    """Return the images (N x 3 x 32 x 32) and labels of one CIFAR-10 batch in the binary version.

    A record is one label byte, then the red, green and blue planes, row by row.
    """
    known.check(content, where)
    return _split_records(np.frombuffer(content, np.uint8).reshape(known.shape))


def read_pickled_cifar_batch(content: bytes, known: KnownFile, where: object) -> tuple[Bytes, Bytes]:
    """Return the images and labels of one CIFAR-10 batch in the Python version, a pickled dictionary.

    Unpickling runs what a file names. So the file's digest is checked first, and only the published one is opened.
    """
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != known.pickle_md5:
        raise known.damaged(where, f"its MD5 is {found}, that of the published file {known.pickle_md5}")
    batch = pickle.loads(content, encoding="bytes")
    return _split_records(np.column_stack([np.array(batch[b"labels"], np.uint8), batch[b"data"]]))


def _split_records(records: Bytes) -> tuple[Bytes, Bytes]:
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def read_content(path: Path, size: int, known: KnownFile) -> bytes:
    """Return the content of a file, decompressed if it ends in ``.gz``, and no more than ``size + 1`` bytes of it."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content: bytes = file.read(size + 1)
            return content
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise known.damaged(path, "it is cut off or not a gzip file") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None


def read_archive(path: Path, wanted: Mapping[str, int], known: KnownFile) -> dict[str, bytes]:
    """Return the contents of some members of a ``.tar.gz``, by the largest size allowed, to be verified.

    Nothing is written to disk, and no link is followed.
    """
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if member.size > wanted.get(name, member.size):
                    raise known.damaged(path, f"its {name} claims {member.size:,} bytes")
                if name in wanted and member.isreg() and (content := archive.extractfile(member)):
                    found[name] = content.read()
    except (EOFError, zlib.error, tarfile.TarError):
        raise known.damaged(path, "it is cut off or not a compressed tar archive") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    if lacking := [name for name in wanted if name not in found]:
        raise known.damaged(path, f"it lacks {lacking[0]}")
    return {name: found[name] for name in wanted}
