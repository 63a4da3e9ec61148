"""What the callbacks share: a thermometer that never stops the training it watches."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from heatbath.thermometry.thermometer import Thermometer

PREFIX = "heatbath/"  # of the names in a host's loggers


class Watch:
    """Holds the thermometer of a callback from one training to the next.

    Args:
        settings: of `heatbath.Thermometer`. An error in them is raised here, where they are written.

    Attributes:
        thermometer: that of the training under way, or of the last one; None before the first, or if it was refused.
    """

    def __init__(self, **settings: Any) -> None:
        trial = nn.Linear(1, 1)
        Thermometer(trial, torch.optim.SGD(trial.parameters(), lr=0.1), **settings).remove()
        self.settings = settings
        self.thermometer: QuietThermometer | None = None
        self._loaded: dict[str, Any] | None = None  # a state that came before its thermometer
        self._passed_on = 0  # readings that the loggers have

    def attach(self, model: nn.Module, optimizer: Optimizer, **found: Any) -> None:
        """Begin to measure, from a loaded state if there is one; the user's settings go before those found here."""
        self.detach()
        self.thermometer, loaded, self._loaded = None, self._loaded, None
        settings = {key: value for key, value in found.items() if value is not None} | self.settings
        try:
            self.thermometer = QuietThermometer(model, optimizer, **settings)
        except Exception as error:
            self.refuse(_one_line(error))
            return
        try:
            if loaded is not None:
                self.thermometer.load_state_dict(loaded)
        except Exception as error:
            warnings.warn(f"the thermometer begins anew: {_one_line(error)}", RuntimeWarning, stacklevel=2)
        self._passed_on = len(self.thermometer.history)

    def refuse(self, reason: str) -> None:
        """Measure nothing, and say why."""
        self.detach()
        self.thermometer = None
        warnings.warn(f"this training has no thermometer: {reason}", RuntimeWarning, stacklevel=2)

    def detach(self) -> None:
        """Stop measuring; the readings stay."""
        if self.thermometer is not None:
            self.thermometer.remove()

    @property
    def is_due(self) -> bool:
        """Whether the coming step has a reading."""
        thermometer = self.thermometer
        return thermometer is not None and (thermometer.step + 1) % thermometer.interval == 0

    def observe(self, loss_of_batch: Callable[[Any], Tensor], batch: Any) -> None:
        """Measure the gradient noise of a batch if a reading is due."""
        if self.thermometer is not None and self.is_due:
            self.thermometer.observe(loss_of_batch, batch)

    def note_loss(self, loss: Tensor) -> None:
        """Tell the mean loss of the coming step, where no batch is observed."""
        if self.thermometer is not None:
            self.thermometer.note_loss(loss)

    def new_numbers(self) -> list[dict[str, float]]:
        """Return what the readings since the last call have to say to a logger."""
        history = [] if self.thermometer is None else self.thermometer.history
        fresh, self._passed_on = history[self._passed_on :], len(history)
        return [
            {PREFIX + key: value for key, value in reading.items() if isinstance(value, float)} for reading in fresh
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the thermometer; empty if there is none."""
        if self.thermometer is None:
            return self._loaded or {}
        return self.thermometer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from this state when the next training begins."""
        self._loaded = state or None


class QuietThermometer(Thermometer):
    """A thermometer that never raises in a training: a reading that lacks something says why, as its ``reason``.

    Where nothing could be read, it is all that the reading has beside its ``step``. Each reason is told once.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, **settings: Any) -> None:
        self._missing = ""  # why the coming reading will have no noise
        self._told: set[str] = set()
        super().__init__(model, optimizer, **settings)
        if (earlier := _WATCHING.get(self._optimizer)) is not None:
            earlier.remove()  # of a training that ended in an exception, which no event of its host told
        _WATCHING[self._optimizer] = self

    def observe(self, *arguments: Any) -> None:
        """Do as `heatbath.Thermometer.observe`, and leave the random numbers of Python and NumPy as they are."""
        states = random.getstate(), np.random.get_state()  # noqa: NPY002 (a host's step may use it)
        try:
            super().observe(*arguments)
        except Exception as error:
            self._missing = _one_line(error)
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        count = len(self.history)
        try:
            super()._after_step(optimizer, args, kwargs)
        except Exception as error:
            self._miss(_one_line(error))
            self._prepare()
        if len(self.history) > count and "reason" not in self.history[-1]:
            reading, reason, self._missing = self.history[-1], self._missing, ""
            if not reason and reading["gradient_norm_squared"] is None:
                reason = "the step had one backward pass, and no batch was observed: nothing tells its noise"
            if reason:
                self._tell(reason)
                reading["reason"] = reason

    def _miss(self, reason: str) -> None:
        reason = self._missing or reason
        self._tell(reason)
        self.history.append({"step": self.step, "reason": reason})
        self._missing = ""

    def _tell(self, reason: str) -> None:
        if reason not in self._told:
            self._told.add(reason)
            warnings.warn(f"the reading at step {self.step} lacks its noise: {reason}", RuntimeWarning, stacklevel=3)


_WATCHING: WeakKeyDictionary[Optimizer, QuietThermometer] = WeakKeyDictionary()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
