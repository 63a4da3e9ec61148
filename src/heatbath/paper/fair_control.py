"""The fair control: the random rate against the constant rate of the same temperature."""

from __future__ import annotations

from collections.abc import Sequence

from heatbath.paper.claims import LOSS_MARGIN, accuracy_margin, equal
from heatbath.paper.experiments import Experiment
from heatbath.paper.groups import SEEDS, VGG16_SEEDS, FigureRuns, Group, Scale, perceptron, random_and_controls, vgg16
from heatbath.paper.pictures import overview
from heatbath.paper.quantities import TAIL_LOSS, TAIL_TEST
from heatbath.paper.remarks import remark_on_scale
from heatbath.report.panels import Panel
from heatbath.stats.verdicts import Judgeable

_PAIRS = {
    "at the same temperature, coupling gradient": ("random", "constant, T of random"),
    "at the same temperature, coupling update": ("random update", "constant, T of update"),
    "at the same mean rate": ("random", "constant"),
}


def _groups(scale: Scale) -> Sequence[Group]:
    groups = random_and_controls(perceptron(scale), SEEDS[scale], "perceptron")
    return groups + random_and_controls(vgg16(), VGG16_SEEDS, "VGG16") if scale == "paper" else groups


def _claims(found: FigureRuns) -> list[Judgeable]:
    claims: list[Judgeable] = []
    for part in found.parts:
        for pair, labels in _PAIRS.items():
            random, constant = (found.group(label, part) for label in labels)
            same = f"{part}: random and constant {pair} reach the same"
            claims.append(equal(found, f"{same} test accuracy", random, constant, TAIL_TEST, accuracy_margin(random)))
            claims.append(equal(found, f"{same} training loss", random, constant, TAIL_LOSS, LOSS_MARGIN))
    return claims


def _panels(found: FigureRuns) -> list[Panel]:
    return [panel for part in found.parts for panel in overview(found, found.part(part), TAIL_TEST, part)]


EXPERIMENT = Experiment(
    name="fair-control",
    title="Random against constant at the same temperature",
    question=(
        "Is there more to a random rate than its temperature? The constant rate of equal temperature is 4/3 l for the "
        "paper's coupling and 1.024 l for a draw that multiplies the whole step. Its summed rate is larger, too: where "
        "that decides and not the temperature, random is like constant at the same rate instead."
    ),
    groups=_groups,
    claims=_claims,
    panels=_panels,
    errata=("The paper compares random and constant at the same mean rate, where their temperatures differ by 4/3.",),
    remarks=remark_on_scale,
)
