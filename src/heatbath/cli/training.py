"""How commands train: everything is checked before the store is touched, and shown while it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from heatbath.cli.downloads import download_data
from heatbath.cli.errors import resumable
from heatbath.cli.progress import Display, display, follow_training
from heatbath.cli.screens import check_data_dir, check_folder, folder_option
from heatbath.runs.configs import RunConfig
from heatbath.runs.records import Record

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

_LONG = 3600.0  # seconds from which on work is announced
_UNITS = {"years": 365.25 * 86400.0, "months": 30.4 * 86400.0, "weeks": 604800.0, "days": 86400.0, "hours": 3600.0}


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
    from heatbath.engine import runner
    from heatbath.system import machine

    machine.check_device(means.device)
    check_data_dir(means.data_dir)
    left = unfinished(configs, store)
    if not left:
        return runner.run(configs, store, means.device)
    check_folder(store, "--store")
    with resumable(), display(quiet=means.quiet) as shown:
        shown.show(None, ("starting",))
        machine.choose_device(means.device)
        download_data(left, means.data_dir, shown)
        runner.check_data(left, means.data_dir)
        tell_of_long_work(left, store, means.device, means.workers, shown)
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
    from heatbath.runs.records import ENDED

    ended = {record.run for record in _kept(configs, store) if record.status in ENDED}
    return [config for config in configs if config.run not in ended]


def tell_of_long_work(
    configs: Sequence[RunConfig], store: Path, device: str, workers: int | None, shown: Display
) -> None:
    """Tell about how long runs that have not ended will take, where they are for a CPU and more than an hour."""
    from heatbath.system import machine

    if machine.choose_device(device) != "cpu":
        return
    seconds = _cpu_seconds(configs, store, workers)
    if seconds > _LONG:
        reason = "no GPU is seen: " if device == "auto" else ""
        shown.say(f"{reason}on this CPU expect about {_roughly(seconds)}")


def _cpu_seconds(configs: Sequence[RunConfig], store: Path, workers: int | None) -> float:
    """About how long the epochs that are left will take here."""
    from heatbath.engine.planning import cpu_workers
    from heatbath.system import machine

    cores = machine.available_cores()
    done = {record.run: len(record.epochs) for record in _kept(configs, store)}
    total = 0.0
    for model in {config.model for config in configs}:
        runs = [config for config in configs if config.model == model]
        seconds = runs[0].network.cost.cpu_seconds
        processes, threads = cpu_workers(model, cores)
        busy = min(cores, threads * min(workers or processes, max(len(runs), 1)))
        images = sum(config.training_images * (config.epochs - done.get(config.run, 0)) for config in runs)
        total += seconds * images / busy
    return total


def _roughly(seconds: float) -> str:
    """A time to one digit, in the largest unit of which there are two or more, such as 3 weeks."""
    unit = next((name for name, length in _UNITS.items() if seconds >= 1.5 * length), "hours")
    number = int(float(f"{seconds / _UNITS[unit]:.0e}"))
    return f"{number:,} {unit if number > 1 else unit.removesuffix('s')}"


def _kept(configs: Sequence[RunConfig], store: Path) -> list[Record]:
    """What a store, where there is one, has of runs."""
    from heatbath.runs.store import Store

    if not (store / Store.FILE).exists():
        return []
    with Store(store, read_only=True) as results:
        return results.survey(config.run for config in configs)[0]
