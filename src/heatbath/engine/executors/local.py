"""Where stacks are trained: in this process, or in worker processes that end with it.

Both take tasks one by one and hand back what was measured, epoch by epoch; they know nothing of the store.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from heatbath.data.datasets import Dataset, load_dataset
from heatbath.engine.stack import Stack
from heatbath.runs.checkpoints import REFUSED, DamagedCheckpointError, ReplicaState, Saver, Shelf
from heatbath.runs.configs import RunConfig
from heatbath.runs.records import Epoch

WORKER = "from heatbath.engine.executors.local import serve; serve({line}, {life})"
"""What a worker process executes. It is a program of its own: the caller's script is not imported a second time."""

_NO_GPU_MEMORY = re.compile(r"out of memory|CU\w+_STATUS_ALLOC_FAILED|(FIND|GET) was unable to find an engine")


@dataclass(frozen=True)
class Settings:
    """What all tasks of a call have in common.

    Attributes:
        device: "cpu", "cuda" or "cuda:1".
        data_dir: where to look for the data first.
        checkpoints: the folder for them.
        checkpoint_seconds: the least time between two of a stack.
    """

    device: str
    data_dir: str | None
    checkpoints: Path
    checkpoint_seconds: float


@dataclass(frozen=True)
class Task:
    """A stack to be trained to its end.

    Attributes:
        name: of its checkpoints.
        configs: runs that may share a stack.
        sources: the checkpoint each of them goes on from; None from the start. All stand after the same epoch.
        threads: how many torch may use, for a CPU: the last bits of a sum depend on it.
    """

    name: str
    configs: tuple[RunConfig, ...]
    sources: tuple[Path | None, ...]
    threads: int | None = None


@dataclass(frozen=True)
class Report:
    """What a stack has measured since its last report.

    Attributes:
        first: how many epochs came before.
        measured: for each run; nothing for one that has diverged before.
        diverged: the runs whose loss is no number after that.
        checkpoint: the file that has it all, if one was written; what is restored is in the task's sources.
        durable: whether it is time to record it: there is a checkpoint, or the stack has ended.
        restored: whether it was measured by an earlier process and read from a checkpoint.
        seconds: that it took, for the whole stack.
        precision: the one in use.
        memory: bytes used and there, on a GPU.
    """

    first: int
    measured: tuple[tuple[Epoch, ...], ...]
    diverged: frozenset[str] = frozenset()
    checkpoint: str | None = None
    durable: bool = True
    restored: bool = False
    seconds: float = 0.0
    precision: str = ""
    memory: tuple[int, int] | None = None


Outcome: TypeAlias = Report | Literal["done", "lost", "damaged"]
"""Of a task: a report; its end; its worker's death; a checkpoint that cannot be read, which is out of the way now."""


