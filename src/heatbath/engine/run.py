"""Configs in, records out: what is finished is taken from the store, the rest is trained, in stacks, and resumed."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from heatbath.engine.executors.choice import Executor, find_executor
from heatbath.engine.options import Options
from heatbath.engine.progress import Interrupted, Progress, Tally
from heatbath.engine.progress_bar import watch
from heatbath.runs.checkpoints import is_disk_full
from heatbath.runs.collection import Records
from heatbath.runs.configs import RunConfig
from heatbath.runs.database import no_space
from heatbath.runs.records import ENDED, Record
from heatbath.runs.store import Store
from heatbath.system.whole_files import check_folder

_turn = threading.RLock()  # torch's generators and settings are the process's, as is a cluster that a call starts
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
    mix_origins: bool = False,
    progress: Callable[[Progress], None] | Literal[False] | None = None,
    executor: Any = None,
) -> Records:
    """Train what is not finished yet and return the records, in the order of the configs.

    A run that is finished in the store is not trained again, unless its rows there are damaged; one that was stopped
    goes on after its last epoch, with the numbers it would have had. Several processes may work in one store: each
    takes what is free and waits for the rest. Calls in several threads of one process take turns. On a CPU the numbers
    do not depend on stacks, order or workers, bit for bit; on a GPU they agree to rounding, which training amplifies.
    Nothing is written before the data is there and all else is found to be in order; where all runs have ended they
    are read, and torch is not imported.

    Args:
        configs: the runs; a repeated one is trained once.
        store: the folder for results and checkpoints; by default one that is removed at the end.
        device: "auto" (the GPUs, if there are any), "cpu", "cuda" (all GPUs that torch sees) or "cuda:1" (the second).
        data_dir: where to look for the data first; a folder.
        workers: how many processes, on a CPU; by default as many as is fastest, and this one alone for work of less
            than about 15 seconds, which is over before others have started.
        stack: the most runs in one stack; by default as many as there is memory for.
        checkpoint_seconds: the least time between two checkpoints of a stack. 0 writes one after each epoch, so that
            a kill loses at most an epoch; otherwise it loses at most that time more.
        mix_origins: whether a run that was begun with another torch, precision or kind of device may go on here; its
            epochs say which were made where.
        progress: called after each epoch of a stack, and when there is something to say. By default a notebook or a
            terminal shows a bar, and nothing else shows anything; False shows nothing anywhere.
        executor: who trains: processes of this machine by default; ``"ray"``, ``"ray:ADDRESS"``, ``"dask"``,
            ``"dask:ADDRESS"``, or any `concurrent.futures.Executor`. The store stays here, and the workers need only
            heatbath: states travel with the work. Bits are those of one machine where the nodes have its type of CPU.

    Raises:
        ValueError: an argument is not allowed, there is no such device or folder of data, or a run was begun elsewhere.
        OSError: the store cannot be used, the disk is full, or the data is missing. What was finished is safe.
        MemoryError: a single run does not fit.
        KeyboardInterrupt: an `Interrupted`, with how far it came and how to go on.
    """
    options = Options(
        device=device,
        data_dir=data_dir,
        workers=workers,
        stack=stack,
        checkpoint_seconds=checkpoint_seconds,
        executor=executor,
        mix_origins=mix_origins,
    )
    return complete(configs, store, options, progress)


def load(store: str | os.PathLike[str]) -> Records:
    """Return all records of a store, finished or not, in the order in which the runs came there. Nothing is written."""
    with Store(store, read_only=True) as results:
        return Records(results.records())


def complete(
    configs: Iterable[RunConfig],
    store: str | os.PathLike[str] | None,
    options: Options,
    progress: Callable[[Progress], None] | Literal[False] | None = None,
    *,
    open_store: Callable[[Path], Store] = Store,
    executor: Callable[[Options, Path], Executor] | None = None,
) -> Records:
    """`run` with its options in one object.

    ``open_store`` is called once, with the folder; ``executor`` once, where there is anything to train, with the
    options and the folder of the checkpoints: by default what the options name.
    """
    if isinstance(configs, RunConfig):
        raise TypeError("configs must be a list of RunConfigs, even of one")
    asked, executor = list(configs), executor or find_executor(options.executor)
    if foreign := [config for config in asked if not isinstance(config, RunConfig)]:
        raise TypeError(f"configs must be RunConfigs, got {foreign[0]!r}")
    if not asked:
        return Records()
    if store is None:
        options = replace(options, checkpoint_seconds=max(options.checkpoint_seconds, _THROWN_AWAY))
        with tempfile.TemporaryDirectory(prefix="heatbath-") as place:
            return complete(asked, place, options, progress, open_store=open_store, executor=executor)
    with open_store(Path(store)) as results:
        records = {record.run: record for record in results.survey(config.run for config in asked)[0]}
        if any(config.run not in records or records[config.run].status not in ENDED for config in asked):
            check_folder(Path(store), "store")
            try:
                with _turn, watch(progress) as follow:
                    _train({config.run: config for config in asked}, records, results, options, follow, executor)
            except OSError as error:
                if is_disk_full(error):
                    raise OSError(no_space(results.path)) from None
                raise
            records = {record.run: record for record in results.records(config.run for config in asked)}
        else:
            results.clean()
    # With the configs that were asked for, whose tasks have their code.
    return Records(replace(records[config.run], config=config) for config in asked)


def _train(
    configs: dict[str, RunConfig],
    records: dict[str, Record],
    results: Store,
    options: Options,
    progress: Callable[[Progress], None] | None,
    executor: Callable[[Options, Path], Executor],
) -> None:
    """Train what has not ended; ``records`` is what the store had of it."""
    from heatbath.engine.campaign import Campaign
    from heatbath.engine.preflight import check_origins, introduce_tasks, warn_of_long_work

    ended = {run for run, record in records.items() if record.status in ENDED}
    left = [config for run, config in configs.items() if run not in ended]
    recorded = {run: None if run in ended else len(record.epochs) for run, record in records.items()}
    tally = Tally(configs.values(), recorded, progress)
    chosen, campaign = executor(options, results.checkpoints), None
    try:
        chosen.prepare(left, tally.tell_download)
        introduce_tasks(left, results, tally)
        check_origins([records[config.run] for config in left if config.run in records], chosen.device, tally, options)
        if chosen.device == "cpu" and options.executor in (None, "local"):  # of other machines nobody knows the cores
            warn_of_long_work(left, tally, options)
        for run, damage in results.add(configs.values()).items():
            whole = len(damage.epochs) >= configs[run].epochs
            what = "; all its epochs are sound, and it counts as finished" if whole else " and is trained again"
            tally.say(f"run {run} was damaged in the store ({damage.reason}){what}")
        campaign = Campaign(results, configs, chosen, tally, options.stack)
        campaign.finish()
    except KeyboardInterrupt:
        at = tally.progress
        raise Interrupted(at.runs_done, at.runs_total) from None
    finally:
        chosen.close()
        if campaign is not None:
            campaign.close()
