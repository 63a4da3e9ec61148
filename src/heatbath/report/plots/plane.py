"""Pictures of positions in the plane: over the contours of the loss, along trajectories, and their marginals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from heatbath.report.plots.densities import Counter, plot_over_time, shade, steps_title, write_frames
from heatbath.report.plots.style import BLUE, COLOURS, GREY, SKY, new_axis, tidy
from heatbath.theory.landscapes import Array
from heatbath.theory.plane import PlaneMesh

_BARS = (80, 80)  # of a histogram in the plane


@dataclass(frozen=True, eq=False)
class Scene:
    """What all pictures of one landscape show behind the trajectories."""

    mesh: PlaneMesh  # where to look
    loss: Array  # above its minimum at the centres of the cells of the mesh
    levels: Array  # of the loss, increasing, at which contours are drawn
    minima: Array  # shape (count, 2)


def plot_plane(positions: Array, scene: Scene, ax: Axes | None = None, *, title: str | None = None) -> Axes:
    """Draw a histogram of positions, shape ``(count, 2)``, over the contours of the loss; dark is likely."""
    ax = new_axis(ax, (5.0, 4.2))
    shade(ax, _histogram(positions, scene.mesh), (*scene.mesh.x_bounds, *scene.mesh.y_bounds))
    ax.contour(*scene.mesh.centres, scene.loss.T, levels=scene.levels, colors=GREY, linewidths=0.5, alpha=0.6)
    ax.plot(*scene.minima.T, "+", color="black", markersize=7, markeredgewidth=1.0)
    _label(ax, scene, title or "Positions of SGD")
    return ax


def plot_plane_over_time(
    positions: Array, times: Sequence[float] | Array, scene: Scene, *, title: str, key: str
) -> Sequence[Axes]:
    """Draw histograms of positions, shape ``(len(times), count, 2)``, at several numbers of steps."""
    return plot_over_time(lambda index, ax: plot_plane(positions[index], scene, ax), times, title, key)


def plot_plane_trajectories(paths: Array, scene: Scene, ax: Axes | None = None, *, title: str) -> Axes:
    """Draw a few trajectories, shape ``(steps, few, 2)``, over the contours of the loss; open circles are starts."""
    ax = new_axis(ax, (6.8, 5.0))
    levels = scene.levels
    look: dict[str, Any] = {"norm": LogNorm(levels[0], levels[-1]), "cmap": "Greys_r", "alpha": 0.45, "extend": "both"}
    shown = np.maximum(scene.loss, 1e-3 * levels[0]).T
    filled = ax.contourf(*scene.mesh.centres, shown, levels=levels, **look)
    ax.contour(*scene.mesh.centres, scene.loss.T, levels=levels, colors="white", linewidths=0.6)
    for index in range(paths.shape[1]):
        colour, path = COLOURS[index % len(COLOURS)], paths[:, index]
        ax.plot(*path.T, color=colour, linewidth=0.7, alpha=0.85)
        ax.plot(*path[0], "o", color=colour, markersize=6, markerfacecolor="white", zorder=4)
        ax.plot(*path[-1], "o", color=colour, markersize=7, markeredgecolor="white", zorder=5)
    ax.plot(*scene.minima.T, "+", color="black", markersize=11, markeredgewidth=1.6, zorder=6, label="minimum")
    ax.plot([], [], "o", color=GREY, markersize=6, markerfacecolor="white", label="start")
    ax.plot([], [], "o", color=GREY, markersize=7, markeredgecolor="white", label="end")
    ax.legend(loc="best", fontsize=9, framealpha=0.9)
    bar = ax.figure.colorbar(filled, ax=ax, pad=0.02, format="%.4g", ticks=levels)
    bar.set_label("loss above its minimum")
    bar.ax.minorticks_off()
    _label(ax, scene, title)
    return ax


def plot_plane_marginals(
    edges: Sequence[Array],
    sgd: Sequence[Array],
    equation: Sequence[Array],
    boltzmann: Sequence[tuple[Array, Array]] | None,
    *,
    title: str,
) -> Sequence[Axes]:
    """Draw the densities of x and of y side by side: SGD, the equation and, if it has a norm, Boltzmann's weight.

    The first two are heights of bars with these edges, the last positions and densities, each for x and for y.
    """
    figure = Figure(figsize=(9.4, 4.2), layout="constrained")
    axes = list(figure.subplots(1, 2))
    for index, (name, ax) in enumerate(zip("xy", axes, strict=True)):
        ax.stairs(sgd[index], edges[index], fill=True, color=SKY, alpha=0.45, label="SGD")
        ax.stairs(equation[index], edges[index], color=BLUE, linewidth=1.4, label="stochastic equation")
        if boltzmann is not None:
            line = r"Boltzmann, $e^{-f/T}/Z$"
            ax.plot(*boltzmann[index], color="black", linewidth=1.4, linestyle="--", label=line)
        ax.set_ylim(bottom=0.0)
        ax.set_xlim(edges[index][0], edges[index][-1])
        tidy(ax, xlabel=f"position ${name}$", ylabel=f"probability density of ${name}$")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(title, fontsize=12)
    return axes


def write_plane_animation(
    path: str | Path,
    positions: Array,
    times: Sequence[float] | Array,
    scene: Scene,
    *,
    frames_per_second: int = 10,
    progress: Counter | None = None,
) -> None:
    """Write a GIF of the histogram of positions, one cloud for each number of steps, over the contours of the loss."""
    figure = Figure(figsize=(5.0, 4.4), dpi=90, layout="constrained")
    ax = plot_plane(positions[0], scene, figure.subplots(), title=" ")
    (image,) = ax.images
    moving: list[Any] = [image, *ax.collections, *ax.lines, *ax.spines.values(), ax.title]

    def show(index: int) -> None:
        image.set_data(_histogram(positions[index], scene.mesh))
        ax.set_title(steps_title(times[index]))

    write_frames(path, figure, moving, show, len(times), frames_per_second, progress)


def _label(ax: Axes, scene: Scene, title: str) -> None:
    ax.set(xlabel="position $x$", ylabel="position $y$", xlim=scene.mesh.x_bounds, ylim=scene.mesh.y_bounds)
    ax.set_title(title)


def _histogram(positions: Array, mesh: PlaneMesh) -> Array:
    """The number of positions in each bar over the largest, with y along the rows; single ones are no dots."""
    x, y = positions.T
    padded = np.pad(np.histogram2d(x, y, _BARS, (mesh.x_bounds, mesh.y_bounds))[0], 1)
    rows = 0.25 * padded[:-2] + 0.5 * padded[1:-1] + 0.25 * padded[2:]
    counts = 0.25 * rows[:, :-2] + 0.5 * rows[:, 1:-1] + 0.25 * rows[:, 2:]
    peak = float(counts.max())
    return np.asarray((counts / (peak if peak > 0.0 else 1.0)).T)
