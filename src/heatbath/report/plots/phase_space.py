"""Pictures of the dynamics: densities in phase space, their movie, trajectories and marginals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps, ticker
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from PIL import Image

from heatbath.report.plots.style import BLUE, COLOURS, GREY, SKY, new_axis, tidy
from heatbath.theory.landscapes import Array
from heatbath.theory.phase_space import PhaseSpace, marginals

_LEVELS = (0.5, 1.0, 2.0, 4.0, 8.0)
_VIEW = 12.0  # the energy up to which there is something to see
SHADES = LinearSegmentedColormap.from_list("white to blue", ["#ffffff", *colormaps["GnBu"](np.linspace(0.15, 1.0, 12))])
_KEY = "Colour: density relative to each panel's peak. Thin lines: equal energy $H$."


def plot_phase_space(
    density: Array, grid: PhaseSpace, ax: Axes | None = None, *, energy: Array | None = None, title: str | None = None
) -> Axes:
    """Draw one density over position and velocity; dark is likely, and each panel is scaled to its own peak.

    Args:
        density: cell averages of shape ``grid.shape``.
        grid: its mesh.
        ax: where to draw; a new figure if not given.
        energy: ``H/Theta`` above its minimum at the cells: its level lines are drawn thinly and bound the view.
        title: what is seen.
    """
    ax = new_axis(ax, (5.0, 4.0))
    _draw_density(ax, density, grid)
    if energy is not None:
        ax.contour(grid.x, grid.v, energy.T, levels=_LEVELS, colors=GREY, linewidths=0.5, alpha=0.6)
        _crop(ax, grid, energy, density[None])
    ax.set(xlabel="position $x$", ylabel="velocity $v$")
    ax.set_title(title or "Density in phase space")
    return ax


def plot_density_over_time(
    densities: Array,
    times: Sequence[float] | Array,
    grid: PhaseSpace,
    axes: Sequence[Axes] | None = None,
    *,
    energy: Array | None = None,
    title: str = "The density of SGD in phase space over time",
) -> Sequence[Axes]:
    """Draw densities at several times as small multiples with common axes, three to a row.

    Args:
        densities: shape ``(len(times), *grid.shape)``.
        times: steps of SGD at which they hold.
        grid: their mesh.
        axes: one axis for each time; a new figure if not given.
        energy: as in `plot_phase_space`.
        title: of a new figure.
    """
    if axes is None:
        axes = small_multiples(len(times), title, _KEY)
    for density, time, ax in zip(densities, times, axes, strict=True):
        plot_phase_space(density, grid, ax, energy=energy, title=steps_title(time))
        ax.title.set_fontsize(10)
        ax.label_outer()
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
    """Draw the positions of a few trajectories over time.

    Args:
        times: steps of SGD.
        positions: shape ``(len(times), count)``; six or fewer stay readable.
        ax: where to draw; a new figure if not given.
        minima: positions of the wells, drawn as dashed lines.
        title: what is seen.
    """
    ax = new_axis(ax, (7.5, 3.6))
    for index, path in enumerate(positions.T):
        ax.plot(times, path, color=COLOURS[index % len(COLOURS)], linewidth=0.8, alpha=0.85)
    for minimum in minima:
        ax.axhline(minimum, color="black", linestyle="--", linewidth=1.0)
        ax.text(1.01, minimum, "minimum", transform=ax.get_yaxis_transform(), va="center", fontsize=9)
    ax.set(xlabel="steps of SGD", ylabel="position $x$", xlim=(times[0], times[-1]))
    ax.set_title(title)
    return tidy(ax)


def plot_marginal_against_boltzmann(
    x: Array,
    marginal: Array,
    boltzmann: Array,
    ax: Axes | None = None,
    *,
    histogram: tuple[Array, Array] | None = None,
    title: str = "Where SGD is found, against Boltzmann's weight",
) -> Axes:
    """Draw a density of positions with ``exp(-f/T)/Z`` and, if given, a histogram of SGD.

    Args:
        x: positions.
        marginal: the density there.
        boltzmann: ``exp(-f/T)/Z`` there.
        ax: where to draw; a new figure if not given.
        histogram: edges and heights, with one edge more than heights.
        title: what is seen.
    """
    ax = new_axis(ax, (6.4, 4.0))
    if histogram is not None:
        edges, heights = histogram
        ax.stairs(heights, edges, fill=True, color=SKY, alpha=0.45, label="SGD, histogram")
    ax.plot(x, marginal, color=BLUE, linewidth=2.0, label="Fokker-Planck")
    ax.plot(x, boltzmann, color="black", linewidth=1.4, linestyle="--", label=r"Boltzmann, $e^{-f/T}/Z$")
    ax.set(xlabel="position $x$", ylabel="probability density of $x$", xlim=(x[0], x[-1]))
    ax.set_ylim(bottom=0.0)
    ax.set_title(title)
    ax.legend(frameon=False)
    return tidy(ax)


def write_animation(
    path: str | Path,
    densities: Array,
    times: Sequence[float] | Array,
    grid: PhaseSpace,
    *,
    boltzmann: Array | None = None,
    energy: Array | None = None,
    frames_per_second: int = 10,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write a GIF of the density in phase space above the density of positions.

    Args:
        path: a name that ends in ``.gif``.
        densities: shape ``(len(times), *grid.shape)``, one for each frame.
        times: steps of SGD.
        grid: their mesh.
        boltzmann: the density of positions at equilibrium, drawn dashed.
        energy: as in `plot_phase_space`.
        frames_per_second: the speed.
        progress: called with the number of frames done and their total.
    """
    in_x = np.array([marginals(density, grid)[0] for density in densities])
    figure = Figure(figsize=(4.8, 5.4), dpi=90, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.4, 1.0))
    plot_phase_space(densities[0], grid, above, energy=energy, title=" ")
    if energy is not None:
        _crop(above, grid, energy, densities)
    image = above.images[0]
    above.set_xlabel("")
    (line,) = below.plot(grid.x, in_x[0], color=BLUE, linewidth=1.8, label="now")
    if boltzmann is not None:
        below.plot(grid.x, boltzmann, color="black", linewidth=1.2, linestyle="--", label=r"$e^{-f/T}/Z$")
        below.legend(loc="upper right", frameon=False, fontsize=9)
    # The start is a tall peak; the scale is that of what follows, or equilibrium would be a flat line.
    tallest = max(float(np.median(in_x.max(axis=1))), 0.0 if boltzmann is None else float(boltzmann.max()))
    below.set(xlabel="position $x$", ylabel="density of $x$", ylim=(0.0, 1.5 * tallest))
    tidy(below)
    moving = [*above.images, *above.collections, *above.spines.values(), above.title, *below.lines]

    def show(index: int) -> None:
        image.set_data((densities[index] / densities[index].max()).T)
        line.set_ydata(in_x[index])
        above.set_title(steps_title(times[index]))

    record_frames(path, figure, moving, show, len(times), frames_per_second, progress)


