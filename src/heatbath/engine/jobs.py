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
    """What a stack has measured since it last told."""

    first: int  # how many epochs came before
    epochs: tuple[tuple[Epoch, ...], ...]  # for each run; nothing for one that has diverged before
    diverged: frozenset[str] = frozenset()  # the runs whose loss is no number after that
    checkpoint: str | None = None  # the file that has it all, if one was written
    durable: bool = True  # whether it is time to record it: there is a checkpoint, or the stack has ended
    restored: bool = False  # whether an earlier process measured it: it was read from the job's sources
    seconds: float = 0.0  # that it took, for the whole stack
    origin: Origin = field(default_factory=dict)  # what worked on it
    memory: tuple[int, int] | None = None  # bytes used and there, on a GPU


@dataclass(frozen=True)
class Ended:
    """How a job ended, and why in words, unless it is done.

    ``"lost"``: its worker is gone; ``"damaged"``: a checkpoint cannot be read and is out of the way now;
    ``"no memory"``: the stack does not fit; ``"no data"``: its worker cannot find the data set.
    """

    how: Literal["done", "lost", "damaged", "no memory", "no data"] = "done"
    reason: str = ""


Outcome: TypeAlias = Measured | Ended
