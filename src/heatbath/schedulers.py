"""Learning-rate schedulers for any torch optimizer: a random rate and the paper's cosine cycle."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer

from heatbath.draws import Multipliers, check_integer
from heatbath.laws import Law, Uniform, parse_law


class RandomLR(LRScheduler):
    """Multiplies the learning rate by a fresh random number at each mini-batch: coupling "update" on any optimizer.

    The ``k``-th mini-batch runs at ``lr * alpha_k``, with ``alpha_k = heatbath.draw(law, seed, k, 1)`` and ``lr``
    whatever the other schedulers have set. Call ``step()`` once after each ``optimizer.step()``, after the other
    schedulers of the mini-batch::

        optimizer.step()
        warmup.step()
        random.step()

    While a mini-batch is under way each group holds the rate without the multiplier as ``base_lr`` and the multiplier
    as ``lr_factor``; ``optimizer.step()`` ends by putting ``lr`` back to ``base_lr``, so that multipliers never
    compound and other schedulers work on the rate itself. A scheduler stepped after this one (at the end of an epoch,
    say) meets ``base_lr * alpha``. If it multiplies the rate (`StepLR`, `ExponentialLR`, `CosineAnnealingLR` with
    ``eta_min=0``, `ReduceLROnPlateau`, ...) or is `CosineCycleLR`, all is well. One that sets the rate outright
    (`LambdaLR`, `OneCycleLR`, ...) must be stepped before, as above; or use ``heatbath.randomize(optimizer, law,
    coupling="update")``, which never writes ``lr`` and mixes with anything, in any order.

    On plain SGD this is ``RandomSGD(..., coupling="update")`` with the same law and seed.

    Args:
        optimizer: any torch optimizer.
        law: distribution of the multiplier, for instance ``Uniform(0.5)`` or ``"uniform:0.5"``.
        seed: an integer; with ``last_epoch`` the whole state of the randomness.
        last_epoch: index of the last mini-batch when resuming.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        law: Law | str = Uniform(1.0),  # noqa: B008 (laws are frozen)
        seed: int = 0,
        last_epoch: int = -1,
    ) -> None:
        self.law = parse_law(law)
        self.seed = check_integer("seed", seed)
        self._multipliers = Multipliers(self.law, self.seed)
        super().__init__(optimizer, last_epoch)
        if not getattr(optimizer, "_puts_base_lr_back", False):
            optimizer.register_step_post_hook(_put_base_lr_back)
            optimizer._puts_base_lr_back = True  # type: ignore[attr-defined]

    @property
    def last_epoch(self) -> int:
        """Index of the mini-batch under way, counted from 0; -1 before the first."""
        return self.__dict__["last_epoch"]  # type: ignore[no-any-return]

    @last_epoch.setter
    def last_epoch(self, value: int) -> None:
        if value == -1 and "base_lrs" in self.__dict__:  # SequentialLR takes the first step back: lr is its own again
            for group in self.optimizer.param_groups:
                group.pop("base_lr", None)
        self.__dict__["last_epoch"] = value

    def get_lr(self) -> list[Any]:
        """Return the rates of the mini-batch ``last_epoch``; called by ``step()``."""
        _warn_outside_step(self)
        factor = self._multipliers.at(self.last_epoch)
        rates = []
        for group in self.optimizer.param_groups:
            group["base_lr"], group["lr_factor"] = _base_lr(group), factor
            rates.append(group["base_lr"] * factor)
        return rates

    def state_dict(self) -> dict[str, Any]:
        """Return the state: numbers and text only."""
        state = super().state_dict()
        del state["_multipliers"]
        return {**state, "law": str(self.law)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of the same law and seed.

        Raises:
            ValueError: it is of another law or seed; nothing has been changed.
        """
        saved = {"law": parse_law(state_dict["law"]), "seed": state_dict["seed"]}
        for key, value in saved.items():
            if value != getattr(self, key):
                raise ValueError(
                    f"the state dict has {key}={value!s}, this RandomLR has {key}={getattr(self, key)!s}: they must be "
                    f"equal, or the run would go on with other draws; build RandomLR with the saved {key}"
                )
        super().load_state_dict({**state_dict, **saved})


class CosineCycleLR(LRScheduler):
    """The paper's cyclic protocol, ``l_tau = l [1 + cos(pi tau / period)]``, ``tau`` the completed epochs.

    The rate starts at ``2 l``, is zero after ``period`` epochs and back at ``2 l`` after ``2 * period``, its true
    period; its mean is ``l``. Call ``step()`` once an epoch. The form is closed in ``tau``; if other schedulers
    multiply the rate in between, ``l`` is multiplied with it (nothing can be seen of that while the rate is zero).

    Args:
        optimizer: any torch optimizer.
        period: the paper's ``P``, a positive number of epochs.
        last_epoch: index of the last epoch when resuming.
    """

    def __init__(self, optimizer: Optimizer, period: float, last_epoch: int = -1) -> None:
        if isinstance(period, bool) or not isinstance(period, (int, float)):
            raise TypeError(f"period must be a positive number of epochs, got {period!r}")
        if not 0 < period < math.inf:
            raise ValueError(f"period must be a positive number of epochs, got {period!r}")
        self.period = period
        self._written: list[Any] = []
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """Return the rates of epoch ``last_epoch``; called by ``step()``."""
        _warn_outside_step(self)
        if self._written and self.last_epoch > 0:
            means = [
                _follow(mean, written, _base_lr(group))
                for mean, written, group in zip(self._means, self._written, self.optimizer.param_groups, strict=True)
            ]
        else:
            means = list(self.base_lrs)
        return self._write(means)

    def _get_closed_form_lr(self) -> list[Any]:
        return self._write(list(self.base_lrs))

    def _write(self, means: list[Any]) -> list[Any]:
        factor = 1.0 + math.cos(math.pi * self.last_epoch / self.period)
        self._means: list[Any] = means
        self._written = [mean * factor for mean in means]
        rates = []
        for group, rate in zip(self.optimizer.param_groups, self._written, strict=True):
            if "base_lr" in group:  # in the middle of RandomLR's mini-batch
                group["base_lr"] = rate
                rates.append(rate * group["lr_factor"])
            else:
                rates.append(rate)
        return rates


def _base_lr(group: dict[str, Any]) -> Any:
    """The group's rate without RandomLR's multiplier, with what other schedulers did to it in the meantime."""
    if "base_lr" not in group:
        lr = group["lr"]
        return lr.clone() if isinstance(lr, Tensor) else lr
    return _follow(group["base_lr"], group["base_lr"] * group["lr_factor"], group["lr"])


def _follow(base: Any, written: Any, found: Any) -> Any:
    """Carry over to ``base`` what turned ``written``, a multiple of it, into ``found``."""
    if isinstance(found, Tensor):
        factor = found / torch.where(torch.as_tensor(written != 0), written, 1.0)
        moved = torch.where(torch.as_tensor(written != 0), base * factor, found)
        return torch.where(found == written, base, moved)
    if found == written:
        return base
    return base * (found / written) if written != 0 else found


@_disable_dynamo
def _put_base_lr_back(optimizer: Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG001 (a hook's signature)
    for group in optimizer.param_groups:
        if "base_lr" in group:
            base = _base_lr(group)
            del group["base_lr"]
            if isinstance(group["lr"], Tensor):
                group["lr"].copy_(base)
            else:
                group["lr"] = base


def _warn_outside_step(scheduler: LRScheduler) -> None:
    if not scheduler._get_lr_called_within_step:
        warnings.warn("get_lr() is for step(); use get_last_lr() to see the rates", UserWarning, stacklevel=3)
