"""Laws of the multiplier of equal variance: at leading order only the variance matters."""

from __future__ import annotations

import math
from collections.abc import Sequence

from heatbath.laws import Arcsine, Law, LogNormal, TwoPoint, Uniform
from heatbath.paper.claims import LOSS_MARGIN, accuracy_margin, all_equal
from heatbath.paper.experiments import Experiment
from heatbath.paper.groups import RANDOM, SEEDS, SPARE, FigureRuns, Group, Scale, perceptron
from heatbath.paper.pictures import overview
from heatbath.paper.quantities import TAIL_LOSS, TAIL_TEST
from heatbath.paper.remarks import remark_on_scale
from heatbath.stats.verdicts import Judgeable

_VARIANCE = Uniform(1.0).variance
LAWS: dict[str, Law] = {
    "random": Uniform(1.0),
    "two-point": TwoPoint(math.sqrt(_VARIANCE)),
    "arcsine": Arcsine(math.sqrt(2.0 * _VARIANCE)),
    "log-normal": LogNormal(math.sqrt(math.log1p(_VARIANCE))),
}
"""Of variance 1/3 each; the first is the paper's."""


def _groups(scale: Scale) -> Sequence[Group]:
    base = perceptron(scale, protocol="random")
    return [
        Group(label, base.with_(law=law), SEEDS[scale], colour)
        for (label, law), colour in zip(LAWS.items(), (RANDOM, 5, 6, SPARE), strict=True)
        if scale == "paper" or label != "arcsine"
    ]


def _claims(found: FigureRuns) -> list[Judgeable]:
    alike, margin = "Laws of equal variance reach the same", accuracy_margin(found.groups[0])
    return [
        all_equal(found, f"{alike} test accuracy", found.groups, TAIL_TEST, margin),
        all_equal(found, f"{alike} training loss", found.groups, TAIL_LOSS, LOSS_MARGIN),
    ]


EXPERIMENT = Experiment(
    name="laws",
    title="Laws of equal variance",
    question="Does it matter how the rate is distributed, once its variance, 1/3, is given?",
    groups=_groups,
    claims=_claims,
    panels=lambda found: overview(found, found.groups, TAIL_TEST),
    errata=(
        "The printed second moment, 1 + Delta / 3, should be 1 + Delta^2 / 3; they agree at the paper's Delta = 1.",
    ),
    remarks=remark_on_scale,
)
