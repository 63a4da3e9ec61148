"""What SGD does on a landscape of two dimensions: where it is found, its trajectories and its equilibrium, in pictures.

`simulate_plane` computes; `write_plane_simulation` draws and writes. A density over two positions and two velocities is
beyond a mesh, so that the algorithm is compared with as many trajectories of the stochastic equation of the knobs, at
leading order in the rate, and with Boltzmann's weight ``exp(-f/T)``, by quadrature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heatbath.studies.ensembles import (
    OnFraction,
    algorithm_and_equation,
    check_counts,
    describe_knobs,
    follow,
    follow_sgd,
    frame_steps,
    histogram_distance,
    write_pictures,
)
from heatbath.theory.landscapes import Array, Landscape, Rosenbrock, parse_landscape
from heatbath.theory.langevin import LangevinEquation, langevin_process
from heatbath.theory.plane import PlaneMesh, boltzmann_density, plane_moments, suggest_plane
from heatbath.theory.trajectories import State
from heatbath.theory.trajectories import start as start_state
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
    """Everything that `simulate_plane` found.

    Attributes:
        steps: the steps of SGD at which positions were taken.
        sgd: positions of the algorithm at those steps, shape ``(len(steps), trajectories, 2)``.
        langevin: likewise of the equation.
        paths: of a few trajectories of SGD at every step, shape ``(steps[-1] + 1, few, 2)``.
        mesh: of Boltzmann's weight; None where it has no norm.
        boltzmann: the weight at the centres of the cells of ``mesh``.
        landscape: the loss.
        summary: the numbers, ready for JSON.
    """

    steps: Array
    sgd: Array
    langevin: Array
    paths: Array
    mesh: PlaneMesh | None
    boltzmann: Array | None
    landscape: Landscape
    summary: Mapping[str, Any]


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

    Args:
        knobs: learning rate, batch size, momentum, Nesterov, law, coupling and data set size.
        landscape: a loss of two dimensions or its name, such as ``"anisotropic-quadratic:1:4"``.
        diffusion: the variance of a per-sample gradient in one direction, without the law's factor.
        start: the mean position at first; by default the far arm of Rosenbrock's valley, (-1, 1), or 8 temperatures
            above the first minimum in the direction (-1, 1).
        steps: how many steps of SGD to follow.
        frames: at how many of them to look; the first ones lie closer, where more happens.
        trajectories: how many of each kind.
        seed: of the trajectories.
        progress: called with the fraction done and what is being done.

    Raises:
        ValueError: a knob is out of range, the rate is unstable, the landscape has not two dimensions, or its valleys
            are too narrow for Boltzmann's weight on a mesh.
    """
    report = progress or (lambda _fraction, _message: None)
    landscape = parse_landscape(landscape)
    seed = check_counts(steps, frames, trajectories, seed)
    if landscape.dimension != 2:
        raise ValueError(
            f"pictures in the plane need a landscape of two dimensions, such as rosenbrock or anisotropic-quadratic; "
            f"{landscape!r} has {landscape.dimension}"
        )
    if start is not None and (np.shape(start) != (2,) or not np.isfinite(start).all()):
        raise ValueError(f"start must be two finite numbers or None, got {start!r}")
    sgd, equation = algorithm_and_equation(knobs, landscape, diffusion)
    temperature = equation.temperature
    mesh = suggest_plane(landscape, temperature)
    boltzmann = None if mesh is None else boltzmann_density(landscape, temperature, mesh)

    centre = _start(landscape, temperature) if start is None else np.asarray(start, dtype=np.float64)
    # The two kinds share nothing, not even their first positions, so that what differs between them is sampling alone.
    first, other_first = (_cloud(landscape, equation, centre, trajectories, [seed, kind]) for kind in (1, 2))
    at = frame_steps(steps, frames)
    paths, of_sgd = follow_sgd(
        sgd, landscape, first, at.tolist(), 3, seed, lambda done: report(0.6 * done, "trajectories of SGD")
    )
    # With friction g and step h, BAOAB drifts (g h / 2) coth(g h / 2) times too fast: 8 % where g h = 1, 0.5 % at 1/4.
    parts = math.ceil(4.0 * (1.0 - knobs.momentum))
    of_equation = follow(
        langevin_process(equation, landscape, knobs.lr / parts, seed=seed + 2),
        other_first,
        (parts * at).tolist(),
        lambda done: report(0.6 + 0.4 * done, "trajectories of the equation"),
    )
    summary = {
        "landscape": str(landscape),
        "knobs": {**describe_knobs(knobs), "diffusion": diffusion, "seed": seed},
        "temperature": temperature,
        "law_factor": knobs.law_factor,
        "velocity_variance": equation.theta,
        "start": centre.tolist(),
        "steps": int(at[-1]),
        "trajectories": trajectories,
        **_compare(landscape, of_sgd[-1], of_equation[-1], mesh, boltzmann),
    }
    return PlaneSimulation(
        np.asarray(at, dtype=np.float64), of_sgd, of_equation, paths, mesh, boltzmann, landscape, summary
    )