class Trainer:
    """Trains stacks, one after another, in the process it is in."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._shelf = Shelf(settings.checkpoints)
        self._datasets: dict[tuple[str, int, str | None], Dataset] = {}

    def train(self, task: Task) -> Iterator[Report]:
        """Train to the end. What a report says is in a checkpoint before it is told, unless the stack has ended.

        Raises:
            torch.OutOfMemoryError: the GPU is too small for the stack.
            DamagedCheckpointError: a state cannot be read; its file has been put out of the way.
        """
        with _threads(task.threads), _plain_memory_errors():
            states, curves = self._restore(task)
            first = task.configs[0]
            device, data_dir = torch.device(self._settings.device), self._settings.data_dir
            stack = Stack(task.configs, self.dataset(first), device=device, states=states, data_dir=data_dir)
            if states is not None:
                kept = tuple(map(tuple, curves))
                yield Report(0, kept, restored=True, precision=stack.precision)
            alive = {config.run: k for k, config in enumerate(task.configs)}
            saver = Saver(self._settings.checkpoints, task.name)
            saved = time.monotonic()
            while stack.epoch < first.epochs and alive:
                start = time.perf_counter()
                epochs = stack.train_epoch()
                diverged = frozenset(run for run, k in alive.items() if not epochs[k].is_finite)
                alive = {run: k for run, k in alive.items() if run not in diverged}
                for k in alive.values():
                    curves[k].append(epochs[k])
                over = stack.epoch == first.epochs or not alive
                file = None
                # A run that has diverged is recorded at once, and its neighbours with it.
                if not over and (diverged or time.monotonic() - saved >= self._settings.checkpoint_seconds):
                    states, rows = stack.states(), alive.values()
                    file = saver.save(stack.epoch, list(alive), [states[k] for k in rows], [curves[k] for k in rows])
                    saved = time.monotonic()
                yield Report(
                    stack.epoch - 1,
                    tuple((epochs[k],) if config.run in alive else () for k, config in enumerate(task.configs)),
                    diverged,
                    checkpoint=None if file is None else file.name,
                    durable=over or file is not None,
                    seconds=time.perf_counter() - start,
                    precision=stack.precision,
                    memory=_memory(device),
                )

    def dataset(self, config: RunConfig) -> Dataset:
        """Return the images of a run, loaded once."""
        key = (config.dataset, config.validation, config.weights)
        if key not in self._datasets:
            self._datasets[key] = load_dataset(
                config.dataset,
                device=self._settings.device,
                data_dir=self._settings.data_dir,
                validation=config.validation,
                statistics=None if config.weights is None else "imagenet",
            )
        return self._datasets[key]

    def _restore(self, task: Task) -> tuple[list[ReplicaState] | None, list[list[Epoch]]]:
        states, curves = [], []
        for config, file in zip(task.configs, task.sources, strict=True):
            if file is None:
                self._shelf.forget()
                return None, [[] for _ in task.configs]
            try:
                restored = self._shelf.read(file, config.run)
            except DamagedCheckpointError:
                with suppress(OSError):
                    file.rename(file.with_suffix(REFUSED))
                raise
            states.append(restored.state)
            curves.append(list(restored.epochs))
        return states, curves


def train_here(trainer: Trainer, next_task: Callable[[], Task | None]) -> Iterator[tuple[Task, Outcome]]:
    """Train tasks in this process until there is none."""
    while (task := next_task()) is not None:
        try:
            for report in trainer.train(task):
                yield task, report
            outcome: Outcome = "done"
        except DamagedCheckpointError:
            outcome = "damaged"
        yield task, outcome


class Workers:
    """Processes that train tasks side by side. They end with this process, however that ends, and by `close`.

    One is started when there is a task for it, and none in the place of one that has died.

    Args:
        settings: of all tasks.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._idle: list[_Worker] = []
        self._busy: dict[Connection, tuple[_Worker, Task]] = {}
        self._dead = 0

    def train(self, next_task: Callable[[], Task | None], count: int) -> Iterator[tuple[Task, Outcome]]:
        """Train tasks, ``count`` at a time, until there is none.

        Raises:
            OSError: all workers have died.
            Exception: what a task raised.
        """
        room = max(1, count - self._dead)  # where one has died, fewer fit
        while True:
            while len(self._busy) < room and (task := next_task()) is not None:
                worker = self._idle.pop() if self._idle else _Worker(self._settings)
                self._busy[worker.line] = worker, task
                with suppress(OSError):  # it has died; that is noticed below
                    worker.line.send(task)
            if not self._busy:
                return
            for line in wait(list(self._busy)):
                assert isinstance(line, Connection)
                worker, task = self._busy[line]
                try:
                    outcome = line.recv()
                except (EOFError, OSError):
                    outcome = "lost"
                if isinstance(outcome, Exception):
                    raise outcome
                if outcome == "lost":
                    del self._busy[line]
                    self._dead += 1
                    room -= 1
                    code = worker.close(patience=5.0)
                    if room == 0:
                        how = f"signal {-code}, often a lack of memory" if code < 0 else f"status {code}"
                        raise OSError(
                            f"all worker processes have died ({how}); ask for one with workers=1, or --workers 1"
                        )
                elif outcome in ("done", "damaged"):
                    del self._busy[line]
                    self._idle.append(worker)
                yield task, outcome

    def close(self) -> None:
        """End all workers, whatever they are doing."""
        for worker in (*self._idle, *(worker for worker, _ in self._busy.values())):
            worker.close()
        self._idle.clear()
        self._busy.clear()


def serve(line_handle: int, life_handle: int) -> None:
    """Be a worker: train the tasks that come in until the line is closed."""
    threading.Thread(target=_end_with, args=(life_handle,), daemon=True).start()
    with suppress(EOFError, OSError), Connection(line_handle) as line:
        trainer = Trainer(line.recv())
        while True:
            task = line.recv()
            try:
                for report in trainer.train(task):
                    line.send(report)
                outcome: Outcome | Exception = "done"
            except DamagedCheckpointError:
                outcome = "damaged"
            except Exception as error:
                known = isinstance(error, OSError | ValueError | TypeError | MemoryError)
                outcome = error if known else RuntimeError(f"a worker failed: {type(error).__name__}: {error}")
            line.send(outcome)


class _Worker:
    def __init__(self, settings: Settings) -> None:
        self.line, theirs = Pipe()
        life, self._life = os.pipe()
        program = WORKER.format(line=theirs.fileno(), life=life)
        path = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
        # Without -P a module of the current folder could stand in for one of ours.
        # A Ctrl-C is for the parent to act upon; a child that starts with the signal blocked never sees it.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", program],
                pass_fds=(theirs.fileno(), life),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
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
        os.close(self._life)
        self._process.kill()
        return self._process.wait()


def _end_with(life_handle: int) -> None:
    """Wait until the other end of a pipe is closed, as it is when the parent is gone, and end."""
    os.read(life_handle, 1)
    os._exit(0)


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _plain_memory_errors() -> Iterator[None]:
    """A lack of memory has many names: libraries have their own, and a graph's capture hides the first error."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        causes = f"{error} {error.__context__}"
        if isinstance(error.__context__, torch.OutOfMemoryError) or _NO_GPU_MEMORY.search(causes):
            raise torch.OutOfMemoryError(str(error)) from None
        if "allocate memory" in causes:
            raise MemoryError("a run does not fit into this machine's memory") from None
        raise


def _memory(device: torch.device) -> tuple[int, int] | None:
    if device.type != "cuda":
        return None
    return torch.cuda.max_memory_reserved(device), torch.cuda.get_device_properties(device).total_memory
