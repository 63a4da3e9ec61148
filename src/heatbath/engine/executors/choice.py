"""What a campaign asks of those who train, and which of them was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from heatbath.engine.jobs import Job, Outcome
from heatbath.engine.options import Options
from heatbath.runs.configs import RunConfig

NextJob: TypeAlias = Callable[[], Job | None]
Outcomes: TypeAlias = Iterator[tuple[Job, Outcome] | None]


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
        """Return how many jobs are trained at a time, and how many threads each has.

        One core takes about so many seconds for all of them.
        """

    def train(self, next_job: NextJob, places: int) -> Outcomes:
        """Train jobs, so many at a time, until there is none.

        None comes where nothing else is ready: what came before is recorded then, in one transaction.
        """

    def close(self) -> None:
        """End all work, whatever its state."""


_CLASSES = {"local": "Local", "ray": "RayCluster", "dask": "DaskCluster", "futures": "Futures"}
_NEEDS = {"ray": "ray", "dask": "distributed"}


def find_executor(asked: Any) -> Callable[[Options, Path], Executor]:
    """Return what makes the executor that was asked for, given the options and the folder of the checkpoints.

    Torch, Ray and Dask are imported when it is made.

    Args:
        asked: None or ``"local"``; ``"ray"`` or ``"ray:ADDRESS"``; ``"dask"`` or ``"dask:ADDRESS"``; or a
            `concurrent.futures.Executor`.

    Raises:
        ValueError: the name is unknown, or what it needs is not installed.
        TypeError: it is no executor.
    """
    if asked is None or asked == "local":
        return partial(_make, "local")
    if isinstance(asked, str):
        kind, colon, address = asked.partition(":")
        if kind not in _NEEDS or bool(colon) != bool(address):
            raise ValueError(f"executor must be local, ray, ray:ADDRESS, dask or dask:ADDRESS, got {asked!r}")
        if not find_spec(_NEEDS[kind]):
            raise ValueError(f"executor {kind} needs {_NEEDS[kind]}: pip install 'heatbath[{kind}]'")
        return partial(_make, kind, where=address or None)
    if isinstance(asked, type) or not callable(getattr(asked, "submit", None)):
        raise TypeError(f"executor must be a name or a concurrent.futures.Executor, got {asked!r}")
    if type(asked).__module__.startswith("distributed."):  # Dask's can do more than its futures' interface
        return partial(_make, "dask", where=getattr(asked, "_client", asked))
    return partial(_make, "futures", where=asked)


def _make(kind: str, options: Options, checkpoints: Path, **where: Any) -> Executor:
    module = import_module(f"heatbath.engine.executors.{kind}")
    executor: Executor = getattr(module, _CLASSES[kind])(options, checkpoints, **where)
    return executor
