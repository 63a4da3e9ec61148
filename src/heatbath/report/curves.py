"""Panels of groups of runs: curves with a band over seeds, and means with their intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from heatbath.report.panels import Panel, Series
from heatbath.runs.records import Record
from heatbath.stats.intervals import summarize

FEW = 5  # runs, of which the t interval is wider than all of them lie apart, and hides the curves


def curves_panel(
    groups: Mapping[str, Sequence[Record]],
    metric: str,
    *,
    title: str = "",
    log: bool = False,
    few: int = 0,
    colours: Sequence[int] = (),
    note: str = "",
) -> Panel:
    """Return a metric of groups of runs over the epochs. Runs that diverged are in no mean, and told.

    Args:
        groups: runs by the name of the legend.
        metric: such as ``"test_accuracy"``.
        title: of the panel; by default the metric.
        log: whether the axis is logarithmic; the means are geometric then.
        few: where a group has so many runs or fewer, the bands of all reach from the lowest run to the highest.
        colours: of the groups; by default one after the other.
        note: instead of one that tells of means, bands and numbers of runs.

    Raises:
        ValueError: no run has the metric.
    """
    runs = {name: [record for record in members if _is_sound(record)] for name, members in groups.items()}
    known = dict.fromkeys(name for members in runs.values() for record in members for name in record.curves)
    if known and metric not in known:
        raise ValueError(f"no run has a metric {metric!r}: choose one of {', '.join(known)}")
    by_range = any(0 < len(members) <= few for members in runs.values())
    series = []
    for (name, members), colour in zip(runs.items(), colours or range(len(runs)), strict=True):
        curves = [record.curve(metric) for record in members if metric in record.curves]
        if curves:
            points = [[c[at] for c in curves if at < len(c)] for at in range(max(map(len, curves)))]
            epochs = tuple(float(k + 1) for k in range(len(points)))
            band = with_band(name, epochs, points, colour, log=log)
            if by_range and len(curves) > 1:
                band = replace(band, low=tuple(map(min, points)), high=tuple(map(max, points)))
            series.append(_within_0_and_1(band) if metric.endswith("accuracy") else band)
    if not note:
        reach = "the bands reach from the lowest run to the highest" if by_range else "the bands are 95 % intervals"
        note = f"Means over the runs; {reach}. " + "; ".join(f"{name}: {len(some)} runs" for name, some in runs.items())
        diverged = sum(record.status == "diverged" for members in groups.values() for record in members)
        note += f". {diverged} diverged, and are in no mean." if diverged else "."
    words = metric.replace("_", " ")
    return Panel(title or words.capitalize(), "epochs", words, tuple(series), y_log=log, note=note)


def means_panel(groups: Mapping[str, Sequence[float]], axis: str, title: str, colours: Sequence[int] = ()) -> Panel:
    """Return the mean of each group, with its 95 % t interval; the note has spreads and numbers of runs."""
    series, spreads = [], []
    for (name, values), colour in zip(groups.items(), colours or range(len(groups)), strict=True):
        if values:
            low, mean, high = mean_with_interval(values)
            series.append(Series(name, (name,), (mean,), (low,), (high,), style="points", colour=colour))
            spread = f"{summarize(values).sd:.2g}, {len(values)} runs" if len(values) > 1 else "one run"
            spreads.append(f"{name}: {spread}")
    note = "Mean and its 95 % interval. Standard deviations between runs: " + "; ".join(spreads) + "."
    return Panel(title, "", axis, tuple(series), note=note if spreads else "No runs yet.")


def with_band(
    name: str,
    x: tuple[float, ...] | tuple[str, ...],
    points: Sequence[Sequence[float]],
    colour: int,
    *,
    log: bool = False,
) -> Series:
    """Return means of the points at each x with their 95 % intervals, geometric ones for a logarithmic axis."""
    bounds = [mean_with_interval(values, log=log) for values in points]
    low, mean, high = (tuple(column) for column in zip(*bounds, strict=True)) if bounds else ((), (), ())
    return Series(name, x, mean, low, high, colour=colour)


def mean_with_interval(values: Sequence[float], *, log: bool = False) -> tuple[float | None, float, float | None]:
    """Return the lower end of the 95 % interval, the mean and the upper end; no ends of a single value."""
    if log:
        bounds = mean_with_interval([math.log(max(value, 1e-300)) for value in values])
        low, mean, high = (None if bound is None else math.exp(min(bound, 700.0)) for bound in bounds)
        return low, mean or 0.0, high
    if len(values) == 1:
        return None, float(values[0]), None
    interval = summarize(values).interval
    return interval.low, interval.estimate, interval.high


def _is_sound(record: Record) -> bool:
    return record.status != "diverged" and bool(record.epochs)


def _within_0_and_1(series: Series) -> Series:
    """With no band beyond what an accuracy can be: the interval of few runs of which one falls out may be wide."""
    low, high = (
        tuple(None if value is None else min(max(value, 0.0), 1.0) for value in bound or ())
        for bound in (series.low, series.high)
    )
    return replace(series, low=low, high=high)
