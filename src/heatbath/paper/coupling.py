"""What the random multiplier acts on: the gradient that enters the velocity, or the whole step."""

from __future__ import annotations

from collections.abc import Sequence

from heatbath.paper.claims import LOSS_MARGIN, accuracy_margin, equal, greater
from heatbath.paper.experiments import Drawing, Experiment
from heatbath.paper.figure1 import remark_on_scale
from heatbath.paper.groups import (
    ROUGHNESS,
    SEEDS,
    TAIL_LOSS,
    TAIL_TEST,
    Found,
    Group,
    Scale,
    perceptron,
    random_and_controls,
)
from heatbath.paper.pictures import curve_panel, group_panel
from heatbath.stats.verdicts import judge


def _groups(scale: Scale) -> Sequence[Group]:
    chosen = ("constant", "random", "random update")
    return [group for group in random_and_controls(perceptron(scale), SEEDS[scale]) if group.label in chosen]


def _draw(found: Found) -> Drawing:
    groups = found.groups
    constant, gradient, update = groups
    claims = [
        equal(
            found, "Both couplings reach the same test accuracy", gradient, update, TAIL_TEST, accuracy_margin(gradient)
        ),
        equal(
            found,
            "Both couplings reach the same training loss",
            gradient,
            update,
            TAIL_LOSS,
            LOSS_MARGIN,
        ),
        greater(found, "A draw on the gradient shakes the loss more than no draw", gradient, constant, ROUGHNESS),
        greater(
            found,
            "A draw on the gradient shakes the loss more than one on the step",
            gradient,
            update,
            ROUGHNESS,
        ),
    ]
    panels = [
        curve_panel(found, groups, "train_loss", log=True),
        curve_panel(found, groups, "test_accuracy"),
        group_panel(found, groups, ROUGHNESS),
    ]
    return Drawing(panels, judge(claims))


EXPERIMENT = Experiment(
    name="coupling",
    title="The draw on the gradient against the draw on the step",
    question=(
        "A draw on the gradient lives on in the velocity and heats by 4/3; one on the whole step is averaged away at "
        "momentum 0.9 and heats by 1.024. Does the training see the difference?"
    ),
    groups=_groups,
    draw=_draw,
    errata=("The paper's equations put the draw on the gradient; its experiments do not say where they put it.",),
    remarks=lambda scale: {
        **remark_on_scale(scale),
        "roughness": "standard deviation of the change of the training loss from epoch to epoch, last 20 epochs",
    },
)
