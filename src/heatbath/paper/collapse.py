"""Data collapse: does the temperature order runs of different rate, batch size and momentum?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from heatbath.paper.claims import Every
from heatbath.paper.experiments import Experiment
from heatbath.paper.groups import GRID_EPOCHS, FigureRuns, Group, Scale, grid_groups
from heatbath.paper.quantities import BEST_TEST, FINAL_TEST, Quantity
from heatbath.report.panels import Panel, Series
from heatbath.stats.order import OrderClaim, explained_by_chance, explained_by_order, rank_correlation
from heatbath.stats.verdicts import Judgeable

Values = tuple[float, ...]

_STATISTIC = (
    "the share of the variance between groups of runs that the best curve with at most one turn over a knob explains "
    "(heatbath.stats.order), corrected for the noise of the seeds, with a bootstrap interval over the seeds"
)
_QUANTITIES = (FINAL_TEST, BEST_TEST)
EXPLAINED = 0.9  # of the variance, for T to decide a run
SHUFFLES, RESAMPLES = 100, 600
KNOBS: dict[str, Callable[[Group], float]] = {
    "T": lambda group: group.config.thermostat.temperature(),
    "l": lambda group: group.config.lr,
    "C": lambda group: float(group.config.batch_size),
    "1 - mu": lambda group: 1.0 - group.config.momentum,
}
_LABELS = {
    "T": "temperature T, in units of the gradient's variance",
    "l": "mean rate l",
    "C": "batch size C",
    "1 - mu": "1 - momentum",
}


def _claims(found: FigureRuns) -> list[Judgeable]:
    """That T decides, and that it leads each knob by more than its larger number of values is worth."""
    claims: list[Judgeable] = []
    knobs = _knobs(found)
    for quantity in _QUANTITIES:
        values = _values(found, quantity)
        decides = f"The temperature decides the {quantity.name}: it explains more than {EXPLAINED:g} of the variance"
        beats = f"The temperature orders runs by {quantity.name} better than any knob alone"
        by_chance = {name: _chance(knob, values) for name, knob in knobs.items()}
        leads: dict[str, Judgeable] = {
            f"T against {name}": _order_claim(beats, knobs["T"], knob, values, by_chance["T"] - by_chance[name])
            for name, knob in knobs.items()
            if name != "T"
        }
        claims += [_order_claim(decides, knobs["T"], None, values, EXPLAINED), Every(beats, leads)]
    return claims


def _panels(found: FigureRuns) -> list[Panel]:
    panels = []
    for colour, quantity in enumerate(_QUANTITIES):
        values = _values(found, quantity)
        means = tuple(float(np.mean(group)) for group in values)
        for name, knob in _knobs(found).items():
            points = Series(quantity.title, knob, means, style="points", colour=colour)
            note = _note(name, knob, values) + (_halves(knob, values) if name == "T" else "")
            title = f"{quantity.title.capitalize()} over {name}"
            panels.append(Panel(title, _LABELS[name], "test accuracy", (points,), x_log=True, note=note))
    return panels


def _knobs(found: FigureRuns) -> dict[str, tuple[float, ...]]:
    """The values of each knob, of the groups that have runs."""
    return {name: tuple(knob(group) for group in found.groups if found.runs(group)) for name, knob in KNOBS.items()}


def _values(found: FigureRuns, quantity: Quantity) -> tuple[Values, ...]:
    return tuple(tuple(found.values(group, quantity)) for group in found.groups if found.runs(group))


def _order_claim(
    statement: str, x: Sequence[float], other: Sequence[float] | None, values: Sequence[Values], margin: float
) -> OrderClaim:
    return OrderClaim(statement, x, other, values, margin, resamples=RESAMPLES)


@cache  # as the claims and the notes of the panels both tell it
def _chance(knob: tuple[float, ...], values: tuple[Values, ...]) -> float:
    return explained_by_chance(knob, values, shuffles=SHUFFLES) if _tell(values) else 0.0


def _tell(values: Sequence[Values]) -> bool:
    """Whether there is enough to speak of an order."""
    return len(values) >= 5 and min(map(len, values)) > 1


def _note(name: str, knob: tuple[float, ...], values: tuple[Values, ...]) -> str:
    if not _tell(values):
        return "Too few runs for a collapse statistic."
    share = explained_by_order(knob, values, resamples=RESAMPLES)
    ranks = rank_correlation(knob, values, resamples=RESAMPLES)
    text = f"{name} explains {share} of the variance between groups, where chance would {_chance(knob, values):.2f}."
    return f"{text} Rank correlation {ranks}."


def _halves(temperatures: Sequence[float], values: Sequence[Values]) -> str:
    """In which range the temperature orders the runs: the rank correlation of the colder and of the hotter half."""
    if len(values) < 10 or not _tell(values):
        return ""
    middle = float(np.median(temperatures))
    cold = [k for k, temperature in enumerate(temperatures) if temperature < middle]
    hot = [k for k, temperature in enumerate(temperatures) if temperature >= middle]
    below, above = (
        rank_correlation([temperatures[k] for k in side], [values[k] for k in side], resamples=RESAMPLES)
        for side in (cold, hot)
    )
    return f" Below T = {middle:.2g} it is {below}, above {above}."


def _remarks(scale: Scale) -> dict[str, str]:
    both = "T is proportional to the summed rate of an epoch, l N / (C (1 - mu)): after a fixed number of epochs "
    both += "either orders the runs as well as the other"
    remarks = {"collapse statistic": _STATISTIC, "to be kept in mind": both}
    unlike = {"unlike the paper": f"{GRID_EPOCHS[scale]} epochs of 4,000 images"}
    return remarks if scale == "paper" else remarks | unlike


EXPERIMENT = Experiment(
    name="collapse",
    title="Does the temperature order the runs?",
    question=(
        "Over a grid of rates, batch sizes and momenta: does accuracy fall on one curve over the temperature, and not "
        "over any knob alone?"
    ),
    groups=grid_groups,
    claims=_claims,
    panels=_panels,
    errata=("The paper tests its temperature on pairs of runs; equal T there always goes with an equal summed rate.",),
    remarks=_remarks,
)
