"""Figures: the one place that imports Matplotlib.

A ``plot_*`` function takes data and an optional axis, draws there or on a new figure, and returns the axis; it keeps no
state and touches no global one. The caller saves: ``axis.figure.savefig("name.png")``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps, ticker
from matplotlib.animation import PillowWriter
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure

from heatbath.theory.landscapes import Array
from heatbath.theory.phase_space import PhaseSpace, marginals

# Okabe and Ito's colours, told apart by readers with any colour vision.
BLUE, ORANGE, GREEN, PURPLE, SKY, RED = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"
GREY = "#666666"
_LEVELS = (0.5, 1.0, 2.0, 4.0, 8.0)
_VIEW = 12.0  # the energy up to which there is something to see
_SHADES = LinearSegmentedColormap.from_list(
    "white to blue", ["#ffffff", *colormaps["GnBu"](np.linspace(0.15, 1.0, 12))]
)
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
    ax = _axis(ax, (5.0, 4.0))
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
        columns = min(3, len(times))
        rows = -(-len(times) // columns)
        figure = Figure(figsize=(0.6 + 3.0 * columns, 0.9 + 2.5 * rows), layout="constrained")
        grid_of_axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        axes = list(grid_of_axes.flat)[: len(times)]
        for unused in list(grid_of_axes.flat)[len(times) :]:
            unused.remove()
        figure.suptitle(f"{title}\n", fontsize=12)
        figure.text(0.5, 0.935 if rows > 1 else 0.88, _KEY, ha="center", fontsize=8.5, color=GREY)
    for density, time, ax in zip(densities, times, axes, strict=True):
        plot_phase_space(density, grid, ax, energy=energy, title=_at(time))
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
    ax = _axis(ax, (7.5, 3.6))
    for index, path in enumerate(positions.T):
        colour = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED)[index % 6]
        ax.plot(times, path, color=colour, linewidth=0.8, alpha=0.85)
    for minimum in minima:
        ax.axhline(minimum, color="black", linestyle="--", linewidth=1.0)
        ax.text(1.01, minimum, "minimum", transform=ax.get_yaxis_transform(), va="center", fontsize=9)
    ax.set(xlabel="steps of SGD", ylabel="position $x$", xlim=(times[0], times[-1]))
    ax.set_title(title)
    return _tidy(ax)


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
    ax = _axis(ax, (6.4, 4.0))
    if histogram is not None:
        edges, heights = histogram
        ax.stairs(heights, edges, fill=True, color=SKY, alpha=0.45, label="SGD, histogram")
    ax.plot(x, marginal, color=BLUE, linewidth=2.0, label="Fokker-Planck")
    ax.plot(x, boltzmann, color="black", linewidth=1.4, linestyle="--", label=r"Boltzmann, $e^{-f/T}/Z$")
    ax.set(xlabel="position $x$", ylabel="probability density of $x$", xlim=(x[0], x[-1]))
    ax.set_ylim(bottom=0.0)
    ax.set_title(title)
    ax.legend(frameon=False)
    return _tidy(ax)


def plot_measurement(
    spectra: Mapping[int, Array],
    layer_traces: Mapping[int, Mapping[str, float]],
    history: Sequence[Mapping[str, Any]],
    title: str,
) -> Figure:
    """Draw what `heatbath measure` found on one page: noise above, temperature and equilibrium below."""
    figure = Figure(figsize=(10.5, 7.5), layout="constrained")
    axes = figure.subplots(2, 2)
    figure.suptitle(title)
    plot_noise_spectra(spectra, axes[0, 0])
    plot_layer_traces(layer_traces, axes[0, 1])
    plot_temperatures(history, axes[1, 0])
    plot_equilibrium_ratio(history, axes[1, 1])
    return figure


def plot_noise_spectra(spectra: Mapping[int, Array], ax: Axes | None = None) -> Axes:
    """Draw the eigenvalues of the gradient noise ``S1``, largest first, for each epoch."""
    ax = _axis(ax, (5.0, 4.0))
    for (epoch, spectrum), colour in zip(spectra.items(), _cycle(len(spectra)), strict=True):
        seen = spectrum[spectrum > 1e-6 * spectrum.max()] if spectrum.size else spectrum
        ax.plot(np.arange(1, len(seen) + 1), seen, color=colour, label=_epoch(epoch))
    ax.set(xscale="log", yscale="log", xlabel="rank", ylabel="eigenvalue of $S_1$")
    ax.set_title("Spectrum of the gradient noise")
    ax.legend(frameon=False)
    return _tidy(ax)


def plot_layer_traces(layer_traces: Mapping[int, Mapping[str, float]], ax: Axes | None = None) -> Axes:
    """Draw each parameter's share of the noise, ``tr S1``, side by side for each epoch."""
    ax = _axis(ax, (5.0, 4.0))
    names = list(next(iter(layer_traces.values()), {}))
    height = 0.8 / max(len(layer_traces), 1)
    for i, ((epoch, traces), colour) in enumerate(zip(layer_traces.items(), _cycle(len(layer_traces)), strict=True)):
        places = np.arange(len(names)) + (i - 0.5 * (len(layer_traces) - 1)) * height
        ax.barh(places, [traces[name] for name in names], height, color=colour, label=_epoch(epoch))
    ax.set_yticks(np.arange(len(names)), names, fontsize=9 if len(names) < 16 else 6)
    ax.invert_yaxis()
    ax.set(xscale="log", xlabel=r"trace of $S_1$")
    ax.set_title("Where the noise is")
    return _tidy(ax)


