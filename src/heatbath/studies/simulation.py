"""What SGD does on a landscape of one dimension: its density, its trajectories and its equilibrium, in pictures.

`simulate` computes; `write_simulation` draws and writes. The density obeys the Fokker-Planck equation of the knobs at
leading order in the rate, with the law of the random rate in the diffusion; the trajectories are the algorithm itself.
With coupling "update" or Nesterov's momentum the two share the law of the positions, not that of the velocities.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from heatbath.laws import check_number
from heatbath.studies.ensembles import (
    Ensemble,
    OnFraction,
    histogram_distance,
    prepare_ensemble,
    six_of,
    write_pictures,
)
from heatbath.theory.fokker_planck import FokkerPlanck
from heatbath.theory.landscapes import Array, Landscape, parse_landscape
from heatbath.theory.langevin import LangevinEquation
from heatbath.theory.phase_space import (
    PhaseSpace,
    gaussian_density,
    marginals,
    moments,
    suggest_phase_space,
    total_mass,
)
from heatbath.thermostat import Thermostat

DEFAULT_KNOBS = Thermostat(lr=0.005, batch_size=16, momentum=0.95, law="uniform:1")
"""With `DEFAULT_DIFFUSION`, a temperature of 0.1: the barrier of `DEFAULT_LANDSCAPE` is twice as high."""
DEFAULT_DIFFUSION = 24.0
DEFAULT_LANDSCAPE = "double-well:0.2:2"


@dataclass(frozen=True, eq=False)
class Simulation:
    """Everything that `simulate` found."""

    steps: Array  # the steps of SGD at which densities and positions were taken
    densities: Array  # of Fokker-Planck at those steps, shape ``(len(steps), *grid.shape)``
    equilibrium: Array  # ``exp(-H/Theta)/Z`` on the same mesh
    energy: Array  # ``H/Theta`` above its minimum at the cells
    grid: PhaseSpace  # the mesh
    positions: Array  # of the SGD trajectories at those steps, shape ``(len(steps), trajectories)``
    paths: Array  # of a few trajectories at every step, shape ``(steps[-1] + 1, few)``
    landscape: Landscape  # the loss
    summary: Mapping[str, Any]  # the numbers, ready for JSON


def simulate(
    knobs: Thermostat = DEFAULT_KNOBS,
    landscape: Landscape | str = DEFAULT_LANDSCAPE,
    *,
    diffusion: float = DEFAULT_DIFFUSION,
    start: float | None = None,
    steps: int = 1500,
    frames: int = 40,
    trajectories: int = 20_000,
    cells: tuple[int, int] | None = None,
    seed: int = 0,
    progress: OnFraction | None = None,
) -> Simulation:
    """Return the density and the trajectories of SGD from one start, side by side.

    Both begin as a Gaussian of half the thermal widths about ``start``, by default 1.5 of them outside the first
    minimum, at rest on average. The landscape has one dimension; ``diffusion`` is the variance of a per-sample
    gradient, without the law's factor. The mesh has at least four cells to a thermal width, unless ``cells`` is given.
    """
    report = progress or (lambda _fraction, _message: None)
    landscape = parse_landscape(landscape)
    asked = {"steps": steps, "frames": frames, "trajectories": trajectories, "seed": seed}
    ensemble = prepare_ensemble(knobs, landscape, diffusion, dimension=1, **asked)
    equation, at = ensemble.equation, ensemble.at
    width, speed = _thermal_width(landscape, equation.temperature), math.sqrt(equation.theta)
    start = float(landscape.minima[0]) - 1.5 * width if start is None else check_number("start", start)
    grid = _mesh(equation, landscape, start, width, cells)
    solver = FokkerPlanck(equation, landscape, grid)

    what = "trajectories of SGD"
    report(0.0, what)
    first = ensemble.cloud(start, width, 1)
    paths, positions = ensemble.follow_sgd(first, 6, lambda done: report(0.1 * done, what))
    densities = solver.snapshots(
        gaussian_density(grid, [start, 0.0], np.diag([0.25 * width**2, 0.25 * speed**2])),
        np.asarray(at * knobs.lr, dtype=np.float64),
        lambda done, _total: report(0.1 + 0.9 * float(at[done - 1]) / steps, "Fokker-Planck"),
    )
    x, v = np.meshgrid(grid.x, grid.v, indexing="ij")
    energy = (0.5 * v**2 + landscape.value(x) / knobs.lr) / equation.theta
    return Simulation(
        steps=np.asarray(at, dtype=np.float64),
        densities=densities,
        equilibrium=solver.equilibrium,
        energy=energy - energy.min(),
        grid=grid,
        positions=positions,
        paths=paths,
        landscape=landscape,
        summary=_summarise(ensemble, solver, densities, positions),
    )


def write_simulation(simulation: Simulation, folder: str | Path, progress: OnFraction | None = None) -> list[Path]:
    """Write ``density``, ``trajectories`` and ``marginal.png``, ``density.gif`` and ``summary.json``; return them.

    They appear when all are complete: an interrupt leaves what was there before.
    """
    from heatbath.report import plots

    s, grid = simulation, simulation.grid
    boltzmann = marginals(s.equilibrium, grid)[0]
    few = six_of(s.steps)
    pictures = {
        "density.png": lambda: plots.plot_density_over_time(s.densities[few], s.steps[few], grid, energy=s.energy)[0],
        "trajectories.png": lambda: plots.plot_trajectories(
            np.arange(len(s.paths), dtype=np.float64),
            s.paths,
            minima=s.landscape.minima,
            title=f"{s.paths.shape[1]} trajectories of SGD at temperature $T$ = {s.summary['temperature']:.3g}",
        ),
        "marginal.png": lambda: plots.plot_marginal_against_boltzmann(
            grid.x,
            marginals(s.densities[-1], grid)[0],
            boltzmann,
            histogram=_histogram(s.positions[-1], grid),
            title=f"Where SGD is found after {s.steps[-1]:,.0f} steps, against Boltzmann's weight",
        ),
    }
    animate = partial(
        plots.write_animation, densities=s.densities, times=s.steps, grid=grid, boltzmann=boltzmann, energy=s.energy
    )
    return write_pictures(folder, pictures, animate, s.summary, progress)


def _thermal_width(landscape: Landscape, temperature: float) -> float:
    """The width of a Gaussian at the stiffest minimum, or the way outwards to a loss ``T`` above the first if shorter.

    Where the walls are steeper than a parabola, as at temperatures far above a barrier, the Gaussian is no measure.
    """
    minimum = float(landscape.minima[0])
    width = math.sqrt(temperature / landscape.stiffness)
    ways = width * np.linspace(0.0, 1.0, 1001)
    within = landscape.value(minimum - ways) - landscape.value(np.array(minimum)) <= temperature
    return width if within.all() else float(ways[within.argmin()])


def _mesh(
    equation: LangevinEquation, landscape: Landscape, start: float, width: float, cells: tuple[int, int] | None
) -> PhaseSpace:
    """A mesh that holds the start and equilibrium, with cells enough for the narrowest well."""
    near = landscape.value(start + width * np.linspace(-2.6, 2.6, 11))
    lowest = float(landscape.value(landscape.minima).min())
    energy = max(18.5, float(near.max() - lowest) / equation.temperature + 3.0)
    if not energy < 295.0:
        raise ValueError(
            f"about start={start:.6g} the loss reaches up to {energy:.0f} T above its minimum, with T = "
            f"{equation.temperature:.3g}, more than the 295 T that a mesh can hold: start closer to a minimum"
        )
    grid = suggest_phase_space(equation, landscape, cells or (80, 80), energy)
    if cells is not None:
        return grid
    span = grid.x_bounds[1] - grid.x_bounds[0]
    spans = (span / width, 2.0 * grid.v_bounds[1] / math.sqrt(equation.theta))
    wanted = [max(80, 16 * math.ceil(4.0 * widths / 16.0)) for widths in spans]
    if max(wanted) > 512:
        cold = float(np.ptp(landscape.minima)) > 0.5 * span
        far = float(np.abs(landscape.minima - start).min()) > 3.0 * width
        cure = "raise the temperature or lower the barrier" if cold else "lower the temperature"
        raise ValueError(
            f"the mesh would need {wanted[0]} x {wanted[1]} cells, more than 512 in one direction: at temperature "
            f"{equation.temperature:.3g} it spans {max(spans):.0f} thermal widths; "
            f"{'start closer to a minimum' if far else cure}"
        )
    return PhaseSpace(grid.x_bounds, grid.v_bounds, (wanted[0], wanted[1]))


def _histogram(positions: Array, grid: PhaseSpace) -> tuple[Array, Array]:
    """Edges and heights: two cells of the mesh to a bar, as a density over all trajectories."""
    edges = grid.x_edges[::2]
    counts = np.histogram(positions, edges)[0]
    return edges, counts / (positions.size * (edges[1] - edges[0]))


def _summarise(ensemble: Ensemble, solver: FokkerPlanck, densities: Array, positions: Array) -> dict[str, Any]:
    """The numbers, in plain types."""
    grid = solver.grid
    x, last, equilibrium = positions[-1], densities[-1], solver.equilibrium
    edges, heights = _histogram(x, grid)
    bars = len(heights)
    expected = (marginals(last, grid)[0] * grid.dx)[: 2 * bars].reshape(bars, 2).sum(axis=1)
    share = heights * (edges[1] - edges[0])
    # What lies beyond the bars is one more: SGD need not stay on the mesh.
    share, expected = (np.append(part, max(0.0, 1.0 - part.sum())) for part in (share, expected))
    variance = expected * np.maximum(1.0 - expected, 0.0) / len(x)
    of = {"fokker_planck": moments(last, grid), "boltzmann": moments(equilibrium, grid)}
    return {
        **ensemble.describe(),
        "cells": list(grid.cells),
        "mass_error": max(abs(total_mass(density, grid) - 1.0) for density in densities),
        "smallest_density": float(densities.min()),
        "distance_to_equilibrium": float(np.abs(last - equilibrium).sum() * grid.cell_area),
        "relative_entropy": {
            str(int(k)): solver.relative_entropy(p) for k, p in zip(ensemble.at, densities, strict=True)
        },
        "position_mean": {"sgd": float(x.mean())} | {kind: float(one.mean[0]) for kind, one in of.items()},
        "position_variance": {"sgd": float(x.var())} | {kind: float(one.covariance[0, 0]) for kind, one in of.items()},
        "histogram_distance": histogram_distance(share, expected, variance),
    }
