"""One call of `heatbath.run` at work: trains what is left of some runs until all have ended, here or elsewhere."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress

from heatbath.engine.executors.choice import Executor
from heatbath.engine.job_queue import JobQueue
from heatbath.engine.jobs import Ended, Job, Measured, Outcome
from heatbath.engine.preflight import core_seconds
from heatbath.engine.progress import Tally, count_runs
from heatbath.runs.checkpoints import Saver
from heatbath.runs.configs import RunConfig
from heatbath.runs.records import ENDED
from heatbath.runs.store import Store, Update
from heatbath.system import locks

_CLAIMED_AHEAD = 8  # a driver of many workers claims for an eighth of them at once, in one transaction
_LOSSES = 5  # of a run, without an epoch between them, from which on it is not the nodes that are to blame
_POLL, _LONGEST_POLL = 0.3, 3.0  # seconds between two looks at the runs of another process: the first, and at most


class Campaign:
    """Trains what is left of some runs, which have been asked for in a store; see `JobQueue` for ``stack``."""

    def __init__(
        self, store: Store, configs: Mapping[str, RunConfig], executor: Executor, tally: Tally, stack: int | None
    ) -> None:
        self._store, self._configs, self._executor, self._tally = store, configs, executor, tally
        locks.tidy(store.owners)
        self._owner = locks.Owner(store.owners)
        self._recorder = Recorder(store, self._owner)
        self._queue = JobQueue(store, self._owner, tally, executor.stack_size, stack, executor.slots)
        self._losses = Counter[str]()  # of workers, by the first run of their job, since its last epoch

    def finish(self) -> None:
        """Train until all runs have ended, here or in another process.

        Raises:
            MemoryError: a single run does not fit.
            OSError: a run has lost one worker after another.
        """
        with _only_new_garbage():
            self._finish()

    def _finish(self) -> None:
        idle = _POLL
        while left := self._left():
            before = self._queue.handed_out
            for configs in self._executor.rounds(left):
                self._train(configs)
            if self._queue.handed_out > before:
                idle = _POLL
            else:
                self._tally.say(f"another process is training {count_runs(len(left))}; waiting", once=True)
                time.sleep(idle)
                idle = min(2.0 * idle, _LONGEST_POLL)
        self._queue.shelf.clean(self._ended())

    def close(self) -> None:
        """Give back what was claimed, and remove what the workers, which must have ended, were writing."""
        self._store.release(self._owner)
        self._owner.close()
        self._queue.shelf.remove_partial(self._queue.is_alive)

    def _ended(self) -> list[str]:
        return [run for run, status in self._store.statuses().items() if status in ENDED]

    def _left(self) -> list[RunConfig]:
        self._tally.strike(self._ended())
        return [self._configs[run] for run in self._tally.remaining]

    def _train(self, configs: Sequence[RunConfig]) -> None:
        self._queue.fill(configs)
        seconds = core_seconds(configs, self._tally.remaining)
        places, threads = self._executor.places(configs, len(self._queue), seconds)
        for model, sizes in self._queue.outline().items():
            where = f"on {places} x {threads} thread{'s' * (threads != 1)}"
            if self._executor.device != "cpu":
                where = "in one stack" if len(sizes) == 1 else f"in {len(sizes)} stacks of up to {max(sizes)}"
                where += f" on {places} GPUs" * (places > 1)
            self._tally.say(f"trains {count_runs(sum(sizes))} of {model} {where}", once=True, routine=True)
        self._queue.ahead = max(1, places // _CLAIMED_AHEAD)
        with closing(self._executor.train(self._queue.next, places)) as outcomes:  # type: ignore[type-var]
            try:
                for found in outcomes:
                    if found is None:
                        self._recorder.flush()
                    else:
                        self._follow(*found)
            except BaseException:
                with suppress(OSError):
                    self._recorder.flush()
                raise
        self._recorder.flush()

    def _follow(self, job: Job, outcome: Outcome) -> None:
        if isinstance(outcome, Measured):
            self._take(job, outcome)
        elif outcome.how == "done":
            self._recorder.end(job)
        else:
            self._recorder.flush()
            self._recorder.drop(job)
            self._try_again(job, outcome)

    def _take(self, job: Job, measured: Measured) -> None:
        self._recorder.record(job, measured)
        self._tally.count(job, measured)
        if not measured.restored:
            self._losses.pop(job.configs[0].run, None)
        if measured.memory is not None:
            used, total = (size / 1e9 for size in measured.memory)
            stack = f"{count_runs(len(job.configs))} in a stack"
            self._tally.say(f"{stack}: {used:.1f} GB of {total:.0f} GB", once=True, routine=True)
        if "computed" in measured.origin and self._executor.device != "cpu":
            runs = f"runs of {job.configs[0].model}"
            self._tally.say(f"{runs} are computed {measured.origin['computed']}", once=True, routine=True)

    def _try_again(self, job: Job, end: Ended) -> None:
        if end.how == "no memory":
            if len(job.configs) == 1:
                raise MemoryError(end.reason)
            self._tally.say(f"out of memory: stacks of {self._queue.halve(job)} from here")
            return
        self._queue.put_back(job, damaged=end.how == "damaged")
        first = job.configs[0].run
        self._losses[first] += end.how == "lost"
        if self._losses[first] >= _LOSSES:
            raise OSError(f"run {first} lost {_LOSSES} workers before its next epoch, the last one so: {end.reason}")
        lost = f"a worker is lost ({end.reason}); its runs go on elsewhere from their last checkpoint"
        self._tally.say(lost if end.how == "lost" else "a checkpoint cannot be read and is not used")


@contextmanager
def _only_new_garbage() -> Iterator[None]:
    """Let no search for garbage go through what is there: with many runs that takes a fifth of a driver's time."""
    frozen = gc.get_freeze_count() > 0  # by the caller, who may rely on it
    if not frozen:
        gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()


