"""How commands train: everything is checked before the store is touched, and shown while it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from heatbath.cli.data import download_data
from heatbath.cli.errors import resumable
from heatbath.cli.progress import display, follow_training
from heatbath.cli.screens import check_data_dir, check_folder, folder_option
from heatbath.configs import RunConfig
from heatbath.records import Record

StoreOption = Annotated[Path, folder_option("--store", "The folder where results and checkpoints are kept.")]
DeviceOption = Annotated[
    str,
    typer.Option(
        "--device", metavar="NAME", help="auto (a GPU, if there is one), cpu, cuda, or cuda:1 for the second GPU."
    ),
]
DataOption = Annotated[Path | None, folder_option("--data-dir", "Where to look for the data first.")]
WorkersOption = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Processes at once on a CPU; by default as many as is fastest.")
]
StackOption = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Most runs trained as one program; by default what the memory holds."),
]
CheckpointOption = Annotated[
    float, typer.Option(metavar="X", min=0.0, help="Least seconds between checkpoints; 0 writes one after each epoch.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


@dataclass(frozen=True)
class Means:
    """With what to train; the names are those of the options."""

    device: str = "auto"
    data_dir: Path | None = None
    workers: int | None = None
    stack: int | None = None
    checkpoint_seconds: float = 0.0
    quiet: bool = False


def complete(configs: Sequence[RunConfig], store: Path, means: Means) -> list[Record]:
    """Train what has not ended in the store, and return the records in the order of the configs.

    Nothing is written, nor the store made, before the data is there and all else is found to be in order. Where all
    runs have ended they are read, and torch is not imported.
    """
    from heatbath import machines, runner

    machines.check_device(means.device)
    check_data_dir(means.data_dir)
    left = unfinished(configs, store)
    if not left:
        return runner.run(configs, store, means.device)
    check_folder(store, "--store")
    with resumable(), display(quiet=means.quiet) as shown:
        shown.show(None, ("starting",))
        machines.choose_device(means.device)
        download_data(left, means.data_dir, shown)
        runner.check_data(left, means.data_dir)
        return runner.run(
            configs,
            store,
            means.device,
            data_dir=means.data_dir,
            workers=means.workers,
            stack=means.stack,
            checkpoint_seconds=means.checkpoint_seconds,
            progress=follow_training(shown),
        )


def unfinished(configs: Sequence[RunConfig], store: Path) -> list[RunConfig]:
    """Return those that have not ended in the store, or are damaged there; all, where there is none.

    Raises:
        OSError: it is not a store of ours.
    """
    from heatbath.records import ENDED
    from heatbath.store import Store

    if not (store / Store.FILE).exists():
        return list(configs)
    with Store(store, read_only=True) as results:
        records, _ = results.survey(config.run for config in configs)
    ended = {record.run for record in records if record.status in ENDED}
    return [config for config in configs if config.run not in ended]
