"""Figure 1: the perceptron on MNIST learns alike under all five protocols."""

from __future__ import annotations

from collections.abc import Sequence

from heatbath.paper.claims import LOSS_MARGIN, accuracy_margin, all_equal
from heatbath.paper.experiments import Drawing, Experiment
from heatbath.paper.groups import (
    GENERALISATION_ERROR,
    LOSSES_ON_THE_WAY,
    SEEDS,
    TAIL_LOSS,
    TAIL_TEST,
    TAIL_TRAIN,
    Found,
    Group,
    Scale,
    perceptron,
    protocol_groups,
)
from heatbath.paper.pictures import curve_panel, way_panel
from heatbath.stats.verdicts import judge

SHORT_TRAINING = (
    "4,000 images make 16 steps to an epoch where MNIST makes 235; rate, batch and momentum are the paper's, so the "
    "network is far from trained out, and the cyclic protocols end at different points of their cycles"
)
EPOCHS_NOT_SAID = {"not said in the paper": "epochs of this figure; 180, as in figures 3 and 4"}


def _groups(scale: Scale) -> Sequence[Group]:
    return protocol_groups(perceptron(scale), SEEDS[scale])


def draw_protocols(found: Found) -> Drawing:
    """Return the curves of the five protocols and the claims that all learn alike."""
    groups = found.groups
    accuracy = accuracy_margin(groups[0])
    alike = "All five protocols reach the same"
    as_far = "At a quarter, half and three quarters of the sum of the rates all five have the same training loss"
    regularise = "The protocols regularise alike: their generalisation error is the same"
    claims = [
        all_equal(found, statement, groups, quantities, margin)
        for statement, quantities, margin in (
            (f"{alike} training loss", TAIL_LOSS, LOSS_MARGIN),
            (f"{alike} train accuracy", TAIL_TRAIN, accuracy),
            (f"{alike} test accuracy", TAIL_TEST, accuracy),
            (as_far, LOSSES_ON_THE_WAY, LOSS_MARGIN),
            (regularise, GENERALISATION_ERROR, accuracy),
        )
    ]
    way = "The same curves over the sum of the rates: at the peak of a cycle more of it is gone in an epoch."
    panels = [
        curve_panel(found, groups, "train_loss", log=True),
        curve_panel(found, groups, "train_accuracy"),
        curve_panel(found, groups, "test_accuracy"),
        way_panel(found, groups, "train_loss", way, log=True),
    ]
    return Drawing(panels, judge(claims))


def remark_on_scale(scale: Scale) -> dict[str, str]:
    """Return what sets a small scale apart from the paper's."""
    return {} if scale == "paper" else {"unlike the paper": SHORT_TRAINING}


EXPERIMENT = Experiment(
    name="figure1",
    title="Five protocols on the perceptron",
    question="Do a constant, a random and three cyclic rates of the same mean train Model 1 alike on MNIST?",
    groups=_groups,
    draw=draw_protocols,
    errata=(
        "At the same mean rate the random protocol is hotter than the constant one, by 1 + s2 = 4/3 in the paper's "
        "coupling: the fair control is the constant rate 4/3 l.",
        "The true period of a protocol called P is 2P epochs.",
        "The paper compares epochs, at most of which the protocols have not gone equally far, by the sum of their "
        "rates. So the loss is shown over that sum as well, and the claim on parts of it is ours.",
    ),
    remarks=lambda scale: remark_on_scale(scale) or EPOCHS_NOT_SAID,
)
