"""The step of one run, by torch's own kernels: SGD as `heatbath.RandomSGD` takes it, and AdamW."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import adamw as torch_adamw

from heatbath.optim.sgd_step import random_sgd
from heatbath.runs.configs import RunConfig

Array = np.ndarray[Any, np.dtype[np.float64]]

STATE_KINDS = {"sgd": ("velocity",), "adamw": ("moment", "square")}
"""What an optimizer keeps of each parameter."""

ADAMW_EPS = 1e-8
"""What a config does not say of AdamW: torch's default."""

_adamw: Any = torch_adamw.adamw


def acting_coupling(config: RunConfig) -> str:
    """Return what the multipliers act on: those of constant and cyclic protocols on the rate, as a scheduler does."""
    return config.coupling if config.protocol.kind == "random" else "update"


class EpochRates:
    """The rates of a run in one epoch, counted from 0.

    Attributes:
        multipliers: the random multipliers of its steps, or those of its protocol.
        lr: the rates of its steps, without them.
        mean: of the rates, with them.
    """

    def __init__(self, config: RunConfig, epoch: int) -> None:
        self.multipliers: Array = config.protocol.multipliers(config.law, config.seed, epoch, config.steps_per_epoch)
        factors = config.schedule_factors(epoch)
        self.lr: Array = config.lr * factors
        self.mean = config.lr * float((self.multipliers * factors).mean())


class RunOptimizer:
    """Steps the parameters of one run, in place.

    AdamW's decay is no part of the gradient. In coupling "gradient" its multiplier acts on the gradient before the
    moments; in "update" on the rate of the whole step, decay included. Both are what `heatbath.randomize` makes of
    `torch.optim.AdamW`.

    Args:
        config: the run.
        params: what it steps.
        gains: how many equal weights each number of a parameter stands for the sum of; one by default.

    Attributes:
        state: tensors like the parameters, by their kind.
        unit: of the velocities, which `random_sgd` keeps over a number of its own.
    """

    def __init__(self, config: RunConfig, params: Sequence[Tensor], gains: Sequence[float] = ()) -> None:
        self._config, self._params, self._coupling = config, list(params), acting_coupling(config)
        self._gains = tuple(gains) or (1.0,) * len(self._params)
        kinds = STATE_KINDS[config.optimizer]
        self.state = {kind: [torch.zeros_like(param) for param in params] for kind in kinds}
        self.unit = 1.0
        self._step = {"sgd": self._sgd, "adamw": self._adamw}[config.optimizer]
        self._taken = [torch.zeros((), dtype=torch.float32, device=param.device) for param in params]
        by_gain = {gain: [k for k, other in enumerate(self._gains) if other == gain] for gain in self._gains}
        self._parts = list(by_gain.items())

    def take_units(self, units: Sequence[float]) -> Sequence[float]:
        """Take over the units of velocities that are to be loaded; return what to multiply these by."""
        (self.unit,) = units
        return (1.0,)

    def prepare(self, epoch: int) -> None:
        """Draw the multipliers of one epoch, counted from 0."""
        self._epoch, self._rates = epoch, EpochRates(self._config, epoch)

    @property
    def mean_rates(self) -> list[float]:
        """Of the epoch, for the one run."""
        return [self._rates.mean]

    @torch.no_grad()
    def step(self, grads: list[Tensor], at: int) -> None:
        """Take step ``at`` of the epoch with these gradients, which may be changed."""
        if self._config.clip_norm is not None:
            clip_gradients(grads, self._gains, self._config.clip_norm)
        self._step(grads, float(self._rates.lr[at]), float(self._rates.multipliers[at]), at)

    def _sgd(self, grads: list[Tensor], lr: float, multiplier: float, at: int) -> None:
        del at
        config = self._config
        for grad, gain in zip(grads, self._gains, strict=True):
            if gain != 1.0:
                grad.mul_(gain)
        self.unit = random_sgd(
            self._params,
            grads,
            self.state["velocity"] if config.momentum else [],
            multiplier=multiplier,
            unit=self.unit,
            lr=lr,
            momentum=config.momentum,
            nesterov=config.nesterov,
            weight_decay=config.weight_decay,
            coupling=self._coupling,
            dampening=0.0,
            maximize=False,
            foreach=False,
            fused=True,
        )

    def _adamw(self, grads: list[Tensor], lr: float, multiplier: float, at: int) -> None:
        config = self._config
        if self._coupling == "gradient":
            torch._foreach_mul_(grads, multiplier)
        else:
            lr = lr * multiplier
        torch._foreach_zero_(self._taken)
        torch._foreach_add_(self._taken, float(self._epoch * config.steps_per_epoch + at))  # the kernel adds one
        tensors = self._params, grads, *self.state.values()
        for gain, which in self._parts:
            _adamw(
                *([tensor[k] for k in which] for tensor in tensors),
                [],
                [self._taken[k] for k in which],
                fused=True,
                amsgrad=False,
                beta1=config.momentum,
                beta2=config.beta2,
                eps=ADAMW_EPS,
                lr=lr * gain,  # the sum of ``gain`` equal weights moves by ``gain`` times the step of one,
                weight_decay=config.weight_decay / gain,  # and decays as they do
                maximize=False,
            )


def clip_gradients(grads: list[Tensor], gains: Sequence[float], clip_norm: float) -> None:
    """Shorten gradients in place to a norm of at most ``clip_norm``, as `torch.nn.utils.clip_grad_norm_` does.

    A number that stands for ``gain`` equal weights has their gradient, which counts as many times.
    """
    norms = torch.stack(torch._foreach_norm(grads))
    total = torch.linalg.vector_norm(norms * norms.new_tensor(gains).sqrt())
    torch._foreach_mul_(grads, torch.clamp(clip_norm / (total + 1e-6), max=1.0))
