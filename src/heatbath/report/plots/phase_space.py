"""Pictures of the dynamics on a line: densities in phase space, their movie, trajectories and marginals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from heatbath.report.plots.densities import Counter, plot_over_time, shade, steps_title, write_frames
from heatbath.report.plots.style import BLUE, COLOURS, GREY, SKY, new_axis, tidy
from heatbath.theory.landscapes import Array
from heatbath.theory.phase_space import PhaseSpace, marginals

_LEVELS = (0.5, 1.0, 2.0, 4.0, 8.0)
_VIEW = 12.0  # the energy up to which there is something to see
_KEY = "Colour: density relative to each panel's peak. Thin lines: equal energy $H$."
_BOLTZMANN = r"$e^{-f/T}/Z$"


def plot_phase_space(
    density: Array, grid: PhaseSpace, ax: Axes | None = None, *, energy: Array | None = None, title: str | None = None
) -> Axes:
    """Draw cell averages of a density over position and velocity; dark is likely, relative to the peak.

    ``energy`` is ``H/Theta`` above its minimum at the cells: its level lines are drawn thinly and bound the view.
    """
    ax = new_axis(ax, (5.0, 4.0))
    shade(ax, (density / density.max()).T, (*grid.x_bounds, *grid.v_bounds))
    if energy is not None:
        ax.contour(grid.x, grid.v, energy.T, levels=_LEVELS, colors=GREY, linewidths=0.5, alpha=0.6)
        _crop(ax, grid, energy, density[None])
    ax.set(xlabel="position $x$", ylabel="velocity $v$")
    ax.set_title(title or "Density in phase space")
    return ax


def plot_density_over_time(
    densities: Array, times: Sequence[float] | Array, grid: PhaseSpace, *, energy: Array | None = None
) -> Sequence[Axes]:
    """Draw densities, shape ``(len(times), *grid.shape)``, at several numbers of steps as small multiples."""
    title = "The density of SGD in phase space over time"
    axes = plot_over_time(lambda k, ax: plot_phase_space(densities[k], grid, ax, energy=energy), times, title, _KEY)
    if energy is not None:
        for ax in axes:
            _crop(ax, grid, energy, densities)
    return axes


def plot_trajectories(
    times: Sequence[float] | Array,
    positions: Array,
    ax: Axes | None = None,
    *,
    minima: Sequence[float] | Array = (),
    title: str = "Trajectories of SGD",
) -> Axes:
    """Draw a few trajectories, shape ``(len(times), count)``, over the steps of SGD, and the minima as dashed lines."""
    ax = new_axis(ax, (7.5, 3.6))
    for index, path in enumerate(positions.T):
        ax.plot(times, path, color=COLOURS[index % len(COLOURS)], linewidth=0.8, alpha=0.85)
    for minimum in minima:
        ax.axhline(minimum, color="black", linestyle="--", linewidth=1.0)
        ax.text(1.01, minimum, "minimum", transform=ax.get_yaxis_transform(), va="center", fontsize=9)
    return tidy(ax, title, xlabel="steps of SGD", ylabel="position $x$", xlim=(times[0], times[-1]))


def plot_marginal_against_boltzmann(
    x: Array,
    marginal: Array,
    boltzmann: Array,
    ax: Axes | None = None,
    *,
    histogram: tuple[Array, Array] | None = None,
    title: str = "Where SGD is found, against Boltzmann's weight",
) -> Axes:
    """Draw a density of positions with ``exp(-f/T)/Z`` and, if given, a histogram of SGD as edges and heights."""
    ax = new_axis(ax, (6.4, 4.0))
    if histogram is not None:
        edges, heights = histogram
        ax.stairs(heights, edges, fill=True, color=SKY, alpha=0.45, label="SGD, histogram")
    ax.plot(x, marginal, color=BLUE, linewidth=2.0, label="Fokker-Planck")
    ax.plot(x, boltzmann, color="black", linewidth=1.4, linestyle="--", label=f"Boltzmann, {_BOLTZMANN}")
    ax.set_ylim(bottom=0.0)
    labels = {"xlabel": "position $x$", "ylabel": "probability density of $x$"}
    return tidy(ax, title, legend=True, xlim=(x[0], x[-1]), **labels)


def write_animation(
    path: str | Path,
    densities: Array,
    times: Sequence[float] | Array,
    grid: PhaseSpace,
    *,
    boltzmann: Array,
    energy: Array,
    frames_per_second: int = 10,
    progress: Counter | None = None,
) -> None:
    """Write a GIF of the density in phase space above that of positions, with that at equilibrium as a dashed line."""
    in_x = np.array([marginals(density, grid)[0] for density in densities])
    figure = Figure(figsize=(4.8, 5.4), dpi=90, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.4, 1.0))
    plot_phase_space(densities[0], grid, above, energy=energy, title=" ")
    _crop(above, grid, energy, densities)
    image = above.images[0]
    above.set_xlabel("")
    (line,) = below.plot(grid.x, in_x[0], color=BLUE, linewidth=1.8, label="now")
    below.plot(grid.x, boltzmann, color="black", linewidth=1.2, linestyle="--", label=_BOLTZMANN)
    below.legend(loc="upper right", frameon=False, fontsize=9)
    # The start is a tall peak; the scale is that of what follows, or equilibrium would be a flat line.
    tallest = max(float(np.median(in_x.max(axis=1))), float(boltzmann.max()))
    tidy(below, xlabel="position $x$", ylabel="density of $x$", ylim=(0.0, 1.5 * tallest))
    moving = [*above.images, *above.collections, *above.spines.values(), above.title, *below.lines]

    def show(index: int) -> None:
        image.set_data((densities[index] / densities[index].max()).T)
        line.set_ydata(in_x[index])
        above.set_title(steps_title(times[index]))

    write_frames(path, figure, moving, show, len(times), frames_per_second, progress)


def _crop(ax: Axes, grid: PhaseSpace, energy: Array, densities: Array) -> None:
    """Look where equilibrium or one of the densities can be seen; meshes reach much further."""
    peaks = densities.max(axis=(1, 2), keepdims=True)
    seen = (energy <= _VIEW) | np.any(densities > 0.005 * peaks, axis=0)
    rows, columns = np.flatnonzero(seen.any(axis=1)), np.flatnonzero(seen.any(axis=0))
    ax.set_xlim(grid.x_edges[rows[0]], grid.x_edges[rows[-1] + 1])
    ax.set_ylim(grid.v_edges[columns[0]], grid.v_edges[columns[-1] + 1])