def small_multiples(count: int, title: str, key: str) -> Sequence[Axes]:
    """Return the axes of a new figure, three to a row, with a title and a line below it that explains them all."""
    columns = min(3, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(0.6 + 3.0 * columns, 0.9 + 2.5 * rows), layout="constrained")
    grid_of_axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for unused in list(grid_of_axes.flat)[count:]:
        unused.remove()
    figure.suptitle(f"{title}\n", fontsize=12)
    figure.text(0.5, 0.935 if rows > 1 else 0.88, key, ha="center", fontsize=8.5, color=GREY)
    return list(grid_of_axes.flat)[:count]


def record_frames(
    path: str | Path,
    figure: Figure,
    moving: Sequence[Artist],
    show: Callable[[int], None],
    count: int,
    frames_per_second: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Write a GIF of ``count`` frames, ``show`` setting the data of one.

    Only ``moving``, what changes and what lies above it, is drawn anew for each frame: four times quicker.
    """
    canvas = FigureCanvasAgg(figure)
    for artist in moving:
        artist.set_animated(True)
    canvas.draw()
    still = canvas.copy_from_bbox(figure.bbox)
    frames = []
    for index in range(count):
        show(index)
        canvas.restore_region(still)
        for artist in moving:
            figure.draw_artist(artist)
        frames.append(Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB"))
        if progress is not None:
            progress(index + 1, count)
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=round(1000 / frames_per_second), loop=0)


def steps_title(time: Any) -> str:
    """Return the title of a frame: a number of steps without needless digits."""
    return f"after {ticker.StrMethodFormatter('{x:,.0f}')(time)} steps"


def _draw_density(ax: Axes, density: Array, grid: PhaseSpace) -> None:
    # A root brings out the tails, which is where barriers are crossed.
    ax.imshow(
        (density / density.max()).T,
        extent=(*grid.x_bounds, *grid.v_bounds),
        origin="lower",
        aspect="auto",
        cmap=SHADES,
        norm=PowerNorm(0.5, 0.0, 1.0),
        interpolation="bilinear",
    )


def _crop(ax: Axes, grid: PhaseSpace, energy: Array, densities: Array) -> None:
    """Look where equilibrium or one of the densities can be seen; meshes reach much further."""
    peaks = densities.max(axis=(1, 2), keepdims=True)
    seen = (energy <= _VIEW) | np.any(densities > 0.005 * peaks, axis=0)
    rows, columns = np.flatnonzero(seen.any(axis=1)), np.flatnonzero(seen.any(axis=0))
    ax.set_xlim(grid.x_edges[rows[0]], grid.x_edges[rows[-1] + 1])
    ax.set_ylim(grid.v_edges[columns[0]], grid.v_edges[columns[-1] + 1])
