r"""The step of many runs at once: parameters with one run in each row, each with its own rates, knobs and bound.

SGD, whatever the coupling and Nesterov, reads ``v <- mu v + a g``, ``x <- x - b g - c v``. AdamW, with ``h = a g``,
reads ``m <- beta m + (1 - beta) h``, ``s <- beta2 s + (1 - beta2) h^2``, ``x <- x - b x - gain c m / (d \sqrt{s} +
eps)``. Both are functions that a compiler makes one pass over memory of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heatbath.engine.optimizers import ADAMW_EPS, STATE_KINDS, Array, EpochRates, acting_coupling
from heatbath.engine.split_bf16 import join, split
from heatbath.runs.configs import RunConfig


class BatchedOptimizer:
    """Steps the parameters of runs that have the same optimizer, of shape (runs, ...), in place.

    See `heatbath.engine.optimizers.RunOptimizer` for ``gains`` and ``state``, which is of single precision or more;
    ``rests`` are the lower halves, see `heatbath.engine.split_bf16`, of parameters of which ``params`` are the upper.
    """

    unit = 1.0  # of the velocities

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
        first, device, adamw = configs[0], params[0].device, configs[0].optimizer == "adamw"
        kept = torch.promote_types(params[0].dtype, torch.float32)
        self.state = {
            kind: [torch.zeros_like(param, dtype=kept, requires_grad=False) for param in params]
            for kind in STATE_KINDS[first.optimizer]
        }
        self._update: Callable[..., None] = compile_once(_step) if compiled else _step
        # Filled anew for each epoch, in place, as a captured graph knows the place.
        shape = first.steps_per_epoch, 4 if adamw else 3, len(configs)
        self._coefficients = torch.zeros(shape, dtype=torch.float32, device=device)
        second = [1.0 - config.beta2 if adamw else config.weight_decay for config in configs]
        rows = [config.momentum for config in configs], second
        self._knobs = tuple(torch.tensor(row, dtype=kept, device=device) for row in rows)
        bounds = [math.inf if config.clip_norm is None else config.clip_norm for config in configs]
        self._bounds = torch.tensor(bounds, dtype=kept, device=device) if min(bounds) < math.inf else None
        self._foreseen: tuple[int, list[EpochRates], Array] | None = None

    def take_units(self, units: Sequence[float]) -> Sequence[float]:
        """Return what to multiply velocities of these units by, so that they have ours."""
        return units

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


def linear_coefficients(rate: Any, lr: Any, momentum: float, nesterov: bool, coupling: str) -> tuple[Any, Any, Any]:
    """Return ``a, b, c`` of SGD for one multiplier or an array."""
    into_velocity = rate if coupling == "gradient" else rate * 0.0 + 1.0
    moved = lr * (rate if coupling == "update" else rate * 0.0 + 1.0)
    if nesterov:
        return into_velocity, moved * into_velocity, moved * momentum
    return into_velocity, moved * 0.0, moved


def adamw_coefficients(
    multiplier: Any, lr: Any, number: Any, *, beta: float, beta2: float, weight_decay: float, coupling: str
) -> tuple[Any, Any, Any, Any]:
    """Return ``a, b, c, d`` of AdamW for one step, before which came ``number`` others, or an array of them."""
    one = np.ones_like(multiplier)
    moved = lr * (multiplier if coupling == "update" else one)
    into_moments = multiplier if coupling == "gradient" else one
    taken = number + 1.0
    return into_moments, moved * weight_decay, moved / (1.0 - beta**taken), 1.0 / np.sqrt(1.0 - beta2**taken)


def linear_sgd(
    params: list[Tensor],
    grads: Sequence[Tensor],
    velocities: list[Tensor],
    coefficients: Sequence[Tensor],
    momentum: Tensor,
    weight_decay: Tensor,
    gains: Sequence[float],
    rests: Sequence[Tensor] = (),
) -> None:
    """Take one step of SGD; coefficients and knobs are of shape (runs,), a gain multiplies gradients of a parameter."""
    lower: Sequence[Tensor | None] = rests or [None] * len(params)
    for param, rest, raw, velocity, gain in zip(params, lower, grads, velocities, gains, strict=True):
        whole = param if rest is None else join(param, rest)
        a, b, c, mu, decay = _per_row(param, *coefficients, momentum, weight_decay)
        grad = raw.to(whole.dtype) * gain + decay * whole
        new = mu * velocity + a * grad
        way = b * grad + c * new
        velocity.copy_(new)
        _put(param, rest, whole - way)


def batched_adamw(
    params: list[Tensor],
    grads: Sequence[Tensor],
    moments: list[Tensor],
    squares: list[Tensor],
    coefficients: Sequence[Tensor],
    beta: Tensor,
    share: Tensor,
    gains: Sequence[float],
    rests: Sequence[Tensor] = (),
) -> None:
    """Take one step of AdamW; ``share`` is ``1 - beta2``, which single precision would round if it were computed."""
    lower: Sequence[Tensor | None] = rests or [None] * len(params)
    for param, rest, raw, moment, square, gain in zip(params, lower, grads, moments, squares, gains, strict=True):
        whole = param if rest is None else join(param, rest)
        a, b, c, d, first, new_part = _per_row(param, *coefficients, beta, share)
        grad = a * raw.to(whole.dtype)
        new = first * moment + (1.0 - first) * grad
        spread = (1.0 - new_part) * square + new_part * grad * grad
        moment.copy_(new)
        square.copy_(spread)
        _put(param, rest, whole - b * whole - (gain * c) * new / (d * spread.sqrt() + ADAMW_EPS))


def clip_rows(grads: Sequence[Tensor], gains: Sequence[float], bounds: Tensor) -> list[Tensor]:
    """Return gradients of which each row is shortened to its bound, see `heatbath.engine.optimizers.clip_gradients`."""
    squares = [gain * grad.to(bounds.dtype).flatten(1).square().sum(1) for grad, gain in zip(grads, gains, strict=True)]
    scale = torch.clamp(bounds / (torch.stack(squares).sum(0).sqrt() + 1e-6), max=1.0)
    return [grad.to(bounds.dtype) * _per_row(grad, scale)[0] for grad in grads]


def _per_row(like: Tensor, *numbers: Tensor) -> list[Tensor]:
    return [number.view(-1, *[1] * (like.ndim - 1)) for number in numbers]


def _put(param: Tensor, rest: Tensor | None, value: Tensor) -> None:
    if rest is None:
        param.copy_(value)
    else:
        high, low = split(value)
        param.copy_(high)
        rest.copy_(low)


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
    """SGD, with momentum and decay as its knobs, or AdamW, with beta and ``1 - beta2``, after gradients are clipped."""
    shortened = list(grads) if bounds is None else clip_rows(grads, gains, bounds)
    step: Callable[..., None] = linear_sgd if len(state) == 1 else batched_adamw
    step(params, shortened, *state, coefficients, *knobs, gains, rests)