def write_plane_simulation(
    simulation: PlaneSimulation, folder: str | Path, progress: OnFraction | None = None
) -> list[Path]:
    """Write the pictures, the animation and the numbers into ``folder``, and return the files.

    ``density.png``, ``density.gif``, ``trajectories.png``, ``marginal.png`` and ``summary.json`` appear when all are
    complete: an interrupt leaves what was there before.
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
    chosen = np.unique(np.linspace(0, len(s.steps) - 1, 6).astype(np.int64))
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

    def animate(file: Path, told: Callable[[int, int], None]) -> None:
        plane.write_plane_animation(file, s.sgd, s.steps, scene, progress=told)

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


def _cloud(landscape: Landscape, equation: LangevinEquation, centre: Array, count: int, seed: Sequence[int]) -> State:
    """Positions and velocities of half the thermal widths."""
    generator = np.random.default_rng(seed)
    width, speed = math.sqrt(equation.temperature / landscape.stiffness), math.sqrt(equation.theta)
    positions = centre + 0.5 * width * generator.standard_normal((count, 2))
    return start_state(landscape, positions, 0.5 * speed * generator.standard_normal((count, 2)))


def _compare(
    landscape: Landscape, sgd: Array, langevin: Array, mesh: PlaneMesh | None, boltzmann: Array | None
) -> dict[str, Any]:
    """The last positions, those of the equation and Boltzmann's weight, in plain types."""
    lists: dict[str, dict[str, Any]] = {"position_mean": {}, "position_variance": {}, "loss_mean": {}}
    for kind, cloud in (("sgd", sgd), ("langevin", langevin)):
        lists["position_mean"][kind] = cloud.mean(axis=0).tolist()
        lists["position_variance"][kind] = cloud.var(axis=0).tolist()
        lists["loss_mean"][kind] = float(landscape.value(cloud).mean())
    for numbers in lists.values():
        numbers["boltzmann"] = None
    count = len(sgd)
    # Where the two are, which need not be where Boltzmann's weight is; single ones far out must not widen the bars.
    (left, below), (right, above) = np.quantile(np.concatenate([sgd, langevin]), [0.001, 0.999], axis=0)
    bars = PlaneMesh((left, right), (below, above), (_BARS, _BARS))
    share, other = _shares(sgd, bars), _shares(langevin, bars)
    distances: dict[str, Any] = {
        "sgd_to_langevin": _distance(share, other, 0.5 * (share + other), 0.5 * count),
        "sgd_to_boltzmann": None,
        "langevin_to_boltzmann": None,
    }
    if mesh is not None and boltzmann is not None:
        exact = plane_moments(boltzmann, landscape, mesh)
        lists["position_mean"]["boltzmann"] = exact.mean.tolist()
        lists["position_variance"]["boltzmann"] = exact.variance.tolist()
        lists["loss_mean"]["boltzmann"] = exact.loss
        blocks = (boltzmann * mesh.cell_area).reshape(_BARS, mesh.cells[0] // _BARS, _BARS, -1)
        expected, bars = blocks.sum(axis=(1, 3)), PlaneMesh(mesh.x_bounds, mesh.y_bounds, (_BARS, _BARS))
        for kind, cloud in (("sgd", sgd), ("langevin", langevin)):
            distances[f"{kind}_to_boltzmann"] = _distance(_shares(cloud, bars), expected, expected, float(count))
    return {**lists, "histogram_distance": distances}


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
