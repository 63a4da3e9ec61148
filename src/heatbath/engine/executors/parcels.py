"""Jobs on their way to other machines: they travel with the states that they go on from, and send new ones back.

A worker needs heatbath, and nothing of the store: it trains in a folder of its own. What it keeps from one job to the
next is its trainer, with the data, and the stack of a job that has been interrupted to send its state.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import platform
import shutil
import socket
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TypeAlias

from heatbath.data.formats import DataError
from heatbath.engine.jobs import Ended, Job, Measured, Outcome
from heatbath.engine.options import Options
from heatbath.engine.trainer import Lent, Trainer
from heatbath.runs.checkpoints import REFUSED, DamagedCheckpointError, is_disk_full, read_checkpoint
from heatbath.system import locks, machine
from heatbath.system.whole_files import whole_file


@dataclass(frozen=True)
class Parcel:
    """A job for a worker, whose sources are names of files, and the states in these.

    The driver has ``epoch`` epochs of it. A worker that sends while it trains waits for ``pace`` seconds between two
    messages.
    """

    job: Job
    states: dict[str, bytes]
    options: Options
    versions: dict[str, str]
    epoch: int = 0
    pace: float = 0.0


@dataclass(frozen=True)
class WorkerFacts:
    """What a worker says of its machine: on what it trains, and how many bytes its GPU has free, where it has one."""

    device: str
    free_bytes: int | None
    versions: dict[str, str]
    host: str


# An expression, for a worker whose heatbath may have none of our functions. It imports torch, as loky restarts workers
# that take much more memory than after their first task.
_HEATBATH = "getattr(__import__('heatbath'), '__version__', 'unknown')"
ASK_FOR_HEATBATH = f"__import__('torch') and (__import__('socket').gethostname(), {_HEATBATH})"
_PREFIX = "heatbath-worker-"  # of the folders of workers
_YOUNG = 60.0  # seconds within which a folder may not have its lock yet

Delivery: TypeAlias = tuple[Outcome, bytes | None]
"""What comes back: an outcome, and the content of the checkpoint that it names."""


def own_versions() -> dict[str, str]:
    """Return the versions that a driver and its workers must share.

    Torch is built for a CPU or a GPU, and Python patched, without other results: a driver need not have a GPU.
    """
    import torch

    return {
        "heatbath": sys.modules["heatbath"].__version__,
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "torch": str(torch.__version__).partition("+")[0],
    }


def check_versions(host: str, workers: dict[str, str], drivers: dict[str, str]) -> None:
    """Refuse a worker with other versions than the driver has.

    Raises:
        ValueError: in one line that names the machine and all that differs.
    """
    names = [name for name in drivers if workers.get(name) != drivers[name]]
    if names:
        theirs, ours = (
            " and ".join(f"{name} {versions.get(name, 'unknown')}" for name in names) for versions in (workers, drivers)
        )
        raise ValueError(f"{host} has {theirs}, the driver {ours}: install the same on all")


def describe_worker(options: Options) -> WorkerFacts:
    """Return what this machine is; to be called on a worker."""
    device = machine.choose_device(options.device)
    return WorkerFacts(device, machine.free_gpu_memory(device), own_versions(), socket.gethostname())


def pack(job: Job, options: Options, epoch: int = 0, pace: float = 0.0) -> bytes:
    """Return a parcel with a job and the states that it goes on from.

    It is opened by our code on the worker: a task's modules may be missing there, and only we can say so in one line.
    """
    files = {file.name: file.read_bytes() for file in job.sources if file is not None}
    sources = tuple(None if file is None else Path(file.name) for file in job.sources)
    return pickle.dumps(Parcel(replace(job, sources=sources), files, options, own_versions(), epoch, pace))


def keep(delivery: Delivery, job: Job, checkpoints: Path) -> Outcome:
    """Return the outcome of a delivery, with its state in the folder of checkpoints and damaged sources put away."""
    outcome, state = delivery
    if isinstance(outcome, Measured) and outcome.checkpoint is not None and state is not None:
        checkpoints.mkdir(parents=True, exist_ok=True)
        with whole_file(checkpoints / Path(outcome.checkpoint).name) as file:
            file.write(state)
    if isinstance(outcome, Ended) and outcome.how == "damaged":
        for source in {file for file in job.sources if file is not None}:
            with suppress(OSError):
                try:
                    read_checkpoint(source)
                except DamagedCheckpointError:
                    source.rename(source.with_suffix(REFUSED))
    return outcome


class _Workshop:
    """What a worker process keeps between jobs. Its threads take turns: they share the generators of torch."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.folder, self._lock = Path(tempfile.mkdtemp(prefix=_PREFIX)), -1
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self._trainer: tuple[Options, Trainer] | None = None
        self._open: tuple[tuple[str, int, int], Generator[Outcome]] | None = None

    def open(self, parcel: Parcel, data: Lent | None) -> tuple[Generator[Outcome], bool]:
        """Return the outcomes of a job, and whether its stack was still here from the last slice."""
        job, options = parcel.job, parcel.options
        if self._open is not None and self._open[0] == _stage(job, parcel.epoch):
            return self._open[1], True
        self.leave()
        _sweep()
        self.folder.mkdir(mode=0o700)
        self._lock = locks.keep_private(os.open(self.folder, os.O_RDONLY))
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        if self._trainer is None or self._trainer[0] != options:
            try:
                machine.choose_device(options.device)
            except ValueError as error:
                raise ValueError(f"{socket.gethostname()}: {error}") from None
            self._trainer = options, Trainer(options, self.folder, fetch=False)
        if data is not None:
            self._trainer[1].adopt(data)
        for name, content in parcel.states.items():
            (self.folder / Path(name).name).write_bytes(content)
        sources = tuple(None if file is None else self.folder / file.name for file in job.sources)
        return self._trainer[1].work(replace(job, sources=sources)), False

    def stay(self, job: Job, epoch: int, outcomes: Generator[Outcome]) -> None:
        """Keep the stack of a job that has been trained to an epoch."""
        self._open = _stage(job, epoch), outcomes

    def leave(self) -> None:
        """Let go of the stack that was kept, and of all files."""
        if self._open is not None:
            self._open[1].close()
            self._open = None
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock >= 0:
            locks.close_private(self._lock)
            self._lock = -1


