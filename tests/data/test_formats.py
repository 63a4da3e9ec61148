"""The formats: what is read, and what is refused."""

import gzip
import hashlib
import io
import pickle
import pickletools
import tarfile
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
from heatbath.data.restricted_pickle import PickleError, unpickle_arrays

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
        ("a", b"", "it starts with nothing where its header is 00000803 00000003"),
        ("a", b"\0\0\x08\x01" + IDX[4:], "it starts with 00000801 "),
        ("a", IDX[:-1], "shorter than its header says"),
        ("a", IDX + b"\0", "longer than its header says"),
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


def test_a_compressed_file_cannot_expand_without_bound(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(IDX[:16] + bytes(100_000_000), compresslevel=1))
    with pytest.raises(DataError, match="longer than its header says"):
        read_idx(path, IMAGES)


def test_unreadable(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*: Is a directory"):
        read_idx(tmp_path, IMAGES)


def test_binary_batch():
    images, labels = read_cifar_batch(RECORDS.tobytes(), BATCH, "here")
    assert np.array_equal(labels, RECORDS[:, 0])
    assert images.shape == (6, 3, 32, 32)
    assert images[2, 1, 5, 7] == RECORDS[2, 1 + 1024 + 5 * 32 + 7]
    with pytest.raises(DataError, match="here is damaged: it holds 18,437 bytes"):
        read_cifar_batch(RECORDS.tobytes()[:-1], BATCH, "here")
    with pytest.raises(DataError, match="SHA-256"):
        read_cifar_batch(bytes(RECORDS.size), BATCH, "here")


def batches():
    """The same batch as different programs pickle it."""
    pixels, labels = RECORDS[:, 1:], RECORDS[:, 0].tolist()
    for protocol in range(6):
        yield pickle.dumps({b"data": pixels, b"labels": labels, b"batch_label": b"x"}, protocol)
        yield pickle.dumps({"labels": RECORDS[:, 0], "data": np.asfortranarray(pixels)}, protocol)
        yield pickle.dumps({"labels": list(RECORDS[:, 0].astype(np.int64)), "data": pixels.copy()}, protocol)
        yield pickle.dumps({"labels": RECORDS[:, 0].astype(">i4"), "data": pixels.copy()}, protocol)


@pytest.mark.parametrize("content", list(batches()))
def test_pickled_batch(content):
    images, labels = read_pickled_cifar_batch(content, BATCH, "here")
    assert np.array_equal(labels, RECORDS[:, 0])
    assert np.array_equal(images.reshape(6, -1), RECORDS[:, 1:])


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
    assert np.array_equal(pickle.loads(content, encoding="bytes")[b"data"], RECORDS[:, 1:])
    images, _ = read_pickled_cifar_batch(content, BATCH, "here")
    assert np.array_equal(images.reshape(6, -1), RECORDS[:, 1:])
    other = KnownFile("batch", BATCH.shape, "0" * 64, "", hashlib.md5(content).hexdigest())
    read_pickled_cifar_batch(content, other, "here")  # known as a file


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"data": RECORDS[:, 1:], "labels": [0] * 6}, "SHA-256"),
        ({"data": RECORDS[:, 1:], "labels": [300] * 6}, "does not hold the pixels and labels"),
        ({"data": RECORDS[:, 1:], "labels": ["a"] * 6}, "does not hold the pixels and labels"),
        ({"data": RECORDS[:, 2:], "labels": [0] * 6}, "does not hold the pixels and labels"),
        ({"data": RECORDS[:, 1:].astype(np.int32), "labels": [0] * 6}, "does not hold the pixels and labels"),
        ({"labels": [0] * 6}, "does not hold the pixels and labels"),
        ({"data": RECORDS[:, 1:].astype(float), "labels": [0] * 6}, "not a pickled dictionary"),
        ({"data": np.array([None]), "labels": [0] * 6}, "not a pickled dictionary"),
        ([1, 2], "not a pickled dictionary"),
    ],
)
def test_wrong_pickled_batch(batch, message):
    with pytest.raises(DataError, match=message):
        read_pickled_cifar_batch(pickle.dumps(batch), BATCH, "here")


@pytest.mark.parametrize("protocol", range(6))
def test_malicious_pickle_is_refused(tmp_path, protocol):
    trap = tmp_path / "run"
    content = pickle.dumps({b"data": Evil(trap), b"labels": []}, protocol)
    with pytest.raises(DataError, match=r"^here is damaged: its pickle names .*, so it is refused"):
        read_pickled_cifar_batch(content, BATCH, "here")
    assert not trap.exists()
    pickle.loads(content)
    assert trap.exists(), "the trap works"


@pytest.mark.parametrize(
    "content",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"(S'true'\nios\nsystem\n.",
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.",
        b"\x80\x04\x8c\x0bnumpy._core\x8c\x17multiarray._reconstruct\x93.",
        b"\x80\x02cnumpy\nload\nU\x01x\x85R.",
    ],
)
def test_no_other_name_is_found(content):
    pickletools.dis(content, io.StringIO())  # well formed
    with pytest.raises(PickleError, match="so it is refused"):
        unpickle_arrays(content)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80",
        b"not a pickle",
        b"\x80\x02}r\xff\xff\xff\xff.",  # a memo index that would make C allocate 64 GB; harmless here
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"\x80\x02Pid\n.",
        b"\x80\x02\x82\x01.",
        pickle.dumps({"data": RECORDS})[:-9],
    ],
)
def test_broken_pickles_are_one_error(content):
    if content == b"\x80\x02}r\xff\xff\xff\xff.":
        assert unpickle_arrays(content) == {}
        return
    with pytest.raises(PickleError, match="not a pickled dictionary of arrays"):
        unpickle_arrays(content)


@pytest.mark.parametrize("kind", [list, tuple])
def test_nested_lists_are_refused_before_they_grow(kind):
    """Of twice the same list each: 30 levels, in some 200 bytes, would be a billion numbers."""
    labels = kind([1, 2])
    for _ in range(10):
        labels = kind([labels, labels])
    with pytest.raises(PickleError, match="not a pickled dictionary of arrays"):
        unpickle_arrays(pickle.dumps({"labels": labels}))


def test_pickles_are_bounded(monkeypatch):
    monkeypatch.setattr(formats, "_LARGEST_PICKLE", 100)
    with pytest.raises(DataError, match="bytes or more"):
        read_pickled_cifar_batch(bytes(101), BATCH, "here")


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


@pytest.mark.parametrize(
    "member",
    [
        header("../one"),
        header("d/../../one"),
        header("/one"),
        header("d/one", tarfile.SYMTYPE, "/etc/passwd"),
        header("d/one", tarfile.LNKTYPE, "/etc/passwd"),
        header("d/one", tarfile.CHRTYPE),
        header("d/one", tarfile.FIFOTYPE),
        header("d/one", tarfile.GNUTYPE_SPARSE),
    ],
)
def test_hostile_archive_is_refused(tmp_path, member):
    path = archive(tmp_path / "a.tar.gz", member, ("d/one", b"1"))
    with pytest.raises(DataError, match="is not a plain file inside it, so none of it is used"):
        read_archive(path, {"d/one": 9}, BATCH)
    assert list(tmp_path.iterdir()) == [path]


def test_archive_cannot_expand_without_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "_LARGEST_ARCHIVE", 1_000_000)
    path = archive(tmp_path / "a.tar.gz", header("filler", size=2_000_000), ("d/one", b"1"))
    with pytest.raises(DataError, match="too large"):
        read_archive(path, {"d/one": 9}, BATCH)


@pytest.mark.parametrize("cut", [5, 60, -12])
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
