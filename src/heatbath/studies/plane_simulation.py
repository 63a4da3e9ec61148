"""What SGD does on a landscape of two dimensions: where it is found, its trajectories and its equilibrium, in pictures.

`simulate_plane` computes; `write_plane_simulation` draws and writes. A density over two positions and two velocities is
beyond a mesh, so that the algorithm is compared with as many trajectories of the stochastic equation of the knobs, at
leading order in the rate, and with Boltzmann's weight ``exp(-f/T)``, by quadrature.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from heatbath.studies.ensembles import (
    OnFraction,
    follow,
    histogram_distance,
    prepare_ensemble,
    six_of,
    write_pictures,
)
from heatbath.theory.landscapes import Array, Landscape, Rosenbrock, parse_landscape
from heatbath.theory.langevin import langevin_process
from heatbath.theory.plane import PlaneMesh, boltzmann_density, plane_moments, suggest_plane
from heatbath.thermostat import Thermostat

DEFAULT_KNOBS = Thermostat(lr=0.0002, batch_size=16, momentum=0.95, law="uniform:1")
"""With `DEFAULT_DIFFUSION`, a temperature of 0.2; Rosenbrock's valley is steep, so that the rate is small."""
DEFAULT_DIFFUSION = 1200.0
DEFAULT_LANDSCAPE = "rosenbrock"
DEFAULT_STEPS = 3000
_BARS = 64  # at most, in each direction, of the histograms that are compared; a power of two
_FEWEST = 5.0  # expected trajectories in a bar; emptier ones are joined into one
_VIEW = 7.0  # temperatures above the minimum up to which there is something to see


@dataclass(frozen=True, eq=False)
class PlaneSimulation:
    """Everything that `simulate_plane` found."""

    steps: Array  # the steps of SGD at which positions were taken
    sgd: Array  # positions of the algorithm at those steps, shape ``(len(steps), trajectories, 2)``
    langevin: Array  # likewise of the equation
    paths: Array  # of a few trajectories of SGD at every step, shape ``(steps[-1] + 1, few, 2)``
    mesh: PlaneMesh | None  # of Boltzmann's weight; None where it has no norm
    boltzmann: Array | None  # the weight at the centres of the cells of ``mesh``
    landscape: Landscape  # the loss
    summary: Mapping[str, Any]  # the numbers, ready for JSON


def simulate_plane(
    knobs: Thermostat = DEFAULT_KNOBS,
    landscape: Landscape | str = DEFAULT_LANDSCAPE,
    *,
    diffusion: float = DEFAULT_DIFFUSION,
    start: Sequence[float] | None = None,
    steps: int = DEFAULT_STEPS,
    frames: int = 40,
    trajectories: int = 20_000,
    seed: int = 0,
    progress: OnFraction | None = None,
) -> PlaneSimulation:
    """Return trajectories of SGD and of its equation from one start, side by side.

    Both begin as a Gaussian of half the thermal widths of the stiffest minimum about ``start``, at rest on average. The
    equation is integrated by BAOAB in steps of at most a quarter of the time ``l / (1 - mu)`` of its friction.

    The start is by default the far arm of Rosenbrock's valley, (-1, 1), or 8 temperatures above the first minimum in
    the direction (-1, 1). ``diffusion`` is the variance of a per-sample gradient in one direction.
    """
    report = progress or (lambda _fraction, _message: None)
    landscape = parse_landscape(landscape)
    asked = {"steps": steps, "frames": frames, "trajectories": trajectories, "seed": seed}
    ensemble = prepare_ensemble(knobs, landscape, diffusion, dimension=2, **asked)
    if start is not None and (np.shape(start) != (2,) or not np.isfinite(start).all()):
        raise ValueError(f"start must be two finite numbers or None, got {start!r}")
    equation, at = ensemble.equation, ensemble.at
    temperature = equation.temperature
    mesh = suggest_plane(landscape, temperature)
    boltzmann = None if mesh is None else boltzmann_density(landscape, temperature, mesh)

    centre = _start(landscape, temperature) if start is None else np.asarray(start, dtype=np.float64)
    # The two kinds share nothing, not even their first positions, so that what differs between them is sampling alone.
    width = math.sqrt(temperature / landscape.stiffness)
    first, other_first = (ensemble.cloud(centre, width, kind) for kind in (1, 2))
    paths, of_sgd = ensemble.follow_sgd(first, 3, lambda done: report(0.6 * done, "trajectories of SGD"))
    # With friction g and step h, BAOAB drifts (g h / 2) coth(g h / 2) times too fast: 8 % where g h = 1, 0.5 % at 1/4.
    parts = math.ceil(4.0 * (1.0 - knobs.momentum))
    of_equation = follow(
        langevin_process(equation, landscape, knobs.lr / parts, seed=ensemble.seed + 2),
        other_first,
        (parts * at).tolist(),
        lambda done: report(0.6 + 0.4 * done, "trajectories of the equation"),
    )
    compared = _compare(landscape, of_sgd[-1], of_equation[-1], mesh, boltzmann)
    summary = {**ensemble.describe(), "start": centre.tolist(), **compared}
    looked = np.asarray(at, dtype=np.float64)
    return PlaneSimulation(looked, of_sgd, of_equation, paths, mesh, boltzmann, landscape, summary)


