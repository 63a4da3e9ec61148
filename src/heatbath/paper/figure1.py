"""Figure 1: the perceptron on MNIST learns alike under all five protocols."""

from __future__ import annotations

from collections.abc import Sequence

from heatbath.paper import five_protocols
from heatbath.paper.experiments import Experiment
from heatbath.paper.groups import SEEDS, Group, Scale, perceptron, protocol_groups
from heatbath.paper.remarks import EPOCHS_NOT_SAID, remark_on_scale


def _groups(scale: Scale) -> Sequence[Group]:
    return protocol_groups(perceptron(scale), SEEDS[scale])


EXPERIMENT = Experiment(
    name="figure1",
    title="Five protocols on the perceptron",
    question="Do a constant, a random and three cyclic rates of the same mean train Model 1 alike on MNIST?",
    groups=_groups,
    claims=five_protocols.claims,
    panels=five_protocols.panels,
    errata=(
        "At the same mean rate the random protocol is hotter than the constant one, by 1 + s2 = 4/3 in the paper's "
        "coupling: the fair control is the constant rate 4/3 l.",
        "The true period of a protocol called P is 2P epochs.",
        "The paper compares epochs, at most of which the protocols differ in their summed rate. So the loss is shown "
        "over that sum as well, and the claim on parts of it is ours.",
    ),
    remarks=lambda scale: remark_on_scale(scale) or EPOCHS_NOT_SAID,
)
