"""The files of the data sets: the same numbers from every place and form, one line for what is wrong."""

import gzip
import hashlib
import io
import pickle
import tarfile

import numpy as np
import pytest
import torch

from heatbath.data import catalogue
from heatbath.data.datasets import find_datasets, load_dataset
from heatbath.data.downloads import RemoteFile
from heatbath.data.formats import CIFAR_RECORD, DataError, KnownFile

MNIST_CONTENT = {
    name: bytes([0, 0, 8, len(shape)])
    + b"".join(size.to_bytes(4, "big") for size in shape)
    + np.random.default_rng(index).integers(0, 10, shape, np.uint8).tobytes()
    for index, (name, shape) in enumerate(
        {
            "train-images-idx3-ubyte": (20, 28, 28),
            "train-labels-idx1-ubyte": (20,),
            "t10k-images-idx3-ubyte": (7, 28, 28),
            "t10k-labels-idx1-ubyte": (7,),
        }.items()
    )
}
CIFAR10_CONTENT = {
    name: np.random.default_rng(index).integers(0, 10, (4, CIFAR_RECORD), np.uint8)
    for index, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"])
}


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.delenv("HEATBATH_DATA", raising=False)


@pytest.fixture
def tiny(monkeypatch):
    """Data sets of a few images in place of the real ones."""
    for attribute, contents in (("MNIST", MNIST_CONTENT), ("CIFAR10", CIFAR10_CONTENT)):
        known = []
        for original in getattr(catalogue, attribute):
            content = contents[original.name]
            md5 = None
            if attribute == "MNIST":
                dimensions = np.frombuffer(content, ">u4", content[3], offset=4)
                shape = tuple(int(size) for size in dimensions)
            else:
                shape, md5 = content.shape, hashlib.md5(pickled(content)).hexdigest()
            known.append(KnownFile(original.name, shape, hashlib.sha256(content).hexdigest(), original.source, md5))
        monkeypatch.setattr(catalogue, attribute, tuple(known))


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def pickled(records):
    return pickle.dumps({b"data": records[:, 1:], b"labels": records[:, 0].tolist()}, 2)


def write_archive(path, members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))


def lay_out(root, form):
    """Put a data set where ``form`` says, as people keep it."""
    if form.startswith("mnist"):
        folder, suffix = {
            "mnist originals": ("mnist", ".gz"),
            "mnist torchvision": ("MNIST/raw", ""),
            "mnist torchvision compressed": ("MNIST/raw", ".gz"),
            "mnist flat": ("", ""),
        }[form]
        for name, content in MNIST_CONTENT.items():
            write(root / folder / f"{name}{suffix}", gzip.compress(content) if suffix else content)
        return
    binary = {f"cifar-10-batches-bin/{name}.bin": records.tobytes() for name, records in CIFAR10_CONTENT.items()}
    python = {f"cifar-10-batches-py/{name}": pickled(records) for name, records in CIFAR10_CONTENT.items()}
    if form.endswith("archive"):
        kind, members = ("binary", binary) if "binary" in form else ("python", python)
        write_archive(root / f"cifar-10-{kind}.tar.gz", members)
        return
    for name, content in (binary if "binary" in form else python).items():
        write(root / name, content)


FORMS = {
    "mnist": ["mnist originals", "mnist torchvision", "mnist torchvision compressed", "mnist flat"],
    "cifar10": ["cifar10 binary", "cifar10 python", "cifar10 binary archive", "cifar10 python archive"],
}


@pytest.mark.parametrize(("name", "form"), [(name, form) for name in FORMS for form in FORMS[name]])
@pytest.mark.parametrize("place", ["argument", "environment", "cache"])
def test_every_form_in_every_place(tiny, tmp_path, monkeypatch, name, form, place):
    root = {"argument": tmp_path / "a", "environment": tmp_path / "b", "cache": tmp_path / "cache" / "heatbath"}[place]
    monkeypatch.setenv("HEATBATH_DATA", str(tmp_path / "b"))
    lay_out(root, form)
    data = load_dataset(name, data_dir=tmp_path / "a", download=False)
    if name == "mnist":
        images = np.frombuffer(MNIST_CONTENT["train-images-idx3-ubyte"], np.uint8, offset=16).reshape(20, 1, 28, 28)
        labels = np.frombuffer(MNIST_CONTENT["t10k-labels-idx1-ubyte"], np.uint8, offset=8)
    else:
        records = np.concatenate([CIFAR10_CONTENT[f"data_batch_{k}"] for k in range(1, 6)])
        images, labels = records[:, 1:].reshape(20, 3, 32, 32), CIFAR10_CONTENT["test_batch"][:, 0]
    assert np.array_equal(data.train_images, images)
    assert np.array_equal(data.test_labels, labels)
    assert (data.train_images.dtype, data.train_labels.dtype) == (torch.uint8, torch.int64)
    assert len(data.train_labels) == 20
    assert len(data.test_images) == len(labels)
    status = {found.name: found for found in find_datasets(tmp_path / "a")}[name]
    assert status.state == "verified"
    assert status.location.is_relative_to(root)


