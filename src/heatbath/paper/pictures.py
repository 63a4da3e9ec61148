"""Panels that several figures share: curves with a band over seeds, means by group, means over a knob."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from heatbath.paper.groups import FigureRuns, Group
from heatbath.paper.quantities import Quantity
from heatbath.report.panels import Panel, Series
from heatbath.stats.intervals import summarize

_FEW = 5  # runs, of which the t interval is wider than all of them lie apart, and hides the curves
_SHORT = {"train_loss": "train loss", "train_accuracy": "train accuracy", "test_accuracy": "test accuracy"}


def curve_panel(
    found: FigureRuns, groups: Sequence[Group], curve: str, title: str = "", *, log: bool = False, note: str = ""
) -> Panel:
    """Return the mean of a curve over the seeds of each group, with its 95 % t interval at every epoch.

    Where a group has five runs or fewer the bands of all reach from the lowest run to the highest instead. On a
    logarithmic axis the mean is the geometric one. A group's curve is as long as its shortest run.
    """
    curves = {group: [record.curve(curve) for record in found.runs(group)] for group in groups}
    few = any(0 < len(runs) <= _FEW for runs in curves.values())
    series = []
    for group, runs in curves.items():
        if runs:
            points = list(zip(*runs, strict=False))
            epochs = tuple(float(k + 1) for k in range(len(points)))
            band = _with_band(group.label, epochs, points, group.colour, log=log)
            if few and len(runs) > 1:
                band = replace(band, low=tuple(map(min, points)), high=tuple(map(max, points)))
            series.append(_within_0_and_1(band) if curve.endswith("accuracy") else band)
    name = _SHORT.get(curve, curve.replace("_", " "))
    reach = "the band reaches from the lowest run to the highest" if few else "the band is its 95 % interval"
    note = note or f"Mean over the runs; {reach}."
    return Panel(title or name.capitalize(), "epochs", name, tuple(series), y_log=log, note=note)


def summed_rate_panel(found: FigureRuns, groups: Sequence[Group], curve: str, note: str, *, log: bool = False) -> Panel:
    """Return the curves over the summed rate, the time of the gradient flow, instead of epochs."""
    panel = curve_panel(found, groups, curve, f"{_SHORT[curve].capitalize()} over the summed rate", log=log, note=note)
    sums = {group.label: _summed_rate(found, group) for group in groups}
    series = tuple(replace(one, x=sums[one.name]) for one in panel.series)
    return replace(panel, series=series, x_label="summed rate: sum of lr / (1 - mu)")


def group_panel(found: FigureRuns, groups: Sequence[Group], quantity: Quantity, title: str = "") -> Panel:
    """Return the mean of a quantity for each group, with its 95 % t interval; the note has spreads and numbers of runs.

    Args:
        found: the runs.
        groups: in the order of the axis.
        quantity: what to show; its title follows that of the panel.
        title: of the panel, as a rule the part of the figure.
    """
    series, spreads = [], []
    for group in groups:
        values = found.values(group, quantity)
        if values:
            low, mean, high = _mean_with_interval(values)
            series.append(
                Series(group.label, (group.label,), (mean,), (low,), (high,), style="points", colour=group.colour)
            )
            spread = f"{summarize(values).sd:.2g}, {len(values)} runs" if len(values) > 1 else "one run"
            spreads.append(f"{group.label}: {spread}")
    note = "Mean and its 95 % interval. Standard deviations between runs: " + "; ".join(spreads) + "."
    title = f"{title}: {quantity.title}" if title else quantity.title.capitalize()
    return Panel(title, "", quantity.axis, tuple(series), note=note if spreads else "No runs yet.")


def scan(
    found: FigureRuns, groups: Sequence[Group], knob: Sequence[float], quantity: Quantity, name: str, colour: int
) -> Series:
    """Return the mean of a quantity over a knob that has one value for each group, with its 95 % interval."""
    points = [(x, values) for x, g in zip(knob, groups, strict=True) if (values := found.values(g, quantity))]
    return _with_band(name, tuple(x for x, _ in points), [values for _, values in points], colour)


def level(found: FigureRuns, group: Group, quantity: Quantity, ends: tuple[float, float]) -> list[Series]:
    """Return the mean of a quantity of one group as a level across a panel, with its 95 % interval."""
    values = found.values(group, quantity)
    return [_with_band(group.label, ends, [values, values], group.colour)] if values else []


def _summed_rate(found: FigureRuns, group: Group) -> tuple[float, ...]:
    """The sum of lr / (1 - mu) over the steps up to each epoch, in the mean over the runs."""
    pace = group.config.steps_per_epoch / (1.0 - group.config.momentum)
    rates = zip(*(record.curve("rate") for record in found.runs(group)), strict=False)
    return tuple(accumulate(pace * math.fsum(epoch) / len(epoch) for epoch in rates))


def _with_band(
    name: str, x: tuple[float, ...], points: Sequence[Sequence[float]], colour: int, *, log: bool = False
) -> Series:
    bounds = [_mean_with_interval(values, log=log) for values in points]
    low, mean, high = (tuple(column) for column in zip(*bounds, strict=True)) if bounds else ((), (), ())
    return Series(name, x, mean, low, high, colour=colour)


def _within_0_and_1(series: Series) -> Series:
    """With no band beyond what an accuracy can be: the interval of few runs of which one falls out may be wide."""
    low, high = (
        tuple(None if value is None else min(max(value, 0.0), 1.0) for value in bound or ())
        for bound in (series.low, series.high)
    )
    return replace(series, low=low, high=high)


def _mean_with_interval(values: Sequence[float], *, log: bool = False) -> tuple[float | None, float, float | None]:
    if log:
        bounds = _mean_with_interval([math.log(max(value, 1e-300)) for value in values])
        low, mean, high = (None if bound is None else math.exp(min(bound, 700.0)) for bound in bounds)
        return low, mean or 0.0, high
    if len(values) == 1:
        return None, float(values[0]), None
    interval = summarize(values).interval
    return interval.low, interval.estimate, interval.high
