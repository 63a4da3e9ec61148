"""The step of many runs at once: parameters with one run in each row, each with its own rates, knobs and bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heatbath.engine.batched_adamw import adamw_coefficients, batched_adamw
from heatbath.engine.batched_sgd import linear_coefficients, linear_sgd
from heatbath.engine.optimizers import STATE_KINDS, Array, EpochRates, acting_coupling
from heatbath.runs.configs import RunConfig


class BatchedOptimizer:
    """Steps the parameters of runs that have the same optimizer, in place.

    Args:
        configs: the runs.
        params: of shape (runs, ...).
        gains: see `heatbath.engine.optimizers.RunOptimizer`.
        rests: the lower halves, see `heatbath.engine.split_bf16`, of parameters of which ``params`` are the upper ones.
        compiled: whether to compile the step.

    Attributes:
        state: tensors like the parameters, by their kind; of single precision or more.
    """

    def __init__(
        self,
        configs: Sequence[RunConfig],
        params: Sequence[Tensor],
        gains: Sequence[float] = (),
        rests: Sequence[Tensor] = (),
        compiled: bool = False,
    ) -> None:
        self._configs, self._params, self._rests = tuple(configs), list(params), list(rests)
        self._gains = tuple(gains) or (1.0,) * len(self._params)
        first, device = configs[0], params[0].device
        kept = torch.promote_types(params[0].dtype, torch.float32)
        self.state = {
            kind: [torch.zeros_like(param, dtype=kept, requires_grad=False) for param in params]
            for kind in STATE_KINDS[first.optimizer]
        }
        self._update: Callable[..., None] = compile_once(_step) if compiled else _step
        # Filled anew for each epoch, in place, as a captured graph knows the place.
        shape = first.steps_per_epoch, 4 if first.optimizer == "adamw" else 3, len(configs)
        self._coefficients = torch.zeros(shape, dtype=torch.float32, device=device)
        adamw = first.optimizer == "adamw"
        second = [1.0 - config.beta2 if adamw else config.weight_decay for config in configs]
        rows = [config.momentum for config in configs], second
        self._knobs = tuple(torch.tensor(row, dtype=kept, device=device) for row in rows)
        bounds = [math.inf if config.clip_norm is None else config.clip_norm for config in configs]
        self._bounds = torch.tensor(bounds, dtype=kept, device=device) if min(bounds) < math.inf else None
        self._foreseen: tuple[int, list[EpochRates], Array] | None = None

    def prepare(self, epoch: int) -> None:
        """Lay out the rates of one epoch, counted from 0."""
        if self._foreseen is None or self._foreseen[0] != epoch:
            self.foresee(epoch)
        assert self._foreseen is not None
        _, self._rates, coefficients = self._foreseen
        self._coefficients.copy_(torch.from_numpy(coefficients))

    def foresee(self, epoch: int) -> None:
        """Compute the rates of an epoch ahead of `prepare`, while a GPU is still busy with the one before."""
        rates = [EpochRates(config, epoch) for config in self._configs]
        pairs = zip(self._configs, rates, strict=True)
        rows = [np.stack(_coefficients(config, found, epoch), axis=1) for config, found in pairs]
        self._foreseen = epoch, rates, np.stack(rows, axis=2)

    @property
    def mean_rates(self) -> list[float]:
        """Of the epoch, for each run."""
        return [rates.mean for rates in self._rates]

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor], at: Tensor) -> None:
        """Take step ``at``, a tensor of shape (1,) that a CUDA graph reads anew, with the gradients of all runs."""
        coefficients = self._coefficients.index_select(0, at)[0].unbind()
        how = self._knobs, self._bounds, self._gains, self._rests
        self._update(self._params, grads, list(self.state.values()), coefficients, *how)


@cache
def compile_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function as torch compiles it, for each shape anew."""
    from torch._dynamo import config as dynamo_config  # takes a second or two, which a CPU is spared

    compiled: Callable[..., Any] = torch.compile(function, dynamic=False)
    limit = "recompile_limit" if hasattr(dynamo_config, "recompile_limit") else "cache_size_limit"

    def call(*arguments: Any) -> Any:
        # Stacks of many shapes may be trained in one process, and each is to be compiled.
        with dynamo_config.patch({limit: 1000}):
            return compiled(*arguments)

    return call


def clip_rows(grads: Sequence[Tensor], gains: Sequence[float], bounds: Tensor) -> list[Tensor]:
    """Return gradients of which each row is shortened to a norm of at most its bound.

    See `heatbath.engine.optimizers.clip_gradients`.
    """
    squares = [gain * grad.to(bounds.dtype).flatten(1).square().sum(1) for grad, gain in zip(grads, gains, strict=True)]
    scale = torch.clamp(bounds / (torch.stack(squares).sum(0).sqrt() + 1e-6), max=1.0)
    return [grad.to(bounds.dtype) * scale.view(-1, *[1] * (grad.ndim - 1)) for grad in grads]


def _coefficients(config: RunConfig, rates: EpochRates, epoch: int) -> tuple[Array, ...]:
    """What the steps of an epoch multiply by, each of shape (steps,)."""
    coupling = acting_coupling(config)
    if config.optimizer == "sgd":
        return linear_coefficients(rates.multipliers, rates.lr, config.momentum, config.nesterov, coupling)
    numbers = np.arange(config.steps_per_epoch, dtype=np.float64) + epoch * config.steps_per_epoch
    knobs: dict[str, Any] = {"beta": config.momentum, "beta2": config.beta2, "weight_decay": config.weight_decay}
    return adamw_coefficients(rates.multipliers, rates.lr, numbers, **knobs, coupling=coupling)


def _step(
    params: list[Tensor],
    grads: Sequence[Tensor],
    state: Sequence[list[Tensor]],
    coefficients: Sequence[Tensor],
    knobs: tuple[Tensor, Tensor],
    bounds: Tensor | None,
    gains: Sequence[float],
    rests: Sequence[Tensor],
) -> None:
    """SGD where the state is a velocity, AdamW where it is two moments; both after the gradients are shortened.

    The knobs are momentum and weight decay of SGD, or ``beta1`` and ``1 - beta2`` of AdamW, whose decay is among the
    coefficients.
    """
    shortened = list(grads) if bounds is None else clip_rows(grads, gains, bounds)
    if len(state) == 1:
        linear_sgd(params, shortened, state[0], coefficients, *knobs, gains, rests)
    else:
        batched_adamw(params, shortened, state[0], state[1], coefficients, *knobs, gains, rests)
