"""The density of SGD in phase space: its evolution and its equilibrium, on a mesh of position and velocity.

The density of `LangevinEquation`, with ``H = V^2/2 + f/l`` and ``Theta = D/(2 C (1 - mu))``, obeys::

    dP/dt = -d_x(V P) + d_v(f'/l P) + (1 - mu)/l d_v(V P + Theta d_v P)

The first two terms are a flow along the level lines of ``H``, the last is an Ornstein-Uhlenbeck process in ``V``. Both
leave ``M = exp(-H/Theta)/Z`` alone, and so do their discrete forms here, to rounding, because fluxes are written for
the ratio ``q = P/M``:

- **Flow.** The flux of ``M`` through a face is exactly a difference of ``Theta M`` between its two ends, so the fluxes
  of ``M`` around a cell sum to zero. The flux of ``P`` is that of ``M`` times ``q`` on the face, extrapolated from
  upwind by a parabola and cut to ``0 <= q_face <= c q_upwind``. The cut keeps an explicit step non-negative for every
  step up to `FokkerPlanck.largest_step` and is idle where ``q`` is smooth. Time stepping is Heun's method, a mean of
  two such steps.
- **Friction and noise.** ``friction Theta M_face (q_right - q_left)/dv`` is a generator of a Markov chain in detailed
  balance with ``M``, the same for every position: its exact propagator is one small matrix of probabilities.

Strang's splitting joins them. The whole is of second order in mesh and step; it conserves mass because it moves fluxes;
its equilibrium is ``exp(-H/Theta)`` with no error from mesh, step or splitting.

Why this and not its rivals: a linear scheme that keeps positivity is of first order (Godunov), so the transport has to
be non-linear somewhere. A limited semi-Lagrangian remap has no bound on the step, but its equilibrium is off by the
square of the step, and no generator has it as its null vector. Implicit steps take 10 ms at 128 x 128 cells, after a
factorisation of 200 ms, where this takes 0.8 ms, and do not keep positivity by themselves: `FokkerPlanck.relax` uses
them where they pay, for the slow exchange between wells.

The flow is cut at the largest level line of ``H`` that fits on the mesh: beyond it nothing flows, so that no wall is
ever met, and the fast corners of the mesh, where nothing lives, do not bound the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import erf, erfc

from heatbath.laws import check_number
from heatbath.theory.density_steps import TINY, FlowStep, Fluxes, FrictionStep, ImplicitStep, detailed_balance
from heatbath.theory.landscapes import Array, Landscape
from heatbath.theory.langevin import LangevinEquation
from heatbath.theory.phase_space import NODES, WEIGHTS, PhaseSpace, total_mass

_LARGEST_LOSS = 1e-6  # the most mass that may live where the mesh does not follow it
_COARSEST = 0.5  # the largest cell, in thermal widths
_LEAST_TOLERANCE = 1e-10  # of `relax`, well above what rounding leaves of the distance


class FokkerPlanck:
    """The Fokker-Planck equation, with additive noise, of one setting of SGD on one mesh and in one dimension.

    ``equilibrium`` holds the cell averages of ``exp(-H/Theta)/Z``, of mass 1; ``largest_step`` is the largest time step
    that cannot make a density negative.

    Raises:
        ValueError: the mesh is too coarse (fewer than 2 cells per thermal width) or cuts off more than 1e-6 of the
            equilibrium.
    """

    def __init__(self, equation: LangevinEquation, landscape: Landscape, grid: PhaseSpace) -> None:
        if landscape.dimension != 1:
            raise ValueError(f"the landscape must have one dimension, {landscape!r} has {landscape.dimension}")
        self.equation, self.landscape, self.grid = equation, landscape, grid
        theta = equation.theta
        potential = landscape.value(grid.x_edges) / equation.temperature
        points = grid.x[:, None] + 0.5 * grid.dx * NODES
        potential_inside = landscape.value(points) / equation.temperature
        lowest = min(potential.min(), potential_inside.min())
        potential, potential_inside = potential - lowest, potential_inside - lowest
        kinetic = grid.v_edges**2 / (2.0 * theta)

        in_x = np.exp(-potential_inside) @ WEIGHTS / 2.0
        in_v = _normal_mass(grid.v_edges / math.sqrt(2.0 * theta)) * math.sqrt(0.5 * math.pi * theta) / grid.dv
        self._level = float(min(potential[0], potential[-1], kinetic[0], kinetic[-1]))
        self._check_mesh(np.diff(potential), in_x)
        norm = in_x.sum() * in_v.sum() * grid.cell_area
        self.equilibrium: Array = np.outer(in_x, in_v) / norm
        self._beyond = (potential_inside.min(axis=1)[:, None] + np.minimum(kinetic[1:], kinetic[:-1])) > self._level

        stream = np.outer(np.exp(-potential), np.exp(-kinetic)) - math.exp(-self._level)
        stream = np.maximum(stream, 0.0) * (theta / (norm * grid.cell_area))
        stream[[0, -1]] = stream[:, [0, -1]] = 0.0
        self._fluxes = Fluxes(self.equilibrium, -np.diff(stream, axis=1)[1:-1], np.diff(stream, axis=0)[:, 1:-1])
        self.largest_step = 0.8 / float(self._fluxes.leaving().max())
        self._friction = detailed_balance(
            equation.friction * theta / grid.dv**2 * np.exp(-kinetic[1:-1]), np.asarray(in_v)
        )

    def evolve(self, density: Array, duration: float, step: float | None = None) -> Array:
        """Return the density after ``duration``, in time units of the equation (one SGD step is ``l``).

        A density is non-negative cell averages of shape ``grid.shape``. The time step is shortened to divide the
        duration; by default it is as large as is allowed.

        Raises:
            ValueError: the step exceeds `largest_step`, or the density is negative or leaves the mesh.
        """
        density = self._check_density(density)
        check_number("duration", duration, least=0.0)
        largest = self.largest_step if step is None else step
        if not 0.0 < largest <= self.largest_step * (1.0 + 1e-12):
            raise ValueError(
                f"step {largest:g} is not in (0, {self.largest_step:g}]: it exceeds the largest step that keeps the "
                f"density non-negative on this mesh by a factor {largest / self.largest_step:.3g}"
            )
        if duration == 0.0:
            return density.copy()
        count = math.ceil(duration / largest * (1.0 - 1e-12))
        step = duration / count
        half, full = FrictionStep(self._friction, 0.5 * step), FrictionStep(self._friction, step)
        flow = FlowStep(self._fluxes, step)
        density = half.advance(np.where(density > TINY * density.max(), density, 0.0))
        for remaining in range(count - 1, -1, -1):
            density = (full if remaining else half).advance(flow.advance(density))
        return self._check_density(density)

    def snapshots(
        self, density: Array, times: Sequence[float] | Array, progress: Callable[[int, int], None] | None = None
    ) -> Array:
        """Return the densities at increasing ``times``, counted from the given density at time 0.

        ``progress``, if given, is called with the number of times reached and their total.
        """
        times = np.asarray(times, dtype=np.float64)
        if times.ndim != 1 or np.any(np.diff(times, prepend=0.0) < 0.0):
            raise ValueError(f"times must increase from 0, got {times.tolist()!r}")
        frames = np.empty((times.size, *self.grid.shape))
        for index, lag in enumerate(np.diff(times, prepend=0.0)):
            density = frames[index] = self.evolve(density, float(lag))
            if progress is not None:
                progress(index + 1, times.size)
        return frames

    def relax(self, density: Array, tolerance: float = 1e-3, longest: float = math.inf) -> tuple[Array, float]:
        """Evolve until ``sum |P - M|`` is below ``tolerance`` of the mass, or for ``longest``; return density and time.

        Once the wells are at rest, what is left is the slow exchange between them, and the explicit step, which has to
        resolve a crossing of one cell, is a waste. So steps of an implicit method of second order (`ImplicitStep`) are
        tried, each as long as its error estimate allows; where one fails, or would make a density negative, explicit
        steps take its place. The cost grows with the logarithm of the relaxation time.

        Raises:
            ValueError: the tolerance is below what rounding leaves and no ``longest`` is given, or the density is
                negative or leaves the mesh.
        """
        density = self._check_density(density)
        if longest == math.inf and not tolerance >= _LEAST_TOLERANCE:
            raise ValueError(
                f"tolerance must be at least {_LEAST_TOLERANCE:g}, as rounding need not let the distance fall further, "
                f"or longest be finite; got tolerance {tolerance!r}"
            )
        mass, area, elapsed = total_mass(density, self.grid), self.grid.cell_area, 0.0
        generator = self.generator()
        implicit = ImplicitStep(generator, self.equilibrium, 32.0 * self.largest_step)
        while True:
            distance = float(np.abs(density - mass * self.equilibrium).sum()) * area
            if distance <= tolerance * mass or elapsed >= longest:
                return self._check_density(density), elapsed
            if elapsed + implicit.step > longest:
                return self.evolve(density, longest - elapsed), longest
            candidate, error = implicit.advance(density)
            error = error * area / distance
            if candidate.min() >= 0.0 and error < 0.02:
                density, elapsed = candidate, elapsed + implicit.step
                if error < 0.004:  # well below, for a new step costs a factorisation
                    implicit = ImplicitStep(generator, self.equilibrium, 2.0 * implicit.step)
            elif implicit.step > 32.0 * self.largest_step:
                implicit = ImplicitStep(generator, self.equilibrium, 0.5 * implicit.step)
            else:
                pause = min(4.0 * implicit.step, longest - elapsed)
                density, elapsed = self.evolve(density, pause), elapsed + pause

    def relative_entropy(self, density: Array) -> float:
        """Return ``sum P log(P/M)``, the free energy above equilibrium in units of ``Theta``; it only falls in time."""
        ratio = np.divide(density, self.equilibrium, out=np.ones_like(density), where=density > 0.0)
        return float(np.sum(density * np.log(ratio)) * self.grid.cell_area)

    def generator(self) -> Any:
        """Return the sparse matrix ``G`` of ``dP/dt = G P``, with the fluxes of `evolve`, on ``density.ravel()``.

        Its columns sum to zero. The cut that keeps the evolution positive is idle near equilibrium and is left out.
        """
        friction = sparse.kron(sparse.identity(self.grid.cells[0]), sparse.csr_matrix(self._friction))
        return (self._fluxes.generator() + friction).tocsc()

    def _check_mesh(self, drops: Array, in_x: Array) -> None:
        """Raise unless thermal widths span two cells and the level line holds all but 1e-6 of the equilibrium."""
        grid, equation, landscape = self.grid, self.equation, self.landscape
        # <(f'/T)^2> is one over the squared thermal width, for any landscape.
        widths = math.sqrt(float(in_x @ drops**2 / in_x.sum())), grid.dv / math.sqrt(equation.theta)
        for name, width, cells in zip(("x", "v"), widths, grid.cells, strict=True):
            if width > _COARSEST:
                raise ValueError(
                    f"the grid is too coarse in {name}: {1.0 / width:.2g} cells per thermal width, at least "
                    f"{1.0 / _COARSEST:g} are needed; use {math.ceil(cells * width / _COARSEST)} cells or more"
                )
        if self._level > 300.0:
            raise ValueError(
                f"the grid reaches up to H = {self._level:.0f} Theta, above the 300 Theta that float64 can weigh; "
                "narrow its bounds"
            )
        span = grid.x_bounds[1] - grid.x_bounds[0]
        wide = np.linspace(grid.x_bounds[0] - span, grid.x_bounds[1] + span, 12 * grid.cells[0] + 1)
        potential = landscape.value(wide) / equation.temperature
        potential = potential - potential.min()
        weight = np.exp(-potential)
        lost = float(weight @ erfc(np.sqrt(np.maximum(self._level - potential, 0.0))) / weight.sum())
        if lost > _LARGEST_LOSS:
            raise ValueError(
                f"the grid cuts off {lost:.1e} of the equilibrium's mass, above {_LARGEST_LOSS:g}: it holds energies "
                f"up to {self._level:.3g} Theta above the minimum; widen x_bounds {grid.x_bounds!r} or v_bounds "
                f"{grid.v_bounds!r}, or take those of suggest_phase_space"
            )

    def _check_density(self, density: Array) -> Array:
        """Return the density as float64, or raise if it is not one or lives where the mesh does not follow it."""
        density = np.asarray(density, dtype=np.float64)
        if density.shape != self.grid.shape:
            raise ValueError(f"density has shape {density.shape}, the grid {self.grid.shape}")
        if not np.all(np.isfinite(density)) or density.min() < 0.0:
            raise ValueError(f"density must be finite and not negative; its smallest entry is {density.min():g}")
        stray = float(density[self._beyond].sum() * self.grid.cell_area)
        if stray > _LARGEST_LOSS * max(1.0, total_mass(density, self.grid)):
            raise ValueError(
                f"the density has {stray:.1e} of its mass above the energy {self._level:.3g} Theta up to which the "
                f"grid follows the flow, more than {_LARGEST_LOSS:g}: widen the grid, as "
                "suggest_phase_space does when asked for more energy"
            )
        return density


def _normal_mass(edges: Array) -> Array:
    """``erf`` between neighbouring edges, exact to rounding also far out, where differences of ``erf`` are zero."""
    low, high = edges[:-1], edges[1:]
    far = np.minimum(np.abs(low), np.abs(high))
    tail = np.abs(erfc(np.abs(low)) - erfc(np.abs(high)))
    return np.asarray(np.where((far > 1.0) & (low * high > 0.0), tail, erf(high) - erf(low)))
