"""Pictures of what `heatbath measure` finds: noise, temperature and equilibrium."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from heatbath.report.plots.style import BLUE, ORANGE, SKY, new_axis, tidy
from heatbath.theory.landscapes import Array


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
    ax = new_axis(ax, (5.0, 4.0))
    for (epoch, spectrum), colour in zip(spectra.items(), _cycle(len(spectra)), strict=True):
        seen = spectrum[spectrum > 1e-6 * spectrum.max()] if spectrum.size else spectrum
        ax.plot(np.arange(1, len(seen) + 1), seen, color=colour, label=_epoch(epoch))
    labels = {"xlabel": "rank", "ylabel": "eigenvalue of $S_1$"}
    return tidy(ax, "Spectrum of the gradient noise", legend=True, xscale="log", yscale="log", **labels)


def plot_layer_traces(layer_traces: Mapping[int, Mapping[str, float]], ax: Axes | None = None) -> Axes:
    """Draw each parameter's share of the noise, ``tr S1``, side by side for each epoch."""
    ax = new_axis(ax, (5.0, 4.0))
    names = list(next(iter(layer_traces.values()), {}))
    height = 0.8 / max(len(layer_traces), 1)
    for i, ((epoch, traces), colour) in enumerate(zip(layer_traces.items(), _cycle(len(layer_traces)), strict=True)):
        places = np.arange(len(names)) + (i - 0.5 * (len(layer_traces) - 1)) * height
        ax.barh(places, [traces[name] for name in names], height, color=colour, label=_epoch(epoch))
    ax.set_yticks(np.arange(len(names)), names, fontsize=9 if len(names) < 16 else 6)
    ax.invert_yaxis()
    return tidy(ax, "Where the noise is", xscale="log", xlabel=r"trace of $S_1$")


def plot_temperatures(history: Sequence[Mapping[str, Any]], ax: Axes | None = None) -> Axes:
    """Draw the temperature by the formula and that of the velocity over the steps of a training."""
    ax = new_axis(ax, (5.0, 4.0))
    labels = {"temperature": "from the gradient noise", "kinetic_temperature": "from the velocity"}
    for (key, label), colour in zip(labels.items(), (BLUE, ORANGE), strict=True):
        points = [(row["step"], row[key]) for row in history if (row.get(key) or 0) > 0]
        if points:
            ax.plot(*zip(*points, strict=True), color=colour, label=label, linewidth=1.3)
    axes = {"yscale": "log", "xlabel": "steps", "ylabel": "temperature $T$ per direction"}
    return tidy(ax, "Temperature along the training", legend=True, **axes)


def plot_noise_scale(history: Sequence[Mapping[str, Any]], ax: Axes | None = None) -> Axes:
    """Draw the noise scale, the critical batch size, with its interval over the steps of a training."""
    ax = new_axis(ax, (5.0, 4.0))
    rows = [row for row in history if row.get("noise_scale") is not None]
    steps = [row["step"] for row in rows]
    low, high = ([row[f"noise_scale_{end}"] or math.nan for row in rows] for end in ("low", "high"))
    ax.fill_between(steps, low, high, color=SKY, alpha=0.35, linewidth=0, label="95 % interval")
    ax.plot(steps, [row["noise_scale"] for row in rows], color=BLUE, linewidth=1.3, label="noise scale")
    axes = {"yscale": "log", "xlabel": "steps", "ylabel": "noise scale in samples"}
    return tidy(ax, "Critical batch size along the training", legend=True, **axes)


def plot_equilibrium_ratio(history: Sequence[Mapping[str, Any]], ax: Axes | None = None) -> Axes:
    """Draw dissipation over fluctuation with its interval; 1 is a stationary state."""
    ax = new_axis(ax, (5.0, 4.0))
    rows = [row for row in history if None not in (row.get("equilibrium_ratio"), row.get("equilibrium_low"))]
    steps = [row["step"] for row in rows]
    low, high = ([row[key] for row in rows] for key in ("equilibrium_low", "equilibrium_high"))
    ax.axhline(1.0, color="black", linestyle="--", linewidth=1.0)
    if rows:
        ratios = [row["equilibrium_ratio"] for row in rows]
        ax.fill_between(steps, low, high, color=SKY, alpha=0.35, linewidth=0, label="95 % interval")
        ax.plot(steps, ratios, color=BLUE, linewidth=1.3, label="dissipation / fluctuation")
        # The first intervals are too wide to show; the last one is the answer, and shown whole.
        shown = np.array([*ratios[len(ratios) // 3 :], low[-1], high[-1]])
        ax.set_ylim(min(0.0, 1.1 * float(shown.min())) - 0.1, max(2.0, 1.1 * float(shown.max())))
    return tidy(ax, "Is it at equilibrium? (1 = yes)", legend=bool(rows), xlabel="steps", ylabel="equilibrium ratio")


def _cycle(count: int) -> Array:
    """Colours for a sequence in time, from light to dark."""
    return np.asarray(colormaps["viridis"](np.linspace(0.85, 0.1, max(count, 1))))[:count]


def _epoch(epoch: int) -> str:
    return "before training" if epoch == 0 else f"after epoch {epoch}"
