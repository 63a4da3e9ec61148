r"""The temperature of a training run while it trains, and whether the run is at equilibrium.

Three thermometers, each per direction of weight space (sums over the ``d`` parameters, divided by ``d``). In PyTorch's
sign let ``b' = mu b + G`` be the velocity after a step and ``x' = x - l D`` the step (see `step_statistics`), and
``F`` the factor of the law (`Thermostat.law_factor`).

1. From the knobs and the gradient noise, ``T = l F tr(S1) / (2 C (1 - mu) d)``.
2. From the velocity, ``T = l (1 + mu)/2 K <|b|^2> / d``, with ``K = F`` in coupling "update" and 1 in coupling
   "gradient" (`step_rules.Knobs.kinetic_temperature`). In the paper's units this is ``<v^2> = 2 Theta/(1 + mu)``
   with ``T = l Theta``, where continuous time has ``Theta``. For heavy ball it is the right side of 3 and exact at
   every rate. It also sees the mean gradient: far from a minimum it reads too hot.
3. From fluctuation and dissipation, ``<x.G> = l <(1 - mu)/2 |D|^2 + w D.b'>``, ``w = mu`` or ``mu^2`` for Nesterov.
   Their ratio is 1 in a stationary state; that it is 1 does not prove one (see `balance`).

Adam and AdamW are SGD in preconditioned coordinates (see `step_rules`), and have all three there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from importlib import import_module
from numbers import Real
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer

from heatbath.draws import check_integer
from heatbath.laws import Law, check_number, parse_law
from heatbath.optim.step_hooks import is_nested, is_rehearsal, outside_graphs
from heatbath.thermometry.averages import Estimate
from heatbath.thermometry.batch_halves import NoHalvesError, compare_halves
from heatbath.thermometry.logs import Callback, CSVLog, Reading, WarnOnce, check_callbacks, one_line, show_numbers
from heatbath.thermometry.per_sample import call_model, innermost
from heatbath.thermometry.readings import Readings
from heatbath.thermometry.step_noise import DataParallel, NoiseSample, StepNoise, trainable
from heatbath.thermometry.step_rules import find_rule, watched_optimizer

_OMITTED: Any = object()


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

    Where the model and its batches are of other kinds, ``observe(loss_of_batch, batch)`` takes any function of a batch.
    With gradient accumulation, or with `DistributedDataParallel`, the line is not needed: the gradients of the
    micro-batches and of the ranks are compared as they come, with no extra pass. They count as of equal size unless
    `observe` or `count` is called for each. Every backward pass counts as a micro-batch: where a loss is taken in
    several passes, keep the line. Otherwise `observe` costs the passes of two half-batches, and what it sees is the
    noise. Without either, ``temperature`` stays ``nan`` and the other thermometers work.

    Any optimizer has gradient noise: ``trace`` and ``noise_scale`` (the critical batch size) come with their intervals.
    SGD and `RandomSGD` also have a temperature, and Adam and AdamW that of their preconditioned coordinates
    (``docs/temperature-adamw.md``). Elsewhere ``temperature`` is None, and ``reason`` says why.

    A reading leaves weights, gradients, buffers and random state as they are, and reads the device once. With several
    parameter groups each has its own rate and noise; what is reported is the mean over all parameters, and
    ``temperature/0``, ``temperature/1``, ... in a reading are those of the groups.

    Weight decay is part of the gradient but not of ``gradient_norm_squared``, which is that of the law of the data (a
    set of N samples has ``trace / N`` more). Gradients are looked at before they are clipped; ``clipping`` in a reading
    is the factor by which the optimizer saw them shorter, and a warning tells of the first. The temperature is then
    that of a rate smaller by this factor. AMP's gradients are unscaled here; replayed CUDA graphs give no readings.

    Under `DistributedDataParallel`, also if the model is wrapped later, every rank needs a thermometer, and all have
    the same readings. Use it in a ``with`` statement, or call ``remove()``, to detach it.

    A thermometer never stops a training. Wrong arguments raise when it is built, or at the first `observe`. After that,
    whatever a reading lacks because of the data or the state of the training (a batch of one, gradients that are not
    finite, a loss that raises) has its ``reason`` in ``history``, and each reason is a warning once. A callback that
    raises is a warning once, too.

    Args:
        model: the model, also wrapped in `DistributedDataParallel` or compiled.
        optimizer: any torch optimizer, also with `heatbath.randomize` or `heatbath.RandomLR`.
        interval: steps from one reading to the next. At the default the cost is below 2 % of the training time.
        decay: of the exponential averages, per reading.
        window: readings over which the equilibrium ratio and the drift of the loss are averaged.
        confidence: of all intervals.
        batch_size: samples in a step, over micro-batches and ranks; by default those of `observe`. T does without it.
        dataset_size: ``N``, if batches are drawn without replacement: the noise shrinks by ``1 - C/N``. Those of an
            epoch also cancel in part: what relaxes more slowly than an epoch lasts is colder than the formula says.
        law: of a random rate that is not heatbath's own; `RandomSGD`, `RandomLR` and `randomize` tell theirs.
        scaler: the `torch.amp.GradScaler`, needed for micro-batches or ranks whose losses it scales.
        process_group: the ranks over which the gradients are averaged by other means than `DistributedDataParallel`.
        callback: one or several callables that take the numbers of each reading, for instance `heatbath.CSVLog`.

    Attributes:
        history: the readings, flat dicts for JSON, with None for what is not known yet: ``step``, ``lr``, ``momentum``,
            ``loss``, ``gradient_norm_squared``, ``trace`` and ``noise_scale`` (each with ``_low`` and ``_high``),
            ``clipping``, ``temperature``, ``kinetic_temperature``, ``dissipation``, ``fluctuation``,
            ``equilibrium_ratio``, ``equilibrium_low`` and ``equilibrium_high``. One that lacks its noise also has a
            ``reason``; where nothing could be read, it has ``step`` and ``reason`` alone.
        optimizer: whose steps it counts, without what a framework has wrapped around it.
        reason: why there is no temperature; empty if there is one.

    Raises:
        TypeError: the optimizer runs no hooks, or the parameters are sharded.
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
        self.interval = check_integer("interval", interval, least=1)
        self.window = check_integer("window", window, least=4)
        self.batch_size = None if batch_size is None else check_integer("batch_size", batch_size, least=2)
        least = self.batch_size or 2
        self.dataset_size = None if dataset_size is None else check_integer("dataset_size", dataset_size, least=least)
        self.confidence = check_number("confidence", confidence, above=0.0, below=1.0)
        if scaler is not None and not hasattr(scaler, "get_scale"):
            raise TypeError(f"scaler must be a torch.amp.GradScaler, got {type(scaler).__name__}")
        self._callbacks = check_callbacks(callback)
        self._model, self.optimizer, self._scaler = model, watched_optimizer(model, optimizer), scaler
        self._rule, self.reason = find_rule(self.optimizer, None if law is None else parse_law(law))
        averaging: dict[str, Any] = {"decay": decay, "window": self.window, "confidence": self.confidence}
        self._readings = Readings(self.optimizer, self._rule, self.batch_size, self.dataset_size, **averaging)
        self._ranks = DataParallel(model, process_group)
        self.history: list[Reading] = []
        self.step = 0
        self._coming: StepNoise | None = None  # there if a reading is due
        self._has_begun = False  # `observe` has been called, with the right arguments
        self._is_mean = False  # the loss has been seen to average over a batch
        self._missing = ""  # why the coming reading will have no noise
        self._warn = WarnOnce()
        self._hook = self.optimizer.register_step_post_hook(self._after_step)
        self._begin()

    @property
    def temperature(self) -> float | None:
        """The temperature by the formula, a mean over parameters; ``nan`` before the first, None with a `reason`."""
        return None if self.reason else self._latest("temperature")

    @property
    def kinetic_temperature(self) -> float | None:
        """The temperature of the velocity, averaged as the noise is; ``nan`` before the first reading, or None."""
        return None if self.reason else self._latest("kinetic_temperature")

    @property
    def trace(self) -> Estimate:
        """The trace ``tr(S1)`` of the covariance of a sample's gradient, a float with ``low`` and ``high``."""
        return self._readings.intervals()[0]

    @property
    def noise_scale(self) -> Estimate:
        """The noise scale ``tr(S1) / |g|^2`` in samples, the critical batch size, with ``low`` and ``high``."""
        return self._readings.intervals()[1]

    @property
    def equilibrium_ratio(self) -> Estimate:
        """Dissipation over fluctuation in the last ``window`` readings, a float with ``low`` and ``high``.

        It is 1 in a stationary state. If the interval leaves 1 out, the run is still on its way; it errs on the long
        side (`balance.Balance.ratio`). That it holds 1 does not prove a stationary state: see `at_equilibrium`.
        """
        return self._readings.balance.ratio(self.confidence)

    @property
    def loss_drift(self) -> Estimate:
        """The change of the loss per step in the last ``window`` readings, a float with ``low`` and ``high``."""
        return self._readings.balance.drift(self.confidence)

    @property
    def at_equilibrium(self) -> bool | None:
        """Whether the interval of `equilibrium_ratio` holds 1 and that of `loss_drift` holds 0.

        None while the data do not tell: too few readings, or no losses (`observe` and `note_loss` give them).
        """
        return self._readings.balance.is_stationary(self.confidence)

    def observe(self, loss_fn: Callable[..., Tensor] | None = None, batch: Any = None, targets: Any = _OMITTED) -> None:
        """Measure the gradient noise of a mini-batch if a reading is due at the coming step; else return at once.

        Call it anywhere between two steps, with the batch of the step; before the backward pass it needs the least
        memory, as the step's own gradients are not there yet. Its two halves give gradients ``g1`` and ``g2``,
        and ``|g1 - g2|^2 / 4`` and ``g1.g2`` are unbiased for ``tr(S1)/C`` and ``|g|^2``. The model runs in the mode it
        is in: with dropout the noise of the masks is counted, with batch normalization that of halved batches. If it
        is called for each micro-batch, the first one is measured and the others count as samples of the step.

        Args:
            loss_fn: ``loss_of_batch(batch)``, a function that calls the model; or, with targets,
                ``loss_fn(model(inputs), targets)``. Either way the mean over the batch.
            batch: whatever the function takes, the samples along the first dimension of its tensors: a tensor, dicts,
                lists, tuples and data classes of such, nested at will, and mappings such as a ``BatchEncoding``. With
                targets, what the model takes: a tensor, a tuple or list of positional arguments, or a dict by name.
            targets: for the loss; a tensor or containers of them, or None.

        The first call tries the loss on its batch, whether a reading is due or not, and raises if it is wrong. Later
        calls never raise: see `Thermometer`.

        Raises:
            TypeError: the first argument is not a function.
            ValueError: the loss is not a mean over the batch. What model and loss raise on the batch goes through.
        """
        if is_dynamo_compiling():
            self._observe_outside_graph(loss_fn, batch, targets)
        elif self._coming is not None or not self._has_begun:  # most steps are spared the rest
            self._observe(loss_fn, batch, targets)

    def _observe(self, loss_fn: Callable[..., Tensor] | None, batch: Any, targets: Any) -> None:
        if loss_fn is None or (self._coming is None and self._has_begun):
            return
        try:
            if not callable(loss_fn) or isinstance(loss_fn, Tensor):
                raise TypeError(
                    "observe takes the loss first, observe(loss_of_batch, batch) or observe(loss_fn, inputs, targets), "
                    f"got {type(loss_fn).__name__}"
                )

            def loss_of_pair(pair: tuple[Any, Any]) -> Tensor:
                return loss_fn(call_model(innermost(self._model), pair[0]), pair[1])

            loss, data = (loss_fn, batch) if targets is _OMITTED else (loss_of_pair, (batch, targets))
            if self._coming is not None:
                self._coming.observe(loss, data, checks_loss=not self._is_mean)
            elif self._ranks.size == 1:
                compare_halves(self._model, trainable(self.optimizer), loss, data)  # which raises if it is wrong
            self._is_mean = True
        except Exception as error:
            if not (self._has_begun or isinstance(error, NoHalvesError)):
                raise
            self.miss(error)
        self._has_begun = True

    _observe_outside_graph = outside_graphs(_observe)

    def miss(self, error: Exception) -> None:
        """Let the coming reading, if one is due, have an error as its reason in place of its noise."""
        self._missing = one_line(error) if self._coming is not None else ""

    def note_loss(self, loss: Tensor | float) -> None:
        """Tell the loss of the coming step, for `at_equilibrium`, where `observe` is not called; any step will do."""
        if not isinstance(loss, Tensor | Real):
            raise TypeError(f"loss must be a number or a tensor of one, got {loss!r}")
        if self._coming is not None:
            self._coming.loss = torch.as_tensor(loss).detach()

    def count(self, size: int, divisor: int | None = None, weighs_samples: bool = False) -> None:
        """Tell the samples of a micro-batch of the coming step, where `observe` is not called; 0 if they are not known.

        Its loss is divided by ``divisor``, by default the number of micro-batches; or all samples weigh the same.
        """
        size = check_integer("size", size)
        if self._coming is not None:
            self._coming.count(size, divisor, weighs_samples)

    def remove(self) -> None:
        """Detach from the optimizer; the readings stay."""
        self._hook.remove()
        self._let_go()
        self._has_begun = True  # nothing is left to check

    def plot(self, ax: Any = None) -> Any:
        """Draw the temperatures over the steps, or the noise scale where there are none; return Matplotlib's axes."""
        # By its name: pictures are made in a room that imports this one.
        plots = import_module("heatbath.report.plots.measurements")
        return (plots.plot_noise_scale if self.reason else plots.plot_temperatures)(self.history, ax)

    def __repr__(self) -> str:
        known = ((name, getattr(self, name)) for name in ("temperature", "trace", "noise_scale"))
        numbers = ", ".join(f"{name}={value:.4g}" for name, value in known if value is not None)
        return f"Thermometer({type(self.optimizer).__name__}, step={self.step}, {numbers})"

    def _repr_html_(self) -> str:
        names = ("temperature", "kinetic_temperature", "trace", "noise_scale", "equilibrium_ratio", "at_equilibrium")
        title = f"Thermometer of {type(self.optimizer).__name__}, step {self.step}, {len(self.history)} readings"
        return show_numbers(title, {name: getattr(self, name) for name in names})

    def __enter__(self) -> Thermometer:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def state_dict(self) -> dict[str, Any]:
        """Return averages, window and history: numbers and text only."""
        history = [dict(reading) for reading in self.history]
        return {"step": self.step, **self._readings.state_dict(), "history": history}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state, as if the run had never stopped.

        Raises:
            ValueError: it is not a thermometer's, or of another number of groups; nothing has been changed.
        """
        if not isinstance(state_dict, dict) or not {"step", "averages", "stiffness", "history"} <= state_dict.keys():
            raise ValueError("the state dict is not a thermometer's: it lacks step, averages, stiffness or history")
        saved, groups = len(state_dict["stiffness"]), len(self.optimizer.param_groups)
        if saved != groups:
            raise ValueError(f"the state dict is of {saved} parameter groups, this optimizer has {groups}")
        self.step = int(state_dict["step"])
        self._readings.load_state_dict(state_dict)
        self.history = [dict(reading) for reading in state_dict["history"]]
        self._begin()

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if is_dynamo_compiling():
            self._after_step_outside_graph(optimizer, args, kwargs)
            return
        groups, rate = optimizer.param_groups, optimizer.param_groups[0].get("lr")
        is_odd = type(rate) is not float or rate == 0.0  # a call that most steps are spared
        if (self.reason and is_nested(optimizer)) or (is_odd and is_rehearsal(optimizer)):
            return
        self.step += 1
        try:
            if len(groups) != len(self._readings.balance.stiffness):  # a new group makes a new system: begin again
                self._readings.restart()
            if self._rule is not None:
                source = getattr(optimizer, "heatbath_draws", None)
                for total, group in zip(self._readings.balance.stiffness, groups, strict=True):
                    lr = group["lr"] if source is None else source.current_draw(group).lr
                    if not isinstance(lr, Tensor) and lr > 0.0:  # a tensor is read at readings alone
                        total[0] += (1.0 - self._rule.momentum(group)) / (2.0 * lr)
                        total[1] += 1.0
            if self._coming is not None:
                found_inf = getattr(optimizer, "found_inf", None)
                if found_inf is None or not found_inf.item():  # else the fused kernel has taken no step
                    scale = 1.0 if self._scaler is None else self._scaler.get_scale()
                    with torch.no_grad():
                        self._add(*self._readings.read(self.step, self._coming, scale))
        except Exception as error:
            self._lose(one_line(error))
        if self._coming is not None or (self.step + 1) % self.interval == 0:
            self._prepare()

    _after_step_outside_graph = outside_graphs(_after_step)

    def _begin(self) -> None:
        for log in (log for log in self._callbacks if isinstance(log, CSVLog)):
            log.begin(self.step, self.history)
        self._prepare()

    def _prepare(self) -> None:
        """Let go of the last step, and watch the coming one if a reading is due."""
        self._let_go()
        if (self.step + 1) % self.interval == 0:
            self._coming = StepNoise(self._model, self.optimizer, self._rule, self._ranks)

    def _let_go(self) -> None:
        if self._coming is not None:
            self._coming.remove()
        self._coming, self._missing = None, ""

    def _add(self, reading: Reading, sample: NoiseSample) -> None:
        self.history.append(reading)
        for callback in self._callbacks:
            try:
                callback(dict(reading))
            except Exception as error:
                name = getattr(callback, "__qualname__", type(callback).__name__)
                self._warn(name, f"the callback {name} failed at step {self.step}: {one_line(error)}")
        if sample.clipping != 1.0:
            self._warn(
                "clipping",
                f"the optimizer got gradients {sample.clipping:.3g} times those of the backward passes (clipped, or a "
                "last step of fewer micro-batches?): trace and noise scale are those before, the temperature that of a "
                "rate smaller by this factor; gradients of a GradScaler need Thermometer(..., scaler=...)",
            )
        if self._missing:
            self._warn(self._missing, f"the reading at step {self.step} lacks its noise: {self._missing}")
        if reason := self._missing or sample.reason:
            reading["reason"] = reason

    def _lose(self, reason: str) -> None:
        """Let there be no reading at this step."""
        reason = self._missing or reason
        self._readings.balance.anchor = None
        self.history.append({"step": self.step, "reason": reason})
        self._warn(reason, f"there is no reading at step {self.step}: {reason}")

    def _latest(self, key: str) -> float:
        value = next((reading[key] for reading in reversed(self.history) if key in reading), None)
        return value if isinstance(value, float) else math.nan
