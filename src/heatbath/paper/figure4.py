"""Figure 4: VGG16 on CIFAR-10, final and best test accuracy and generalisation error, five protocols."""

from __future__ import annotations

from collections.abc import Sequence

from heatbath.paper.claims import Not, all_equal, every_pair, greater, not_worse
from heatbath.paper.experiments import Experiment
from heatbath.paper.groups import MORE_SEEDS, PROTOCOLS, VGG16_SEEDS, FigureRuns, Group, Scale, protocol_groups, vgg16
from heatbath.paper.pictures import curve_panel, group_panel
from heatbath.paper.quantities import BEST_TEST, FINAL_TEST, GENERALISATION_ERROR, TAIL_TEST
from heatbath.report.panels import Panel
from heatbath.stats.verdicts import Judgeable

IMAGENET_SEEDS = 3


def _groups(scale: Scale) -> Sequence[Group]:
    if scale != "paper":
        return ()
    scratch = protocol_groups(vgg16(), MORE_SEEDS, "from scratch", PROTOCOLS[:3])
    scratch += protocol_groups(vgg16(), VGG16_SEEDS, "from scratch", PROTOCOLS[3:])
    return scratch + protocol_groups(vgg16(weights="imagenet"), IMAGENET_SEEDS, "from ImageNet")


def _claims(found: FigureRuns) -> list[Judgeable]:
    claims: list[Judgeable] = []
    for part in found.parts:
        constant, random, *cyclic = found.part(part)
        for quantity in (FINAL_TEST, BEST_TEST):
            better = f"Random has a higher {quantity.name} than constant, {part}"
            worst = f"Constant has the worst {quantity.name}, {part}"
            best = f"Random reaches the {quantity.name} of the best cyclic protocol, {part}"
            above_it, beside_it = [(g, constant) for g in (random, *cyclic)], [(random, g) for g in cyclic]
            claims.append(greater(found, better, (random, constant), quantity))
            claims.append(every_pair(greater, found, worst, above_it, quantity))
            claims.append(every_pair(not_worse, found, best, beside_it, quantity))
        regularises = f"Constant overfits more than random, {part}: its generalisation error is larger"
        claims.append(greater(found, regularises, (constant, random), GENERALISATION_ERROR))
    return claims


def _later_claims(found: FigureRuns) -> list[Judgeable]:
    """What the caption and the text say more: random above every cyclic protocol, and the five not equivalent."""
    claims: list[Judgeable] = []
    for part in found.parts:
        _, random, *cyclic = found.part(part)
        for quantity in (FINAL_TEST, BEST_TEST):
            better = f"Random has a higher {quantity.name} than the best cyclic protocol, {part}"
            apart = f"The five protocols are not practically equivalent in {quantity.name}, {part}"
            claims.append(every_pair(greater, found, better, [(random, group) for group in cyclic], quantity))
            claims.append(Not(all_equal(found, apart, found.part(part), quantity)))
    return claims


def _panels(found: FigureRuns) -> list[Panel]:
    panels: list[Panel] = []
    for part in found.parts:
        groups, shown = found.part(part), (FINAL_TEST, BEST_TEST, TAIL_TEST, GENERALISATION_ERROR)
        panels += [group_panel(found, groups, quantity, part) for quantity in shown]
        panels.append(curve_panel(found, groups, "test_accuracy", part))
    return panels


EXPERIMENT = Experiment(
    name="figure4",
    title="Five protocols on VGG16 and CIFAR-10",
    question=(
        "On a harder task, is random better than constant and as good as the best cyclic protocol, and is that because "
        "it overfits less?"
    ),
    groups=_groups,
    claims=_claims,
    later_claims=_later_claims,
    panels=_panels,
    errata=(
        "The printed accuracies, about 0.73, are near those of a training from scratch; from the ImageNet features "
        "that the paper names, the same recipe gives about 0.87. Both are run.",
        "180 epochs end near the peak of every cycle, at twice the mean rate: a cyclic protocol's final accuracy is "
        "taken at a hot moment, its mean over the last 20 epochs less so.",
        "At the same mean rate the random protocol is hotter than the constant one by 4/3: see the fair control.",
    ),
    remarks=lambda _scale: {
        "not said in the paper": "Nesterov acceleration in this figure; taken, as in figures 1 and 2"
    },
)
