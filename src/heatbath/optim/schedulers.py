"""Learning-rate schedulers for any torch optimizer: a random rate and the paper's cosine cycle."""

from __future__ import annotations

import math
import warnings
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer

from heatbath.draws import Multipliers, check_integer
from heatbath.laws import Law, Uniform, check_number, parse_law
from heatbath.optim.draw_sources import CurrentDraw, DrawSource, hooked_optimizer, refuse_other_sources
from heatbath.optim.param_groups import refuse_other_draws
from heatbath.optim.step_hooks import is_nested, is_rehearsal, outside_graphs

_LEAST = 2.0**-100  # what is written for a multiplier of 0, so that a chained scheduler's factor is not lost in it


class RandomLR(LRScheduler):
    """Multiplies the learning rate by a fresh random number at each mini-batch: coupling "update" on any optimizer.

    The ``k``-th mini-batch runs at ``lr * alpha_k``, with ``alpha_k = heatbath.draw(law, seed, k, 1)`` and ``lr``
    whatever the other schedulers have set. Call ``step()`` once after each ``optimizer.step()``, and after the other
    schedulers::

        optimizer.step()
        warmup.step()
        random.step()

    A scheduler that sets the rate outright (`LambdaLR` and all that is built on it, `OneCycleLR`, `SequentialLR`, ...)
    must be built before this one (a warning tells if it was not), and stepped before it, as above, also at the end of
    an epoch. One that multiplies it (`StepLR`, `ExponentialLR`, `CosineAnnealingLR` with ``eta_min=0`` up to ``T_max``,
    ...) and `CosineCycleLR` may come after it too; so may `ReduceLROnPlateau` with ``eps=0`` and without ``min_lr``:
    both are compared with the multiplied rate, and the default ``eps`` drops a reduction that falls on a draw near 0.
    ``heatbath.randomize(optimizer, law, coupling="update")`` has no such rule: it never shows the random rate in
    ``lr``, and mixes with any scheduler in any order. So does `RandomSGD`. Take one of these where a framework steps
    the schedulers of the epoch itself, and last, as Lightning does: nothing tells of a rate set outright there.

    While a mini-batch is under way each group holds the rate without the multiplier as ``base_lr`` and the multiplier
    as ``lr_factor``; ``optimizer.step()`` ends by putting ``lr`` back to ``base_lr``, so that multipliers never
    compound and other schedulers work on the rate itself. A multiplier of 0 is written as ``2**-100``, from which
    the rate can still be told. As with every scheduler, ``step()`` counts mini-batches: one whose optimizer step
    `torch.amp.GradScaler` skips has its draw all the same.
    The optimizer's own ``state_dict()`` holds the rate without the multiplier, and the state of the draws: frameworks
    that save no schedulers resume exactly. An optimizer has one `RandomLR`; ``remove()`` takes it off.
    Inside a `SequentialLR` it begins at the initial rate, not where the one before it stopped.

    On plain SGD this is ``RandomSGD(..., coupling="update")`` with the same law and seed.

    Args:
        optimizer: any torch optimizer.
        law: distribution of the multiplier, for instance ``Uniform(0.5)`` or ``"uniform:0.5"``.
        seed: an integer; with ``last_epoch`` the whole state of the randomness.
        last_epoch: index of the last mini-batch when resuming.
    """

    _waits_for_its_turn = False  # in a SequentialLR, which has taken the first step back
    _is_removed = False

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
        hooked = hooked_optimizer(optimizer)
        refuse_other_sources(hooked, ShownRates.name)
        super().__init__(optimizer, last_epoch)
        ShownRates(self).attach(hooked)

    def remove(self) -> None:
        """Give the optimizer back as it was; further calls of ``step()`` leave it alone."""
        if (rates := self._shown_rates) is not None:
            rates.remove()

    @property
    def last_epoch(self) -> int:
        """Index of the mini-batch under way, counted from 0; -1 before the first."""
        return self.__dict__["last_epoch"]  # type: ignore[no-any-return]

    @last_epoch.setter
    def last_epoch(self, value: int) -> None:
        if value == -1 and self.__dict__.get("last_epoch", -1) >= 0:
            self._waits_for_its_turn = True
            for group in self.optimizer.param_groups:
                group.pop("base_lr", None)
        self.__dict__["last_epoch"] = value

    def get_lr(self) -> list[Any]:
        """Return the rates of the mini-batch ``last_epoch``; called by ``step()``."""
        _warn_outside_step(self)
        factor, bases = self._factor(), [_base_lr(group) for group in self.optimizer.param_groups]
        if self._is_removed:
            return bases
        if self._get_lr_called_within_step:
            for group, base in zip(self.optimizer.param_groups, bases, strict=True):
                group["base_lr"], group["lr_factor"] = base, factor
        return [base * factor for base in bases]

    def _get_closed_form_lr(self) -> list[Any]:
        if self.last_epoch == 0 and self._waits_for_its_turn:
            # Its turn has come: like torch's schedulers it starts from the initial rate, not where a warm-up stopped.
            self._waits_for_its_turn = False
            for group, base in zip(self.optimizer.param_groups, self.base_lrs, strict=False):
                group.pop("base_lr", None)
                _set_lr(group, base)
        return self.get_lr()

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
        ours = {"law": self.law, "seed": self.seed}
        refuse_other_draws(state_dict, ours, "RandomLR")
        super().load_state_dict({**state_dict, **ours})
        self._show("base_lr")

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        optimizer = hooked_optimizer(self.optimizer)
        if getattr(optimizer, "heatbath_draws", None) is None:  # copies and pickles leave it behind
            ShownRates(self).attach(optimizer)

    def go_on(self, step: int, is_shown: bool) -> None:
        """Go on at mini-batch ``step``, with the rates of the optimizer multiplied or not yet."""
        self.last_epoch = step
        if is_shown:
            self._show("lr")
        self._last_lr = [_copy(group["lr"]) for group in self.optimizer.param_groups]

    def _show(self, where: str) -> None:
        """Multiply the rates of the groups that have an entry ``where``."""
        if self.last_epoch > 0 and (rates := self._shown_rates) is not None:
            rates.is_before_first_draw = False  # a scheduler may rightly have multiplied the rate since the saved step
        for group in self.optimizer.param_groups:
            if where in group:
                base, factor = _base_lr(group), self._factor()
                group["base_lr"], group["lr_factor"] = base, factor
                _set_lr(group, base * factor)

    def _factor(self) -> float:
        return max(self._multipliers.at(max(self.last_epoch, 0)), _LEAST)

    @property
    def _shown_rates(self) -> ShownRates | None:
        source = getattr(hooked_optimizer(self.optimizer), "heatbath_draws", None)
        return source if isinstance(source, ShownRates) and source.scheduler() is self else None


