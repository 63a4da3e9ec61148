"""The plane of position and velocity: a mesh on it, and what a density on that mesh says.

Densities are float64 arrays of shape ``grid.shape``, position first: cell averages of ``P(X, V)``, so that
``density.sum() * grid.cell_area`` is a probability.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.special import erf, erfc

from heatbath.theory.landscapes import Array, Landscape
from heatbath.theory.langevin import LangevinEquation
from heatbath.theory.plane import Mesh

NODES, WEIGHTS = np.polynomial.legendre.leggauss(6)  # of quadrature over a cell
_DERIVED: Any = field(init=False, repr=False, compare=False)


@dataclass(frozen=True)
class PhaseSpace(Mesh):
    """A uniform mesh of ``cells[0] x cells[1]`` rectangles over ``x_bounds`` and ``v_bounds``.

    ``x`` and ``v`` are the centres of the cells in position and in velocity, ``dx`` and ``dv`` their widths.
    """

    x_bounds: tuple[float, float]
    v_bounds: tuple[float, float]
    cells: tuple[int, int] = (128, 128)
    fewest: ClassVar[int] = 8
    x: Array = _DERIVED
    v: Array = _DERIVED
    x_edges: Array = _DERIVED
    v_edges: Array = _DERIVED
    dx: float = _DERIVED
    dv: float = _DERIVED

    def __post_init__(self) -> None:
        super().__post_init__()
        names = ("x", "v", "x_edges", "v_edges", "dx", "dv")
        for name, value in zip(names, (*self.centres, *self.edges, *self.widths), strict=True):
            object.__setattr__(self, name, value)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of a density, position first."""
        return self.cells


class Moments(NamedTuple):
    """``[<x>, <v>]``, and ``[[<x x>, <x v>], [<v x>, <v v>]]`` about that mean."""

    mean: Array
    covariance: Array


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
    """Return the cell averages of a Gaussian in ``(x, v)``, of mass 1; at most 1e-6 may lie outside the mesh."""
    mean, covariance = np.asarray(mean, dtype=np.float64), np.asarray(covariance, dtype=np.float64)
    if not np.all(np.linalg.eigvalsh(covariance) > 0.0):
        raise ValueError(f"covariance must be positive definite, got {covariance.tolist()!r}")
    for name, centre, variance, bounds in zip(("x", "v"), mean, np.diag(covariance), grid.bounds, strict=True):
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
    offset = (grid.x[:, None] + 0.5 * grid.dx * NODES) - mean[0]
    weight = 0.5 * WEIGHTS * np.exp(-0.5 * offset**2 / covariance[0, 0])
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
