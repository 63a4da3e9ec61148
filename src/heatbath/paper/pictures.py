"""Panels that several figures share: curves with a band over seeds, means by group, means over a knob."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TypeVar

from heatbath.paper.groups import FigureRuns, Group
from heatbath.paper.quantities import Quantity
from heatbath.report.curves import FEW, curves_panel, means_panel, with_band
from heatbath.report.panels import Panel, Series

_X = TypeVar("_X", str, float)


def curve_panel(
    found: FigureRuns, groups: Sequence[Group], curve: str, part: str = "", *, note: str = "", title: str = ""
) -> Panel:
    """Return the mean of a curve over the seeds of each group, with a band; see `heatbath.report.curves`."""
    runs, colours = {group.label: found.runs(group) for group in groups}, [group.colour for group in groups]
    few = any(0 < len(some) <= FEW for some in runs.values())
    reach = "the band reaches from the lowest run to the highest" if few else "the band is its 95 % interval"
    title = title or (f"{part}: {curve.replace('_', ' ')}" if part else "")
    note = note or f"Mean over the runs; {reach}."
    return curves_panel(runs, curve, title=title, log=curve.endswith("loss"), few=FEW, colours=colours, note=note)


def summed_rate_panel(found: FigureRuns, groups: Sequence[Group], curve: str, note: str) -> Panel:
    """Return the curves over the summed rate, the time of the gradient flow, instead of epochs."""
    title = f"{curve.replace('_', ' ').capitalize()} over the summed rate"
    panel = curve_panel(found, groups, curve, title=title, note=note)
    sums = {group.label: _summed_rate(found, group) for group in groups}
    series = tuple(replace(one, x=sums[one.name]) for one in panel.series)
    return replace(panel, series=series, x_label="summed rate: sum of lr / (1 - mu)")


def group_panel(found: FigureRuns, groups: Sequence[Group], quantity: Quantity, part: str = "") -> Panel:
    """Return the mean of a quantity for each group, with its 95 % t interval; the note has spreads and numbers of runs.

    The groups are in the order of the axis; the title has the part of the figure.
    """
    title = f"{part}: {quantity.title}" if part else quantity.title.capitalize()
    values = {group.label: found.values(group, quantity) for group in groups}
    return means_panel(values, quantity.axis, title, [group.colour for group in groups])


def overview(found: FigureRuns, quantity: Quantity) -> list[Panel]:
    """Return, of each part, training loss and test accuracy over the epochs, and the means of a quantity."""
    return [
        panel
        for part in found.parts
        for groups in (found.part(part),)
        for panel in (
            curve_panel(found, groups, "train_loss", part),
            curve_panel(found, groups, "test_accuracy", part),
            group_panel(found, groups, quantity, part),
        )
    ]


def scan(
    found: FigureRuns, groups: Sequence[Group], knob: Sequence[float], quantity: Quantity, name: str, colour: int
) -> Series:
    """Return the mean of a quantity over a knob that has one value for each group, with its 95 % interval."""
    points = [(x, values) for x, g in zip(knob, groups, strict=True) if (values := found.values(g, quantity))]
    return with_band(name, tuple(x for x, _ in points), [values for _, values in points], colour)


def mean_points(name: str, values: Mapping[_X, Sequence[float]], colour: int) -> Series:
    """Return the mean of each category, or at each x, with its 95 % interval, as points."""
    return replace(with_band(name, tuple(values), list(values.values()), colour), style="points")


def _summed_rate(found: FigureRuns, group: Group) -> tuple[float, ...]:
    """The sum of lr / (1 - mu) over the steps up to each epoch, in the mean over the runs."""
    pace = group.config.steps_per_epoch / (1.0 - group.config.momentum)
    rates = zip(*(record.curve("rate") for record in found.runs(group)), strict=False)
    return tuple(accumulate(pace * math.fsum(epoch) / len(epoch) for epoch in rates))
