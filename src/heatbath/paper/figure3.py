"""Figure 3: the best test accuracy on MNIST over many seeds, five protocols, perceptron and convolutional network."""

from __future__ import annotations

from collections.abc import Sequence

from heatbath.paper.claims import accuracy_margin, all_equal, not_worse
from heatbath.paper.experiments import Experiment
from heatbath.paper.groups import CNN_SEEDS, SEEDS, FigureRuns, Group, Scale, cnn, perceptron, protocol_groups
from heatbath.paper.pictures import group_panel
from heatbath.paper.quantities import BEST_TEST, TAIL_TEST
from heatbath.paper.remarks import NESTEROV_NOT_SAID, remark_on_scale
from heatbath.report.panels import Panel
from heatbath.stats.verdicts import Judgeable

_SHALLOW, _DEEP = "perceptron", "CNN"
_OUTSIDE = "the paper itself finds the CNN at l = 0.005 outside the small-rate regime, in which it expects equality"


def _groups(scale: Scale) -> Sequence[Group]:
    groups = protocol_groups(perceptron(scale), SEEDS[scale], _SHALLOW)
    return groups + protocol_groups(cnn(), CNN_SEEDS, _DEEP) if scale == "paper" else groups


def _claims(found: FigureRuns) -> list[Judgeable]:
    claims: list[Judgeable] = []
    for part in found.parts:
        groups, random, constant = found.part(part), found.group("random", part), found.group("constant", part)
        margin = accuracy_margin(random)
        alike = f"The best test accuracy of the {part} is the same under all five protocols"
        claims.append(all_equal(found, alike, groups, BEST_TEST, margin))
        least = f"Random is no worse than constant in the best test accuracy of the {part}"
        claims.append(not_worse(found, least, random, constant, BEST_TEST, margin))
    return claims


def _panels(found: FigureRuns) -> list[Panel]:
    return [group_panel(found, found.part(part), one, part) for part in found.parts for one in (BEST_TEST, TAIL_TEST)]


EXPERIMENT = Experiment(
    name="figure3",
    title="Best test accuracy over many seeds on MNIST",
    question="Over many seeds, is any of the five protocols better on MNIST?",
    groups=_groups,
    claims=_claims,
    panels=_panels,
    errata=(
        "The best test accuracy is chosen on the test images and so is optimistic: the mean of the last 20 epochs is "
        "shown beside it.",
        "Figure 2 says l = 5e-5, figure 3 l = 0.005 for the same network: both are taken as printed.",
    ),
    remarks=lambda scale: remark_on_scale(scale) or {"to be kept in mind": _OUTSIDE, **NESTEROV_NOT_SAID},
)
