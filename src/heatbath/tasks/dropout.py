"""Dropout whose masks are a pure function of a run's seed, the step and the place in the model.

torch draws masks from one generator for all: a replica's would depend on its neighbours. While `SeededDropout` is
entered, the functions of `torch.nn.functional` that drop (the modules and attention call them) draw from the counter-
based streams of the run instead, the same numbers on every device, alone or in a stack.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from heatbath.draws import Stream, orbits, random_bits

_STRIDE = 2**36  # positions for one step; more than any layer has numbers
_ALPHA = -1.7580993408473766  # what SELU tends to


class SeededDropout:
    """A context in which one replica, or a stack under ``vmap``, computes a model in training.

    Args:
        orbit: of a call of dropout, counted from 0 in each step, to the start and increment of its stream: see
            `dropout_orbits`.
        step: how many steps the run has taken; a number or a tensor.

    Attributes:
        calls: how many times something was dropped.
    """

    def __init__(self, orbit: Callable[[int], tuple[Any, Any]], step: Any) -> None:
        self._orbit, self._step, self.calls = orbit, step, 0
        self._thread = threading.get_ident()
        self._originals: dict[str, Callable[..., Any]] = {}

    def __enter__(self) -> SeededDropout:
        for name, replacement in (
            ("dropout", self._dropout),
            ("dropout1d", self._channels),
            ("dropout2d", self._channels),
            ("dropout3d", self._channels),
            ("alpha_dropout", self._alpha),
            ("feature_alpha_dropout", self._alpha_channels),
            ("scaled_dot_product_attention", self._attention),
        ):
            original = self._originals[name] = getattr(functional, name)
            setattr(functional, name, self._or_original(replacement, original))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for name, original in self._originals.items():
            setattr(functional, name, original)

    def _or_original(self, replacement: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            # Other threads of the caller's program see torch's own function.
            ours = threading.get_ident() == self._thread
            return replacement(*arguments, **options) if ours else original(*arguments, **options)

        return call

    def _keep(self, shape: tuple[int, ...], p: float, device: torch.device) -> Tensor:
        """Where values of a shape are kept."""
        key, gamma = self._orbit(self.calls)
        self.calls += 1
        position = torch.arange(math.prod(shape), device=device) + self._step * _STRIDE
        kept: Tensor = random_bits(key, gamma, position) >= int(p * 2**52)
        return kept.view(shape)

    def _scaled(self, values: Tensor, keep: Tensor, p: float) -> Tensor:
        return torch.where(keep, values / (1.0 - p), 0.0) if p < 1.0 else torch.zeros_like(values)

    def _dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: A002
        del inplace
        if not training or p == 0.0:
            return input
        return self._scaled(input, self._keep(tuple(input.shape), p, input.device), p)

    def _channels(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: A002
        del inplace
        if not training or p == 0.0:
            return input
        return self._scaled(input, self._keep(_channel_shape(input), p, input.device), p)

    def _alpha(self, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:  # noqa: A002
        del inplace
        return self._alpha_masked(input, p, tuple(input.shape)) if training and p else input

    def _alpha_channels(self, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:  # noqa: A002
        del inplace
        return self._alpha_masked(input, p, _channel_shape(input)) if training and p else input

    def _alpha_masked(self, values: Tensor, p: float, shape: tuple[int, ...]) -> Tensor:
        """Dropped values are SELU's limit; scale and shift keep mean 0 and variance 1."""
        scale = 1.0 / math.sqrt((1.0 - p) * (1.0 + p * _ALPHA**2))
        masked = torch.where(self._keep(shape, p, values.device), values, _ALPHA)
        return scale * (masked - p * _ALPHA)

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if dropout_p == 0.0:
            options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
            plain = self._originals["scaled_dot_product_attention"]
            found: Tensor = plain(query, key, value, attn_mask, 0.0, is_causal, **options)
            return found
        if enable_gqa:
            repeats = query.shape[-3] // key.shape[-3]
            key, value = (part.repeat_interleave(repeats, -3) for part in (key, value))
        scores = query @ key.transpose(-2, -1) * (scale or 1.0 / math.sqrt(query.shape[-1]))
        if is_causal:
            allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            scores = scores.masked_fill(~allowed, -math.inf)
        if attn_mask is not None:
            boolean = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -math.inf) if boolean else scores + attn_mask
        weights = scores.softmax(-1)
        keep = self._keep(tuple(weights.shape), dropout_p, weights.device)
        return self._scaled(weights, keep, dropout_p) @ value


def dropout_orbits(seeds: list[int], calls: int) -> tuple[Tensor, Tensor]:
    """Return the starts and increments of the streams of some calls, each of shape (seeds, calls)."""
    if calls == 0:
        return torch.zeros(len(seeds), 0, dtype=torch.int64), torch.zeros(len(seeds), 0, dtype=torch.int64)
    pairs = [orbits(seeds, Stream.DROPOUT.at(call)) for call in range(calls)]
    starts, increments = (torch.stack([torch.from_numpy(pair[i]) for pair in pairs], 1) for i in range(2))
    return starts, increments


def _channel_shape(values: Tensor) -> tuple[int, ...]:
    return (*values.shape[:2], *(1,) * (values.ndim - 2))
