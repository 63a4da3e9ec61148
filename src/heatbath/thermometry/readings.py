"""What a reading says: the noise averaged over the last readings, as temperatures of the knobs of the moment."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from heatbath.thermometry.averages import Estimate, ExponentialAverage, PairedAverage
from heatbath.thermometry.balance import Balance
from heatbath.thermometry.logs import Reading
from heatbath.thermometry.step_noise import NoiseSample
from heatbath.thermometry.step_rules import Knobs
from heatbath.thermometry.step_statistics import Motion

_KINDS = ("trace", "squared_gradient", "drive", "heat")


class NoiseAverages:
    """Exponential averages of the noise, by group.

    Args:
        decay: per reading.
        size: the samples ``C`` in a step; None until somebody tells.

    Attributes:
        trace: ``tr(S1)``; ``tr(S1)/C`` while ``size`` is None.
        squared_gradient: ``|g|^2``.
        drive: the noise that would drive the velocity to its length.
        heat: ``tr(P S1)`` times the factor of clipping, in the coordinates in which the step is SGD's.
        total: ``tr(S1)`` and ``|g|^2`` of all groups together, for their intervals.
    """

    def __init__(self, decay: float, size: int | None) -> None:
        self.size = size
        self.trace, self.squared_gradient, self.drive, self.heat = (ExponentialAverage(decay) for _ in _KINDS)
        self.total = PairedAverage(decay)

    def clear(self) -> None:
        """Forget all readings, but not the size of a batch."""
        for average in (self.trace, self.squared_gradient, self.drive, self.heat, self.total):
            average.clear()

    def add_noise(self, sample: NoiseSample, told_size: int | None) -> None:
        """Add what a step told of the noise; ``told_size`` is what the user said a step has."""
        if not sample.rows:
            return
        if sample.size is not None:
            if self.size is None:
                self._clear_noise()  # which is tr(S1)/C so far
            self.size = told_size or sample.size
        traces, squared = zip(*sample.rows, strict=True)
        self.trace.update(traces)
        self.squared_gradient.update(squared)
        self.total.update(sum(traces), sum(squared))
        if sample.heats:
            self.heat.update([sample.clipping * heat for heat in sample.heats])

    def _clear_noise(self) -> None:
        for average in (self.trace, self.heat, self.total):
            average.clear()

    def add_motion(self, knobs: Sequence[Knobs], motions: Sequence[Motion]) -> None:
        """Add the velocity, as the noise that would drive it: a schedule of the momentum leaves that as it is."""
        pairs = [(replace(knob, lr=1.0), motion) for knob, motion in zip(knobs, motions, strict=True)]
        self.drive.update([k.kinetic_temperature(m.squared_velocity) / k.temperature(1.0) for k, m in pairs])

    def temperatures(self, knobs: Sequence[Knobs], dataset_size: int | None) -> list[float]:
        """Return the temperature of each group, summed over its directions; ``nan`` before the first noise."""
        if not self.heat.count:
            return [math.nan for _ in knobs]
        kept = 1.0
        if dataset_size is not None:
            if self.size is None:
                warnings.warn(
                    "dataset_size needs batch_size if the noise is that of micro-batches or ranks: no temperature",
                    RuntimeWarning,
                    stacklevel=2,
                )
                return [math.nan for _ in knobs]
            kept = max(0.0, 1.0 - self.size / dataset_size)
        noises = [max(kept * self.heat[i] / (self.size or 1), 0.0) for i in range(len(knobs))]  # below by rounding
        return [knob.temperature(noise) for knob, noise in zip(knobs, noises, strict=True)]

    def kinetic_temperatures(self, knobs: Sequence[Knobs]) -> list[float]:
        """Return the temperature of each group's velocity, summed over its directions."""
        return [knob.temperature(self.drive[i]) for i, knob in enumerate(knobs)]

    def intervals(self, confidence: float) -> tuple[Estimate, Estimate]:
        """Return ``tr(S1)`` and the noise scale ``tr(S1)/|g|^2``, each with its interval."""
        if self.size is None:
            return Estimate(math.nan), Estimate(math.nan)
        return self.total.mean(confidence), self.total.ratio(confidence)

    def state_dict(self) -> dict[str, Any]:
        """Return the state: numbers only."""
        averages = {kind: getattr(self, kind).state_dict() for kind in (*_KINDS, "total")}
        return {"averages": averages, "size": self.size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        averages = state["averages"]
        if isinstance(averages, list):  # of before, when the heat was the trace, and there were no intervals
            averages = dict(zip(_KINDS, [*averages, averages[0]], strict=True))
        self.clear()
        for kind, saved in averages.items():
            getattr(self, kind).load_state_dict(saved)
        self.size = state["size"]


class Moment(NamedTuple):
    """A run when it is read: rates, knobs (none where the step is not known) and dimensions of its groups."""

    step: int
    lrs: list[float]
    knobs: list[Knobs]
    dimensions: list[int]
    clipping: float
    loss: float


def compose(
    moment: Moment, averages: NoiseAverages, balance: Balance, dataset_size: int | None, confidence: float
) -> Reading:
    """Put a reading together, with None for what is not known."""
    knobs, dimensions = moment.knobs, moment.dimensions
    total = sum(dimensions)
    shares = [dimension / total for dimension in dimensions]
    trace, noise_scale = averages.intervals(confidence)
    ratio = balance.ratio(confidence)
    dissipation, fluctuation = balance.means()
    heats, kinetic = averages.temperatures(knobs, dataset_size), averages.kinetic_temperatures(knobs)
    reading: dict[str, float] = {
        "step": moment.step,
        "lr": sum(share * lr for share, lr in zip(shares, moment.lrs, strict=True)),
        "momentum": sum(share * knob.momentum for share, knob in zip(shares, knobs, strict=False)),
        "loss": moment.loss,
        "gradient_norm_squared": sum(averages.squared_gradient[i] for i in range(len(shares))),
        "trace": trace,
        "trace_low": trace.low,
        "trace_high": trace.high,
        "noise_scale": noise_scale,
        "noise_scale_low": noise_scale.low,
        "noise_scale_high": noise_scale.high,
        "clipping": moment.clipping,
        "temperature": sum(heats) / total,
        "kinetic_temperature": sum(kinetic) / total,
        "dissipation": dissipation,
        "fluctuation": fluctuation,
        "equilibrium_ratio": ratio,
        "equilibrium_low": ratio.low,
        "equilibrium_high": ratio.high,
    }
    if not knobs:
        reading |= dict.fromkeys(("momentum", "temperature", "kinetic_temperature"), math.nan)
    if len(knobs) > 1:
        pairs = zip(heats, dimensions, strict=True)
        reading |= {f"temperature/{i}": heat / (d or math.nan) for i, (heat, d) in enumerate(pairs)}
    numbers: Reading = {key: float(value) if math.isfinite(value) else None for key, value in reading.items()}
    return {**numbers, "step": moment.step}