@pytest.mark.parametrize(
    ("form", "file", "message"),
    [
        ("mnist originals", "mnist/t10k-labels-idx1-ubyte.gz", "cut off or not a gzip file"),
        ("mnist torchvision", "MNIST/raw/train-images-idx3-ubyte", "its content has SHA-256"),
        ("cifar10 binary", "cifar-10-batches-bin/data_batch_3.bin", "its content has SHA-256"),
        ("cifar10 python", "cifar-10-batches-py/test_batch", "its MD5 is"),
        ("cifar10 binary archive", "cifar-10-binary.tar.gz", "cut off"),
        ("cifar10 python archive", "cifar-10-python.tar.gz", "cut off"),
    ],
)
def test_damaged(tiny, tmp_path, form, file, message):
    """Told, and not replaced or passed over."""
    lay_out(tmp_path, form)
    whole = (tmp_path / file).read_bytes()
    # An archive is read up to its last member, each of which is verified: what follows does not matter.
    (tmp_path / file).write_bytes(whole[: len(whole) // 2] if "archive" in form else whole[:-9])
    name = form.split()[0]
    with pytest.raises(DataError, match=message) as caught:
        load_dataset(name, data_dir=tmp_path)
    line = str(caught.value)
    assert line.startswith(f"{tmp_path / file} is damaged: ")
    assert "; delete it and get it from https://" in line
    assert "\n" not in line
    status = {found.name: found for found in find_datasets(tmp_path)}[name]
    assert (status.state, status.advice) == ("damaged", line)


@pytest.mark.parametrize(
    ("form", "file"),
    [
        ("mnist originals", "mnist/train-labels-idx1-ubyte.gz"),
        ("cifar10 binary", "cifar-10-batches-bin/data_batch_2.bin"),
        ("cifar10 python", "cifar-10-batches-py/test_batch"),
    ],
)
def test_one_file_missing(tiny, tmp_path, form, file):
    lay_out(tmp_path, form)
    (tmp_path / file).unlink()
    with pytest.raises(DataError) as caught:
        load_dataset(form.split()[0], data_dir=tmp_path, download=False)
    path = tmp_path / file
    assert str(caught.value).startswith(f"{path.parent} lacks {path.name}, and no other copy")


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_all_missing(tmp_path, name):
    with pytest.raises(DataError) as caught:
        load_dataset(name, data_dir=tmp_path / "none", download=False)
    line = str(caught.value)
    assert line.startswith(f"{name} is not found in {tmp_path / 'none'} (no such folder), ")
    assert "; get it" in line
    assert " from https://" in line
    assert line.endswith(f" in {tmp_path / 'none'}")
    status = {found.name: found for found in find_datasets(tmp_path / "none")}
    assert (status[name].state, status[name].location, status[name].advice) == ("missing", None, line)
    assert status["vgg16"].state == "missing"


def served(monkeypatch, tmp_path):
    """Let downloads read from a folder, as if from the network."""

    def fetch(remote, folder, *, progress=None):
        source = tmp_path / "server" / remote.name
        if not source.exists():
            raise DataError("offline")
        write(folder / remote.name, source.read_bytes())
        if progress is not None:
            progress(remote.name, remote.size, remote.size)
        return folder / remote.name

    monkeypatch.setattr(catalogue, "download", fetch)


@pytest.mark.parametrize("given", [True, False])
def test_download(tiny, tmp_path, monkeypatch, given):
    """To the folder that is named, else to the cache; CIFAR-10's archive gives way to its batches."""
    served(monkeypatch, tmp_path)
    lay_out(tmp_path / "server", "cifar10 binary archive")
    for name, content in MNIST_CONTENT.items():
        write(tmp_path / "server" / f"{name}.gz", gzip.compress(content))
    root, heard = tmp_path / ("given" if given else "cache/heatbath"), []
    for name in ("mnist", "cifar10"):
        load_dataset(name, data_dir=root if given else None, progress=lambda *told: heard.append(told))
    found = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    batches = {f"cifar-10-batches-bin/{name}.bin" for name in CIFAR10_CONTENT}
    assert found == batches | {f"mnist/{name}.gz" for name in MNIST_CONTENT}
    assert len(heard) == 5
    monkeypatch.setattr(catalogue, "download", None)
    for name in ("mnist", "cifar10"):
        load_dataset(name, data_dir=root if given else None)


def test_offline_is_one_line(monkeypatch, tmp_path):
    nobody = ("http://127.0.0.1:9/cifar-10-binary.tar.gz",)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(catalogue, "CIFAR10_REMOTE", RemoteFile(nobody, 1, ""))
    with pytest.raises(
        DataError, match=r"^cannot download cifar-10-binary.tar.gz \(.*\); get it from .* and put it in"
    ):
        load_dataset("cifar10", data_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []
