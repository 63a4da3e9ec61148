"""The random rate in both couplings, against the constant rates of the same mean and of the same temperature."""

from __future__ import annotations

from collections.abc import Sequence

from heatbath.paper.claims import equal, greater
from heatbath.paper.experiments import Experiment
from heatbath.paper.groups import (
    CONSTANT,
    RANDOM,
    SEEDS,
    SPARE,
    VGG16_SEEDS,
    FigureRuns,
    Group,
    Scale,
    perceptron,
    remark_on_scale,
    vgg16,
)
from heatbath.paper.pictures import overview
from heatbath.paper.quantities import ROUGHNESS, TAIL_LOSS, TAIL_TEST
from heatbath.runs.configs import RunConfig
from heatbath.stats.verdicts import Judgeable

_PAIRS = {
    "at the same temperature, coupling gradient": ("random", "constant, T of random"),
    "at the same temperature, coupling update": ("random update", "constant, T of update"),
    "at the same mean rate": ("random", "constant"),
}
_REACHED = {"test accuracy": TAIL_TEST, "training loss": TAIL_LOSS}


def _groups(base: RunConfig, seeds: int, part: str = "") -> list[Group]:
    gradient, update = base.with_(protocol="random"), base.with_(protocol="random", coupling="update")
    as_hot, as_hot_as_update = (
        base.with_(protocol="constant", lr=run.thermostat.at(law="constant", coupling="gradient").lr)
        for run in (gradient, update)
    )
    return [
        Group("constant", base.with_(protocol="constant"), seeds, CONSTANT, part),
        Group("random", gradient, seeds, RANDOM, part),
        Group("constant, T of random", as_hot, seeds, 5, part),
        Group("random update", update, seeds, 6, part),
        Group("constant, T of update", as_hot_as_update, seeds, SPARE, part),
    ]


def _groups_of_both(scale: Scale) -> Sequence[Group]:
    groups = _groups(perceptron(scale), SEEDS[scale], "perceptron")
    return groups + _groups(vgg16(), VGG16_SEEDS, "VGG16") if scale == "paper" else groups


def _claims(found: FigureRuns) -> list[Judgeable]:
    same = "random and constant {} reach the same"
    return [
        equal(found, f"{part}: {same.format(pair)} {what}", found.labelled(part, *labels), quantity)
        for part in found.parts
        for pair, labels in _PAIRS.items()
        for what, quantity in _REACHED.items()
    ]


def _claims_on_coupling(found: FigureRuns) -> list[Judgeable]:
    constant, gradient, update = found.groups
    shaken = "A draw on the gradient shakes the loss more than"
    return [
        *(equal(found, f"Both couplings reach the same {what}", (gradient, update), q) for what, q in _REACHED.items()),
        greater(found, f"{shaken} no draw", (gradient, constant), ROUGHNESS),
        greater(found, f"{shaken} one on the step", (gradient, update), ROUGHNESS),
    ]


FAIR_CONTROL = Experiment(
    name="fair-control",
    title="Random against constant at the same temperature",
    question=(
        "Is there more to a random rate than its temperature? The constant rate of equal temperature is 4/3 l for the "
        "paper's coupling and 1.024 l for a draw that multiplies the whole step. Its summed rate is larger, too: where "
        "that decides and not the temperature, random is like constant at the same rate instead."
    ),
    groups=_groups_of_both,
    claims=_claims,
    panels=lambda found: overview(found, TAIL_TEST),
    errata=("The paper compares random and constant at the same mean rate, where their temperatures differ by 4/3.",),
    remarks=remark_on_scale,
)
COUPLING = Experiment(
    name="coupling",
    title="The draw on the gradient against the draw on the step",
    question=(
        "A draw on the gradient lives on in the velocity and heats by 4/3; one on the whole step is averaged away at "
        "momentum 0.9 and heats by 1.024. Does the training see the difference?"
    ),
    groups=lambda scale: [group for group in _groups(perceptron(scale), SEEDS[scale]) if ", T of" not in group.label],
    claims=_claims_on_coupling,
    panels=lambda found: overview(found, ROUGHNESS),
    errata=("The paper's equations put the draw on the gradient; its experiments do not say where they put it.",),
    remarks=lambda scale: {
        **remark_on_scale(scale),
        "roughness": "standard deviation of the change of the training loss from epoch to epoch, last 20 epochs",
    },
)
