"""What the random multiplier acts on: the gradient that enters the velocity, or the whole step."""

from __future__ import annotations

from collections.abc import Sequence

from heatbath.paper.claims import LOSS_MARGIN, accuracy_margin, equal, greater
from heatbath.paper.experiments import Experiment
from heatbath.paper.groups import SEEDS, FigureRuns, Group, Scale, perceptron, random_and_controls
from heatbath.paper.pictures import overview
from heatbath.paper.quantities import ROUGHNESS, TAIL_LOSS, TAIL_TEST
from heatbath.paper.remarks import remark_on_scale
from heatbath.stats.verdicts import Judgeable


def _groups(scale: Scale) -> Sequence[Group]:
    chosen = ("constant", "random", "random update")
    return [group for group in random_and_controls(perceptron(scale), SEEDS[scale]) if group.label in chosen]


def _claims(found: FigureRuns) -> list[Judgeable]:
    constant, gradient, update = found.groups
    accuracy, loss = "Both couplings reach the same test accuracy", "Both couplings reach the same training loss"
    shaken = "A draw on the gradient shakes the loss more than"
    return [
        equal(found, accuracy, gradient, update, TAIL_TEST, accuracy_margin(gradient)),
        equal(found, loss, gradient, update, TAIL_LOSS, LOSS_MARGIN),
        greater(found, f"{shaken} no draw", gradient, constant, ROUGHNESS),
        greater(found, f"{shaken} one on the step", gradient, update, ROUGHNESS),
    ]


EXPERIMENT = Experiment(
    name="coupling",
    title="The draw on the gradient against the draw on the step",
    question=(
        "A draw on the gradient lives on in the velocity and heats by 4/3; one on the whole step is averaged away at "
        "momentum 0.9 and heats by 1.024. Does the training see the difference?"
    ),
    groups=_groups,
    claims=_claims,
    panels=lambda found: overview(found, found.groups, ROUGHNESS),
    errata=("The paper's equations put the draw on the gradient; its experiments do not say where they put it.",),
    remarks=lambda scale: {
        **remark_on_scale(scale),
        "roughness": "standard deviation of the change of the training loss from epoch to epoch, last 20 epochs",
    },
)
