"""Data that commands fetch before they start, with its progress."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from heatbath.cli.progress import Display

if TYPE_CHECKING:
    from heatbath.runs.configs import RunConfig


def download_data(configs: Iterable[RunConfig], data_dir: Path | None, shown: Display) -> None:
    """Fetch what runs need and is nowhere to be found, telling how far that is.

    Raises:
        DataError: something cannot be fetched; the message says how to get it.
    """
    configs = list(configs)
    names = {config.dataset for config in configs} - {"mnist5k"}
    download(names, any(config.weights for config in configs), data_dir, shown)


def download(names: Collection[str], features: bool, data_dir: Path | None, shown: Display) -> None:
    """Fetch data sets, and VGG16's features, that are nowhere to be found."""
    from heatbath.data.catalogue import load_arrays, locate

    shown.show(None, ("looking for the data",))
    for name in sorted(names):
        if locate(name, data_dir) is None:
            load_arrays(name, data_dir, download=True, progress=_follow_download(shown))
    if features:
        from heatbath.data.vgg16_features import find_vgg16_features, load_vgg16_features

        if find_vgg16_features(data_dir) is None:
            load_vgg16_features(data_dir=data_dir, progress=_follow_download(shown))


def _follow_download(shown: Display) -> Callable[[str, int, int], None]:
    def follow(name: str, here: int, size: int) -> None:
        shown.show(here / size, (f"downloading {name}", f"{here / 1e6:.1f} of {size / 1e6:.1f} MB"))

    return follow