class ShownRates(DrawSource):
    """The draws of a `RandomLR`: its multiplier stands in ``lr`` while a mini-batch is under way, and no longer."""

    name = "RandomLR"
    coupling = "update"

    def __init__(self, scheduler: RandomLR) -> None:
        self.law, self.scheduler = scheduler.law, weakref.ref(scheduler)
        self.is_before_first_draw = True

    @property
    def is_alive(self) -> bool:
        """Whether the scheduler is still there."""
        return self.scheduler() is not None

    def current_draw(self, group: dict[str, Any]) -> CurrentDraw:
        """Return the draw of a group's last step."""
        return CurrentDraw(self.law, "update", group.get("lr_factor", 1.0), group.get("base_lr", group["lr"]))

    def state_dict(self) -> dict[str, Any]:
        """Return law, coupling, seed and step of the scheduler, and whether the rates are multiplied just now."""
        scheduler = self.scheduler()
        if scheduler is None:
            return {}
        is_shown = any("base_lr" in group for group in scheduler.optimizer.param_groups)
        draws = {"law": str(self.law), "coupling": "update", "seed": scheduler.seed}
        return {**draws, "step": scheduler.last_epoch, "is_shown": is_shown}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the scheduler go on from there."""
        if (scheduler := self.scheduler()) is not None and state_dict.get("step", -1) >= 0:
            scheduler.go_on(state_dict["step"], state_dict.get("is_shown", True))

    def clean(self, saved: dict[str, Any]) -> dict[str, Any]:
        """Return a saved group with its rate, not a multiple of it."""
        rest = {key: value for key, value in saved.items() if key not in ("base_lr", "lr_factor")}
        return {**rest, "lr": _base_lr(saved)}

    def remove(self) -> None:
        """Give the optimizer back as it was."""
        if (scheduler := self.scheduler()) is not None:
            scheduler._is_removed = True
        if (optimizer := self.optimizer()) is not None:
            self._put_back(optimizer.param_groups)
            for group in optimizer.param_groups:
                group.pop("lr_factor", None)
        super().remove()

    @outside_graphs
    def after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG002 (a hook's signature)
        """Put ``lr`` back to the rate itself, with what other schedulers did to it."""
        if is_nested(optimizer) or is_rehearsal(optimizer):
            return
        shown = [group for group in optimizer.param_groups if "base_lr" in group]
        if self.is_before_first_draw:
            self.is_before_first_draw = False
            # Taken for a multiple, a rate set outright would make the base rate 1 / alpha_0 times what it should be.
            readable = [group for group in shown if not isinstance(group["lr"], Tensor) or group["lr"].is_cpu]
            if any(group["lr"] != group["base_lr"] * group["lr_factor"] for group in readable):
                warnings.warn(
                    "the learning rate was changed after RandomLR was built: what sets it outright (LambdaLR, "
                    "OneCycleLR, SequentialLR, ...) must come before, or rates are wrong; build RandomLR after the "
                    "other schedulers",
                    UserWarning,
                    stacklevel=6,
                )
        self._put_back(shown)

    @staticmethod
    def _put_back(groups: list[dict[str, Any]]) -> None:
        for group in groups:
            base = _base_lr(group)
            group.pop("base_lr", None)
            _set_lr(group, base)


class CosineCycleLR(LRScheduler):
    """The paper's cyclic protocol, ``l_tau = l [1 + cos(pi tau / period)]``, ``tau`` the completed epochs.

    The rate starts at ``2 l``, twice that of the optimizer, is zero after ``period`` epochs and back at ``2 l`` after
    ``2 * period``: what the paper calls the period is half a cycle. ``cycle=12`` says the same as ``period=6``. The
    mean rate is ``l``. Call ``step()`` once an epoch. The form is closed in ``tau``; if other schedulers
    multiply the rate in between, ``l`` is multiplied with it. A rate of zero is written as ``2**-100 l``, from which
    that can still be told.

    Args:
        optimizer: any torch optimizer.
        period: the paper's ``P``, a positive number of epochs: half of a cycle.
        last_epoch: index of the last epoch when resuming.
        cycle: the epochs after which the rate repeats, in place of ``period``.
    """

    def __init__(
        self, optimizer: Optimizer, period: float | None = None, last_epoch: int = -1, *, cycle: float | None = None
    ) -> None:
        if (period is None) == (cycle is None):
            raise TypeError("give period, the paper's half cycle, or cycle, after which the rate repeats: one of them")
        name, epochs = ("period", period) if cycle is None else ("cycle", cycle)
        # A float: a NumPy number could be saved but not loaded with weights_only.
        self.period = check_number(name, epochs, above=0.0) / (1.0 if cycle is None else 2.0)
        self._written: list[Any] = []
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """Return the rates of epoch ``last_epoch``; called by ``step()``."""
        _warn_outside_step(self)
        groups = self.optimizer.param_groups
        means: list[Any] = list(self.base_lrs)
        found = [_base_lr(group) for group in groups]
        if self.last_epoch == 0 and not (self._written and found[: len(self._written)] == self._written):
            means = found  # schedulers built before, such as a warm-up, have had their first say
        elif self._written:
            means = [
                _follow(mean, written, rate)
                for mean, written, rate in zip(self._means, self._written, found, strict=False)
            ]
        # Groups that came later start from their own rate.
        means += [_copy(group.setdefault("initial_lr", _base_lr(group))) for group in groups[len(means) :]]
        return self._rates(means)

    def _get_closed_form_lr(self) -> list[Any]:
        return self._rates(list(self.base_lrs))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state; an optimizer that is still at the rate of a fresh scheduler takes the loaded one."""
        fresh = self._written
        super().load_state_dict(state_dict)
        for group, before, written in zip(self.optimizer.param_groups, fresh, self._written, strict=False):
            if _base_lr(group) == before:
                _set_lr(group, self._shown(group, written))

    def _rates(self, means: list[Any]) -> list[Any]:
        factor = max(1.0 + math.cos(math.pi * self.last_epoch / self.period), _LEAST)
        rates = [mean * factor for mean in means]
        if not self._get_lr_called_within_step:
            return rates
        self._means: list[Any] = means
        self._written = rates
        return [self._shown(group, rate) for group, rate in zip(self.optimizer.param_groups, rates, strict=True)]

    @staticmethod
    def _shown(group: dict[str, Any], rate: Any) -> Any:
        """The value of ``lr`` for this rate: a multiple of it in the middle of RandomLR's mini-batch."""
        if "base_lr" not in group:
            return _copy(rate)
        group["base_lr"] = _copy(rate)
        return rate * group["lr_factor"]


def _base_lr(group: dict[str, Any]) -> Any:
    """The group's rate without RandomLR's multiplier, with what other schedulers did to it in the meantime."""
    if "base_lr" not in group:
        return _copy(group["lr"])
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


def _copy(rate: Any) -> Any:
    return rate.clone() if isinstance(rate, Tensor) else rate


def _set_lr(group: dict[str, Any], rate: Any) -> None:
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def _warn_outside_step(scheduler: LRScheduler) -> None:
    if not scheduler._get_lr_called_within_step:
        warnings.warn("get_lr() is for step(); use get_last_lr() to see the rates", UserWarning, stacklevel=3)