def write_plane_simulation(
    simulation: PlaneSimulation, folder: str | Path, progress: OnFraction | None = None
) -> list[Path]:
    """Write ``density``, ``trajectories`` and ``marginal.png``, ``density.gif`` and ``summary.json``; return them.

    They appear when all are complete: an interrupt leaves what was there before.
    """
    from heatbath.report.plots import plane

    s, temperature = simulation, float(simulation.summary["temperature"])
    mesh = _view(s)
    loss = s.landscape.value(mesh.points) - s.landscape.value(s.landscape.minima).min()
    highest = float(loss.max()) / temperature
    factor = 2 if highest < 100.0 else 4
    powers = np.arange(-1, max(2, math.ceil(math.log(highest, factor))))
    levels = np.asarray(temperature * float(factor) ** powers, dtype=np.float64)
    told = f"$T/{factor}$, $T$, ${factor}T$, ${factor**2}T$"
    references = "the equation" if s.mesh is None else "the equation and Boltzmann's weight"
    scene = plane.Scene(mesh, loss, levels, s.landscape.minima)
    chosen = six_of(s.steps)
    ends = np.quantile(np.concatenate([s.sgd[-1], s.langevin[-1]]), [0.0005, 0.9995], axis=0)
    edges = [np.linspace(low - 0.1 * (high - low), high + 0.1 * (high - low), 61) for low, high in ends.T]
    pictures = {
        "density.png": lambda: plane.plot_plane_over_time(
            s.sgd[chosen],
            s.steps[chosen],
            scene,
            title=f"Where SGD is found over time, at temperature $T$ = {temperature:.3g}",
            key=f"Colour: density relative to each panel's peak. Thin lines: loss of {told}, ...",
        )[0],
        "trajectories.png": lambda: plane.plot_plane_trajectories(
            s.paths, scene, title=f"{s.paths.shape[1]} trajectories of SGD at temperature $T$ = {temperature:.3g}"
        ),
        "marginal.png": lambda: plane.plot_plane_marginals(
            edges,
            _marginals(s.sgd[-1], edges),
            _marginals(s.langevin[-1], edges),
            _boltzmann_marginals(s),
            title=f"Where SGD is found after {s.steps[-1]:,.0f} steps, against {references}",
        )[0],
    }
    animate = partial(plane.write_plane_animation, positions=s.sgd, times=s.steps, scene=scene)
    return write_pictures(folder, pictures, animate, s.summary, progress)


def _start(landscape: Landscape, temperature: float) -> Array:
    if isinstance(landscape, Rosenbrock):
        return np.array([-1.0, 1.0])
    direction, minimum = np.array([-1.0, 1.0]), landscape.minima[0]
    ceiling = float(landscape.value(minimum)) + 8.0 * temperature
    way = math.sqrt(temperature / landscape.stiffness)
    while way < 1e12 and float(landscape.value(minimum + 1.05 * way * direction)) <= ceiling:
        way *= 1.05
    return np.asarray(minimum + way * direction)


