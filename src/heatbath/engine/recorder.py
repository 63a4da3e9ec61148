"""Puts what jobs measure into the store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from heatbath.engine.jobs import Job, Measured
from heatbath.runs.checkpoints import Saver
from heatbath.runs.store import Store, Update
from heatbath.system.locks import Owner


class Recorder:
    """Holds what was measured until a checkpoint has it, and then records all that there is in one transaction.

    Args:
        store: where to.
        owner: of the runs.
    """

    def __init__(self, store: Store, owner: Owner) -> None:
        self._store, self._owner = store, owner
        self._unsaved: dict[str, list[Measured]] = {}
        self._ready: list[tuple[Job, list[Measured]]] = []
        self._ended: list[Job] = []

    def record(self, job: Job, measured: Measured) -> None:
        """Take what a job has measured; `flush` records it, if a checkpoint has it or the job has ended."""
        self._unsaved.setdefault(job.name, []).append(measured)
        if measured.durable:
            self._ready.append((job, self._unsaved.pop(job.name)))

    def end(self, job: Job) -> None:
        """Take note that a job has ended: its checkpoints are removed when all of it is recorded."""
        self._ended.append(job)

    def drop(self, job: Job) -> None:
        """Forget what no checkpoint has: the job will be trained again from the last one."""
        self._unsaved.pop(job.name, None)

    def flush(self) -> None:
        """Record what is ready.

        Raises:
            OSError: it could not be recorded; the checkpoints have it still.
        """
        ready, self._ready = self._ready, []
        if ready:
            self._store.save(self._owner, [update for job, parts in ready for update in _updates(job, parts)])
        ended, self._ended = self._ended, []
        for job in ended:
            Saver(self._store.checkpoints, job.name).remove()


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
