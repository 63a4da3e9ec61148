"""Figures as the paper prints them, from their data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter
from matplotlib.transforms import Transform

from heatbath.report.curves import curves_panel
from heatbath.report.panels import FigureData, Panel, Series
from heatbath.report.plots.style import COLOURS, GREY, new_axis, tidy
from heatbath.runs.records import Record

# Ten hues, but seven dashes and marks: past the last hue each comes again with another dash.
_GAPS = ((5, 2), (1.5, 1.5), (6, 2, 1.5, 2), (9, 3), (4, 1.5, 1, 1.5), (3, 3))
_DASHES: tuple[Any, ...] = ("-", *((0, gaps) for gaps in _GAPS))
_COLUMNS = 5
_BAND = 60  # points of a band at most, which halves the file of a figure and is not seen
_FEW = 5  # values of x that have a label each
_MARKS = ("o", "s", "^", "D", "v", "P", "X")


def plot_figure(figure: FigureData) -> Figure:
    """Draw a figure as the paper prints it: its panels in rows of up to five, with one legend below them."""
    count = len(figure.panels)
    rows = -(-count // _COLUMNS) or 1
    across = -(-count // rows)
    page = Figure(figsize=(max(5.0, 3.6 * across), 3.7 * rows), layout="constrained")
    page.suptitle(_plain(figure.title, max(50, 36 * across)))
    if not count:
        page.text(0.5, 0.5, "There is nothing to draw yet.", ha="center", color=GREY)
        return page
    legend = {_plain(series.name): _key(figure, series) for panel in figure.panels for series in panel.series}
    axes = page.subplots(rows, across, squeeze=False).flat
    for ax in axes[count:]:
        ax.remove()
    for panel, ax in zip(figure.panels, axes[:count], strict=True):
        plot_panel(panel, ax)
    if legend:
        longest = max(len(line) for name in legend for line in name.splitlines())
        lines = -(-len(legend) // max(1, int(page.get_figwidth() / (0.8 + 0.075 * longest))))
        page.set_figheight(3.4 * rows + 0.2 * lines * max(name.count("\n") + 1 for name in legend))
        look: dict[str, Any] = {"ncols": -(-len(legend) // lines), "fontsize": 9, "handlelength": 3.2}
        page.legend(legend.values(), legend.keys(), loc="outside lower center", frameon=False, **look)
    page.get_layout_engine().execute(page)  # type: ignore[union-attr]
    page.set_layout_engine("none")  # one layout for all formats: quicker, and they agree
    for ax in page.axes:
        for drawn in (*ax.lines, *ax.collections):
            if drawn.get_transform() == ax.transData:
                drawn.set_transform(ax.transData + _Rounded())
    return page


class _Rounded(Transform):
    """Places in hundredths of a point: nobody sees more, and a PDF of curves takes a third fewer bytes."""

    input_dims = output_dims = 2

    def transform_non_affine(self, values: Any) -> Any:
        return np.round(values, 2)


def plot_panel(panel: Panel, ax: Axes | None = None) -> Axes:
    """Draw one panel: curves with bands, points with whiskers, side by side where they share a category."""
    ax = new_axis(ax, (4.5, 3.6))
    every = [x for series in panel.series for x in series.x]
    categories = list(dict.fromkeys(map(str, every))) if any(isinstance(x, str) for x in every) else []
    places = sorted({float(x) for x in every}) if not categories else []
    # Near zero an interval can reach many decades down; it is cut where it says no more.
    floor = 0.3 * min((y for series in panel.series for y in series.y if y and y > 0.0), default=1.0)
    beside = [series for series in panel.series if categories and series.style == "points"]
    for series in panel.series:
        sharing = [[other for other in beside if x in other.x] if series in beside else [series] for x in series.x]
        widths = np.array([0.8 / len(others) for others in sharing])
        shifts = [others.index(series) - 0.5 * (len(others) - 1) for others in sharing]
        x = np.array([categories.index(str(x)) if categories else x for x in series.x], float) + shifts * widths
        y, low, high = (
            np.array([np.nan if value is None else value for value in values], float)
            for values in (series.y, series.low or series.y, series.high or series.y)
        )
        if panel.y_log:
            y[y <= 0.0] = np.nan
            low = np.maximum(low, floor)
        colour, name = COLOURS[series.colour % len(COLOURS)], _plain(series.name)
        whiskers = np.abs([y - low, high - y]) if series.low and series.high else None
        if series.style == "line":
            ax.plot(x, y, color=colour, linestyle=_DASHES[series.colour % len(_DASHES)], linewidth=1.3, label=name)
            seen = np.concatenate([[False], np.isfinite(y), [False]])
            alone = seen[1:-1] & ~seen[:-2] & ~seen[2:]  # between gaps, where no line shows it
            ax.plot(x[alone], y[alone], ".", color=colour)
            if whiskers is not None:
                seen = np.unique(np.linspace(0, len(x) - 1, min(len(x), _BAND)).astype(int))
                ax.fill_between(x[seen], low[seen], high[seen], color=colour, alpha=0.17, linewidth=0)
        else:
            mark = _MARKS[series.colour % len(_MARKS)]
            ax.errorbar(x, y, whiskers, fmt=mark, color=colour, markersize=4.5, capsize=2, elinewidth=1.0, label=name)
    if not _values(panel):
        ax.text(0.5, 0.5, "No data yet", transform=ax.transAxes, ha="center", color=GREY)
    ax.set(xlabel=_plain(panel.x_label), ylabel=_plain(panel.y_label))
    ax.set(xscale="log" if panel.x_log else "linear", yscale="log" if panel.y_log else "linear")
    if panel.x_log:
        ax.xaxis.set_minor_formatter(NullFormatter())  # within a decade its labels would run into each other
        if len(places) <= _FEW:
            ax.set_xticks(places, [f"{x:g}" for x in places])
    if panel.y_log:
        ax.set_ylim(bottom=max(floor, ax.get_ylim()[0]))
    ax.set_title(_plain(panel.title), fontsize=10)
    if categories:
        crowded = sum(map(len, categories)) > 40
        turned: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
        width = 30 if crowded else 20  # where labels are turned, a second line would run into the next one
        ax.set_xticks(range(len(categories)), [_plain(name, width) for name in categories], fontsize=8, **turned)
        ax.set_xlim(-0.5, len(categories) - 0.5)
    return tidy(ax)


def plot_curves(groups: Mapping[str, Sequence[Record]], metric: str, ax: Axes | None = None) -> Axes:
    """Draw a metric of groups of runs over the epochs, with a legend; return the axes."""
    drawn = plot_panel(curves_panel(groups, metric), ax)
    if len(groups) > 1:
        drawn.legend(fontsize=8)
    return drawn


def write_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure as ``.svg``, ``.png`` or ``.pdf``; the same figure gives the same bytes."""
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with rc_context({"svg.hashsalt": "heatbath", "pdf.fonttype": 42}):
        figure.savefig(path, dpi=200, metadata=undated.get(Path(path).suffix))


def _key(figure: FigureData, series: Series) -> Line2D:
    """What the legend shows of a name: all that its series are drawn as."""
    styles = {one.style for panel in figure.panels for one in panel.series if one.name == series.name}
    colour = COLOURS[series.colour % len(COLOURS)]
    dash: Any = _DASHES[series.colour % len(_DASHES)] if "line" in styles else "none"
    mark = _MARKS[series.colour % len(_MARKS)] if "points" in styles else "none"
    return Line2D([], [], color=colour, linestyle=dash, linewidth=1.3, marker=mark, markersize=4.5)


def _values(panel: Panel) -> list[float]:
    columns = [values for series in panel.series for values in (series.y, series.low or (), series.high or ())]
    return [value for values in columns for value in values if value is not None and np.isfinite(value)]


def _plain(text: str, width: int = 40) -> str:
    """Figures as data hold no formulas, so a dollar is a dollar; a long text gets two lines, and no more."""
    return fill(text, width, max_lines=2, placeholder=" …").replace("$", r"\$")