def plot_temperatures(history: Sequence[Mapping[str, Any]], ax: Axes | None = None) -> Axes:
    """Draw the temperature by the formula and that of the velocity over the steps of a training."""
    ax = _axis(ax, (5.0, 4.0))
    labels = {"temperature": "from the gradient noise", "kinetic_temperature": "from the velocity"}
    for (key, label), colour in zip(labels.items(), (BLUE, ORANGE), strict=True):
        points = [(row["step"], row[key]) for row in history if row[key] is not None and row[key] > 0]
        if points:
            ax.plot(*zip(*points, strict=True), color=colour, label=label, linewidth=1.3)
    ax.set(yscale="log", xlabel="steps", ylabel="temperature $T$ per direction")
    ax.set_title("Temperature along the training")
    ax.legend(frameon=False)
    return _tidy(ax)


def plot_equilibrium_ratio(history: Sequence[Mapping[str, Any]], ax: Axes | None = None) -> Axes:
    """Draw dissipation over fluctuation with its interval; 1 is a stationary state."""
    ax = _axis(ax, (5.0, 4.0))
    rows = [row for row in history if row["equilibrium_ratio"] is not None and row["equilibrium_low"] is not None]
    steps = [row["step"] for row in rows]
    low, high = ([row[key] for row in rows] for key in ("equilibrium_low", "equilibrium_high"))
    ax.axhline(1.0, color="black", linestyle="--", linewidth=1.0)
    if rows:
        ratios = [row["equilibrium_ratio"] for row in rows]
        ax.fill_between(steps, low, high, color=SKY, alpha=0.35, linewidth=0, label="95 % interval")
        ax.plot(steps, ratios, color=BLUE, linewidth=1.3, label="dissipation / fluctuation")
        late = np.array(ratios[len(ratios) // 3 :])
        ax.set_ylim(min(0.0, float(late.min())) - 0.1, max(2.0, 1.2 * float(late.max())))
        ax.legend(frameon=False)
    ax.set(xlabel="steps", ylabel="equilibrium ratio")
    ax.set_title("Is it at equilibrium? (1 = yes)")
    return _tidy(ax)


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
    figure = Figure(figsize=(4.8, 5.4), layout="constrained")
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
    _tidy(below)
    figure.get_layout_engine().execute(figure)  # type: ignore[union-attr]
    figure.set_layout_engine("none")  # one layout for all frames: quicker, and nothing jumps
    writer = PillowWriter(fps=frames_per_second)
    with writer.saving(figure, str(path), dpi=90):
        for index, (density, time) in enumerate(zip(densities, times, strict=True)):
            image.set_data((density / density.max()).T)
            line.set_ydata(in_x[index])
            above.set_title(_at(time))
            writer.grab_frame()
            if progress is not None:
                progress(index + 1, len(times))


def _draw_density(ax: Axes, density: Array, grid: PhaseSpace) -> None:
    # A root brings out the tails, which is where barriers are crossed.
    ax.imshow(
        (density / density.max()).T,
        extent=(*grid.x_bounds, *grid.v_bounds),
        origin="lower",
        aspect="auto",
        cmap=_SHADES,
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


def _axis(ax: Axes | None, size: tuple[float, float]) -> Axes:
    return ax if ax is not None else Figure(figsize=size, layout="constrained").subplots()


def _cycle(count: int) -> Array:
    """Colours for a sequence in time, from light to dark."""
    return np.asarray(colormaps["viridis"](np.linspace(0.85, 0.1, max(count, 1))))[:count]


def _epoch(epoch: int) -> str:
    return "before training" if epoch == 0 else f"after epoch {epoch}"


def _tidy(ax: Axes) -> Axes:
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _at(time: Any) -> str:
    """The title of a frame: a number of steps without needless digits."""
    return f"after {ticker.StrMethodFormatter('{x:,.0f}')(time)} steps"