def _sweep() -> None:
    """Remove the folders of workers that were killed: nobody holds their locks, nor is about to."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if time.time() - os.fstat(handle).st_mtime > _YOUNG:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)


@cache
def _workshop(_process: int) -> _Workshop:
    """That of this process; a fork has one of its own."""
    return _Workshop()


def train_parcel(packed: bytes, data: Lent | None = None) -> Iterator[list[Delivery]]:
    """Train a job to its end; to be called on a worker.

    What is measured within a short time is sent together: a message costs a cluster milliseconds, whatever is in it.
    """
    parcel: Parcel = pickle.loads(packed)
    letter: list[Delivery] = []
    sent = time.monotonic()
    while True:
        for outcome, state in train_slice(parcel, data):
            letter.append((outcome, state))
            if state is not None or time.monotonic() - sent >= parcel.pace:
                yield letter
                letter, sent = [], time.monotonic()
        if isinstance(outcome, Ended):
            if letter:
                yield letter
            return
        parcel = replace(parcel, epoch=outcome.first + 1)


def train_slice(parcel: Parcel, data: Lent | None = None) -> Iterator[Delivery]:
    """Train a job until its state has been saved, or it has ended; to be called on a worker.

    The stack stays here: the next slice goes on with it, if it comes to the same process, and is otherwise restored
    from the state. ``data`` is what the driver lends to a worker that has not got it.

    Raises:
        ValueError: the worker has another version of heatbath, Python or torch.
    """
    check_versions(socket.gethostname(), own_versions(), parcel.versions)
    workshop = _workshop(os.getpid())
    stays = False
    try:
        outcomes, here = workshop.open(parcel, data)
        for outcome in outcomes:
            if isinstance(outcome, Ended):
                yield outcome, None
                continue
            saved = None if outcome.checkpoint is None else (workshop.folder / outcome.checkpoint).read_bytes()
            # Where a slice is restored from its state, the driver knows already what comes with it.
            if not (outcome.restored and parcel.epoch and not here):
                yield outcome, saved
            if saved is not None:
                workshop.stay(parcel.job, outcome.first + 1, outcomes)
                stays = True
                return
    except DataError as error:
        yield Ended("no data", f"{socket.gethostname()}: {error}"), None
    except OSError as error:
        if is_disk_full(error):  # the store has room
            where = f"{socket.gethostname()} has no space left in {workshop.folder.parent}"
            raise OSError(f"{where}: set TMPDIR there") from None
        raise
    finally:
        if not stays:
            workshop.leave()


def whole_slice(packed: bytes, data: Lent | None = None) -> list[Delivery]:
    """`train_slice` where all that comes back comes at once."""
    with _workshop(os.getpid()).turn:
        return list(train_slice(pickle.loads(packed), data))


def _stage(job: Job, epoch: int) -> tuple[str, int, int]:
    """What tells the stack of a slice from others; a job loses runs that diverge."""
    return job.name, epoch, len(job.configs)
