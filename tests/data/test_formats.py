"""The formats: what is read, and what is refused."""

import gzip
import hashlib
import io
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heatbath.data import formats
from heatbath.data.formats import (
    CIFAR_RECORD,
    DataError,
    KnownFile,
    read_archive,
    read_cifar_batch,
    read_idx,
    read_pickled_cifar_batch,
)

PIXELS = np.random.default_rng(0).integers(0, 256, (3, 4, 5), np.uint8)
IDX = bytes([0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5]) + PIXELS.tobytes()
IMAGES = KnownFile("images-idx3-ubyte", (3, 4, 5), hashlib.sha256(IDX).hexdigest(), "https://example.org/images.gz")

RECORDS = np.random.default_rng(1).integers(0, 256, (6, CIFAR_RECORD), np.uint8)
RECORDS[:, 0] = [3, 1, 4, 1, 5, 9]
BATCH = KnownFile("batch", RECORDS.shape, hashlib.sha256(RECORDS).hexdigest(), "https://example.org/batch")


class Evil:
    """Runs a command of its choice when unpickled in the ordinary way."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


PACKED = gzip.compress(IDX, mtime=0)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx(tmp_path, suffix):
    path = tmp_path / f"images{suffix}"
    path.write_bytes(gzip.compress(IDX) if suffix else IDX)
    assert np.array_equal(read_idx(path, IMAGES), PIXELS)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.gz", PACKED[:-20], "cut off or not a gzip file"),
        ("a.gz", IDX, "cut off or not a gzip file"),
        ("a.gz", PACKED[:20] + b"\xff\xff" + PACKED[22:], "is damaged"),
        ("a", b"", "its content has SHA-256"),
        ("a", b"\0\0\x08\x01" + IDX[4:], "its content has SHA-256"),
        ("a", IDX[:-1], "its content has SHA-256"),
        ("a", IDX + b"\0", "its content has SHA-256"),
        ("a", IDX[:-1] + bytes([IDX[-1] ^ 1]), "its content has SHA-256"),
    ],
    ids=range(8),
)
def test_damaged_idx(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_idx(path, IMAGES)
    line = str(caught.value)
    assert line.startswith(f"{path} is damaged: ")
    assert f"expected 3 x 4 x 5 bytes of content with SHA-256 {IMAGES.sha256}" in line
    assert line.endswith(f"get it from {IMAGES.source}")
    assert "\n" not in line


def test_a_compressed_file_cannot_expand_without_bound(tmp_path, monkeypatch):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(IDX[:16] + bytes(100_000_000), compresslevel=1))
    read = []

    class Counted(gzip.GzipFile):
        def read(self, size=-1):
            read.append(size)
            return super().read(size)

    monkeypatch.setattr(formats.gzip, "open", Counted)
    with pytest.raises(DataError, match="its content has SHA-256"):
        read_idx(path, IMAGES)
    assert read == [len(IDX) + 1]


def test_unreadable(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*: Is a directory"):
        read_idx(tmp_path, IMAGES)


def test_binary_batch():
    images, labels = read_cifar_batch(RECORDS.tobytes(), BATCH, "here")
    assert np.array_equal(labels, RECORDS[:, 0])
    assert images.shape == (6, 3, 32, 32)
    assert images[2, 1, 5, 7] == RECORDS[2, 1 + 1024 + 5 * 32 + 7]
    for other in (RECORDS.tobytes()[:-1], bytes(RECORDS.size)):
        with pytest.raises(DataError, match="here is damaged: its content has SHA-256"):
            read_cifar_batch(other, BATCH, "here")


def test_batch_as_python_2_pickled_it():
    """The published files: protocol 2, byte strings everywhere, NumPy's names of the time."""
    raw = RECORDS[:, 1:].tobytes()
    labels = b"".join(b"K" + bytes([label]) for label in RECORDS[:, 0])
    content = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85"
        b"U\x01b\x87Rq\x05(K\x01K\x06M\x00\x0c\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNN"
        b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T" + len(raw).to_bytes(4, "little") + raw + b"tb"
        b"U\x06labelsq\x08]q\x09(" + labels + b"eu."
    )
    published = replace(BATCH, pickle_md5=hashlib.md5(content).hexdigest())
    images, labels = read_pickled_cifar_batch(content, published, "here")
    assert np.array_equal(images.reshape(6, -1), RECORDS[:, 1:])
    assert np.array_equal(labels, RECORDS[:, 0])
    with pytest.raises(DataError, match=r"^here is damaged: its MD5 is .*, that of the published file"):
        read_pickled_cifar_batch(content + b" ", published, "here")


def test_a_pickle_that_is_not_the_published_one_is_not_opened(tmp_path):
    trap = tmp_path / "run"
    content = pickle.dumps({b"data": Evil(trap), b"labels": []})
    with pytest.raises(DataError, match=r"^here is damaged: its MD5 is .*; delete it and get it from https://"):
        read_pickled_cifar_batch(content, BATCH, "here")
    assert not trap.exists()
    pickle.loads(content)
    assert trap.exists(), "the trap works"


def archive(path, *members):
    """Write a compressed archive of (name, content) or ready-made headers."""
    with tarfile.open(path, "w:gz") as file:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                file.addfile(member, io.BytesIO(bytes(member.size)))
            else:
                header = tarfile.TarInfo(member[0])
                header.size = len(member[1])
                file.addfile(header, io.BytesIO(member[1]))
    return path


def header(name, kind=tarfile.REGTYPE, target="", size=0):
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, target, size
    return made


def test_archive(tmp_path):
    path = archive(
        tmp_path / "a.tar.gz", header("d", tarfile.DIRTYPE), ("./d/one", b"1"), ("d/two", b"22"), ("d/x", b"")
    )
    assert read_archive(path, {"d/one": 9, "d/two": 2}, BATCH) == {"d/one": b"1", "d/two": b"22"}
    with pytest.raises(DataError, match="it lacks d/three"):
        read_archive(path, {"d/three": 9}, BATCH)
    with pytest.raises(DataError, match="its d/two claims 2 bytes"):
        read_archive(path, {"d/two": 1}, BATCH)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_what_is_no_file_in_an_archive_is_not_read(tmp_path, kind):
    path = archive(tmp_path / "a.tar.gz", ("d/two", b"22"), header("../one"), header("d/one", kind, "d/two"))
    with pytest.raises(DataError, match="it lacks d/one"):
        read_archive(path, {"d/one": 9}, BATCH)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("cut", [5, 60, -1000])
def test_truncated_archive(tmp_path, cut):
    path = archive(tmp_path / "a.tar.gz", ("d/one", np.random.default_rng(0).bytes(5000)))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(
        DataError, match=r"a.tar.gz is damaged: .*; delete it and get it from https://example.org/batch"
    ):
        read_archive(path, {"d/one": 5000}, BATCH)


def test_not_an_archive(tmp_path):
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(b"hello" * 1000))
    with pytest.raises(DataError, match="not a compressed tar archive"):
        read_archive(tmp_path / "a.tar.gz", {"d/one": 5000}, BATCH)
    with pytest.raises(DataError, match="cannot read"):
        read_archive(tmp_path / "absent.tar.gz", {"d/one": 5000}, BATCH)
