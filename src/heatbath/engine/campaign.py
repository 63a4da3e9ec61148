"""One call of `heatbath.run` at work: claims runs, puts them into stacks, trains, records, and tells how far it is."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from heatbath.engine import planning
from heatbath.engine.executors.local import Outcome, Report, Settings, Task, Trainer, Workers, train_here
from heatbath.runs.checkpoints import Found, Saver, Shelf
from heatbath.runs.configs import RunConfig
from heatbath.runs.records import ENDED
from heatbath.runs.store import Store, Update
from heatbath.system import locks, machine

_POLL, _LONGEST_POLL = 0.3, 3.0  # seconds between two looks at the runs of another process: the first, and at most
_WORTH_WORKERS = 15.0  # seconds of work from which on it pays to start processes, which takes some seconds itself


@dataclass(frozen=True)
class Progress:
    """How far a call of `run` is.

    Attributes:
        runs_total: how many different runs were asked for.
        runs_done: how many of them are finished or diverged, from before or now.
        epochs_total: how many this call trains, as far as is known.
        epochs_done: how many of them it has trained.
        test_accuracy: the mean of the runs in training after their last epochs; None before the first.
        seconds: since the call.
        message: something to be said once, or None.
        routine: whether it is about the usual course of things.
    """

    runs_total: int
    runs_done: int
    epochs_total: int
    epochs_done: int
    test_accuracy: float | None
    seconds: float
    message: str | None = None
    routine: bool = False


class Campaign:
    """Trains what is left of some runs in a store.

    Args:
        store: where they are, asked for already.
        configs: the runs.
        settings: device, data and checkpoints.
        workers: how many processes, on a CPU; None leaves it to `finish`.
        stack: the most runs in one stack; None leaves it to the memory.
        progress: called after each epoch of a stack, and when there is something to say.
    """

    def __init__(
        self,
        store: Store,
        configs: Iterable[RunConfig],
        settings: Settings,
        *,
        workers: int | None = None,
        stack: int | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self._store, self._settings, self._tell = store, settings, progress
        self._configs = {config.run: config for config in configs}
        self._processes, self._largest = workers, stack
        self._device = torch.device(settings.device)
        self._words: dict[str, Any] = {
            "device": machine.describe_device(settings.device),
            "versions": machine.installed_versions(),
        }
        recorded = {record.run: len(record.epochs) for record in store.records(self._configs)}
        self._remaining = {run: config.epochs - recorded[run] for run, config in self._configs.items()}
        self._accuracies: dict[str, float] = {}
        self._accuracy: float | None = None
        self._start, self._epochs_done = time.monotonic(), 0
        self._told: set[str] = set()
        self._shelf = Shelf(store.checkpoints)
        self._reported_damage = 0
        self._trainer, self._workers = Trainer(settings), Workers(settings)
        self._halved: dict[tuple[Any, ...], int] = {}
        self._unsaved: dict[str, list[Report]] = {}
        self._tasks = 0
        self._task: Task | None = None
        locks.tidy(store.owners)
        self._owner = locks.Owner(store.owners)

    @property
    def progress(self) -> Progress:
        """How far it is."""
        total, left = len(self._configs), len(self._remaining)
        done, epochs = self._epochs_done, sum(self._remaining.values())
        return Progress(total, total - left, done + epochs, done, self._accuracy, time.monotonic() - self._start)

    def finish(self) -> None:
        """Train until all runs have ended, here or in another process."""
        self._remove_partial(lambda owner: not locks.is_alive(self._store.owners, owner))
        idle = _POLL
        while left := self._left():
            before = self._tasks
            if self._device.type == "cpu":
                for model in dict.fromkeys(config.model for config in left):
                    self._train_on_cpu(model, [config for config in left if config.model == model])
            else:
                self._train_on_gpu(left)
            if self._tasks == before:
                self.say(f"another process is training {_runs(len(left))}; waiting", once=True)
                time.sleep(idle)
                idle = min(2.0 * idle, _LONGEST_POLL)
            else:
                idle = _POLL
        self._shelf.clean(run for run, status in self._store.statuses().items() if status in ENDED)

    def close(self) -> None:
        """End the workers, remove what they were writing, and give back what was claimed."""
        self._workers.close()
        self._store.release(self._owner)
        self._remove_partial(lambda owner: owner == self._owner.name)
        self._owner.close()

    def say(self, message: str, *, once: bool = False, routine: bool = False) -> None:
        """Tell whoever follows the progress something."""
        if self._tell is not None and not (once and message in self._told):
            self._told.add(message)
            self._tell(replace(self.progress, message=message, routine=routine))

    def _left(self) -> list[RunConfig]:
        ended = {run for run, status in self._store.statuses().items() if status in ENDED} & self._remaining.keys()
        for run in ended:
            del self._remaining[run]
        if ended and self._tell is not None:  # in another process, or before this one
            self._tell(self.progress)
        return [self._configs[run] for run in self._remaining]

    def _train_on_cpu(self, model: str, configs: list[RunConfig]) -> None:
        """Train runs of one network, side by side if that is asked for, or if there is enough to do."""
        processes, threads = planning.cpu_workers(model, machine.available_cores())
        queue = self._plan(configs)
        processes = min(self._processes or processes, len(queue))
        images = sum(self._remaining[config.run] * config.training_images for config in configs)
        enough = self._processes is not None or images * configs[0].network.cost.cpu_seconds > _WORTH_WORKERS
        side_by_side = processes > 1 and enough
        places = f"{processes if side_by_side else 1} x {threads} threads".replace(" 1 threads", " 1 thread")
        self.say(f"trains {_runs(len(configs))} of {model} on {places}", once=True, routine=True)
        next_task = partial(self._next_task, queue, threads)
        if not side_by_side:
            self._follow(train_here(self._trainer, next_task), queue)
            return
        for config in {planning.stack_key(config): config for config in configs}.values():
            Trainer(self._settings).dataset(config)  # so that it is fetched once, and missed before anything starts
        self._follow(self._workers.train(next_task, processes), queue)

    def _train_on_gpu(self, configs: list[RunConfig]) -> None:
        """Train stack after stack; one that is too large for the memory is halved, and all like it."""
        queue = self._plan(configs)
        for models, stacks, size in _outline(queue):
            many = "one stack" if stacks == 1 else f"{stacks} stacks of up to {size}"
            self.say(f"trains {_runs(models[1])} of {models[0]} in {many}", once=True, routine=True)
        try:
            self._follow(train_here(self._trainer, partial(self._next_task, queue, None)), queue)
            return
        except torch.OutOfMemoryError:
            if self._task is None or len(self._task.configs) == 1:
                raise MemoryError("a single run does not fit into the GPU's memory") from None
        # Outside the except clause, whose traceback would keep the stack, and so its memory, alive.
        half = (len(self._task.configs) + 1) // 2
        self._halved[planning.stack_key(self._task.configs[0])] = half
        self._unsaved.clear()
        gc.collect()
        torch.cuda.empty_cache()
        self.say(f"out of memory: stacks of {half} from here")

    def _plan(self, configs: Sequence[RunConfig]) -> deque[list[RunConfig]]:
        """Runs that may share a stack and stand after the same epoch, in stacks of equal size."""
        found = self._shelf.find(config.run for config in configs)
        groups: dict[tuple[Any, ...], list[RunConfig]] = {}
        for config in configs:
            groups.setdefault((planning.stack_key(config), _epoch(config, found)), []).append(config)
        queue: deque[list[RunConfig]] = deque()
        for (key, _), members in groups.items():
            size = planning.plan_stacks(members, self._device)
            size = max(1, min(size, self._largest or size, self._halved.get(key, size)))
            stacks = -(-len(members) // size)
            bounds = [len(members) * k // stacks for k in range(stacks + 1)]
            queue.extend(members[a:b] for a, b in pairwise(bounds))
        return queue

    def _next_task(self, queue: deque[list[RunConfig]], threads: int | None) -> Task | None:
        while queue:
            asked = queue.popleft()
            recorded = self._store.claim([config.run for config in asked], self._owner)
            if not recorded:
                continue
            # Looked up after the claim: from now on nobody else moves them.
            found = self._shelf.find(recorded)
            stages: dict[int, list[RunConfig]] = {}
            for config in asked:
                if config.run in recorded:
                    stages.setdefault(_epoch(config, found), []).append(config)
            (epoch, chosen), *others = stages.items()
            queue.extendleft(members for _, members in others)
            self._explain_losses(chosen, epoch, recorded)
            sources = tuple(found[config.run].file if epoch else None for config in chosen)
            self._task = Task(f"{self._owner.name}.{self._tasks}", tuple(chosen), sources, threads)
            self._tasks += 1
            return self._task
        return None

    def _explain_losses(self, configs: Sequence[RunConfig], epoch: int, recorded: dict[str, int]) -> None:
        new, self._reported_damage = self._shelf.damaged[self._reported_damage :], len(self._shelf.damaged)
        for file in new:
            self.say(f"the checkpoint {file.name} is damaged and not used")
        back = [config.run for config in configs if recorded[config.run] > epoch]
        if back:
            where = f"go on after epoch {epoch}" if epoch else "start over"
            self.say(f"{_runs(len(back))} without a checkpoint of the last epoch {where}; the numbers will be the same")

    def _follow(self, outcomes: Iterator[tuple[Task, Outcome]], queue: deque[list[RunConfig]]) -> None:
        with closing(outcomes):  # type: ignore[type-var]
            for task, outcome in outcomes:
                if isinstance(outcome, Report):
                    self._record(task, outcome)
                elif outcome == "done":
                    Saver(self._settings.checkpoints, task.name).remove()
                else:
                    self._unsaved.pop(task.name, None)
                    queue.append(list(task.configs))
                    lost = "a worker process has died, often of a lack of memory; going on with fewer"
                    self.say(lost if outcome == "lost" else "a checkpoint cannot be read and is not used")

    def _record(self, task: Task, report: Report) -> None:
        """Put what was measured into the store, in one transaction, as soon as a checkpoint has it."""
        self._unsaved.setdefault(task.name, []).append(report)
        if report.durable:
            self._store.save(self._owner, self._updates(task, self._unsaved.pop(task.name)))
        for config, epochs in zip(task.configs, report.measured, strict=True):
            if config.run in self._remaining and epochs:
                self._epochs_done += 0 if report.restored else len(epochs)
                self._remaining[config.run] = config.epochs - report.first - len(epochs)
                self._accuracies[config.run] = epochs[-1].test_accuracy
        if self._accuracies:
            self._accuracy = sum(self._accuracies.values()) / len(self._accuracies)
        for config in task.configs:
            if config.run in report.diverged or self._remaining.get(config.run) == 0:
                self._remaining.pop(config.run, None)
                self._accuracies.pop(config.run, None)
        if report.memory is not None:
            used, total = (size / 1e9 for size in report.memory)
            stack = f"{_runs(len(task.configs))} in a stack"
            self.say(f"{stack}: {used:.1f} GB of {total:.0f} GB", once=True, routine=True)
        if self._tell is not None:
            self._tell(self.progress)

    def _updates(self, task: Task, reports: Sequence[Report]) -> Iterator[Update]:
        seconds = sum(report.seconds for report in reports) / len(task.configs)
        last, first = reports[-1], reports[0].first
        for k, config in enumerate(task.configs):
            epochs = [epoch for report in reports for epoch in report.measured[k]]
            if config.run in last.diverged:
                status = "diverged"
            elif epochs:
                status = "finished" if first + len(epochs) == config.epochs else "running"
            else:  # it has diverged before
                continue
            file = task.sources[k] if last.restored else None
            checkpoint = last.checkpoint if file is None else file.name
            words = {**self._words, "precision": last.precision, "checkpoint": checkpoint}
            yield Update(config.run, first, epochs, status, seconds, **words)

    def _remove_partial(self, is_theirs: Callable[[str], bool]) -> None:
        """Remove checkpoints that were left half-written by the processes of some owners."""
        for file in self._store.checkpoints.glob("*.partial"):
            if is_theirs(file.name.partition(".")[0]):
                file.unlink(missing_ok=True)


def _epoch(config: RunConfig, found: dict[str, Found]) -> int:
    """After which epoch a run stands; a file that says it is over did not come from here, and is not used."""
    epoch = found[config.run].epoch if config.run in found else 0
    return epoch if epoch < config.epochs else 0


def _outline(queue: Iterable[list[RunConfig]]) -> Iterator[tuple[tuple[str, int], int, int]]:
    sizes: dict[str, list[int]] = {}
    for members in queue:
        sizes.setdefault(members[0].model, []).append(len(members))
    for model, stacks in sizes.items():
        yield (model, sum(stacks)), len(stacks), max(stacks)


def _runs(number: int) -> str:
    return "1 run" if number == 1 else f"{number} runs"
