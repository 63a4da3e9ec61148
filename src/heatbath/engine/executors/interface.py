"""What a campaign asks of those who train: on this machine, on a cluster, or wherever futures are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias

from heatbath.engine.jobs import Job, Outcome
from heatbath.runs.configs import RunConfig

NextJob: TypeAlias = Callable[[], Job | None]


class Executor(Protocol):
    """Trains jobs, and knows the machines on which it does so. It knows nothing of the store but its checkpoints."""

    @property
    def device(self) -> str:
        """On what jobs are trained: ``"cpu"``, or a name that begins with ``"cuda"``."""

    @property
    def slots(self) -> int:
        """How many stacks there should be at least, so that no GPU is idle; 1 on a CPU, where a stack is one run."""

    def prepare(self, configs: Sequence[RunConfig], progress: Callable[[str, int, int], None] | None = None) -> None:
        """Make sure of the data that runs need, before any is trained."""

    def rounds(self, configs: Sequence[RunConfig]) -> list[list[RunConfig]]:
        """Return which runs are trained at the same time."""

    def stack_size(self, configs: Sequence[RunConfig]) -> int:
        """Return how many of such runs make one stack."""

    def places(self, configs: Sequence[RunConfig], jobs: int, seconds: float) -> tuple[int, int]:
        """Return how many jobs are trained at a time, and how many threads each has."""

    def train(self, next_job: NextJob, places: int) -> Iterator[tuple[Job, Outcome] | None]:
        """Train jobs, so many at a time, until there is none.

        None comes where nothing else is ready: what came before is recorded then, in one transaction.
        """

    def close(self) -> None:
        """End all work, whatever its state."""