def _compare(
    landscape: Landscape, sgd: Array, langevin: Array, mesh: PlaneMesh | None, boltzmann: Array | None
) -> dict[str, Any]:
    """The last positions, those of the equation and Boltzmann's weight, in plain types."""
    clouds, count = {"sgd": sgd, "langevin": langevin}, len(sgd)
    means: dict[str, Any] = {kind: cloud.mean(axis=0).tolist() for kind, cloud in clouds.items()}
    variances: dict[str, Any] = {kind: cloud.var(axis=0).tolist() for kind, cloud in clouds.items()}
    losses: dict[str, Any] = {kind: float(landscape.value(cloud).mean()) for kind, cloud in clouds.items()}
    # Where the two are, which need not be where Boltzmann's weight is; single ones far out must not widen the bars.
    (left, below), (right, above) = np.quantile(np.concatenate([sgd, langevin]), [0.001, 0.999], axis=0)
    bars = PlaneMesh((left, right), (below, above), (_BARS, _BARS))
    share, other = _shares(sgd, bars), _shares(langevin, bars)
    distances: dict[str, Any] = {"sgd_to_langevin": _distance(share, other, 0.5 * (share + other), 0.5 * count)}
    if mesh is None or boltzmann is None:
        means["boltzmann"] = variances["boltzmann"] = losses["boltzmann"] = None
        distances |= dict.fromkeys(("sgd_to_boltzmann", "langevin_to_boltzmann"))
    else:
        exact = plane_moments(boltzmann, landscape, mesh)
        means["boltzmann"], variances["boltzmann"] = exact.mean.tolist(), exact.variance.tolist()
        losses["boltzmann"] = exact.loss
        blocks = (boltzmann * mesh.cell_area).reshape(_BARS, mesh.cells[0] // _BARS, _BARS, -1)
        expected, bars = blocks.sum(axis=(1, 3)), PlaneMesh(mesh.x_bounds, mesh.y_bounds, (_BARS, _BARS))
        for kind, cloud in clouds.items():
            distances[f"{kind}_to_boltzmann"] = _distance(_shares(cloud, bars), expected, expected, float(count))
    moments = {"position_mean": means, "position_variance": variances, "loss_mean": losses}
    return {**moments, "histogram_distance": distances}


def _shares(positions: Array, bars: PlaneMesh) -> Array:
    """The fraction of the positions in each bar; what lies outside is in none."""
    x, y = positions.T
    return np.asarray(np.histogram2d(x, y, bars.edges)[0] / len(positions))


def _distance(share: Array, other: Array, law: Array, count: float) -> dict[str, Any]:
    """The distance of two histograms, with ``law`` the chance of each bar and ``count`` the samples that it rests on.

    Bars grow until few trajectories lie where fewer than 5 are expected, and those bars are joined into one: its
    sampling error is Gaussian, theirs are not. Where that would join all of them, they stay as they are.
    """
    side = len(law)
    while side > 4 and law[law * count >= _FEWEST].sum() < 0.9:
        side //= 2
        share, other, law = (values.reshape(side, 2, side, 2).sum(axis=(1, 3)) for values in (share, other, law))
    full = law * count >= _FEWEST
    full |= not full.any()
    joined = [np.append(values[full], 1.0 - values[full].sum()) for values in (share, other, law)]
    chance = np.clip(joined[2], 0.0, 1.0)
    return {"bars": [side, side], **histogram_distance(joined[0], joined[1], chance * (1.0 - chance) / count)}


def _view(simulation: PlaneSimulation) -> PlaneMesh:
    """A mesh over what there is to see: nearly all positions at all times, the paths, and Boltzmann's weight."""
    s = simulation
    clouds = np.quantile(s.sgd, [0.001, 0.999], axis=1).reshape(-1, 2)
    seen = [clouds, s.paths.reshape(-1, 2), s.landscape.minima]
    if s.mesh is not None:
        points = s.mesh.points
        value = s.landscape.value(points)
        seen.append(points[value - value.min() <= _VIEW * float(s.summary["temperature"])])
    everything = np.concatenate(seen)
    low, high = everything.min(axis=0), everything.max(axis=0)
    margin = 0.04 * (high - low)
    (left, below), (right, above) = low - margin, high + margin
    return PlaneMesh((float(left), float(right)), (float(below), float(above)), (240, 240))


def _marginals(positions: Array, edges: Sequence[Array]) -> list[Array]:
    """The heights of the bars in x and in y, as densities over all trajectories."""
    counts = [np.histogram(positions[:, axis], edges[axis])[0] for axis in (0, 1)]
    return [bars / (len(positions) * (along[1] - along[0])) for bars, along in zip(counts, edges, strict=True)]


def _boltzmann_marginals(simulation: PlaneSimulation) -> list[tuple[Array, Array]] | None:
    if simulation.mesh is None or simulation.boltzmann is None:
        return None
    x, y = simulation.mesh.centres
    share = simulation.boltzmann * simulation.mesh.cell_area
    return [(x, share.sum(axis=1) / (x[1] - x[0])), (y, share.sum(axis=0) / (y[1] - y[0]))]
