r"""Whether a training run is at equilibrium: what the loss takes out of it against what the noise puts in.

Let ``x' = x - l D`` be the step and ``b' = mu b + G`` the velocity after it (see `step_statistics`). In a stationary
state dissipation equals fluctuation, ``<x.G> = l <(1 - mu)/2 |D|^2 + w D.b'>``, ``w = mu`` or
``mu^2`` for Nesterov. A single ``x.G`` is mostly noise, but the relation follows from an identity that telescopes: with
``Q = (1 - mu)/(2 l) |x|^2 - w x.b``, the sum of ``x.G - l (...)`` over any number of steps is ``Q`` before less ``Q``
after. Two readings therefore give the dissipation averaged over all steps between them, and the steps themselves need
not be looked at. (In coupling "update" this drops a term of mean zero. If ``l`` changes in between, the mean of
``1/l`` is used: right to first order in the change.)

The relation sees the drift of one number, ``Q``. It is necessary for a stationary state, not sufficient: a run whose
loss falls along a sphere ``|x| = const`` has the ratio 1 all the way. The drift of the loss is the second witness.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

from heatbath.thermometry.averages import Estimate, ratio_of_means, slope
from heatbath.thermometry.step_rules import Knobs
from heatbath.thermometry.step_statistics import Motion


class Balance:
    """Dissipation and fluctuation of a run, each per direction of weight space, over its last readings.

    Attributes:
        sides: the dissipation since the reading before, and the fluctuation, of each reading that is kept.
        anchor: what the last reading saw, or None: its ``step``, the ``dimensions`` of the groups, and in
            ``positions`` their ``|x|^2`` and ``w x.b``.
        stiffness: for each group the sum of ``(1 - mu) / (2 l)`` over the steps since then, and their number; without
            any it is that of the next reading.
        losses: the step and the loss of each reading that is kept and knows it.
    """

    def __init__(self, groups: int, window: int) -> None:
        self.sides: deque[tuple[float, float]] = deque(maxlen=window)
        self.losses: deque[tuple[int, float]] = deque(maxlen=window)
        self.restart(groups)

    def restart(self, groups: int) -> None:
        """Begin again with another number of groups, which makes another system."""
        self.anchor: dict[str, Any] | None = None
        self.stiffness = [[0.0, 0.0] for _ in range(groups)]
        self.sides.clear()
        self.losses.clear()

    def follow(self, step: int, dimensions: list[int], motions: Sequence[Motion], knobs: Sequence[Knobs]) -> None:
        """Take a reading at ``step``, and compare dissipation and fluctuation since the last one."""
        positions = [[motion.squared_position, motion.lever] for motion in motions]
        now = {"step": step, "dimensions": dimensions, "positions": positions}
        then, self.anchor = self.anchor, now
        stiffness, self.stiffness = self.stiffness, [[0.0, 0.0] for _ in knobs]
        if then is None or then["dimensions"] != dimensions or any(knob.lr <= 0.0 for knob in knobs):
            return
        released = 0.0  # by how much Q fell
        for i, knob in enumerate(knobs):
            total, count = stiffness[i]
            slope = total / count if count else (1.0 - knob.momentum) / (2.0 * knob.lr)
            (before, lever_before), (after, lever_after) = then["positions"][i], positions[i]
            released += slope * (before - after) - (lever_before - lever_after)
        fluctuation = sum(motion.fluctuation for motion in motions) / sum(dimensions)
        dissipation = fluctuation + released / (step - then["step"]) / sum(dimensions)
        self.sides.append((dissipation, fluctuation))

    def means(self) -> list[float]:
        """Return the dissipation and the fluctuation, averaged over the window; ``nan`` if it is empty."""
        return [sum(side) / len(self.sides) for side in zip(*self.sides, strict=True)] or [math.nan, math.nan]

    def ratio(self, confidence: float) -> Estimate:
        """Return dissipation over fluctuation, with an interval.

        The interval takes what is released between readings as independent. So it is while the window is shorter than
        the time in which the run relaxes, and there it holds the truth as often as it says. In a longer window these
        differences cancel each other: of stationary runs nearly all intervals then hold 1, at about three times the
        length that they would need.
        """
        above, below = zip(*self.sides, strict=True) if self.sides else ((), ())
        return ratio_of_means(above, below, confidence)

    def drift(self, confidence: float) -> Estimate:
        """Return the change of the loss per step, with an interval."""
        times, losses = zip(*self.losses, strict=True) if self.losses else ((), ())
        return slope(times, losses, confidence)

    def is_stationary(self, confidence: float) -> bool | None:
        """Return whether the ratio is compatible with 1 and the drift of the loss with 0; None if data are missing."""
        ratio, drift = self.ratio(confidence), self.drift(confidence)
        if not math.isfinite(ratio.high):
            return None
        if not ratio.contains(1.0) or not drift.contains(0.0):
            return False
        return True if math.isfinite(drift.high) else None

    def state_dict(self) -> dict[str, Any]:
        """Return the attributes, as numbers in lists."""
        return {
            "losses": [list(pair) for pair in self.losses],
            "sides": [list(pair) for pair in self.sides],
            "anchor": self.anchor,
            "stiffness": [list(pair) for pair in self.stiffness],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state; further entries are ignored."""
        self.sides.clear()
        self.sides.extend((above, below) for above, below in state_dict["sides"])
        self.losses.clear()
        self.losses.extend((step, loss) for step, loss in state_dict.get("losses", ()))  # older states have none
        self.anchor = state_dict["anchor"]
        self.stiffness = [list(pair) for pair in state_dict["stiffness"]]
