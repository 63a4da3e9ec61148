"""Curves of groups of runs as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from heatbath.report.curves import curves_panel
from heatbath.report.plots.figures import plot_panel
from heatbath.runs.records import Record


def plot_curves(groups: Mapping[str, Sequence[Record]], metric: str, ax: Axes | None = None) -> Axes:
    """Draw a metric over the epochs, with a legend; return the axes."""
    drawn = plot_panel(curves_panel(groups, metric), ax)
    if len(groups) > 1:
        drawn.legend(fontsize=8)
    return drawn
