"""The plane of position and velocity: a mesh on it, and what a density on that mesh says.

Densities are float64 arrays of shape ``grid.shape``, position first: cell averages of ``P(X, V)``, so that
``density.sum() * grid.cell_area`` is a probability.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import erf, erfc

from heatbath.theory.landscapes import Array, Landscape
from heatbath.theory.langevin import LangevinEquation

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(6)


@dataclass(frozen=True)
class PhaseSpace:
    """A uniform mesh of ``cells[0] x cells[1]`` rectangles over ``x_bounds`` and ``v_bounds``."""

    x_bounds: tuple[float, float]
    v_bounds: tuple[float, float]
    cells: tuple[int, int] = (128, 128)

    def __post_init__(self) -> None:
        for name in ("x_bounds", "v_bounds"):
            low, high = getattr(self, name)
            if not -math.inf < low < high < math.inf:
                raise ValueError(f"{name} must be two finite numbers, the smaller first, got {getattr(self, name)!r}")
        if min(self.cells) < 8:
            raise ValueError(f"cells must be at least 8 in each direction, got {self.cells!r}")

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of a density, position first."""
        return self.cells

    @property
    def x_edges(self) -> Array:
        """The edges of the cells in position."""
        return np.linspace(*self.x_bounds, self.cells[0] + 1)

    @property
    def v_edges(self) -> Array:
        """The edges of the cells in velocity."""
        return np.linspace(*self.v_bounds, self.cells[1] + 1)

    @property
    def x(self) -> Array:
        """The centres of the cells in position."""
        return np.asarray(0.5 * (self.x_edges[1:] + self.x_edges[:-1]))

    @property
    def v(self) -> Array:
        """The centres of the cells in velocity."""
        return np.asarray(0.5 * (self.v_edges[1:] + self.v_edges[:-1]))

    @property
    def dx(self) -> float:
        """The width of a cell in position."""
        return (self.x_bounds[1] - self.x_bounds[0]) / self.cells[0]

    @property
    def dv(self) -> float:
        """The width of a cell in velocity."""
        return (self.v_bounds[1] - self.v_bounds[0]) / self.cells[1]

    @property
    def cell_area(self) -> float:
        """``dx dv``."""
        return self.dx * self.dv


class Moments(NamedTuple):
    """The first two moments of a density."""

    mean: Array
    """``[<x>, <v>]``."""
    covariance: Array
    """``[[<x x>, <x v>], [<v x>, <v v>]]`` about the mean."""


def suggest_phase_space(
    equation: LangevinEquation, landscape: Landscape, cells: tuple[int, int] = (128, 128), energy: float = 18.5
) -> PhaseSpace:
    """Return the mesh that holds every point with ``H/Theta`` up to ``energy`` above the lowest.

    Equilibrium has about ``exp(-energy)`` of its mass outside, 1e-8 by default. Raise ``energy`` for a start that is
    further up.

    Raises:
        ValueError: the landscape does not rise to that energy at both ends.
    """
    reach = math.sqrt(2.0 * energy * equation.theta)
    low, high = -1.0, 1.0
    for _ in range(200):
        points = np.linspace(low, high, 4001)
        energies = landscape.value(points) / equation.temperature
        inside = np.flatnonzero(energies - energies.min() <= energy)
        first, last = int(inside[0]), int(inside[-1])
        if first == 0 or last == points.size - 1:
            low, high = low - (first == 0) * (high - low), high + (last == points.size - 1) * (high - low)
            if max(-low, high) > 1e12:
                break
        elif last - first < 1000:  # the wells are small in this window: look closer
            low, high = points[first - 1], points[last + 1]
        else:
            return PhaseSpace((float(points[first - 1]), float(points[last + 1])), (-reach, reach), cells)
    raise ValueError(
        f"the landscape does not confine: within |x| < 1e12 it does not rise by {energy:g} T = "
        f"{energy * equation.temperature:g} above its minimum at both ends, so there is no equilibrium"
    )


def gaussian_density(grid: PhaseSpace, mean: Any, covariance: Any) -> Array:
    """Return the cell averages of a Gaussian in ``(x, v)``, with mass exactly 1.

    Raises:
        ValueError: the covariance is not positive definite, or more than 1e-6 of the mass lies outside the mesh.
    """
    mean, covariance = np.asarray(mean, dtype=np.float64), np.asarray(covariance, dtype=np.float64)
    if not np.all(np.linalg.eigvalsh(covariance) > 0.0):
        raise ValueError(f"covariance must be positive definite, got {covariance.tolist()!r}")
    for name, centre, variance, bounds in zip(
        ("x", "v"), mean, np.diag(covariance), (grid.x_bounds, grid.v_bounds), strict=True
    ):
        ends = (np.asarray(bounds) - centre) / math.sqrt(2.0 * variance)
        outside = 0.5 * float(erfc(-ends[0]) + erfc(ends[1]))
        if outside > 1e-6:
            raise ValueError(
                f"the Gaussian has {outside:.1e} of its mass outside the {name} bounds {bounds!r}, above 1e-06: "
                "widen the mesh or narrow the Gaussian"
            )
    # Given x, V is Gaussian: its cell integral is exact, which leaves one quadrature over x.
    slope = covariance[0, 1] / covariance[0, 0]
    spread = math.sqrt(2.0 * (covariance[1, 1] - slope * covariance[0, 1]))
    offset = (grid.x[:, None] + 0.5 * grid.dx * _NODES) - mean[0]
    weight = 0.5 * _WEIGHTS * np.exp(-0.5 * offset**2 / covariance[0, 0])
    below = erf((grid.v_edges - (mean[1] + slope * offset)[..., None]) / spread)
    density = np.einsum("ig,igj->ij", weight, np.diff(below, axis=-1))
    return np.asarray(density / (density.sum() * grid.cell_area))


def total_mass(density: Array, grid: PhaseSpace) -> float:
    """Return the probability that the density holds: 1 to rounding at every time."""
    return float(density.sum() * grid.cell_area)


def marginals(density: Array, grid: PhaseSpace) -> tuple[Array, Array]:
    """Return the densities of position and of velocity alone."""
    return density.sum(axis=1) * grid.dv, density.sum(axis=0) * grid.dx


def moments(density: Array, grid: PhaseSpace) -> Moments:
    """Return the mean and the covariance of ``(x, v)``.

    Averages over cells widen a smooth density by ``dx^2/12`` and ``dv^2/12``, which is taken off (Sheppard).
    """
    in_x, in_v = marginals(density, grid)
    mass = total_mass(density, grid)
    mean = np.array([grid.x @ in_x * grid.dx, grid.v @ in_v * grid.dv]) / mass
    x, v = grid.x - mean[0], grid.v - mean[1]
    cross = x @ density @ v * grid.cell_area / mass
    xx = x**2 @ in_x * grid.dx / mass - grid.dx**2 / 12.0
    vv = v**2 @ in_v * grid.dv / mass - grid.dv**2 / 12.0
    return Moments(mean, np.array([[xx, cross], [cross, vv]]))
