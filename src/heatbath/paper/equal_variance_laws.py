"""Laws of the multiplier of equal variance: at leading order only the variance matters."""

from __future__ import annotations

import math
from collections.abc import Sequence

from heatbath.laws import Arcsine, Law, LogNormal, TwoPoint, Uniform
from heatbath.paper.claims import LOSS_MARGIN, accuracy_margin, all_equal
from heatbath.paper.experiments import Drawing, Experiment
from heatbath.paper.figure1 import remark_on_scale
from heatbath.paper.groups import RANDOM, SEEDS, SPARE, TAIL_LOSS, TAIL_TEST, Found, Group, Scale, perceptron
from heatbath.paper.pictures import curve_panel, group_panel
from heatbath.stats.verdicts import judge

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


def _draw(found: Found) -> Drawing:
    groups = found.groups
    accuracy = "Laws of equal variance reach the same test accuracy"
    loss = "Laws of equal variance reach the same training loss"
    claims = [
        all_equal(found, accuracy, groups, TAIL_TEST, accuracy_margin(groups[0])),
        all_equal(found, loss, groups, TAIL_LOSS, LOSS_MARGIN),
    ]
    panels = [
        curve_panel(found, groups, "train_loss", log=True),
        curve_panel(found, groups, "test_accuracy"),
        group_panel(found, groups, TAIL_TEST),
    ]
    return Drawing(panels, judge(claims))


EXPERIMENT = Experiment(
    name="laws",
    title="Laws of equal variance",
    question="Does it matter how the rate is distributed, once its variance, 1/3, is given?",
    groups=_groups,
    draw=_draw,
    errata=(
        "The printed second moment, 1 + Delta / 3, should be 1 + Delta^2 / 3; they agree at the paper's Delta = 1.",
    ),
    remarks=remark_on_scale,
)
