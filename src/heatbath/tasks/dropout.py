"""Dropout whose masks are a pure function of a run's seed, the step and the place in the model.

torch draws masks from one generator for all: a replica's would depend on its neighbours. While `SeededDropout` is
entered, the functions of `torch.nn.functional` that drop (the modules and attention call them) draw from the counter-
based streams of the run instead, the same numbers on every device, alone or in a stack.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from heatbath.draws import MIXER, Stream, orbits, random_bits

_PIECE = 2**14  # numbers that are drawn at a time on a CPU
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
        replacements: dict[str, Callable[..., Tensor]] = {
            "dropout": self._dropping(),
            **dict.fromkeys(("dropout1d", "dropout2d", "dropout3d"), self._dropping(channels=True)),
            "alpha_dropout": self._dropping(alpha=True),
            "feature_alpha_dropout": self._dropping(alpha=True, channels=True),
            "scaled_dot_product_attention": self._attention,
        }
        for name, replacement in replacements.items():
            original = self._originals[name] = getattr(functional, name)
            setattr(functional, name, self._or_original(replacement, original))
        return self

    def __exit__(self, *_: object) -> None:
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
        count, first, least = math.prod(shape), self._step * _STRIDE, int(p * 2**52)
        if device.type == "cpu" and isinstance(key, int) and isinstance(first, int):
            return torch.from_numpy(bits_reach(least, key, gamma, first, count)).view(shape)
        kept: Tensor = random_bits(key, gamma, torch.arange(count, device=device) + first) >= least
        return kept.view(shape)

    def _dropping(self, alpha: bool = False, channels: bool = False) -> Callable[..., Tensor]:
        """One of torch's functions: of single values or whole channels, which become zero or SELU's limit."""

        def drop(input: Tensor, p: float = 0.5, training: bool = not alpha, inplace: bool = False) -> Tensor:  # noqa: A002
            del inplace
            if not training or p == 0.0:
                return input
            shape = (*input.shape[:2], *(1,) * (input.ndim - 2)) if channels else tuple(input.shape)
            keep = self._keep(shape, p, input.device)
            if not alpha:
                return _scaled(input, keep, p)
            scale = 1.0 / math.sqrt((1.0 - p) * (1.0 + p * _ALPHA**2))  # with a shift, keeps mean 0 and variance 1
            return scale * (torch.where(keep, input, _ALPHA) - p * _ALPHA)

        return drop

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
        return _scaled(weights, keep, dropout_p) @ value


def dropout_orbits(seeds: list[int], calls: int) -> tuple[Tensor, Tensor]:
    """Return the starts and increments of the streams of some calls, each of shape (seeds, calls)."""
    found = torch.empty(2, len(seeds), calls, dtype=torch.int64)
    for call in range(calls):
        found[:, :, call] = torch.from_numpy(np.stack(orbits(seeds, Stream.DROPOUT.at(call))))
    return found[0], found[1]


def bits_reach(least: int, key: int, gamma: int, first: int, count: int) -> Any:
    """Return whether each of ``count`` numbers of `heatbath.draws.random_bits`, from step ``first`` on, is so large.

    It is computed in pieces that stay in a core's cache, on a CPU five times faster than all at once, and faster than
    torch draws its own masks. The lower 12 bits, which `random_bits` leaves out, do not matter to the comparison.
    """
    found = np.empty(count, dtype=bool)
    if least >= 2**52:
        found.fill(False)
        return found
    key, gamma = key % 2**64, gamma % 2**64
    products = np.arange(min(count, _PIECE), dtype=np.uint64) * np.uint64(gamma)
    bits, shifted = np.empty_like(products), np.empty_like(products)
    for start in range(0, count, _PIECE):
        size = min(_PIECE, count - start)
        z, over = bits[:size], shifted[:size]
        np.add(products[:size], np.uint64(((first + start) * gamma + key) % 2**64), out=z)
        for shift, factor in MIXER:
            np.bitwise_xor(z, np.right_shift(z, np.uint64(shift), out=over), out=z)
            np.multiply(z, np.uint64(factor), out=z)
        np.bitwise_xor(z, np.right_shift(z, np.uint64(31), out=over), out=z)
        np.greater_equal(z, np.uint64(least << 12), out=found[start : start + size])
    return found


def _scaled(values: Tensor, keep: Tensor, p: float) -> Tensor:
    return torch.where(keep, values / (1.0 - p), 0.0) if p < 1.0 else torch.zeros_like(values)
