"""How far a call of `heatbath.run` is: counted, and told to whoever follows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from heatbath.engine.jobs import Job, Measured
from heatbath.runs.configs import RunConfig


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
        download: a file that is being fetched: its name, the bytes that are here, and the bytes in all.
    """

    runs_total: int
    runs_done: int
    epochs_total: int
    epochs_done: int
    test_accuracy: float | None
    seconds: float
    message: str | None = None
    routine: bool = False
    download: tuple[str, int, int] | None = None


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with how far the call came; what was finished is in the store."""

    def __init__(self, runs_done: int, runs_total: int) -> None:
        self.runs_done, self.runs_total = runs_done, runs_total
        done = f"{runs_done} of {runs_total} runs are done"
        super().__init__(f"stopped: {done}; the same again with the same store goes on from there")


class Tally:
    """Counts runs and epochs.

    Args:
        configs: the runs, each once.
        recorded: how many epochs each of them has, 0 if it is not named; None for one that has ended.
        tell: called after each epoch of a stack, and when there is something to say.

    Attributes:
        remaining: how many epochs each run that has not ended still lacks.
    """

    def __init__(
        self,
        configs: Collection[RunConfig],
        recorded: Mapping[str, int | None],
        tell: Callable[[Progress], None] | None = None,
    ) -> None:
        had = ((config, recorded.get(config.run, 0)) for config in configs)
        self.remaining = {config.run: config.epochs - done for config, done in had if done is not None}
        self._total, self._tell = len(configs), tell or (lambda _: None)
        self._epochs_left = sum(self.remaining.values())
        self._start, self._epochs_done = time.monotonic(), 0
        self._accuracies: dict[str, float] = {}  # of the runs in training
        self._summed = 0.0  # over them: a report costs the same, however many there are
        self._accuracy: float | None = None
        self._said: set[str] = set()

    @property
    def progress(self) -> Progress:
        """How far it is."""
        ended, done = self._total - len(self.remaining), self._epochs_done
        seconds = time.monotonic() - self._start
        return Progress(self._total, ended, done + self._epochs_left, done, self._accuracy, seconds)

    def say(self, message: str, *, once: bool = False, routine: bool = False) -> None:
        """Tell whoever follows something."""
        if not (once and message in self._said):
            if once:
                self._said.add(message)
            self._tell(replace(self.progress, message=message, routine=routine))

    def tell_download(self, name: str, here: int, size: int) -> None:
        """Tell how much of a file has been fetched."""
        self._tell(replace(self.progress, download=(name, here, size)))

    def strike(self, ended: Iterable[str]) -> None:
        """Strike out the runs that have ended, here or in another process."""
        before = len(self.remaining)
        for run in ended:
            self._epochs_left -= self.remaining.pop(run, 0)
        if len(self.remaining) < before:
            self._tell(self.progress)

    def count(self, job: Job, measured: Measured) -> None:
        """Take note of what a stack has measured, and tell."""
        for config, epochs in zip(job.configs, measured.epochs, strict=True):
            if config.run in self.remaining and epochs:
                self._epochs_done += 0 if measured.restored else len(epochs)
                left = config.epochs - measured.first - len(epochs)
                self._epochs_left += left - self.remaining[config.run]
                self.remaining[config.run] = left
                if "test_accuracy" in epochs[-1].metrics:  # which not every task measures
                    self._summed += epochs[-1].test_accuracy - self._accuracies.get(config.run, 0.0)
                    self._accuracies[config.run] = epochs[-1].test_accuracy
        if self._accuracies:
            self._accuracy = self._summed / len(self._accuracies)
        for config in job.configs:
            if config.run in measured.diverged or self.remaining.get(config.run) == 0:
                self._epochs_left -= self.remaining.pop(config.run, 0)
                self._summed -= self._accuracies.pop(config.run, 0.0)
        self._tell(self.progress)


def count_runs(number: int) -> str:
    """Return a number of runs in words."""
    return "1 run" if number == 1 else f"{number} runs"
