"""Trains jobs on this machine: in this process, or in worker processes that end with it."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from heatbath.engine import planning
from heatbath.engine.executors.choice import NextJob, Outcomes
from heatbath.engine.jobs import Ended, Job
from heatbath.engine.options import Options
from heatbath.engine.trainer import Trainer
from heatbath.runs.configs import RunConfig
from heatbath.system import locks, machine

WORKER = "from heatbath.engine.executors.local import serve; serve({line}, {life})"
"""What a worker process executes. It is a program of its own: the caller's script is not imported a second time."""

_WORTH_WORKERS = 15.0  # seconds of work from which on it pays to start processes, which takes some seconds itself


class Local:
    """This machine: its GPUs, or the cores of its CPU.

    With "cuda", and with "auto" where there are any, all GPUs are used that torch sees, by a process for each; a single
    one by this process. With "cuda:1" it is the second alone.

    Raises:
        ValueError: torch does not see the device.
    """

    def __init__(self, options: Options, checkpoints: Path) -> None:
        self.device = self.resolve(options.device)
        options = replace(options, device=self.device)
        gpus = machine.visible_gpus() if self.device == "cuda" else []
        self._gpus = gpus[: options.workers] if len(gpus) > 1 else []
        self._asked = options.workers
        # Where workers have the GPUs, this process only looks for the data.
        self._trainer = Trainer(replace(options, device="cpu") if self._gpus else options, checkpoints)
        self._workers = Workers(options, checkpoints, [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in self._gpus])

    @property
    def slots(self) -> int:
        """How many stacks there should be at least: one for each GPU."""
        return max(1, len(self._gpus))

    def resolve(self, device: str) -> str:
        """Return which device that is here; "auto" is a GPU, if there is one."""
        return machine.choose_device(device)

    def prepare(self, configs: Sequence[RunConfig], progress: Callable[[str, int, int], None] | None = None) -> None:
        """Load the data of runs, and fetch what is nowhere to be found; see `Trainer.prepare`."""
        self._trainer.prepare(configs, progress)

    def rounds(self, configs: Sequence[RunConfig]) -> list[list[RunConfig]]:
        """Return which runs are trained at the same time: on a CPU those of one network, which share its threads."""
        if self.device != "cpu":
            return [list(configs)]
        models = dict.fromkeys(config.model for config in configs)
        return [[config for config in configs if config.model == model] for model in models]

    def stack_size(self, configs: Sequence[RunConfig]) -> int:
        """Return how many of such runs make one stack here."""
        return planning.plan_stacks(configs, self.device)

    def places(self, configs: Sequence[RunConfig], jobs: int, seconds: float) -> tuple[int, int]:
        """Return how many jobs are trained at a time, and how many threads each has; see `Executor.places`."""
        if self.device != "cpu":
            return self.slots, 1
        processes, threads = planning.cpu_workers(configs[0], machine.available_cores())
        enough = self._asked is not None or seconds > _WORTH_WORKERS
        return min(self._asked or processes, jobs) if enough else 1, threads

    def train(self, next_job: NextJob, places: int) -> Outcomes:
        """Train jobs, so many at a time, until there is none; see `Executor.train`."""
        if places == 1 and not self._gpus:
            while (job := next_job()) is not None:
                for outcome in self._trainer.work(job):
                    yield job, outcome
                    yield None
            return
        self._trainer.forget()  # each worker loads what it needs
        yield from self._workers.train(next_job, places)

    def close(self) -> None:
        """End all workers, whatever they are doing."""
        self._workers.close()


