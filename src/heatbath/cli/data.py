"""`heatbath data`: what is found where; and how other commands get what they need."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heatbath.cli.screens import check_data_dir, write

if TYPE_CHECKING:
    from heatbath.cli.progress import Display
    from heatbath.configs import RunConfig


def list_data(
    data_dir: Annotated[Path | None, typer.Option(help="Where to look first.")] = None,
) -> None:
    """Say which data sets are found where, verified, and how to get what is missing."""
    check_data_dir(data_dir)
    from heatbath.datasets import find_datasets

    for status in find_datasets(data_dir):
        write(f"{status.name:<8} {status.state:<9} {status.advice or status.location}")


def download_data(configs: Iterable[RunConfig], data_dir: Path | None, shown: Display) -> None:
    """Fetch the data sets of runs that are nowhere to be found, telling how far that is.

    Raises:
        DataError: a data set cannot be fetched; the message says how to get it.
    """
    from heatbath.data_catalogue import load_arrays, locate

    shown.show(None, ("looking for the data",))
    for name in sorted({config.dataset for config in configs} - {"mnist5k"}):
        if locate(name, data_dir) is None:
            load_arrays(name, data_dir, download=True, progress=_follow_download(shown))


def _follow_download(shown: Display) -> Callable[[str, int, int], None]:
    def follow(name: str, here: int, size: int) -> None:
        shown.show(here / size, (f"downloading {name}", f"{here / 1e6:.1f} of {size / 1e6:.1f} MB"))

    return follow
