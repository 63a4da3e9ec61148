"""What heatbath hangs on an optimizer that somebody else wrote: one object, which is asked for the draw of a step.

The object is ``optimizer.heatbath_draws``. Its state travels in the optimizer's own state dict under ``"heatbath"``,
a key that other optimizers ignore: frameworks that save nothing else resume exactly.
"""

from __future__ import annotations

import warnings
import weakref
from abc import ABC, abstractmethod
from typing import Any, Final, NamedTuple

from torch import Tensor
from torch.optim.optimizer import Optimizer

from heatbath.laws import Constant, Coupling, Law, parse_law
from heatbath.optim.param_groups import refuse_other_draws

STATE_KEY: Final = "heatbath"
_CONSTANT = Constant()


class CurrentDraw(NamedTuple):
    """How the last step of a parameter group was randomized."""

    law: Law  # constant if nothing draws
    coupling: Coupling
    multiplier: float | Tensor
    lr: Any  # without the multiplier; None in a group that names none
    is_in_gradients: bool = False  # whether ``p.grad`` already holds the multiplier


def current_draw(optimizer: Optimizer, group: dict[str, Any]) -> CurrentDraw:
    """Return the draw of a group's last step: that of `RandomSGD`, `randomize` or `RandomLR`, else a constant one."""
    if "law" in group and group["law"].variance > 0.0:  # a constant one leaves the draws to others
        return CurrentDraw(group["law"], group["coupling"], group["multiplier"], group["lr"])
    source: DrawSource | None = getattr(optimizer, "heatbath_draws", None)
    return CurrentDraw(_CONSTANT, "update", 1.0, group.get("lr")) if source is None else source.current_draw(group)


class DrawSource(ABC):
    """The draws of one optimizer of another class, from `attach` to `remove`; a ``with`` statement removes it."""

    name = ""  # of the function or class that the user called
    law: Law
    coupling: Coupling

    @abstractmethod
    def current_draw(self, group: dict[str, Any]) -> CurrentDraw:
        """Return the draw of a group's last step, whichever post-step hook comes first."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return law and coupling as text, seed and step as integers."""

    @abstractmethod
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state of the same law, coupling and seed."""

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:  # noqa: B027
        """Run before each step."""

    @abstractmethod
    def after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Run after each step."""

    @property
    def is_alive(self) -> bool:
        """Whether somebody can still draw with it."""
        return True

    def clean(self, saved: dict[str, Any]) -> dict[str, Any]:
        """Return a saved group as it is without us."""
        return saved

    def attach(self, optimizer: Optimizer) -> None:
        """Hang this on an optimizer that runs hooks; raise ValueError if it draws already."""
        refuse_other_sources(optimizer, self.name)
        optimizer.heatbath_draws = self  # type: ignore[attr-defined]
        self.optimizer = weakref.ref(optimizer)  # which holds us already
        self._hooks = [
            optimizer.register_step_pre_hook(self.before_step),
            optimizer.register_step_post_hook(self.after_step),
            optimizer.register_state_dict_post_hook(self._save),
            optimizer.register_load_state_dict_pre_hook(self._load),
            optimizer.register_load_state_dict_post_hook(self._go_on),
        ]
        self._loaded: dict[str, Any] | None = None

    def remove(self) -> None:
        """Give the optimizer back as it was."""
        for hook in self._hooks:
            hook.remove()
        optimizer = self.optimizer()
        if optimizer is not None and getattr(optimizer, "heatbath_draws", None) is self:
            delattr(optimizer, "heatbath_draws")

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def _save(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 (a hook)
        groups = [self.clean(group) for group in state_dict["param_groups"]]
        draws = {STATE_KEY: self.state_dict()} if self.is_alive else {}
        return {**state_dict, "param_groups": groups, **draws}

    def _load(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:  # noqa: ARG002 (a hook's signature)
        self._loaded, ours = state_dict.get(STATE_KEY), self.state_dict()
        if self._loaded is not None:
            if not isinstance(self._loaded, dict) or not {"law", "coupling", "seed", "step"} <= self._loaded.keys():
                raise ValueError(f"the state dict's {STATE_KEY!r} is not a state of draws: got {self._loaded!r}")
            refuse_other_draws(self._loaded, ours, self.name)
        elif state_dict["state"] and ours.get("step", 0) <= 0:
            message = f"the state dict holds no draws of {self.name}, which begin anew unless you load them as well"
            warnings.warn(message, UserWarning, stacklevel=4)

    def _go_on(self, optimizer: Optimizer) -> None:  # noqa: ARG002 (a hook's signature)
        if self._loaded is not None:
            self.load_state_dict(self._loaded)
            self._loaded = None


def refuse_other_sources(optimizer: Optimizer, name: str) -> None:
    """Raise if the optimizer draws multipliers already."""
    if any(parse_law(group.get("law", "constant")).variance > 0 for group in optimizer.param_groups):
        raise ValueError("this optimizer is a RandomSGD and draws already; give it law=Constant(), or leave it be")
    other: DrawSource | None = getattr(optimizer, "heatbath_draws", None)
    if other is not None and not other.is_alive:
        other.remove()
    elif other is not None:
        conflict = "use it once" if other.name == name else f"use {other.name} or {name}, not both"
        raise ValueError(
            f"this optimizer draws already by {other.name}: {conflict}; optimizer.heatbath_draws.remove() ends it"
        )


def hooked_optimizer(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer whose steps run hooks: this one, or the one that it wraps.

    Some wrappers (of Accelerate, `PostLocalSGDOptimizer`, ...) are optimizers by type but were never set up as such.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if hasattr(optimizer, "_optimizer_step_post_hooks"):
        return optimizer
    for name in ("optimizer", "optim"):
        if isinstance(inner := getattr(optimizer, name, None), Optimizer):
            return hooked_optimizer(inner)
    raise TypeError(f"optimizer, a {type(optimizer).__name__}, runs no step hooks: give the one that it wraps")
