r"""The temperature of a training run while it trains, and whether the run is at equilibrium.

Three thermometers, each per direction of weight space (sums over the ``d`` parameters, divided by ``d``). In PyTorch's
sign let ``b' = mu b + G`` be the velocity after a step and ``x' = x - l D`` the step (see `step_statistics`), and
``F`` the factor of the law (`Thermostat.law_factor`).

1. From the knobs and the gradient noise, ``T = l F tr(S1) / (2 C (1 - mu) d)``.
2. From the velocity, ``T = l (1 + mu)/2 K <|b|^2> / d``, with ``K = F`` in coupling "update" and 1 in coupling
   "gradient" (`step_statistics.Knobs.kinetic_temperature`). In the paper's units this is ``<v^2> = 2 Theta/(1 + mu)``
   with ``T = l Theta``, where continuous time has ``Theta``. For heavy ball it is the right side of 3 and exact at
   every rate. It also sees the mean gradient: far from a minimum it reads too hot.
3. From fluctuation and dissipation, ``<x.G> = l <(1 - mu)/2 |D|^2 + w D.b'>``, ``w = mu`` or ``mu^2`` for Nesterov.
   Their ratio is 1 in a stationary state and nowhere else (see `balance`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from heatbath.draws import check_integer
from heatbath.laws import Law, parse_law
from heatbath.optim.draw_sources import current_draw
from heatbath.optim.step_hooks import is_rehearsal, outside_graphs
from heatbath.thermometry.averages import Estimate, ExponentialAverage
from heatbath.thermometry.balance import Balance
from heatbath.thermometry.logs import Reading
from heatbath.thermometry.micro_batches import GradientParts, batch_length, compare_halves, compare_parts
from heatbath.thermometry.per_sample import LossFn, as_real
from heatbath.thermometry.step_statistics import (
    PAIRS,
    Knobs,
    check_optimizer,
    describe_motion,
    inner_products,
    read_knobs,
    squared_gradient,
)

Callback = Callable[[Reading], Any]


class Thermometer:
    """Measures gradient noise, temperature and equilibrium while a model trains.

    Attach it and add one line to the loop; at all steps but one in ``interval`` that line does nothing::

        thermometer = hb.Thermometer(model, optimizer, callback=hb.CSVLog("run.csv"))
        for inputs, targets in batches:
            optimizer.zero_grad()
            thermometer.observe(loss_fn, inputs, targets)
            loss_fn(model(inputs), targets).backward()
            optimizer.step()
        print(thermometer.temperature, thermometer.equilibrium_ratio)

    With gradient accumulation, or with `DistributedDataParallel`, the line is not needed: the gradients of the
    micro-batches and of the ranks are compared as they come, with no extra pass (micro-batches must be of equal size).
    Every backward pass into the gradients of the step then counts as a micro-batch: where a loss is taken in several
    passes, keep the line. Otherwise `observe` costs the passes of two half-batches, and what it sees is the noise.
    Without either, ``temperature`` stays ``nan`` and the other thermometers work.

    A reading leaves weights, gradients, buffers and random state as they are, and reads the device once. With several
    parameter groups each has its own rate and noise; what is reported is the mean over all parameters, and
    ``temperature/0``, ``temperature/1``, ... in a reading are those of the groups.

    Weight decay is part of the gradient but not of ``gradient_norm_squared``, which is that of the law of the data (a
    set of N samples has ``trace / N`` more). The temperature assumes steps that are multiples of the gradient: clipping
    is seen by the last two thermometers only. AMP's gradients are unscaled here; replayed CUDA graphs give no readings.

    Args:
        model: the model, also wrapped in `DistributedDataParallel` or compiled.
        optimizer: `heatbath.RandomSGD` or `torch.optim.SGD`, the latter also with `heatbath.randomize` or
            `heatbath.RandomLR`; another one counts if its groups have all of SGD's knobs and no others that matter.
        interval: steps from one reading to the next. At the default the cost is below 2 % of the training time.
        decay: of the exponential averages, per reading.
        window: readings over which the equilibrium ratio is averaged.
        confidence: of its interval.
        batch_size: samples in a step, over micro-batches and ranks; by default those of `observe`. T does without it.
        dataset_size: ``N``, if batches are drawn without replacement: the noise shrinks by ``1 - C/N``. Those of an
            epoch also cancel in part: what relaxes more slowly than an epoch lasts is colder than the formula says.
        law: of a random rate that is not heatbath's own; `RandomSGD`, `RandomLR` and `randomize` tell theirs.
        scaler: the `torch.amp.GradScaler`, needed only for micro-batches or ranks whose losses it scales.
        process_group: the ranks over which the gradients are averaged, if the model is not a
            `DistributedDataParallel`. Sharded parameters and sparse gradients are not supported.
        callback: one or several callables that take each reading, for instance `heatbath.CSVLog`.

    Attributes:
        history: the readings, flat dicts for JSON, with None for what is not known yet: ``step``, ``lr``, ``momentum``,
            ``gradient_norm_squared``, ``trace``, ``noise_scale``, ``temperature``, ``kinetic_temperature``,
            ``dissipation``, ``fluctuation``, ``equilibrium_ratio``, ``equilibrium_low`` and ``equilibrium_high``.

    Raises:
        TypeError: the optimizer is not like SGD, or the parameters are sharded; at a reading, a gradient is sparse.
        ValueError: a setting is out of range, or the optimizer does not train this model.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        interval: int = 250,
        decay: float = 0.9,
        window: int = 50,
        confidence: float = 0.95,
        batch_size: int | None = None,
        dataset_size: int | None = None,
        law: Law | str | None = None,
        scaler: torch.amp.GradScaler | None = None,
        process_group: dist.ProcessGroup | None = None,
        callback: Callback | Iterable[Callback] = (),
    ) -> None:
        interval, window = check_integer("interval", interval, least=1), check_integer("window", window, least=4)
        batch_size = None if batch_size is None else check_integer("batch_size", batch_size, least=2)
        dataset_size = None if dataset_size is None else check_integer("dataset_size", dataset_size, least=2)
        if not 0.0 < confidence < 1.0:
            raise ValueError(f"confidence must be a number with 0 < confidence < 1, got {confidence!r}")
        optimizer = check_optimizer(model, optimizer)
        self.interval, self.window, self.confidence = interval, window, confidence
        self.batch_size, self.dataset_size = batch_size, dataset_size
        self.history: list[Reading] = []
        self.step = 0
        self._model, self._optimizer, self._scaler = model, optimizer, scaler
        self._law = None if law is None else parse_law(law)
        self._callbacks = [callback] if callable(callback) else list(callback)
        if process_group is None and isinstance(model, DistributedDataParallel):
            process_group = model.process_group
        self._ranks = process_group
        self._trace, self._squared_gradient, self._drive = (ExponentialAverage(decay) for _ in range(3))
        self._balance = Balance(len(self._groups), window)
        self._size = batch_size
        self._parts: GradientParts | None = None  # there if a reading is due
        self._halves: list[Tensor] | None = None  # what observe() saw
        self._sizes: list[int] = []  # of the batches that it was called with
        self._noted: list[Tensor] | None = None
        self._watched: list[list[int]] = []  # the parameters that these are of
        self._trainable: list[int] | None = None  # how many there were at the last reading, by group
        self._hook = optimizer.register_step_post_hook(self._after_step)
        self._prepare()

    @property
    def temperature(self) -> float:
        """The temperature by the formula, a mean over the parameters; ``nan`` before the first reading of the noise."""
        return self._latest("temperature")

    @property
    def kinetic_temperature(self) -> float:
        """The temperature of the velocity, averaged as the noise is; ``nan`` before the first reading."""
        return self._latest("kinetic_temperature")

    @property
    def equilibrium_ratio(self) -> Estimate:
        """Dissipation over fluctuation in the last ``window`` readings, a float with ``low`` and ``high``.

        It is 1 in a stationary state. If the interval leaves 1 out, the run is still on its way; it errs on the long
        side (`equilibrium.Balance.ratio`).
        """
        return self._balance.ratio(self.confidence)

    @property
    def at_equilibrium(self) -> bool | None:
        """Whether the interval of `equilibrium_ratio` holds 1; None while the data do not bound it."""
        ratio = self.equilibrium_ratio
        return ratio.contains(1.0) if math.isfinite(ratio.high) else None

    @outside_graphs
    def observe(self, loss_fn: LossFn | None = None, inputs: Any = None, targets: Any = None) -> None:
        """Measure the gradient noise of a mini-batch if a reading is due at the coming step; else return at once.

        Call it anywhere between two steps, with the batch of the step; before the backward pass it needs the least
        memory, as the step's own gradients are not there yet. Its two halves give gradients ``g1`` and ``g2``,
        and ``|g1 - g2|^2 / 4`` and ``g1.g2`` are unbiased for ``tr(S1)/C`` and ``|g|^2``. The model runs in the mode it
        is in: with dropout the noise of the masks is counted, with batch normalization that of halved batches. If it
        is called for each micro-batch, the first one is measured and the others count as samples of the step.

        Without arguments it only notes the gradients as they are: for loops that accumulate or run on several ranks
        **and** clip, between the last backward pass (and the scaler's ``unscale_``) and the clipping.

        Args:
            loss_fn: ``loss_fn(model(inputs), targets)``, averaged over the batch.
            inputs: what the model takes, the batch first: a tensor, a tuple or list of positional arguments, or a dict
                of keyword arguments, as for `measure_noise`.
            targets: for the loss; a tensor or containers of them.

        Raises:
            ValueError: a batch of one, or a loss that is not a mean over the batch.
        """
        if self._parts is None:
            return
        if loss_fn is None:
            with torch.no_grad():
                self._noted = [squared_gradient(self._optimizer, i) for i in self._groups]
        elif self._world_size == 1:
            self._sizes.append(batch_length(inputs))
            is_first = self._trace.count == 0
            if self._halves is not None:
                return
            if not is_first and self._sizes[-1] < 2:
                warnings.warn("a reading fell on a batch of one, which has no two halves", RuntimeWarning, stacklevel=2)
                return
            groups, self._watched = self._parameters, self._identities
            with self._parts.paused():
                self._halves = compare_halves(self._model, groups, loss_fn, inputs, targets, checks_loss=is_first)
            self._parts.only_count()

    def remove(self) -> None:
        """Detach from the optimizer; the readings stay."""
        self._hook.remove()
        self._drop_parts()

    def state_dict(self) -> dict[str, Any]:
        """Return averages, window and history: numbers and text only."""
        return {
            "step": self.step,
            "averages": [average.state_dict() for average in self._averages],
            **self._balance.state_dict(),
            "size": self._size,
            "history": [dict(reading) for reading in self.history],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state, as if the run had never stopped.

        Raises:
            ValueError: it is of another number of parameter groups; nothing has been changed.
        """
        saved = len(state_dict["stiffness"])
        if saved != len(self._groups):
            raise ValueError(f"the state dict is of {saved} parameter groups, this optimizer has {len(self._groups)}")
        self.step, self._size = int(state_dict["step"]), state_dict["size"]
        self._balance = Balance(saved, self.window)
        self._balance.load_state_dict(state_dict)
        for average, state in zip(self._averages, state_dict["averages"], strict=True):
            average.load_state_dict(state)
        self.history = [dict(reading) for reading in state_dict["history"]]
        self._trainable = None
        self._prepare()

    @outside_graphs
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG002 (a hook's signature)
        rate = optimizer.param_groups[0]["lr"]
        if (type(rate) is not float or rate == 0.0) and is_rehearsal(optimizer):  # a call that most steps are spared
            return
        self.step += 1
        if len(self._groups) != len(self._balance.stiffness):  # a new group makes a new system: begin again
            self._balance.restart(len(self._groups))
            self._forget()
        for i, group in enumerate(optimizer.param_groups):
            lr = current_draw(optimizer, group).lr
            if not isinstance(lr, Tensor) and lr > 0.0:  # a tensor is read at readings alone
                self._balance.note_rate(i, lr, group["momentum"])
        if self._parts is not None:
            found_inf = getattr(optimizer, "found_inf", None)
            if found_inf is None or not found_inf.item():  # else the fused kernel has taken no step
                with torch.no_grad():
                    self._read(self._parts)
            self._prepare()
        elif (self.step + 1) % self.interval == 0:
            self._prepare()

    def _prepare(self) -> None:
        """Forget the gradients of the last reading, and watch out for the coming ones if a reading is due."""
        self._drop_parts()
        self._halves = self._noted = None
        self._sizes = []
        if (self.step + 1) % self.interval == 0:
            self._parts, self._watched = GradientParts(self._parameters), self._identities

    def _forget(self) -> None:
        for average in self._averages:
            average.clear()

    def _drop_parts(self) -> None:
        if self._parts is not None:
            self._parts.remove()
        self._parts = None

    def _read(self, parts: GradientParts) -> None:
        knobs = [read_knobs(self._optimizer, i, self._law) for i in self._groups]
        products = [inner_products(self._optimizer, i).tolist() for i in self._groups]
        noise = self._measure_noise(parts, knobs, [row[PAIRS.index("gg")] for row in products])
        dimensions = [sum(as_real(p).numel() for p in group if p.grad is not None) for group in self._parameters]
        is_finite = all(math.isfinite(x) for row in (*products, *noise) for x in row)
        if not (is_finite and any(dimensions)):
            what = "there are no gradients" if is_finite else "gradients or weights are not finite"
            warnings.warn(f"{what} at step {self.step}: no reading there", RuntimeWarning, stacklevel=2)
            self._balance.anchor = None
            return
        trainable = [sum(as_real(p).numel() for p in group) for group in self._parameters]
        if self._trainable not in (None, trainable):  # frozen or set free since: the old sums are over others
            self._forget()
        self._trainable = trainable
        if noise:
            self._trace.update([trace for trace, _ in noise])
            self._squared_gradient.update([squared for _, squared in noise])
        motions = [describe_motion(knob, row) for knob, row in zip(knobs, products, strict=True)]
        # As the noise that would drive it, which a schedule of the momentum leaves as it is; the velocity follows it.
        pairs = [(replace(knob, lr=1.0), motion) for knob, motion in zip(knobs, motions, strict=True)]
        self._drive.update([k.kinetic_temperature(m.squared_velocity) / k.temperature(1.0) for k, m in pairs])
        self._balance.follow(self.step, dimensions, motions, knobs)
        self.history.append(self._reading(knobs, dimensions))
        for callback in self._callbacks:
            callback(dict(self.history[-1]))

    def _measure_noise(self, parts: GradientParts, knobs: list[Knobs], whole: list[float]) -> list[list[float]]:
        """``tr(S1)`` (``tr(S1)/C`` if nobody told ``C``) and ``|g|^2`` of each group, or nothing."""
        squares, count = parts.gather(self._parameters, self._ranks)
        if self._watched != self._identities:  # parameters have come or gone since they were looked at
            return []
        if self._halves is not None:
            if self._size is None:
                self._trace.clear()  # which is tr(S1)/C so far
            # Of the batches that it was called with, the last ones are in the step; others were skipped.
            self._size = self.batch_size or sum(self._sizes[-max(int(count), 1) :])
            return [row.tolist() for row in self._halves]
        if count < 2 or any(math.isnan(square) for square in squares):
            return []
        if self._noted is not None:
            whole = [float(row) for row in self._noted]
        else:
            multipliers = [knob.multiplier if knob.is_multiplied else 1.0 for knob in knobs]
            if 0.0 in multipliers:  # nothing is left of the gradients
                return []
            whole = [w / multiplier**2 for w, multiplier in zip(whole, multipliers, strict=True)]
        scale = self._world_size * (self._scaler.get_scale() if self._scaler is not None else 1.0)
        rows = [compare_parts(s, w, count, scale) for s, w in zip(squares, whole, strict=True)]
        return [[(self._size or 1) * noise, squared] for noise, squared in rows]

    def _reading(self, knobs: list[Knobs], dimensions: list[int]) -> Reading:
        size, total = self._size, sum(dimensions)
        shares = [dimension / total for dimension in dimensions]
        kept = 1.0
        if self.dataset_size is not None and self._trace.count:
            if size is None:
                raise ValueError("dataset_size needs batch_size if the noise is that of micro-batches or ranks")
            kept = max(0.0, 1.0 - size / self.dataset_size)
        heats = [math.nan for _ in knobs]
        if self._trace.count:
            noises = [kept * self._trace[i] / (size or 1) for i in self._groups]  # below zero by rounding alone
            heats = [knob.temperature(max(noise, 0.0)) for knob, noise in zip(knobs, noises, strict=True)]
        kinetic = [knob.temperature(self._drive[i]) for i, knob in enumerate(knobs)]
        squared = sum(self._squared_gradient[i] for i in self._groups)
        trace = sum(self._trace[i] for i in self._groups) if size else math.nan
        ratio = self.equilibrium_ratio
        dissipation, fluctuation = self._balance.means()
        reading: Reading = {
            "step": self.step,
            "lr": sum(share * knob.lr for share, knob in zip(shares, knobs, strict=True)),
            "momentum": sum(share * knob.momentum for share, knob in zip(shares, knobs, strict=True)),
            "gradient_norm_squared": squared,
            "trace": trace,
            "noise_scale": trace / squared if squared > 0.0 else math.nan,
            "temperature": sum(heats) / total,
            "kinetic_temperature": sum(kinetic) / total,
            "dissipation": dissipation,
            "fluctuation": fluctuation,
            "equilibrium_ratio": float(ratio),
            "equilibrium_low": ratio.low,
            "equilibrium_high": ratio.high,
        }
        if len(knobs) > 1:
            pairs = zip(heats, dimensions, strict=True)
            reading |= {f"temperature/{i}": heat / (d or math.nan) for i, (heat, d) in enumerate(pairs)}
        return {key: value if value is not None and math.isfinite(value) else None for key, value in reading.items()}

    @property
    def _averages(self) -> list[ExponentialAverage]:
        return [self._trace, self._squared_gradient, self._drive]

    @property
    def _groups(self) -> range:
        return range(len(self._optimizer.param_groups))

    @property
    def _world_size(self) -> int:
        return 1 if self._ranks is None else dist.get_world_size(self._ranks)

    @property
    def _parameters(self) -> list[list[Tensor]]:
        return [[p for p in group["params"] if p.requires_grad] for group in self._optimizer.param_groups]

    @property
    def _identities(self) -> list[list[int]]:
        return [[id(p) for p in group] for group in self._parameters]

    def _latest(self, key: str) -> float:
        value = self.history[-1][key] if self.history else None
        return math.nan if value is None else value