class Recorder:
    """Holds what an owner's jobs measured until a checkpoint has it, and then records all of it in one transaction."""

    def __init__(self, store: Store, owner: locks.Owner) -> None:
        self._store, self._owner = store, owner
        self._unsaved: dict[str, list[Measured]] = {}
        self._ready: list[tuple[Job, list[Measured]]] = []
        self._ended: list[Job] = []
        self._saved: set[str] = set()  # the names of jobs with checkpoints

    def record(self, job: Job, measured: Measured) -> None:
        """Take what a job has measured; `flush` records it, if a checkpoint has it or the job has ended."""
        self._unsaved.setdefault(job.name, []).append(measured)
        if measured.checkpoint is not None:
            self._saved.add(job.name)
        if measured.durable:
            self._ready.append((job, self._unsaved.pop(job.name)))

    def end(self, job: Job) -> None:
        """Take note that a job has ended: its checkpoints are removed when all of it is recorded."""
        self._ended.append(job)

    def drop(self, job: Job) -> None:
        """Forget what no checkpoint has: the job will be trained again from the last one."""
        self._unsaved.pop(job.name, None)
        self._saved.discard(job.name)

    def flush(self) -> None:
        """Record what is ready.

        Raises:
            OSError: it could not be recorded; the checkpoints have it still.
        """
        if self._ready:
            self._store.save(self._owner, [update for job, parts in self._ready for update in _updates(job, parts)])
        self._ready.clear()
        for job in self._ended:
            if job.name in self._saved:
                Saver(self._store.checkpoints, job.name).remove()
                self._saved.discard(job.name)
        self._ended.clear()


def _updates(job: Job, parts: Sequence[Measured]) -> Iterator[Update]:
    seconds = sum(part.seconds for part in parts) / len(job.configs)
    last, first = parts[-1], parts[0].first
    for k, config in enumerate(job.configs):
        epochs = [epoch for part in parts for epoch in part.epochs[k]]
        if config.run in last.diverged:
            status = "diverged"
        elif epochs:
            status = "finished" if first + len(epochs) == config.epochs else "running"
        else:  # it has diverged before
            continue
        file = job.sources[k] if last.restored else None
        checkpoint = last.checkpoint if file is None else file.name
        yield Update(config.run, first, epochs, status, seconds, last.origin, checkpoint)
