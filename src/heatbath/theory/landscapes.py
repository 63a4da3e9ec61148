"""Losses with known answers, on which the theory can be checked.

A landscape is frozen data with a ``value`` and a ``gradient``. One convention holds for all of them: a landscape of one
dimension acts on each entry of an array of any shape; a landscape of ``dimension`` 2 or more reads a point from the
last axis. Either way the gradient has the shape of its argument, so that thousands of trajectories are one array.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np

from heatbath.laws import check_number

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


class Landscape(ABC):
    """A smooth loss ``f`` that grows at infinity, with its minima known."""

    @property
    def dimension(self) -> int:
        """The number of coordinates of a point; 1 means that arrays are read entry by entry."""
        return 1

    @property
    def minima(self) -> Array:
        """The local minima, by default the origin: shape ``(count,)`` in one dimension, else ``(count, dimension)``."""
        return np.zeros(1 if self.dimension == 1 else (1, self.dimension))

    @property
    @abstractmethod
    def stiffness(self) -> float:
        """The largest curvature at a minimum: the eigenvalue that decides which learning rates are stable there."""

    @abstractmethod
    def value(self, x: Array) -> Array:
        """Return ``f(x)``: the shape of ``x``, less its last axis where ``dimension > 1``."""

    @abstractmethod
    def gradient(self, x: Array) -> Array:
        """Return the gradient of ``f`` at ``x``, of the shape of ``x``."""


class _PositiveParameters(Landscape):
    """A landscape whose fields are positive numbers."""

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            number = check_number(f"{type(self).__name__}: {field.name}", getattr(self, field.name), above=0.0)
            object.__setattr__(self, field.name, number)


@dataclass(frozen=True)
class Quadratic(_PositiveParameters):
    """``f(x) = curvature x^2 / 2`` in one dimension: every moment is known in closed form."""

    curvature: float = 1.0

    @property
    def stiffness(self) -> float:
        return self.curvature

    def value(self, x: Array) -> Array:
        return 0.5 * self.curvature * x**2

    def gradient(self, x: Array) -> Array:
        return self.curvature * x


@dataclass(frozen=True)
class AnisotropicQuadratic(Landscape):
    """``f(x) = sum_i curvatures_i x_i^2 / 2``: one temperature, a different variance in each direction."""

    curvatures: tuple[float, ...] = (1.0, 4.0)

    def __post_init__(self) -> None:
        curvatures = tuple(check_number("AnisotropicQuadratic: curvature", each, above=0.0) for each in self.curvatures)
        if len(curvatures) < 2:
            raise ValueError(f"AnisotropicQuadratic: give two or more curvatures, or use Quadratic; got {curvatures!r}")
        object.__setattr__(self, "curvatures", curvatures)

    @property
    def dimension(self) -> int:
        return len(self.curvatures)

    @property
    def stiffness(self) -> float:
        return max(self.curvatures)

    def value(self, x: Array) -> Array:
        return np.asarray(0.5 * np.sum(np.asarray(self.curvatures) * x**2, axis=-1))

    def gradient(self, x: Array) -> Array:
        return np.asarray(self.curvatures) * x


@dataclass(frozen=True)
class LogCosh(_PositiveParameters):
    """``f(x) = curvature width^2 log cosh(x / width)``: quadratic within ``width`` of 0, with straight flanks beyond.

    Its curvature is nowhere greater than at the minimum, so that a rate that is stable there is stable everywhere: a
    loss that is not quadratic, on which every law has a true stationary state. At ``T = curvature width^2 / 2`` the
    equilibrium is the logistic density ``sech^2(x / width)``, of variance ``pi^2 width^2 / 12``.
    """

    curvature: float = 1.0
    width: float = 1.0

    @property
    def stiffness(self) -> float:
        return self.curvature

    def value(self, x: Array) -> Array:
        scaled = x / self.width
        return self.curvature * self.width**2 * (np.logaddexp(scaled, -scaled) - math.log(2.0))

    def gradient(self, x: Array) -> Array:
        return (self.curvature * self.width) * np.tanh(x / self.width)


@dataclass(frozen=True)
class DoubleWell(_PositiveParameters):
    """``f(x) = barrier (x^2 / a^2 - 1)^2`` with ``a = separation / 2``.

    Two wells of depth 0 and curvature ``8 barrier / a^2`` at ``-a`` and ``a``, and between them, at 0, a saddle of
    height ``barrier``.
    """

    barrier: float = 1.0
    separation: float = 2.0

    @property
    def minima(self) -> Array:
        return np.array([-0.5, 0.5]) * self.separation

    @property
    def saddle(self) -> float:
        """The top of the barrier: 0."""
        return 0.0

    @property
    def stiffness(self) -> float:
        return 32.0 * self.barrier / self.separation**2

    @property
    def saddle_curvature(self) -> float:
        """The (negative) second derivative at the saddle, ``-4 barrier / a^2``."""
        return -16.0 * self.barrier / self.separation**2

    def value(self, x: Array) -> Array:
        scale = 4.0 / self.separation**2
        return self.barrier * (scale * x**2 - 1.0) ** 2

    def gradient(self, x: Array) -> Array:
        scale = 4.0 / self.separation**2
        return (4.0 * self.barrier * scale) * x * (scale * x * x - 1.0)


@dataclass(frozen=True)
class Rosenbrock(_PositiveParameters):
    """``f(x, y) = (1 - x)^2 + narrowness (y - x^2)^2``: a curved valley with its minimum at (1, 1), for pictures.

    With ``y`` integrated out, ``x`` is exactly Gaussian at temperature ``T``: mean 1, variance ``T / 2``. The Hessian
    at the minimum is ``[[2 + 8 b, -4 b], [-4 b, 2 b]]`` with ``b`` the narrowness.
    """

    narrowness: float = 10.0

    @property
    def dimension(self) -> int:
        return 2

    @property
    def minima(self) -> Array:
        return np.ones((1, 2))

    @property
    def stiffness(self) -> float:
        b = self.narrowness
        return 1.0 + 5.0 * b + math.hypot(1.0 + 3.0 * b, 4.0 * b)

    def value(self, x: Array) -> Array:
        along, across = x[..., 0], x[..., 1] - x[..., 0] ** 2
        return np.asarray((1.0 - along) ** 2 + self.narrowness * across**2)

    def gradient(self, x: Array) -> Array:
        along, across = x[..., 0], x[..., 1] - x[..., 0] ** 2
        slope = 2.0 * self.narrowness * across
        return np.stack([2.0 * (along - 1.0) - 2.0 * along * slope, slope], axis=-1)


def parse_landscape(text: str | Landscape) -> Landscape:
    """Return the landscape that ``text`` names; a `Landscape` is returned as it is.

    Parameters follow the name after colons, in the order of the class: ``"double-well"``, ``"double-well:2:3"``
    (barrier and separation), ``"quadratic:2.0"``, ``"anisotropic-quadratic:1:4:9"``.

    Raises:
        TypeError: it is neither text nor a landscape.
        ValueError: the name is unknown or a parameter is not allowed.
    """
    if isinstance(text, Landscape):
        return text
    if not isinstance(text, str):
        raise TypeError(f"a landscape must be a Landscape or text such as 'double-well:2:3', got {text!r}")
    name, *parameters = text.strip().lower().replace("_", "-").split(":")
    if name not in _LANDSCAPES:
        choices = ", ".join(sorted(_LANDSCAPES))
        raise ValueError(f"unknown landscape {text!r}: choose one of {choices}, for instance 'double-well:1:2'")
    make: Callable[..., Landscape] = _LANDSCAPES[name]
    try:
        values = [float(parameter) for parameter in parameters]
    except ValueError:
        raise ValueError(f"landscape {text!r} has a parameter that is not a number") from None
    if make is AnisotropicQuadratic:
        return make(tuple(values)) if values else make()
    if len(values) > (most := len(fields(_LANDSCAPES[name]))):
        raise ValueError(f"landscape {text!r} has {len(values)} parameters: {name!r} takes at most {most}")
    return make(*values)


_LANDSCAPES: dict[str, Any] = {
    "quadratic": Quadratic,
    "anisotropic-quadratic": AnisotropicQuadratic,
    "log-cosh": LogCosh,
    "double-well": DoubleWell,
    "rosenbrock": Rosenbrock,
}
