"""Over a grid of rates, batch sizes and momenta: does the temperature order the runs, and does it at equal summed rate?

The second was asked when the runs had been looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import accumulate

import numpy as np

from heatbath.paper.claims import Every, above
from heatbath.paper.experiments import Experiment
from heatbath.paper.groups import RANDOM, SEEDS, FigureRuns, Group, Scale, perceptron
from heatbath.paper.pictures import scan
from heatbath.paper.quantities import BEST_TEST, FINAL_TEST, Quantity
from heatbath.report.panels import Panel, Series
from heatbath.runs.records import Record
from heatbath.stats.order import OrderClaim, explained_by_chance, explained_by_order, rank_correlation
from heatbath.stats.verdicts import Judgeable

Values = tuple[tuple[float, ...], ...]
"""Of a quantity, of each run of each group."""
_EPOCHS: dict[Scale, int] = {"smoke": 2, "laptop": 15, "paper": 180}
_GRIDS: dict[Scale, tuple[tuple[float, ...], tuple[int, ...], tuple[float, ...]]] = {
    "smoke": ((5e-3, 2e-2), (64, 256), (0.5, 0.9)),
    "laptop": ((5e-3, 1e-2, 2e-2), (64, 128, 256), (0.0, 0.5, 0.9)),
    "paper": ((1.25e-3, 2.5e-3, 5e-3, 1e-2), (64, 256, 1024), (0.0, 0.5, 0.9)),
}
_STATISTIC = (
    "the share of the variance between groups of runs that the best curve with at most one turn over a knob explains "
    "(heatbath.stats.order), corrected for the noise of the seeds, with a bootstrap interval over the seeds"
)
EXPLAINED = 0.9  # of the variance, for T to decide a run
SHUFFLES, RESAMPLES = 100, 600
KNOBS: dict[str, Callable[[Group], float]] = {
    "T": lambda group: group.temperature,
    "l": lambda group: group.config.lr,
    "C": lambda group: float(group.config.batch_size),
    "1 - mu": lambda group: 1.0 - group.config.momentum,
}
_AXIS = "temperature T, in units of the gradient's variance"
_LABELS = {"T": _AXIS, "l": "mean rate l", "C": "batch size C", "1 - mu": "1 - momentum"}
SUMS = (10.0, 100.0, 1000.0)  # of rates, at which runs are compared
_EARLIEST = 3  # epochs that a run takes to a sum, or more, for the curve between epochs to say what it is there
_claim = partial(OrderClaim, resamples=RESAMPLES)


def _groups(scale: Scale) -> list[Group]:
    rates, sizes, momenta = _GRIDS[scale]
    return [
        Group(
            f"l = {lr:g}, C = {size}, mu = {momentum:g}",
            perceptron(scale, lr=lr, batch_size=size, momentum=momentum, epochs=_EPOCHS[scale]),
            SEEDS["paper"] if scale == "paper" else 2,
            RANDOM,
        )
        for lr in rates
        for size in sizes
        for momentum in momenta
    ]


def _claims(found: FigureRuns) -> list[Judgeable]:
    """That T decides, and that it leads each knob by more than its larger number of values is worth."""
    claims: list[Judgeable] = []
    knobs = _knobs(found)
    temperatures = knobs.pop("T")
    for quantity in (FINAL_TEST, BEST_TEST):
        values = _values(found, quantity)
        decides = f"The temperature decides the {quantity.name}: it explains more than {EXPLAINED:g} of the variance"
        beats = f"The temperature orders runs by {quantity.name} better than any knob alone"
        chance = _chance(temperatures, values)
        leads: dict[str, Judgeable] = {
            f"T against {name}": _claim(beats, temperatures, knob, values, chance - _chance(knob, values))
            for name, knob in knobs.items()
        }
        claims += [_claim(decides, temperatures, None, values, EXPLAINED), Every(beats, leads)]
    return claims


def _panels(found: FigureRuns) -> list[Panel]:
    panels = []
    for colour, quantity in enumerate((FINAL_TEST, BEST_TEST)):
        values = _values(found, quantity)
        means = tuple(float(np.mean(group)) for group in values)
        for name, knob in _knobs(found).items():
            points = Series(quantity.title, knob, means, style="points", colour=colour)
            title = f"{quantity.title.capitalize()} over {name}"
            note = _note(name, knob, values)
            panels.append(Panel(title, _LABELS[name], "test accuracy", (points,), x_log=True, note=note))
    return panels


def _knobs(found: FigureRuns) -> dict[str, tuple[float, ...]]:
    """The values of each knob, of the groups that have runs."""
    return {name: tuple(knob(group) for group in found.groups if found.runs(group)) for name, knob in KNOBS.items()}


def _values(found: FigureRuns, quantity: Quantity) -> Values:
    return tuple(tuple(found.values(group, quantity)) for group in found.groups if found.runs(group))


@cache  # as the claims and the notes of the panels both tell it
def _chance(knob: tuple[float, ...], values: Values) -> float:
    return explained_by_chance(knob, values, shuffles=SHUFFLES) if _tell(values) else 0.0


def _tell(values: Values) -> bool:
    """Whether there is enough to speak of an order."""
    return len(values) >= 5 and min(map(len, values)) > 1


def _note(name: str, knob: tuple[float, ...], values: Values) -> str:
    """How well a knob orders the runs, and of the temperature also in which range: its colder and its hotter half."""
    if not _tell(values):
        return "Too few runs for a collapse statistic."

    def ranks(groups: Sequence[int]) -> str:
        return str(rank_correlation([knob[k] for k in groups], [values[k] for k in groups], resamples=RESAMPLES))

    share = explained_by_order(knob, values, resamples=RESAMPLES)
    text = f"{name} explains {share} of the variance between groups, where chance would {_chance(knob, values):.2f}."
    text += f" Rank correlation {ranks(range(len(knob)))}."
    if name != "T" or len(values) < 10:
        return text
    middle = float(np.median(knob))
    cold, hot = ([k for k, value in enumerate(knob) if (value < middle) == colder] for colder in (True, False))
    return f"{text} Below T = {middle:.2g} it is {ranks(cold)}, above {ranks(hot)}."


def _remarks(scale: Scale) -> dict[str, str]:
    both = "T is proportional to the summed rate of an epoch, l N / (C (1 - mu)): after a fixed number of epochs "
    both += "either orders the runs as well as the other"
    unlike = {} if scale == "paper" else {"unlike the paper": f"{_EPOCHS[scale]} epochs of 4,000 images"}
    return {"collapse statistic": _STATISTIC, "to be kept in mind": both, **unlike}


def _claims_at_sums(found: FigureRuns) -> list[Judgeable]:
    claims = []
    for summed in SUMS:
        at = f"At a summed rate of {summed:g}"
        rises = f"{at} the training loss grows with the temperature: the slope of its logarithm over log2 T"
        falls = f"{at} the test accuracy falls with the temperature: minus its slope over log2 T"
        claims.append(above(rises, _slopes(found, summed, "train_loss"), 0.0))
        claims.append(above(falls, [-slope for slope in _slopes(found, summed, "test_accuracy")], 0.0))
    return claims


def _panels_at_sums(found: FigureRuns) -> list[Panel]:
    panels = []
    note = "Means over 20 runs and their 95 % intervals, of the groups that pass this sum after three epochs or more."
    for curve in ("train_loss", "test_accuracy"):
        series = []
        for colour, summed in enumerate(SUMS):
            groups, knob = _reaching(found, summed)
            points = scan(found, groups, knob, _value_at(summed, curve), f"summed rate {summed:g}", colour)
            series.append(replace(points, style="points"))
        name, log = curve.replace("_", " "), curve == "train_loss"
        panels.append(Panel(name.capitalize(), _AXIS, name, tuple(series), x_log=True, y_log=log, note=note))
    return panels


def _slopes(found: FigureRuns, summed: float, curve: str) -> list[float]:
    """For each seed the slope of a curve, of a loss its logarithm, over log2 T at a summed rate."""
    groups, temperatures = _reaching(found, summed)
    by_seed = zip(*found.pairs(*((group, _value_at(summed, curve)) for group in groups)), strict=True)
    scale = np.log if curve.endswith("loss") else np.asarray
    return [float(np.polyfit(np.log2(temperatures), scale(y), 1)[0]) for y in by_seed if len(groups) > 1]


def _value_at(summed: float, curve: str) -> Quantity:
    """A curve, of a loss by its logarithm, where the summed rate of a run is a given one.

    Between two epochs it is taken as straight over the logarithm of the sum. Over the sum itself it bends, which would
    make hot runs, of few epochs, look worse.
    """
    is_loss = curve.endswith("loss")

    def value(record: Record) -> float:
        pace = record.config.steps_per_epoch / (1.0 - record.config.momentum)
        sums, values = [pace * rate for rate in accumulate(record.curve("rate"))], record.curve(curve)
        found = float(np.interp(math.log(summed), np.log(sums), np.log(values) if is_loss else values))
        return math.exp(found) if is_loss else found

    return Quantity(curve, value, curve, curve)


def _reaching(found: FigureRuns, summed: float) -> tuple[list[Group], list[float]]:
    """The groups with runs that come to the sum, by the mean rate, neither at once nor at their very end; and T."""
    groups = []
    for group in found.groups:
        config = group.config
        epochs = summed * (1.0 - config.momentum) / (config.lr * config.steps_per_epoch)
        if found.runs(group) and _EARLIEST <= epochs <= 0.98 * config.epochs:
            groups.append(group)
    groups.sort(key=lambda group: group.temperature)
    return groups, [group.temperature for group in groups]


COLLAPSE = Experiment(
    name="collapse",
    title="Does the temperature order the runs?",
    question=(
        "Over a grid of rates, batch sizes and momenta: does accuracy fall on one curve over the temperature, and not "
        "over any knob alone?"
    ),
    groups=_groups,
    claims=_claims,
    panels=_panels,
    errata=("The paper tests its temperature on pairs of runs; equal T there always goes with an equal summed rate.",),
    remarks=_remarks,
)
EQUAL_SUMS = Experiment(
    name="equal-sums",
    title="The temperature at equal summed rate",
    question=(
        "Over the grid of the collapse, whose runs pass one summed rate after different numbers of epochs: do hotter "
        "runs have another loss and accuracy there? Asked when the runs had been looked at."
    ),
    groups=lambda scale: _groups(scale) if scale == "paper" else (),
    claims=lambda _found: (),
    later_claims=_claims_at_sums,
    panels=_panels_at_sums,
    errata=("The paper tests its temperature at equal epochs, where it cannot be told from the summed rate.",),
    remarks=lambda _scale: {"to be kept in mind": "a hot run passes the sum after few epochs, a cold one after many"},
)
