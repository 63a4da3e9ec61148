"""Curves of groups of runs: means over seeds with their 95 % intervals, epoch by epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from heatbath.report.panels import Panel, Series
from heatbath.runs.records import Record
from heatbath.stats.intervals import summarize


def curves_panel(groups: Mapping[str, Sequence[Record]], metric: str) -> Panel:
    """Return a metric of groups of runs over the epochs. Runs that diverged are in no mean, and told.

    Raises:
        ValueError: no run has the metric.
    """
    known = dict.fromkeys(name for members in groups.values() for record in members for name in record.curves)
    if metric not in known:
        raise ValueError(f"no run has a metric {metric!r}: choose one of {', '.join(known)}")
    series = tuple(_curve(name, members, metric, colour) for colour, (name, members) in enumerate(groups.items()))
    diverged = sum(record.status == "diverged" for members in groups.values() for record in members)
    counts = "; ".join(f"{name}: {len(_sound(members))} runs" for name, members in groups.items())
    note = f"Means and their 95 % intervals. {counts}."
    note += f" {diverged} diverged, and are in no mean." if diverged else ""
    return Panel(metric.replace("_", " "), "epoch", metric.replace("_", " "), series, note=note)


def _curve(name: str, records: Sequence[Record], metric: str, colour: int) -> Series:
    curves = [record.curve(metric) for record in _sound(records) if metric in record.curves]
    length = max(map(len, curves), default=0)
    found = [summarize([curve[at] for curve in curves if at < len(curve)]) for at in range(length)]
    low, high = (
        tuple(end if math.isfinite(end) else one.mean for one in found for end in [getattr(one.interval, side)])
        for side in ("low", "high")
    )
    return Series(name, tuple(range(1, length + 1)), tuple(one.mean for one in found), low, high, colour=colour)


def _sound(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.status != "diverged" and record.epochs]
