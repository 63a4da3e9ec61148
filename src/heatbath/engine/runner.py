"""Configs in, records out: what is finished is taken from the store, the rest is trained, in stacks, and resumed."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heatbath.data.downloads import check_data_dir
from heatbath.draws import check_integer
from heatbath.runs.checkpoints import is_disk_full
from heatbath.runs.configs import RunConfig
from heatbath.runs.records import ENDED, Record
from heatbath.runs.store import Store, no_space
from heatbath.system.machine import check_device, choose_device

if TYPE_CHECKING:
    from heatbath.engine.campaign import Progress

_THROWN_AWAY = 60.0  # seconds between checkpoints in a store that does not outlive the call


def run(
    configs: Iterable[RunConfig],
    store: str | os.PathLike[str] | None = None,
    device: str = "auto",
    *,
    data_dir: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    stack: int | None = None,
    checkpoint_seconds: float = 0.0,
    progress: Callable[[Progress], None] | None = None,
) -> list[Record]:
    """Train what is not finished yet and return the records, in the order of the configs.

    A run that is finished in the store is not trained again, unless its rows there are damaged; one that was stopped
    goes on after its last epoch, with the numbers it would have had. Several processes may work in one store: each
    takes what is free and waits for the rest. On a CPU the numbers do not depend on stacks, order or workers, bit for
    bit; on a GPU they agree to rounding, which training amplifies.

    Args:
        configs: the runs; a repeated one is trained once.
        store: the folder for results and checkpoints; by default one that is removed at the end.
        device: "auto" (a GPU, if there is one), "cpu", "cuda" or "cuda:1".
        data_dir: where to look for the data first; a folder.
        workers: how many processes, on a CPU; by default as many as is fastest, and this one alone for work of less
            than about 15 seconds, which is over before others have started.
        stack: the most runs in one stack; by default as many as there is memory for.
        checkpoint_seconds: the least time between two checkpoints of a stack. 0 writes one after each epoch, so that
            a kill loses at most an epoch; otherwise it loses at most that time more.
        progress: called after each epoch of a stack, and when there is something to say.

    Raises:
        ValueError: an argument is not allowed, or there is no such device or folder of data.
        OSError: the store cannot be used, the disk is full, or the data is missing. What was finished is safe.
        MemoryError: a single run does not fit.
        KeyboardInterrupt: with a hint how to go on.
    """
    if isinstance(configs, RunConfig):
        raise TypeError("configs must be a list of RunConfigs, even of one")
    asked = list(configs)
    _check_arguments(asked, device, workers, stack, checkpoint_seconds)
    check_data_dir(data_dir)
    data = _absolute_data_dir(data_dir)
    options: dict[str, Any] = {"workers": workers, "stack": stack, "progress": progress}
    if store is None:
        with tempfile.TemporaryDirectory(prefix="heatbath-") as place:
            return _complete(asked, Path(place), device, data, max(checkpoint_seconds, _THROWN_AWAY), options)
    folder = Path(store).absolute()
    return _ended(asked, folder) or _complete(asked, folder, device, data, checkpoint_seconds, options)


def load(store: str | os.PathLike[str]) -> list[Record]:
    """Return all records of a store, finished or not, in the order in which the runs came there. Nothing is written."""
    with Store(store, read_only=True) as results:
        return results.records()


def check_data(configs: Sequence[RunConfig], data_dir: str | os.PathLike[str] | None = None) -> None:
    """Get the data that runs need, or say how to, before hours go into the others.

    Raises:
        DataError: a data set or ImageNet's features can be neither found nor downloaded.
    """
    from heatbath.data.datasets import load_dataset
    from heatbath.data.formats import DataError

    try:
        for name in sorted({config.dataset for config in configs}):
            load_dataset(name, data_dir=data_dir)
        for weights, load in {(config.weights, config.network.pretrained) for config in configs}:
            if weights is not None and load is not None:
                load(weights, data_dir)
    except DataError as error:
        advice = "'heatbath data' shows what is found where, 'heatbath data --get NAME' fetches it"
        raise DataError(f"{error}; {advice}") from error


def _absolute_data_dir(data_dir: str | os.PathLike[str] | None) -> Path | None:
    """The folder to look in first, from here on: the working folder may change before the last run has ended."""
    if data_dir is not None:
        return Path(data_dir).expanduser().absolute()
    named = Path(os.environ.get("HEATBATH_DATA") or "/").expanduser()
    return None if named.is_absolute() or not named.is_dir() else named.absolute()


def _ended(configs: Sequence[RunConfig], folder: Path) -> list[Record] | None:
    """The records, if all runs have ended: then there is nothing to write, nor anything to import."""
    if not (folder / Store.FILE).exists():
        return None
    with Store(folder, read_only=True) as results:
        readable, _ = results.survey(config.run for config in configs)
    records = {record.run: record for record in readable}
    if all(config.run in records and records[config.run].status in ENDED for config in configs):
        return [records[config.run] for config in configs]
    return None


def _complete(
    configs: Sequence[RunConfig],
    folder: Path,
    device: str,
    data_dir: Path | None,
    checkpoint_seconds: float,
    options: dict[str, Any],
) -> list[Record]:
    if not configs:
        return []
    from heatbath.engine.campaign import Campaign
    from heatbath.engine.executors.local import Settings

    data = None if data_dir is None else str(data_dir)
    chosen = choose_device(device)
    with _plain_full_disk(folder), Store(folder) as results:
        damaged = results.add(configs)
        settings = Settings(chosen, data, results.checkpoints, checkpoint_seconds)
        campaign = Campaign(results, configs, settings, **options)
        try:
            for run, reason in damaged.items():
                campaign.say(f"run {run} was damaged in the store ({reason}) and is trained again")
            campaign.finish()
        except KeyboardInterrupt:
            at = campaign.progress
            done = f"{at.runs_done} of {at.runs_total} runs are done"
            raise KeyboardInterrupt(f"stopped: {done}; the same again with the same store goes on from there") from None
        finally:
            campaign.close()
        records = {record.run: record for record in results.records(config.run for config in configs)}
    return [records[config.run] for config in configs]


@contextmanager
def _plain_full_disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise OSError(no_space(folder)) from None
        raise


def _check_arguments(
    configs: Sequence[RunConfig], device: str, workers: int | None, stack: int | None, checkpoint_seconds: float
) -> None:
    for config in configs:
        if not isinstance(config, RunConfig):
            raise TypeError(f"configs must be RunConfigs, got {config!r}")
    check_device(device)
    for name, value in (("workers", workers), ("stack", stack)):
        if value is not None:
            check_integer(name, value, least=1)
    if isinstance(checkpoint_seconds, bool) or not isinstance(checkpoint_seconds, int | float):
        raise TypeError(f"checkpoint_seconds must be a number, got {checkpoint_seconds!r}")
    if not 0.0 <= checkpoint_seconds < math.inf:
        raise ValueError(f"checkpoint_seconds must be finite and not negative, got {checkpoint_seconds!r}")
