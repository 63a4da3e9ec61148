"""Trains jobs in the process it is in, whichever executor that process belongs to."""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch

from heatbath.data.datasets import Dataset, load_dataset
from heatbath.data.formats import DataError
from heatbath.engine import planning
from heatbath.engine.jobs import Ended, Job, Measured, Outcome
from heatbath.engine.options import Options
from heatbath.engine.stack import Stack, WrongStateError
from heatbath.engine.task_replica import Splits, split_task
from heatbath.runs.checkpoints import REFUSED, DamagedCheckpointError, ReplicaState, Saver, Shelf
from heatbath.runs.configs import RunConfig
from heatbath.runs.records import Epoch
from heatbath.system import machine
from heatbath.tasks.probe import check_batches
from heatbath.tasks.samples import failure
from heatbath.tasks.task import live_task

_NO_GPU_MEMORY = re.compile(r"out of memory|CU\w+_STATUS_ALLOC_FAILED|(FIND|GET) was unable to find an engine")


Lent: TypeAlias = "tuple[dict[tuple[Any, ...], Dataset | Splits], Any]"
"""Data sets by what tells them apart, and the weights to start from."""


class Trainer:
    """Trains stacks, one after another, with the options of the call, of which the device is resolved.

    Data that is missing is downloaded; with ``fetch=False`` it is not, as the driver may lend it.
    """

    def __init__(self, options: Options, checkpoints: Path, *, fetch: bool = True) -> None:
        self._options, self._folder, self._fetch = options, checkpoints, fetch
        self._device = torch.device(options.device)
        self._shelf = Shelf(checkpoints)
        self._datasets: dict[tuple[Any, ...], Dataset | Splits] = {}
        self._features: Any = None

    def work(self, job: Job) -> Generator[Outcome]:
        """Train a job to its end and tell how it ended. Other errors than those of a job's own are raised."""
        end = Ended()
        try:
            yield from self._train(job)
        except DamagedCheckpointError as error:
            end = Ended("damaged", str(error))
        except torch.OutOfMemoryError:
            end = Ended("no memory", "a single run does not fit into the GPU's memory")
        except MemoryError as error:
            end = Ended("no memory", str(error) or "a run does not fit into this machine's memory")
        except (ValueError, OSError):
            raise
        except Exception as error:
            task = job.configs[0].task
            if task is None:
                raise
            raise ValueError(failure(f"the code of task {task.facts.name}", error)) from error  # which worked at first
        if end.how == "no memory":  # outside of the except clause, whose traceback would keep the stack alive
            gc.collect()
            if self._device.type == "cuda" and torch.cuda.is_available():
                torch.cuda.empty_cache()
        yield end

    def prepare(self, configs: Sequence[RunConfig], progress: Callable[[str, int, int], None] | None = None) -> None:
        """Load what runs need, and fetch it where it is nowhere to be found, which ``progress`` is told of.

        Raises:
            DataError: something can be neither found nor fetched; the message says how to get it.
        """
        try:
            for config in {(data_key(config), config.batch_size): config for config in configs}.values():
                if config.task is not None:
                    check_batches(live_task(config.task), config.training_images, config.batch_size)
                    continue
                self.dataset(config, progress)
                self.features(config, progress)
        except DataError as error:
            advice = "'heatbath data' shows what is found where, 'heatbath data --get NAME' fetches it"
            raise DataError(f"{error}; {advice}") from error

    def dataset(self, config: RunConfig, progress: Callable[[str, int, int], None] | None = None) -> Dataset | Splits:
        """Return the images, or the samples of the task, of a run, loaded once."""
        key = data_key(config)
        if key not in self._datasets and config.task is not None:
            self._datasets[key] = split_task(live_task(config.task), config.validation, self._device)
        elif key not in self._datasets:
            self._datasets[key] = load_dataset(
                config.dataset,
                device=self._options.device,
                data_dir=self._options.data_dir,
                download=self._fetch,
                validation=config.validation,
                statistics=None if config.weights is None else "imagenet",
                progress=progress,
            )
        return self._datasets[key]

    def features(self, config: RunConfig, progress: Callable[[str, int, int], None] | None = None) -> Any:
        """Return the weights that a run starts from, loaded once; None where it starts from its seed."""
        load = config.network.pretrained if config.weights is not None else None
        if load is None:
            return None
        if self._features is None:
            self._features = load(config.weights, self._options.data_dir, progress, download=self._fetch)
        return self._features

    def lend(self, config: RunConfig) -> Lent:
        """Return the data of a run, for a trainer elsewhere to `adopt`."""
        return {data_key(config): self.dataset(config)}, self.features(config)

    def adopt(self, lent: Lent) -> None:
        """Take data from a trainer elsewhere instead of looking for it."""
        datasets, self._features = lent
        for key, data in datasets.items():
            if isinstance(data, Dataset):
                self._datasets[key] = data.to(self._device)
            else:
                self._datasets[key] = {name: part.to(self._device) for name, part in data.items()}

    def forget(self) -> None:
        """Free the memory of the data."""
        self._datasets.clear()
        self._features = None

    def _train(self, job: Job) -> Iterator[Measured]:
        """Train to the end. What is told is in a checkpoint before, unless the stack has ended."""
        with self._threads(job.configs[0]), _plain_memory_errors():
            states, curves = self._restore(job)
            first = job.configs[0]
            given = {"states": states, "features": self.features(first)}
            try:
                stack = Stack(job.configs, self.dataset(first), device=self._device, **given)
            except WrongStateError as error:
                file = job.sources[error.replica]
                raise _put_away(file, DamagedCheckpointError(f"{file}: {error}")) from None
            origin = {**machine.describe_origin(self._options.device), "precision": stack.precision}
            origin |= {"computed": stack.how} if stack.how else {}
            if states is not None:
                yield Measured(0, tuple(map(tuple, curves)), restored=True, origin=origin)
            alive = {config.run: k for k, config in enumerate(job.configs)}
            saver, saved = Saver(self._folder, job.name), time.monotonic()
            while stack.epoch < first.epochs and alive:
                start = time.perf_counter()
                epochs = [replace(epoch, origin=origin) for epoch in stack.train_epoch()]
                diverged = frozenset(run for run, k in alive.items() if not epochs[k].is_finite)
                alive = {run: k for run, k in alive.items() if run not in diverged}
                for k in alive.values():
                    curves[k].append(epochs[k])
                over, file = stack.epoch == first.epochs or not alive, None
                # A run that has diverged is recorded at once, and its neighbours with it.
                if not over and (diverged or time.monotonic() - saved >= self._options.checkpoint_seconds):
                    states, rows = stack.states(), alive.values()
                    file = saver.save(stack.epoch, list(alive), [states[k] for k in rows], [curves[k] for k in rows])
                    saved = time.monotonic()
                yield Measured(
                    stack.epoch - 1,
                    tuple((epochs[k],) if config.run in alive else () for k, config in enumerate(job.configs)),
                    diverged,
                    checkpoint=None if file is None else file.name,
                    durable=over or file is not None,
                    seconds=time.perf_counter() - start,
                    origin=origin,
                    memory=_memory(self._device),
                )

    def _restore(self, job: Job) -> tuple[list[ReplicaState] | None, list[list[Epoch]]]:
        states, curves = [], []
        for config, file in zip(job.configs, job.sources, strict=True):
            if file is None:
                self._shelf.forget()
                return None, [[] for _ in job.configs]
            try:
                restored = self._shelf.read(file, config.run)
            except DamagedCheckpointError as error:
                raise _put_away(file, error) from None
            states.append(restored.state)
            curves.append(list(restored.epochs))
        return states, curves

    @contextmanager
    def _threads(self, config: RunConfig) -> Iterator[None]:
        """On a CPU, the threads that are fastest for such runs: the last bits of a sum depend on them."""
        before = torch.get_num_threads()
        try:
            if self._device.type == "cpu":
                torch.set_num_threads(planning.cpu_workers(config, machine.available_cores())[1])
            yield
        finally:
            torch.set_num_threads(before)


def data_key(config: RunConfig) -> tuple[Any, ...]:
    """Return what tells the data of runs apart."""
    return config.dataset, config.validation, config.weights, config.task


def _put_away(file: Path | None, error: DamagedCheckpointError) -> DamagedCheckpointError:
    """Put a file that is no checkpoint out of the way; return the error that says so."""
    if file is not None:
        with suppress(OSError):
            file.rename(file.with_suffix(REFUSED))
    return error


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
