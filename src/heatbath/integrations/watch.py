"""What the callbacks of all hosts share: the thermometer of the training under way, which never stops it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from heatbath.thermometry.batch_halves import batch_length
from heatbath.thermometry.logs import Reading, WarnOnce, one_line
from heatbath.thermometry.thermometer import Thermometer

_WATCHING: WeakKeyDictionary[Optimizer, Thermometer] = WeakKeyDictionary()
Event = TypeVar("Event", bound=Callable[..., Any])


def guarded(event: Event) -> Event:
    """Let an event of a `Watch` warn where it raises."""

    @wraps(event)
    def call(self: Watch, *args: Any, **kwargs: Any) -> Any:
        try:
            return event(self, *args, **kwargs)
        except Exception as error:
            self._warn(event.__name__, f"the thermometer failed in {event.__name__}: {one_line(error)}")

    return cast("Event", call)


class Watch:
    """Holds the thermometer of a callback from one training to the next.

    An error in the settings of the thermometer is raised here, where they are written; later ones are warnings.
    """

    def __init__(self, **settings: Any) -> None:
        trial = nn.Linear(1, 1)
        Thermometer(trial, torch.optim.SGD(trial.parameters(), lr=0.1), **settings).remove()
        self._settings = settings
        self._thermometer: Thermometer | None = None
        self._loaded: dict[str, Any] | None = None  # a state that came before its thermometer
        self._passed_on = 0  # readings that the loggers have
        self._warn = WarnOnce()

    @property
    def thermometer(self) -> Thermometer | None:
        """The thermometer of the training under way, or of the last one; None if it was refused."""
        return self._thermometer

    @property
    def history(self) -> list[Reading]:
        """The readings, as in `heatbath.Thermometer`."""
        return [] if self._thermometer is None else self._thermometer.history

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the thermometer: numbers and text only; empty if there is none."""
        return (self._loaded or {}) if self._thermometer is None else self._thermometer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from this state when the next training begins."""
        self._loaded = state_dict or None

    def _attach(self, model: nn.Module, optimizer: Any, scaler: Any, tells: bool = True) -> None:
        """Begin to measure, from a loaded state if there is one; with ``tells`` for the user's callbacks as well."""
        self._detach()
        self._thermometer, loaded, self._loaded = None, self._loaded, None
        try:
            settings = self._settings if tells else {**self._settings, "callback": ()}
            self._thermometer = thermometer = Thermometer(model, optimizer, scaler=scaler, **settings)
        except Exception as error:
            self._refuse(one_line(error))
            return
        if (earlier := _WATCHING.get(thermometer.optimizer)) is not None:
            earlier.remove()  # of a training that ended in an exception, which no event of its host told
        _WATCHING[thermometer.optimizer] = thermometer
        try:
            if loaded is not None:
                thermometer.load_state_dict(loaded)
        except Exception as error:
            warnings.warn(f"the thermometer begins anew: {one_line(error)}", RuntimeWarning, stacklevel=2)
        self._passed_on = len(thermometer.history)

    def _is_second(self, callbacks: Iterable[Any]) -> bool:
        """Whether another callback of this kind comes before; say so."""
        first = next(callback for callback in callbacks if isinstance(callback, Watch))
        if first is not self:
            self._refuse(f"the Trainer has another {type(self).__name__} already, which reads")
        return first is not self

    def _refuse(self, reason: str) -> None:
        self._detach()
        self._thermometer = None
        warnings.warn(f"this training has no thermometer: {reason}", RuntimeWarning, stacklevel=2)

    def _detach(self) -> None:
        """Stop measuring; the readings stay."""
        if self._thermometer is not None:
            self._thermometer.remove()

    @property
    def _is_due(self) -> bool:
        """Whether the coming step has a reading."""
        thermometer = self._thermometer
        return thermometer is not None and (thermometer.step + 1) % thermometer.interval == 0

    def _observe(self, loss_of_batch: Callable[[Any], Tensor], batch: Any) -> None:
        """Measure the gradient noise of the batch of the coming step."""
        assert self._thermometer is not None
        try:
            self._thermometer.observe(loss_of_batch, batch)
        except Exception as error:  # of a first call
            self._thermometer.miss(error)

    def _count(self, batch: Any, divisor: int | None = None, weighs_samples: bool = False) -> None:
        """Count the samples of a micro-batch of the coming step, of this rank."""
        assert self._thermometer is not None
        try:
            size = batch_length(batch)
        except Exception:  # of tensors that have no length
            size = 0
        self._thermometer.count(size, divisor, weighs_samples)

    def _note_loss(self, loss: Any, factor: float) -> None:
        """Tell the mean loss of the coming step, where no batch is observed; what is no number is none."""
        assert self._thermometer is not None
        if isinstance(loss, Tensor) and loss.numel() == 1:
            self._thermometer.note_loss(loss.detach().reshape(()) * factor)

    def _new_numbers(self) -> list[dict[str, float]]:
        """Return what the readings since the last call have to say to a logger; a lost one has nothing."""
        fresh, self._passed_on = self.history[self._passed_on :], len(self.history)
        rows = [{f"heatbath/{key}": x for key, x in reading.items() if isinstance(x, float)} for reading in fresh]
        return [row for row in rows if row]