class Workers:
    """Processes that train jobs side by side. They end with this process, however that ends, and by `close`.

    One is started when there is a job for it, and none in the place of one that has died. ``environments`` add to the
    environment of each, in which a worker may see a GPU of its own; any number is started if there is none.
    """

    def __init__(self, options: Options, checkpoints: Path, environments: Sequence[Mapping[str, str]] = ()) -> None:
        self._settings = options, checkpoints
        self._environments = list(environments)
        self._idle: list[_Worker] = []
        self._busy: dict[Connection, tuple[_Worker, Job]] = {}
        self._dead = 0

    def train(self, next_job: NextJob, count: int) -> Outcomes:
        """Train jobs, ``count`` at a time, until there is none.

        Raises:
            OSError: all workers have died.
            Exception: what a job raised.
        """
        room = max(1, count - self._dead)  # where one has died, fewer fit
        while True:
            while len(self._busy) < room and (job := next_job()) is not None:
                worker = self._idle.pop() if self._idle else self._start()
                self._busy[worker.line] = worker, job
                with suppress(OSError):  # it has died; that is noticed below
                    worker.line.send(job)
            if not self._busy:
                return
            for line in wait(list(self._busy)):
                assert isinstance(line, Connection)
                worker, job = self._busy[line]
                try:
                    outcome = line.recv()
                except (EOFError, OSError):
                    code = worker.close(patience=5.0)
                    outcome = Ended("lost", f"signal {-code}, often a lack of memory" if code < 0 else f"status {code}")
                    self._dead += 1
                    room -= 1
                if isinstance(outcome, Ended):
                    del self._busy[line]
                    if outcome.how != "lost":
                        self._idle.append(worker)
                if room == 0:
                    advice = "ask for one with workers=1, or --workers 1"
                    raise OSError(f"all worker processes have died ({outcome.reason}); {advice}")
                if isinstance(outcome, Exception):
                    raise outcome
                yield job, outcome
            yield None

    def _start(self) -> _Worker:
        return _Worker(self._settings, self._environments.pop(0) if self._environments else {})

    def close(self) -> None:
        """End all workers, whatever they are doing."""
        for worker in (*self._idle, *(worker for worker, _ in self._busy.values())):
            worker.close()
        self._idle.clear()
        self._busy.clear()


def serve(line_handle: int, life_handle: int) -> None:
    """Be a worker: train the jobs that come in until the line is closed."""
    threading.Thread(target=_end_with, args=(life_handle,), daemon=True).start()
    machine.keep_freed_memory()
    with suppress(EOFError, OSError), Connection(line_handle) as line:
        trainer = Trainer(*line.recv())
        while True:
            received = line.recv_bytes()
            try:
                for outcome in trainer.work(pickle.loads(received)):  # in here, as a task may not find its modules
                    line.send(outcome)
            except Exception as error:
                known = isinstance(error, OSError | ValueError | TypeError)
                line.send(error if known else RuntimeError(f"a worker failed: {type(error).__name__}: {error}"))


def worker_environment(**more: str) -> dict[str, str]:
    """Return that of a worker process, which is to have the heatbath that this one has."""
    path = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, **more, "PYTHONPATH": os.pathsep.join(path)}


class _Worker:
    def __init__(self, settings: Any, environment: Mapping[str, str]) -> None:
        self.line, theirs = Pipe()
        life, own_end = os.pipe()
        self._life = locks.keep_private(own_end)
        program = WORKER.format(line=theirs.fileno(), life=life)
        # Without -P a module of the current folder could stand in for one of ours.
        # A Ctrl-C is for the parent to act upon; a child that starts with the signal blocked never sees it.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", program],
                pass_fds=(theirs.fileno(), life),
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a task prints must not come between what the command prints
                env=worker_environment(**environment),
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            theirs.close()
            os.close(life)
        self.line.send(settings)

    def close(self, patience: float = 0.0) -> int:
        """End the process, with some seconds to end by itself; return how it ended."""
        if patience:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
        self.line.close()
        locks.close_private(self._life)
        self._process.kill()
        return self._process.wait()


def _end_with(life_handle: int) -> None:
    """Wait until the other end of a pipe is closed, as it is when the parent is gone, and end."""
    os.read(life_handle, 1)
    os._exit(0)
