"""How commands train: the options that they share, and what is shown meanwhile."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from heatbath.cli.errors import resumable
from heatbath.cli.progress import display, follow_training
from heatbath.cli.screens import check_data_dir, folder_option
from heatbath.engine.options import Options
from heatbath.runs.collection import Records
from heatbath.runs.configs import RunConfig
from heatbath.runs.store import Store
from heatbath.system.folders import check_folder
from heatbath.tasks.facts import AnyTask

StoreOption = Annotated[Path, folder_option("--store", "The folder where results and checkpoints are kept.")]
DeviceOption = Annotated[
    str,
    typer.Option(
        "--device", metavar="NAME", help="auto (GPUs, if there are any), cpu, cuda (all GPUs), or cuda:1 (the second)."
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
MixOption = Annotated[
    bool, typer.Option("--mix-origins", help="Go on with runs that were begun with another torch or kind of device.")
]
TaskOption = Annotated[
    str | None,
    typer.Option(metavar="PACKAGE.MODULE:NAME", help="A heatbath.Task of yours, in the place of model and dataset."),
]
ExecutorOption = Annotated[
    str,
    typer.Option(
        "--executor", metavar="NAME", help="Who trains: local, ray, dask, or ray:ADDRESS, dask:ADDRESS for a cluster."
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


def read_options(
    device: str,
    data_dir: Path | None,
    workers: int | None,
    stack: int | None = None,
    checkpoint_seconds: float = 0.0,
    executor: str = "local",
    *,
    mix_origins: bool = False,
) -> Options:
    """Return what was asked for as one object, checked."""
    check_data_dir(data_dir)
    return Options(
        device=device,
        data_dir=data_dir,
        workers=workers,
        stack=stack,
        checkpoint_seconds=checkpoint_seconds,
        executor=executor,
        mix_origins=mix_origins,
    )


def complete(configs: Sequence[RunConfig], store: Path, options: Options, *, quiet: bool = False) -> Records:
    """Train what has not ended in the store, show how far it is, and return the records in the order of the configs."""
    from heatbath.engine import run

    if not (store / Store.FILE).exists():
        check_folder(store, "--store")
    with resumable(), display(quiet=quiet) as shown:
        return run.complete(configs, store, options, follow_training(shown))


def import_task(path: str) -> AnyTask:
    """Return the task that a path names; modules of the current folder are found."""
    from heatbath.tasks.samples import resolve

    sys.path.append(os.getcwd())
    found = resolve(path, "--task")
    found = found() if callable(found) and not isinstance(found, AnyTask) else found
    if not isinstance(found, AnyTask):
        raise ValueError(f"--task {path}: it is a {type(found).__name__}, no heatbath.Task")
    return found
