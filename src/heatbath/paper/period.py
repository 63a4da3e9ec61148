"""A scan of the cyclic period: is random as good as the best of them?"""

from __future__ import annotations

from collections.abc import Sequence

from heatbath.paper.claims import Every, accuracy_margin, not_worse
from heatbath.paper.experiments import Experiment
from heatbath.paper.groups import SEEDS, FigureRuns, Group, Scale, perceptron, protocol_groups
from heatbath.paper.pictures import level, scan
from heatbath.paper.quantities import BEST_TEST, TAIL_TEST
from heatbath.paper.remarks import remark_on_scale
from heatbath.report.panels import Panel
from heatbath.stats.verdicts import Judgeable

_PERIODS: dict[Scale, tuple[float, ...]] = {
    "smoke": (1, 6),
    "laptop": (1, 6, 18, 30),
    "paper": (1, 2, 3, 6, 10, 18, 30, 60, 90),
}
_QUANTITIES = (BEST_TEST, TAIL_TEST)
_AXIS = "P, half the period, in epochs"


def _groups(scale: Scale) -> Sequence[Group]:
    names = ["constant", "random", *(f"cyclic:{period:g}" for period in _PERIODS[scale])]
    return protocol_groups(perceptron(scale), SEEDS[scale], protocols=names)


def _claims(found: FigureRuns) -> list[Judgeable]:
    _, random, *cyclic = found.groups
    claims: list[Judgeable] = []
    for quantity in _QUANTITIES:
        statement = f"Random is as good as the best cyclic period, by {quantity.name}"
        pairs = {
            f"random against {group.label}": not_worse(
                found, statement, random, group, quantity, accuracy_margin(random)
            )
            for group in cyclic
        }
        claims.append(Every(statement, pairs))
    return claims


def _panels(found: FigureRuns) -> list[Panel]:
    constant, random, *cyclic = found.groups
    periods = _PERIODS[found.scale]
    ends = periods[0], periods[-1]
    note = "Means over the runs with their 95 % intervals; random and constant have no period."
    panels = []
    for quantity in _QUANTITIES:
        series = [scan(found, cyclic, periods, quantity, "cyclic", 3)]
        series += level(found, random, quantity, ends) + level(found, constant, quantity, ends)
        panels.append(Panel(quantity.title.capitalize(), _AXIS, quantity.axis, tuple(series), x_log=True, note=note))
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
