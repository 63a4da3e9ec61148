"""Counter-based random numbers: ``(seed, stream, step)`` to a uniform, the same everywhere.

The generator is SplitMix64 (Steele, Lea and Flood 2014): ``bits_k = mix(key + k * gamma)`` with Stafford's mixer 13.
Start ``key`` and odd increment ``gamma`` are hashed from (seed, stream), so that two seeds walk unrelated orbits
rather than shifted pieces of one. Position ``k`` is reached at once; there is no state but integers. Each operation
is 64-bit integer arithmetic that wraps, which NumPy and torch do alike on every device: the bits are identical.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from heatbath.laws import Law, Numbers, parse_law

_WORD = 2**64
_GOLDEN = 0x9E3779B97F4A7C15
MIXER = (30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)
"""The first rounds of the mixer: ``z ^ (z >> shift)``, times a factor. The last one shifts by 31."""

_BLOCK = 512


class Stream(IntEnum):
    """What the streams of a run's seed are for. No two uses of one seed share a stream.

    Values are below 1000: what is drawn anew in each epoch takes the stream ``at`` that epoch.
    """

    MULTIPLIERS = 0
    ORDER = 1  # of the samples in an epoch
    CHOICE = 2  # of some samples of a data set: those held out, or those at which noise is measured
    DROPOUT = 3
    EMBEDDED_SPLIT = 4  # of the embedded MNIST images into training and test; always seed 0
    REPLACEMENT = 5  # the samples of an epoch where they are drawn with replacement
    AUGMENT = 6
    FORWARD = 7  # whatever else a model draws while it trains

    def at(self, epoch: int) -> int:
        """Return the stream of one epoch, counted from 0."""
        return 1000 * epoch + self


def uniform(seed: int, stream: int, step: Numbers) -> Numbers:
    """Return uniforms in the open interval (0, 1) for the given steps, a pure function of the three integers.

    Args:
        seed: an integer with ``0 <= seed < 2**64``.
        stream: which of the seed's independent sequences, likewise.
        step: an integer, an integer NumPy array or an int64 tensor of any device; not negative.

    Returns:
        float64 of the shape and kind of ``step``: the middles of ``2**52`` equal cells, so that 0 and 1 never occur.
    """
    if type(step).__module__.partition(".")[0] == "torch":
        if step.is_floating_point() or step.is_complex():
            raise TypeError(f"step must hold integers, got a tensor of {step.dtype}")
        bits: Any = _random_bits(seed, stream, step.long())
        return (bits.double() + 0.5) * 2.0**-52
    steps = np.asarray(step)
    if steps.dtype.kind not in "iu":
        raise TypeError(f"step must hold integers, got {step!r}")
    if steps.size and steps.min() < 0:
        raise ValueError(f"step must not be negative, got {steps.min()}")
    bits = _random_bits(seed, stream, np.atleast_1d(steps).astype(np.int64))
    values = ((bits + 0.5) * 2.0**-52).reshape(steps.shape)
    return values if steps.ndim else float(values)


def draw(law: Law | str, seed: int, start: int, count: int, stream: int = 0) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the multipliers ``alpha_start, ..., alpha_(start + count - 1)`` as float64.

    These are the numbers that `RandomSGD` and `RandomLR` use with the same law and seed: ``alpha_k`` belongs to the
    ``k``-th mini-batch, counted from 0.

    Raises:
        ValueError: ``start`` or ``count`` is negative, or the seed or stream is out of range.
    """
    start, count = check_integer("start", start, 2**62), check_integer("count", count, 2**62)
    return np.asarray(parse_law(law).quantile(uniform(seed, stream, np.arange(start, start + count))))


class Multipliers:
    """The sequence ``alpha_0, alpha_1, ...`` of one law and seed, a number at a time in well under a microsecond.

    It keeps the block of numbers around the last one asked for; copies and pickles leave that out.
    """

    __slots__ = ("_block", "law", "seed", "stream")

    def __init__(self, law: Law, seed: int, stream: int = 0) -> None:
        self.law, self.seed, self.stream = law, seed, stream
        self._block: tuple[int, list[float]] = (0, [])  # one object, so that threads never see half of a new one

    def at(self, step: int) -> float:
        """Return ``alpha_step``."""
        first, block = self._block
        index = step - first
        if not 0 <= index < len(block):
            index, block = 0, draw(self.law, self.seed, step, _BLOCK, self.stream).tolist()
            self._block = (step, block)
        return block[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Multipliers) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash(self.__reduce__())

    def __reduce__(self) -> tuple[Any, ...]:
        return Multipliers, (self.law, self.seed, self.stream)


def orbits(seeds: Sequence[int], stream: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the start and the increment of one stream of several seeds, as int64, for `random_bits`."""
    stream = check_integer("stream", stream)
    pairs = [_orbit(check_integer("seed", seed), stream) for seed in seeds]
    key, gamma = (np.array([_signed(pair[i]) for pair in pairs], dtype=np.int64) for i in range(2))
    return key, gamma


def random_bits(key: Any, gamma: Any, step: Any) -> Any:
    """Return 52 random bits for each step as int64: those that `uniform` turns into a number.

    NumPy arrays or tensors of int64, of shapes that broadcast, so that many sequences are had at once.
    """
    z = step * gamma + key
    for shift, factor in MIXER:
        z = (z ^ _shift_right(z, shift)) * _signed(factor)
    return _shift_right(z ^ _shift_right(z, 31), 12)


def check_integer(name: str, value: Any, limit: int = _WORD, least: int = 0) -> int:
    """Return ``value`` as an int if it is an integer with ``least <= value < limit``, else raise."""
    allowed = f"{name} must be an integer with {least} <= {name} < 2**{limit.bit_length() - 1}"
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{allowed}, got {value!r}") from None
    if isinstance(value, bool) or not least <= number < limit:
        bits = number.bit_length()
        raise ValueError(f"{allowed}, got " + (repr(value) if bits < 100 else f"one of {bits} bits"))
    return number


def _random_bits(seed: int, stream: int, step: Any) -> Any:
    key, gamma = _orbit(check_integer("seed", seed), check_integer("stream", stream))
    return random_bits(_signed(key), _signed(gamma), step)


def _shift_right(z: Any, bits: int) -> Any:
    """A shift that brings in zeros: int64 has the sign-keeping one only."""
    return (z >> bits) & (2 ** (64 - bits) - 1)


def _orbit(seed: int, stream: int) -> tuple[int, int]:
    """The start and the odd increment of one sequence, hashed from its names."""
    state = _mix(_mix((seed + _GOLDEN) % _WORD) ^ _mix((stream * _GOLDEN + 1) % _WORD))
    key = _mix((state + _GOLDEN) % _WORD)
    gamma = _mix((state + 2 * _GOLDEN) % _WORD) | 1
    # An increment with long runs of equal bits mixes poorly; this is the generator's own repair.
    if (gamma ^ (gamma >> 1)).bit_count() < 24:
        gamma ^= 0xAAAAAAAAAAAAAAAA
    return key, gamma


def _mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % _WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % _WORD
    return z ^ (z >> 31)


def _signed(word: int) -> int:
    return word - _WORD if word >= _WORD // 2 else word
