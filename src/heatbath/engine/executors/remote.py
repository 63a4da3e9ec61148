"""What executors of other machines have in common: what they ask the workers, and what they lend them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from heatbath.engine import planning
from heatbath.engine.executors.parcels import (
    ASK_FOR_HEATBATH,
    WorkerFacts,
    check_versions,
    describe_worker,
    own_versions,
)
from heatbath.engine.jobs import Job
from heatbath.engine.options import Options
from heatbath.engine.trainer import Lent, Trainer
from heatbath.runs.configs import RunConfig


class Remote:
    """An executor whose workers have neither the store, with its folder of checkpoints, nor, perhaps, the data.

    States are sent to this machine. So there are at least ``seconds`` between two, whatever the options ask for.
    """

    def __init__(self, options: Options, checkpoints: Path, seconds: float) -> None:
        seconds = max(seconds, options.checkpoint_seconds)
        self.options, self.checkpoints = replace(options, executor=None, checkpoint_seconds=seconds), checkpoints
        self._trainer = Trainer(replace(self.options, device="cpu"), checkpoints)

    def ask_worker(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function returns on a worker."""
        raise NotImplementedError

    def count_places(self) -> int:
        """Return how many jobs the workers can train at a time."""
        raise NotImplementedError

    @cached_property
    def facts(self) -> WorkerFacts:
        """What a worker says of its machine; the others are taken to be like it.

        Raises:
            ValueError: it has another version of heatbath, Python or torch, or no heatbath.
        """
        own = own_versions()
        # Our own functions would be looked for in the heatbath there, which may have none of that name.
        try:
            host, version = self.ask_worker(eval, ASK_FOR_HEATBATH)
        except ImportError as error:
            raise ValueError(f"a worker lacks heatbath or torch ({error}): install the same on all") from None
        check_versions(host, {"heatbath": version}, {"heatbath": own["heatbath"]})
        facts: WorkerFacts = self.ask_worker(describe_worker, self.options)
        check_versions(facts.host, facts.versions, own)
        return facts

    @property
    def device(self) -> str:
        """On what the workers train."""
        return self.facts.device

    @property
    def slots(self) -> int:
        """How many stacks there should be at least: one for each GPU."""
        return 1 if self.device == "cpu" else self.options.workers or max(1, self.count_places())

    def prepare(self, configs: Sequence[RunConfig], progress: Callable[[str, int, int], None] | None = None) -> None:
        """Meet a worker; the data is looked for by the workers, and lent to those who lack it.

        All use the device of that one, as a CPU and a GPU give different numbers.
        """
        del configs, progress
        self.options = replace(self.options, device=self.facts.device)

    def rounds(self, configs: Sequence[RunConfig]) -> list[list[RunConfig]]:
        """Return all runs: a worker sets its threads for each job."""
        return [list(configs)]

    def stack_size(self, configs: Sequence[RunConfig]) -> int:
        """Return how many of such runs make one stack on a worker."""
        return planning.plan_stacks(configs, self.device, self.facts.free_bytes)

    def places(self, configs: Sequence[RunConfig], jobs: int, seconds: float) -> tuple[int, int]:
        """Return how many jobs are trained at a time; on a CPU each takes a core."""
        del configs, seconds
        return max(1, min(self.options.workers or self.count_places(), jobs)), 1

    def lend(self, job: Job, reason: str, *, again: bool) -> Lent:
        """Return the data of a job that a worker lacks; ``again`` if that worker had just been lent it.

        Raises:
            OSError: it was of no use, or the data is not here either.
        """
        if again:
            raise OSError(f"a worker cannot read the data that was sent to it: {reason}")
        return self._trainer.lend(job.configs[0])
