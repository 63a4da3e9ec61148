"""What a campaign and an executor say to each other: jobs one way, what they measured and how they ended the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from heatbath.runs.configs import RunConfig
from heatbath.runs.records import Epoch, Origin


@dataclass(frozen=True)
class Job:
    """A stack to be trained to its end.

    Attributes:
        name: of its checkpoints.
        configs: runs that may share a stack.
        sources: the checkpoint each of them goes on from; None from the start. All stand after the same epoch.
    """

    name: str
    configs: tuple[RunConfig, ...]
    sources: tuple[Path | None, ...]


@dataclass(frozen=True)
class Measured:
    """What a stack has measured since it last told.

    Attributes:
        first: how many epochs came before.
        epochs: for each run; nothing for one that has diverged before.
        diverged: the runs whose loss is no number after that.
        checkpoint: the file that has it all, if one was written; what is restored is in the job's sources.
        durable: whether it is time to record it: there is a checkpoint, or the stack has ended.
        restored: whether it was measured by an earlier process and read from a checkpoint.
        seconds: that it took, for the whole stack.
        origin: what worked on it.
        memory: bytes used and there, on a GPU.
    """

    first: int
    epochs: tuple[tuple[Epoch, ...], ...]
    diverged: frozenset[str] = frozenset()
    checkpoint: str | None = None
    durable: bool = True
    restored: bool = False
    seconds: float = 0.0
    origin: Origin = field(default_factory=dict)
    memory: tuple[int, int] | None = None


@dataclass(frozen=True)
class Ended:
    """How a job ended.

    Attributes:
        how: ``"done"``; ``"lost"``, its worker is gone; ``"damaged"``, a checkpoint cannot be read and is out of the
            way now; ``"no memory"``, the stack does not fit; ``"no data"``, its worker cannot find the data set.
        reason: why, in words, unless it is done.
    """

    how: Literal["done", "lost", "damaged", "no memory", "no data"] = "done"
    reason: str = ""


Outcome: TypeAlias = Measured | Ended
