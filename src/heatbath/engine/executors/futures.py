"""Trains jobs wherever a `concurrent.futures.Executor` computes: in processes, with Dask, over MPI.

A future cannot tell how far it is. So a job is trained in slices: each comes back with what was measured and the state
of the stack, and goes out again as a new future. A worker that gets the next slice of what it has just trained goes on
with the stack as it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from heatbath.engine.executors.choice import NextJob, Outcomes
from heatbath.engine.executors.parcels import Delivery, keep, pack, whole_slice
from heatbath.engine.executors.remote import Remote
from heatbath.engine.jobs import Ended, Job, Measured, Outcome
from heatbath.engine.options import Options
from heatbath.engine.trainer import Lent

_LOOK = 5.0  # seconds between two looks at whether the executor is still there
SLICE = 10.0  # seconds that a slice takes at least, unless ``checkpoint_seconds`` asks for more
_SIZES = ("_max_workers", "num_workers")  # what executors call the number of their workers


class Futures(Remote):
    """An executor of futures: ``where`` has ``submit``, and is left open; ``workers`` slices are out at a time."""

    patience: float | None = None  # seconds for a worker to be there

    def __init__(self, options: Options, checkpoints: Path, where: Any) -> None:
        super().__init__(options, checkpoints, SLICE)
        self._executor = where
        self._busy: dict[futures.Future[list[Delivery]], tuple[Job, int, bool]] = {}  # and whether data is with it

    def ask_worker(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function returns on a worker."""
        with _plain_errors():
            return self._executor.submit(question, *arguments).result(self.patience)

    def count_places(self) -> int:
        """Return how many workers the executor has.

        Raises:
            ValueError: it does not say.
        """
        for name in _SIZES:
            size = getattr(self._executor, name, None)
            if isinstance(size, int) and size > 0:
                return size
        raise ValueError(f"{type(self._executor).__name__} does not say how many workers it has: give workers")

    def share(self, data: Lent) -> Any:
        """Return what to send in the place of data that a worker lacks."""
        return data

    def is_loss(self, error: Exception) -> bool:
        """Return whether an error of a future says that its worker is gone, and others are not."""
        del error
        return False

    def check(self) -> None:
        """Raise an OSError if the executor is gone: its futures may then never end."""

    def train(self, next_job: NextJob, places: int) -> Outcomes:
        """Train jobs, slice by slice, so many at a time, until there is none.

        Raises:
            OSError: the executor has broken; what was recorded is safe.
        """
        while True:
            while len(self._busy) < places and (job := next_job()) is not None:
                self._submit(job, 0)
            if not self._busy:
                return
            done, _ = futures.wait(self._busy, timeout=_LOOK, return_when=futures.FIRST_COMPLETED)
            self.check()
            more: list[tuple[Any, ...]] = []
            for future in sorted(done, key=_has_failed):  # what others have finished is recorded before one raises
                job, epoch, lent = self._busy.pop(future)
                for outcome in self._outcomes(future, job):
                    if isinstance(outcome, Ended) and outcome.how == "no data":
                        more.append((job, epoch, self.share(self.lend(job, outcome.reason, again=lent))))
                        continue
                    yield job, outcome
                    if isinstance(outcome, Measured) and outcome.checkpoint is not None:
                        more.append((_rest(job, outcome, self.checkpoints), outcome.first + 1))
            for parts in more:  # not before: an executor that has broken raises here
                self._submit(*parts)
            yield None

    def close(self) -> None:
        """Take back the slices that nobody works on, and wait for the others: a future cannot be stopped."""
        for future in self._busy:
            future.cancel()
        self._busy.clear()

    def _submit(self, job: Job, epoch: int, *data: Any) -> None:
        with _plain_errors():
            future = self._executor.submit(whole_slice, pack(job, self.options, epoch), *data)
        self._busy[future] = job, epoch, bool(data)

    def _outcomes(self, future: futures.Future[list[Delivery]], job: Job) -> Iterator[Outcome]:
        try:
            with _plain_errors():
                deliveries = future.result()
        except futures.CancelledError:
            yield Ended("lost", "its future was cancelled")
            return
        except Exception as error:
            if not self.is_loss(error):
                raise
            yield Ended("lost", " ".join(str(error).split()))
            return
        for delivery in deliveries:
            yield keep(delivery, job, self.checkpoints)


def _has_failed(future: futures.Future[list[Delivery]]) -> bool:
    return future.cancelled() or future.exception() is not None


def _rest(job: Job, measured: Measured, checkpoints: Path) -> Job:
    """What is left of a job after a slice: its runs that have not diverged, from the slice's checkpoint."""
    assert measured.checkpoint is not None
    alive = tuple(config for config, epochs in zip(job.configs, measured.epochs, strict=True) if epochs)
    return replace(job, configs=alive, sources=(checkpoints / measured.checkpoint,) * len(alive))


@contextmanager
def _plain_errors() -> Iterator[None]:
    try:
        yield
    except futures.BrokenExecutor:
        raise OSError(
            "the executor has broken: a worker of it died, often of a lack of memory; what was recorded is safe, and "
            "the same call with a new executor goes on from there"
        ) from None
    except RuntimeError as error:
        if "schedule new futures" not in str(error):
            raise
        raise ValueError("executor has been shut down: give one that is open") from None
