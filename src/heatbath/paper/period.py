"""A scan of the cyclic period: is random as good as the best of them?"""

from __future__ import annotations

from collections.abc import Sequence

from heatbath.paper.claims import every_pair, not_worse
from heatbath.paper.experiments import Experiment
from heatbath.paper.groups import SEEDS, FigureRuns, Group, Scale, perceptron, protocol_groups, remark_on_scale
from heatbath.paper.pictures import scan
from heatbath.paper.quantities import BEST_TEST, TAIL_TEST
from heatbath.report.panels import Panel
from heatbath.stats.verdicts import Judgeable

_PERIODS: dict[Scale, tuple[float, ...]] = {
    "smoke": (1, 6),
    "laptop": (1, 6, 18, 30),
    "paper": (1, 2, 3, 6, 10, 18, 30, 60, 90),
}
_QUANTITIES = (BEST_TEST, TAIL_TEST)


def _groups(scale: Scale) -> Sequence[Group]:
    names = ["constant", "random", *(f"cyclic:{period:g}" for period in _PERIODS[scale])]
    return protocol_groups(perceptron(scale), SEEDS[scale], protocols=names)


def _claims(found: FigureRuns) -> list[Judgeable]:
    _, random, *cyclic = found.groups
    pairs = [(random, group) for group in cyclic]
    sentence = "Random is as good as the best cyclic period, by"
    return [every_pair(not_worse, found, f"{sentence} {one.name}", pairs, one) for one in _QUANTITIES]


def _panels(found: FigureRuns) -> list[Panel]:
    constant, random, *cyclic = found.groups
    periods = _PERIODS[found.scale]
    ends = periods[0], periods[-1]
    note = "Means over the runs with their 95 % intervals; random and constant have no period."
    panels = []
    for quantity in _QUANTITIES:
        levels = [group for group in (random, constant) if found.values(group, quantity)]
        series = [scan(found, cyclic, periods, quantity, "cyclic", 3)]
        series += [scan(found, (group, group), ends, quantity, group.label, group.colour) for group in levels]
        axis = "P, half the period, in epochs"
        panels.append(Panel(quantity.title.capitalize(), axis, quantity.axis, tuple(series), x_log=True, note=note))
    return panels


EXPERIMENT = Experiment(
    name="period",
    title="The period of the cyclic protocol",
    question="Is the random rate equivalent to a cyclic one whose period was tuned?",
    groups=_groups,
    claims=_claims,
    panels=_panels,
    errata=("The paper calls P the period of l [1 + cos(pi tau / P)]; it is 2P epochs.",),
    remarks=remark_on_scale,
)
