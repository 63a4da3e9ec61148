"""The convolutions of VGG16 trained on ImageNet: find, verify, read.

They come as torchvision's own file or as an ``.npz`` of the convolutions alone, in single or half precision. All three
agree when rounded to half precision, and that is what the checksum is taken of.
"""

from __future__ import annotations

import hashlib
import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heatbath.data.downloads import Progress, RemoteFile, cache_dir, data_roots, download
from heatbath.data.formats import DataError
from heatbath.system.tensor_files import check_tensor_file

# The output channels of each convolution; "pool" halves the image.
VGG16_LAYOUT = (64, 64, "pool", 128, 128, "pool", *(256,) * 3, "pool", *(512,) * 3, "pool", *(512,) * 3, "pool")

REMOTE = RemoteFile(
    ("https://download.pytorch.org/models/vgg16-397923af.pth",),
    553_433_881,
    "397923af8e79cdbb6a7127f12361acd7a2f83e06b05044ddf496e83de57a5bf0",
)
_NPZ_NAMES = ("vgg16_features_imagenet.npz", "vgg16_features_imagenet_fp16.npz")
HALF_PRECISION_SHA256 = "276056d9eb30d53ec8d16dde5778bf66648dfc9595d706594d666d749a24bd66"


def load_vgg16_features(
    weights: str | os.PathLike[str] = "imagenet",
    *,
    data_dir: str | os.PathLike[str] | None = None,
    download_missing: bool = True,
    progress: Progress | None = None,
) -> dict[str, Tensor]:
    """Return the 26 tensors of VGG16's convolutions under torchvision's names, float32 on the CPU, verified.

    ``weights`` is a file, or ``"imagenet"`` to look for one as `find_vgg16_features` does, and to fetch torchvision's
    (528 MiB) to ``data_dir`` or the cache if there is none.
    """
    if os.fspath(weights) != "imagenet":
        return read_vgg16_features(Path(weights))
    path = find_vgg16_features(data_dir)
    if path is None and download_missing:
        path = download(REMOTE, cache_dir() if data_dir is None else Path(data_dir).expanduser(), progress=progress)
    if path is None:
        raise DataError(missing_vgg16_features(data_dir))
    return read_vgg16_features(path)


def find_vgg16_features(data_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the first file of VGG16 features in the data folders (and their ``vgg16/``) or in torch's own cache."""
    folders = [folder for root in data_roots(data_dir) for folder in (root / "vgg16", root)]
    candidates = [folder / name for folder in folders for name in (*_NPZ_NAMES, REMOTE.name)]
    candidates.append(Path(torch.hub.get_dir()) / "checkpoints" / REMOTE.name)
    return next((path for path in candidates if path.is_file()), None)


def missing_vgg16_features(data_dir: str | os.PathLike[str] | None = None) -> str:
    """One line that says where the features were looked for and how to get them."""
    roots = data_roots(data_dir)
    names = f"{_NPZ_NAMES[0]} or {REMOTE.name}"
    return f"{names} not found in {', '.join(map(str, roots))}; get {REMOTE.urls[0]} and put it in {roots[0]}"


def read_vgg16_features(path: Path) -> dict[str, Tensor]:
    """Return the features in one file, whose format its ending tells, verified against the ImageNet weights."""
    if path.suffix not in (".npz", ".pth"):
        raise DataError(f"cannot read VGG16 weights from {path}: expected an .npz or torchvision's .pth")
    try:
        features = _read_npz(path) if path.suffix == ".npz" else _read_pth(path)
        if half_precision_digest(features) != HALF_PRECISION_SHA256 and not _is_original(path):
            expected = f"weights whose half-precision SHA-256 is {HALF_PRECISION_SHA256}"
            raise DataError(f"it does not hold VGG16's ImageNet weights; expected {expected}")
        return features
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    except DataError as error:
        cause = str(error)
    except Exception:  # a damaged file fails in many ways
        cause = f"it is not an intact {'.npz file' if path.suffix == '.npz' else 'state dictionary of torch'}"
    raise DataError(f"{path} is damaged: {cause}; delete it and get {REMOTE.urls[0]}")


def feature_shapes() -> dict[str, tuple[int, ...]]:
    """The names and shapes of the convolutions' weights and biases, in order."""
    shapes: dict[str, tuple[int, ...]] = {}
    index, channels = 0, 3
    for width in VGG16_LAYOUT:
        if isinstance(width, int):
            shapes |= {f"features.{index}.weight": (width, channels, 3, 3), f"features.{index}.bias": (width,)}
            index, channels = index + 1, width  # a convolution is followed by its ReLU
        index += 1
    return shapes


def check_features(features: Mapping[str, Tensor]) -> None:
    """Raise `DataError` unless the tensors have the names and shapes of VGG16's convolutions and are finite."""
    for name, shape in feature_shapes().items():
        if name not in features:
            raise DataError(f"it lacks {name}")
        if tuple(features[name].shape) != shape:
            raise DataError(f"its {name} has shape {tuple(features[name].shape)}, expected {shape}")
        if not features[name].isfinite().all():
            raise DataError(f"its {name} is not finite")


def half_precision_digest(features: Mapping[str, Tensor]) -> str:
    """The SHA-256 of the names and the values rounded to half precision."""
    parts = (name.encode() + features[name].numpy().astype("<f2").tobytes() for name in feature_shapes())
    return hashlib.sha256(b"".join(parts)).hexdigest()


def _read_npz(path: Path) -> dict[str, Tensor]:
    shapes = feature_shapes()
    with zipfile.ZipFile(path) as archive:
        sizes = {entry.filename.removesuffix(".npy"): entry.file_size for entry in archive.infolist()}
    for name, shape in shapes.items():  # before a crafted file makes us allocate what it claims
        if sizes.get(name, 0) > 8 * math.prod(shape) + 4096:
            raise DataError(f"its {name} claims {sizes[name]:,} bytes")
    with np.load(path, allow_pickle=False) as arrays:
        features = {name: torch.from_numpy(arrays[name].astype(np.float32)) for name in shapes if name in arrays}
    check_features(features)
    return features


def _read_pth(path: Path) -> dict[str, Tensor]:
    if not _is_original(path):  # before a crafted file makes us allocate what it claims
        with path.open("rb") as file:
            check_tensor_file(file)
    state: Any = torch.load(path, map_location="cpu", weights_only=True)
    check_features(state)
    # Copies, so that the 400 MB of the classifier can go.
    return {name: state[name].float().clone() for name in feature_shapes()}


def _is_original(path: Path) -> bool:
    """Whether this is torchvision's file, byte for byte."""
    if path.stat().st_size != REMOTE.size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == REMOTE.sha256
