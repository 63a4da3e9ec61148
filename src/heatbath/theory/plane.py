"""The plane of two positions: a mesh on it, and Boltzmann's weight there by quadrature.

A density is a float64 array of shape ``mesh.cells``, x first, with ``density.sum() * mesh.cell_area`` a probability.
The midpoint rule that this is converges faster than any power of the mesh for a smooth weight that decays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple

import numpy as np

from heatbath.theory.landscapes import Array, Landscape

_BLOCK = 64  # cells are a multiple of it, so that they can be joined into bars
_FEWEST, _MOST = 512, 2048


class Mesh:
    """A uniform mesh of rectangles, as a dataclass whose first fields are the bounds of both coordinates."""

    cells: tuple[int, int]
    fewest: ClassVar[int] = 1  # cells in each direction

    def __post_init__(self) -> None:
        for field, (low, high) in zip(fields(self), self.bounds, strict=False):  # type: ignore[arg-type]
            if not -math.inf < low < high < math.inf:
                raise ValueError(f"{field.name} must be two finite numbers, the smaller first, got {(low, high)!r}")
        if min(self.cells) < self.fewest:
            raise ValueError(f"cells must be at least {self.fewest} in each direction, got {self.cells!r}")

    @property
    def bounds(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The least and the greatest value of both coordinates."""
        first, second = (getattr(self, field.name) for field in fields(self)[:2])  # type: ignore[arg-type]
        return first, second

    @property
    def edges(self) -> tuple[Array, Array]:
        """The edges of the cells in both coordinates."""
        first, second = self.bounds
        return np.linspace(*first, self.cells[0] + 1), np.linspace(*second, self.cells[1] + 1)

    @property
    def centres(self) -> tuple[Array, Array]:
        """The centres of the cells in both coordinates."""
        first, second = self.edges
        return 0.5 * (first[1:] + first[:-1]), 0.5 * (second[1:] + second[:-1])

    @property
    def widths(self) -> tuple[float, float]:
        """The width of a cell in both coordinates."""
        first, second = ((high - low) / count for (low, high), count in zip(self.bounds, self.cells, strict=True))
        return first, second

    @property
    def cell_area(self) -> float:
        """The area of a cell."""
        return math.prod(self.widths)


@dataclass(frozen=True)
class PlaneMesh(Mesh):
    """A uniform mesh of ``cells[0] x cells[1]`` rectangles over ``x_bounds`` and ``y_bounds``."""

    x_bounds: tuple[float, float]
    y_bounds: tuple[float, float]
    cells: tuple[int, int]

    @property
    def points(self) -> Array:
        """The centres as points, shape ``(*cells, 2)``."""
        return np.stack(np.meshgrid(*self.centres, indexing="ij"), axis=-1)


class PlaneMoments(NamedTuple):
    """``[<x>, <y>]``, ``[<x x>, <y y>]`` about that mean, and the mean of the loss."""

    mean: Array
    variance: Array
    loss: float


def suggest_plane(landscape: Landscape, temperature: float, energy: float = 18.5) -> PlaneMesh | None:
    """Return the mesh that holds every point with a loss up to ``energy`` temperatures above the lowest.

    Boltzmann's weight has about ``exp(-energy)`` of its mass outside, 1e-8 by default, and four cells or more, if 2048
    in a direction allow it, to a thermal width of the stiffest minimum. None is returned where the landscape does not
    rise that high all around: the weight has no norm then.

    Raises:
        ValueError: the landscape is not one of two dimensions, or 2048 cells are too coarse.
    """
    if landscape.dimension != 2:
        raise ValueError(f"the landscape must have two dimensions, got {landscape!r} of {landscape.dimension}")
    width = math.sqrt(temperature / landscape.stiffness)
    ceiling = float(landscape.value(landscape.minima).min()) + energy * temperature
    low, high = landscape.minima.min(axis=0) - width, landscape.minima.max(axis=0) + width
    for _ in range(100):
        x, y = (np.linspace(low[axis], high[axis], 513) for axis in (0, 1))
        inside = landscape.value(np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1)) <= ceiling
        below = np.array([inside[0].any(), inside[:, 0].any()])
        above = np.array([inside[-1].any(), inside[:, -1].any()])
        if not (below.any() or above.any()):
            break
        span = high - low
        low, high = low - 0.5 * span * below, high + 0.5 * span * above
        if not max(-low.min(), high.max()) < 1e12:
            return None
    else:
        return None
    columns, rows = np.flatnonzero(inside.any(axis=1)), np.flatnonzero(inside.any(axis=0))
    bounds = ((x[columns[0] - 1], x[columns[-1] + 1]), (y[rows[0] - 1], y[rows[-1] + 1]))
    spans = [float(end - begin) / width for begin, end in bounds]
    if max(spans) > _MOST:
        raise ValueError(
            f"Boltzmann's weight is too fine for {_MOST} x {_MOST} cells: at temperature {temperature:.3g} it spans "
            f"{max(spans):.0f} thermal widths; take a landscape that is less narrow, or change the temperature"
        )
    cells = [min(max(_BLOCK * math.ceil(4.0 * span / _BLOCK), _FEWEST), _MOST) for span in spans]
    x_bounds, y_bounds = ((float(begin), float(end)) for begin, end in bounds)
    return PlaneMesh(x_bounds, y_bounds, (cells[0], cells[1]))


def boltzmann_density(landscape: Landscape, temperature: float, mesh: PlaneMesh) -> Array:
    """Return ``exp(-f/T)/Z`` at the centres of the cells, with ``Z`` such that the mass on the mesh is 1."""
    energy = landscape.value(mesh.points) / temperature
    weight = np.exp(energy.min() - energy)
    return np.asarray(weight / (weight.sum() * mesh.cell_area))


def plane_moments(density: Array, landscape: Landscape, mesh: PlaneMesh) -> PlaneMoments:
    """Return the moments of a density on the mesh."""
    share = density * mesh.cell_area
    mean, variance = np.empty(2), np.empty(2)
    for axis, centres in enumerate(mesh.centres):
        alone = share.sum(axis=1 - axis)
        mean[axis] = centres @ alone
        variance[axis] = (centres - mean[axis]) ** 2 @ alone
    return PlaneMoments(mean, variance, float((share * landscape.value(mesh.points)).sum()))
