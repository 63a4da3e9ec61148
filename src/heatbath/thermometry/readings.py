"""What the readings of a run say: its noise and its motion, averaged, as temperatures of the knobs of the moment."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

from torch.optim import Optimizer

from heatbath.optim.draw_sources import current_draw
from heatbath.thermometry.averages import Estimate, ExponentialAverage, PairedAverage
from heatbath.thermometry.balance import Balance
from heatbath.thermometry.logs import Reading
from heatbath.thermometry.per_sample import as_real
from heatbath.thermometry.step_noise import NoiseSample, StepNoise, trainable
from heatbath.thermometry.step_rules import Knobs, StepRule
from heatbath.thermometry.step_statistics import Motion, describe_motion, inner_products

_KINDS = ("trace", "squared_gradient", "drive", "heat")


class Readings:
    """Exponential averages of the noise by group, and the balance of the run.

    Attributes:
        size: the samples ``C`` in a step; None until somebody tells.
        trace: ``tr(S1)``; ``tr(S1)/C`` while ``size`` is None.
        squared_gradient: ``|g|^2``.
        drive: the noise that would drive the velocity to its length.
        heat: ``tr(P S1)`` times the factor of clipping, in the coordinates in which the step is SGD's.
        total: ``tr(S1)`` and ``|g|^2`` of all groups together, for their intervals.
        balance: dissipation, fluctuation and losses.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        rule: StepRule | None,
        batch_size: int | None,
        dataset_size: int | None,
        *,
        decay: float,
        window: int,
        confidence: float,
    ) -> None:
        self._optimizer, self._rule, self._confidence = optimizer, rule, confidence
        self._told_size, self._dataset_size = batch_size, dataset_size
        self.size: float | None = batch_size
        self.trace, self.squared_gradient, self.drive, self.heat = (ExponentialAverage(decay) for _ in _KINDS)
        self.total = PairedAverage(decay)
        self.balance = Balance(len(optimizer.param_groups), window)
        self._trainable: list[int] | None = None  # how many parameters there were at the last reading, by group

    def restart(self) -> None:
        """Begin again with another number of groups, which makes another system."""
        self.balance.restart(len(self._optimizer.param_groups))
        self._clear(*_KINDS, "total")

    def read(self, step: int, coming: StepNoise, scale: float) -> tuple[Reading, NoiseSample]:
        """Return the reading of a step that has been taken, and what it told of the noise; raise if there is none.

        ``scale`` is that by which an AMP scaler multiplied the loss.
        """
        rule, groups = self._rule, self._optimizer.param_groups
        knobs = [] if rule is None else [rule.knobs(group) for group in groups]
        products = [] if rule is None else [inner_products(rule, group).tolist() for group in groups]
        draws = [current_draw(self._optimizer, group) for group in groups]
        multipliers = [float(draw.multiplier) if draw.is_in_gradients else 1.0 for draw in draws]
        sample = coming.measure(scale, multipliers, self._told_size, self.size)
        members = trainable(self._optimizer)
        dimensions = [sum(as_real(p).numel() for p in group if p.grad is not None) for group in members]
        numbers = [*sample.squares, *sample.heats, *(x for row in (*products, *sample.rows) for x in row)]
        if not all(math.isfinite(number) for number in numbers):
            raise ValueError("gradients or weights are not finite")
        if not any(dimensions):
            raise ValueError("there are no gradients")
        sizes = [sum(as_real(p).numel() for p in group) for group in members]
        if self._trainable not in (None, sizes):  # frozen or set free since: the old sums are over others
            self._clear(*_KINDS, "total")
        self._trainable = sizes
        self._add_noise(sample)
        if rule is not None:
            motions = [describe_motion(knob, row) for knob, row in zip(knobs, products, strict=True)]
            self._add_motion(knobs, motions)
            self.balance.follow(step, dimensions, motions, knobs)
        if math.isfinite(sample.loss):
            self.balance.losses.append((step, sample.loss))
        lrs = [math.nan if draw.lr is None else float(draw.lr) for draw in draws]
        return self._compose(step, sample, lrs, knobs, dimensions), sample

    def intervals(self) -> tuple[Estimate, Estimate]:
        """Return ``tr(S1)`` and the noise scale ``tr(S1)/|g|^2``, each with its interval."""
        if self.size is None:
            return Estimate(math.nan), Estimate(math.nan)
        return self.total.mean(self._confidence), self.total.ratio(self._confidence)

    def state_dict(self) -> dict[str, Any]:
        """Return the state: numbers only."""
        averages = {kind: getattr(self, kind).state_dict() for kind in (*_KINDS, "total")}
        return {"averages": averages, "size": self.size, **self.balance.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        averages = state["averages"]
        if isinstance(averages, list):  # of before, when the heat was the trace, and there were no intervals
            averages = dict(zip(_KINDS, [*averages, averages[0]], strict=True))
        self._clear(*_KINDS, "total")
        for kind, saved in averages.items():
            getattr(self, kind).load_state_dict(saved)
        self.size, self._trainable = state["size"], None
        self.balance.load_state_dict(state)

    def _clear(self, *kinds: str) -> None:
        for kind in kinds:
            getattr(self, kind).clear()

    def _add_noise(self, sample: NoiseSample) -> None:
        if not sample.rows:
            return
        if sample.size is not None:
            if self.size is None:
                self._clear("trace", "heat", "total")  # which are those of tr(S1)/C so far
            self.size = self._told_size or sample.size
        traces, squared = zip(*sample.rows, strict=True)
        self.trace.update(traces)
        self.squared_gradient.update(squared)
        self.total.update(sum(traces), sum(squared))
        if sample.heats:
            self.heat.update([sample.clipping * heat for heat in sample.heats])

    def _add_motion(self, knobs: list[Knobs], motions: list[Motion]) -> None:
        """Add the velocity, as the noise that would drive it: a schedule of the momentum leaves that as it is."""
        pairs = [(replace(knob, lr=1.0), motion) for knob, motion in zip(knobs, motions, strict=True)]
        self.drive.update([k.kinetic_temperature(m.squared_velocity) / k.temperature(1.0) for k, m in pairs])

    def _temperatures(self, knobs: list[Knobs]) -> list[float]:
        """The temperature of each group, summed over its directions; ``nan`` before the first noise."""
        kept = 1.0
        if self.heat.count and self._dataset_size is not None:
            if self.size is None:
                message = "dataset_size needs batch_size if the noise is that of micro-batches or ranks: no temperature"
                warnings.warn(message, RuntimeWarning, stacklevel=2)
            kept = math.nan if self.size is None else max(0.0, 1.0 - self.size / self._dataset_size)
        noises = [kept * self.heat[i] / (self.size or 1) for i in range(len(knobs))]
        return [
            knob.temperature(max(noise, 0.0)) if noise == noise else math.nan  # below zero by rounding
            for knob, noise in zip(knobs, noises, strict=True)
        ]

    def _compose(
        self, step: int, sample: NoiseSample, lrs: list[float], knobs: list[Knobs], dimensions: list[int]
    ) -> Reading:
        """The reading, with None for what is not known; where the step is not known, there are no knobs."""
        total = sum(dimensions)
        shares = [dimension / total for dimension in dimensions]
        trace, noise_scale = self.intervals()
        ratio = self.balance.ratio(self._confidence)
        dissipation, fluctuation = self.balance.means()
        heats = self._temperatures(knobs)
        kinetic = [knob.temperature(self.drive[i]) for i, knob in enumerate(knobs)]
        reading: dict[str, float] = {
            "step": step,
            "lr": sum(share * lr for share, lr in zip(shares, lrs, strict=True)),
            "momentum": sum(share * knob.momentum for share, knob in zip(shares, knobs, strict=False)),
            "loss": sample.loss,
            "gradient_norm_squared": sum(self.squared_gradient[i] for i in range(len(shares))),
            "trace": trace,
            "trace_low": trace.low,
            "trace_high": trace.high,
            "noise_scale": noise_scale,
            "noise_scale_low": noise_scale.low,
            "noise_scale_high": noise_scale.high,
            "clipping": sample.clipping,
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
        return {**numbers, "step": step}
