"""The temperature at equal summed rate: found in the grid of the collapse after its runs had been looked at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate

import numpy as np

from heatbath.paper.claims import above
from heatbath.paper.experiments import Experiment
from heatbath.paper.groups import FigureRuns, Group, Scale, grid_groups
from heatbath.paper.pictures import scan
from heatbath.paper.quantities import Quantity
from heatbath.report.panels import Panel
from heatbath.runs.records import Record
from heatbath.stats.verdicts import Judgeable

SUMS = (10.0, 100.0, 1000.0)
_AXIS = "temperature T, in units of the gradient's variance"
_EPOCHS = 3  # that a run takes to a sum, or more, for the curve between epochs to say what it is there


def _groups(scale: Scale) -> Sequence[Group]:
    return grid_groups(scale) if scale == "paper" else ()


def _later_claims(found: FigureRuns) -> list[Judgeable]:
    claims = []
    for summed in SUMS:
        at = f"At a summed rate of {summed:g}"
        rises = f"{at} the training loss grows with the temperature: the slope of its logarithm over log2 T"
        falls = f"{at} the test accuracy falls with the temperature: minus its slope over log2 T"
        claims.append(above(rises, slopes(found, summed, "train_loss"), 0.0))
        claims.append(above(falls, [-slope for slope in slopes(found, summed, "test_accuracy")], 0.0))
    return claims


def _panels(found: FigureRuns) -> list[Panel]:
    panels = []
    note = "Means over 20 runs and their 95 % intervals, of the groups that pass this sum after three epochs or more."
    for curve, name in (("train_loss", "train loss"), ("test_accuracy", "test accuracy")):
        series = []
        for colour, summed in enumerate(SUMS):
            groups = _reaching(found, summed)
            value = Quantity(name, partial(value_at, curve, summed), name, name)
            points = scan(found, groups, _temperatures(groups), value, f"summed rate {summed:g}", colour)
            series.append(replace(points, style="points"))
        log = curve == "train_loss"
        panels.append(Panel(name.capitalize(), _AXIS, name, tuple(series), x_log=True, y_log=log, note=note))
    return panels


def slopes(found: FigureRuns, summed: float, curve: str) -> list[float]:
    """Return for each seed the slope of a curve, of a loss its logarithm, over log2 T at a summed rate."""
    groups = _reaching(found, summed)
    value = Quantity(curve, partial(value_at, curve, summed), curve, curve)
    by_seed = [found.by_seed(group, value) for group in groups]
    seeds = set.intersection(*map(set, by_seed)) if len(groups) > 1 else set()
    x = np.log2(_temperatures(groups))
    scale = math.log if curve.endswith("loss") else float
    return [float(np.polyfit(x, [scale(values[seed]) for values in by_seed], 1)[0]) for seed in sorted(seeds)]


def value_at(curve: str, summed: float, record: Record) -> float:
    """Return a curve, of a loss by its logarithm, where the summed rate of a run is a given one.

    Between two epochs it is taken as straight over the logarithm of the sum. Over the sum itself it bends, which would
    make hot runs, of few epochs, look worse.
    """
    config = record.config
    pace = config.steps_per_epoch / (1.0 - config.momentum)
    sums, values = [pace * rate for rate in accumulate(record.curve("rate"))], record.curve(curve)
    is_loss = curve.endswith("loss")
    found = float(np.interp(math.log(summed), np.log(sums), np.log(values) if is_loss else values))
    return math.exp(found) if is_loss else found


def _reaching(found: FigureRuns, summed: float) -> list[Group]:
    """The groups with runs that come to the sum, by the mean rate, and neither at once nor at their very end."""
    groups = []
    for group in found.groups:
        config = group.config
        epochs = summed * (1.0 - config.momentum) / (config.lr * config.steps_per_epoch)
        if found.runs(group) and _EPOCHS <= epochs <= 0.98 * config.epochs:
            groups.append(group)
    return sorted(groups, key=lambda group: group.config.thermostat.temperature())


def _temperatures(groups: Sequence[Group]) -> list[float]:
    return [group.config.thermostat.temperature() for group in groups]


EXPERIMENT = Experiment(
    name="equal-sums",
    title="The temperature at equal summed rate",
    question=(
        "Over the grid of the collapse, whose runs pass one summed rate after different numbers of epochs: do hotter "
        "runs have another loss and accuracy there? Asked when the runs had been looked at."
    ),
    groups=_groups,
    claims=lambda _found: (),
    later_claims=_later_claims,
    panels=_panels,
    errata=("The paper tests its temperature at equal epochs, where it cannot be told from the summed rate.",),
    remarks=lambda _scale: {"to be kept in mind": "a hot run passes the sum after few epochs, a cold one after many"},
)
