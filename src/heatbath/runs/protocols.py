"""Learning-rate protocols and schedules: what the rate of a run does from step to step.

``constant`` keeps ``l``; ``random`` multiplies it (or the gradient) by a draw of a law at each mini-batch; ``cyclic:P``
is the paper's ``l [1 + cos(pi tau / P)]`` with ``tau`` the completed epochs. All have the mean rate ``l``. A schedule
comes on top: it multiplies ``l`` by a factor that falls from 1 to 0 over the run, after a linear warmup.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from heatbath.draws import draw
from heatbath.laws import Law, check_number

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Protocol:
    """One protocol; `parse_protocol` reads what ``str`` prints.

    The period of a cyclic one is the paper's ``P`` in epochs; its true period is twice that.
    """

    kind: str = "constant"
    period: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("constant", "random", "cyclic"):
            raise ValueError(f"unknown protocol {self.kind!r}: choose constant, random or cyclic:P")
        if (self.period is None) == (self.kind == "cyclic"):
            raise ValueError(f"protocol {self.kind}: {'it needs a' if self.kind == 'cyclic' else 'it has no'} period")
        if self.period is not None:
            object.__setattr__(self, "period", check_number("protocol cyclic: period", self.period, above=0.0))

    def __str__(self) -> str:
        return self.kind if self.period is None else f"{self.kind}:{repr(self.period).removesuffix('.0')}"

    def multipliers(self, law: Law, seed: int, epoch: int, steps: int) -> Array:
        """Return the multipliers of the ``steps`` mini-batches of one epoch, counted from 0: their mean rate is 1.

        With ``random`` they are those of `heatbath.draw`, so that `RandomSGD` of the same seed takes the same.
        """
        if self.kind == "random":
            return draw(law, seed, epoch * steps, steps)
        if self.period is None:
            return np.ones(steps)
        return np.full(steps, 1.0 + math.cos(math.pi * epoch / self.period))


SCHEDULES = ("constant", "cosine", "linear")


def schedule_factors(schedule: str, warmup: int, total: int, steps: Array) -> Array:
    """Return the factors of the rate at some steps, counted from 0, of a run of ``total`` steps.

    With ``w`` warmup steps, step ``k < w`` has ``(k + 1) / (w + 1)``. From there on ``x = (k - w) / (total - w)``, and
    the factor is 1, ``(1 + cos(pi x)) / 2`` or ``1 - x`` for ``"constant"``, ``"cosine"`` and ``"linear"``.
    """
    part = np.maximum(steps - warmup, 0.0) / (total - warmup)
    falling = {"constant": np.ones_like(part), "cosine": 0.5 * (1.0 + np.cos(np.pi * part)), "linear": 1.0 - part}
    factors: Array = np.where(steps < warmup, (steps + 1.0) / (warmup + 1.0), falling[schedule])
    return factors


def parse_protocol(text: str | Protocol) -> Protocol:
    """Return the protocol that ``text`` names: ``constant``, ``random`` or ``cyclic:P``."""
    if isinstance(text, Protocol):
        return text
    if not isinstance(text, str):
        raise TypeError(f"protocol must be a Protocol or a string such as 'cyclic:30', got {text!r}")
    kind, colon, period = text.strip().lower().partition(":")
    if kind == "cyclic" and not colon:
        raise ValueError("protocol cyclic needs a period in epochs, for instance cyclic:30")
    try:
        number = float(period) if colon else None
    except ValueError:
        raise ValueError(f"protocol {text!r}: {period!r} is not a number of epochs") from None
    return Protocol(kind, number)
