"""Figure 4: VGG16 on CIFAR-10, final and best test accuracy and generalisation error, five protocols."""

from __future__ import annotations

from collections.abc import Sequence

from heatbath.paper.claims import Every, Not, accuracy_margin, all_equal, greater, not_worse
from heatbath.paper.experiments import Experiment
from heatbath.paper.groups import MORE_SEEDS, PROTOCOLS, VGG16_SEEDS, FigureRuns, Group, Scale, protocol_groups, vgg16
from heatbath.paper.pictures import curve_panel, group_panel
from heatbath.paper.quantities import BEST_TEST, FINAL_TEST, GENERALISATION_ERROR, TAIL_TEST, Quantity
from heatbath.paper.remarks import NESTEROV_NOT_SAID
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
        for quantity in (FINAL_TEST, BEST_TEST):
            claims += _claims_on(found, part, quantity)
        regularises = f"Constant overfits more than random, {part}: its generalisation error is larger"
        random, constant = found.group("random", part), found.group("constant", part)
        claims.append(greater(found, regularises, constant, random, GENERALISATION_ERROR))
    return claims


def _later_claims(found: FigureRuns) -> list[Judgeable]:
    """What the caption and the text say more: random above every cyclic protocol, and the five not equivalent."""
    claims: list[Judgeable] = []
    for part in found.parts:
        random, groups = found.group("random", part), found.part(part)
        for quantity in (FINAL_TEST, BEST_TEST):
            better = f"Random has a higher {quantity.name} than the best cyclic protocol, {part}"
            pairs = {
                f"random against {group.label}": greater(found, better, random, group, quantity)
                for group in groups
                if group.label.startswith("cyclic")
            }
            apart = f"The five protocols are not practically equivalent in {quantity.name}, {part}"
            same = all_equal(found, apart, groups, quantity, accuracy_margin(random))
            claims += [Every(better, pairs), Not(apart, same)]
    return claims


def _claims_on(found: FigureRuns, part: str, quantity: Quantity) -> list[Judgeable]:
    random, constant = found.group("random", part), found.group("constant", part)
    cyclic = [group for group in found.part(part) if group.label.startswith("cyclic")]
    margin = accuracy_margin(random)
    worst = f"Constant has the worst {quantity.name}, {part}"
    best = f"Random reaches the {quantity.name} of the best cyclic protocol, {part}"
    return [
        greater(found, f"Random has a higher {quantity.name} than constant, {part}", random, constant, quantity),
        Every(
            worst,
            {f"{g.label} against constant": greater(found, worst, g, constant, quantity) for g in (random, *cyclic)},
        ),
        Every(best, {f"random against {g.label}": not_worse(found, best, random, g, quantity, margin) for g in cyclic}),
    ]


def _panels(found: FigureRuns) -> list[Panel]:
    panels: list[Panel] = []
    for part in found.parts:
        shown = (FINAL_TEST, BEST_TEST, TAIL_TEST, GENERALISATION_ERROR)
        panels += [group_panel(found, found.part(part), quantity, part) for quantity in shown]
        panels.append(curve_panel(found, found.part(part), "test_accuracy", f"{part}: test accuracy"))
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
    remarks=lambda _scale: NESTEROV_NOT_SAID,
)
