"""Figure 2: the convolutional network on MNIST learns alike under all five protocols, at a very small rate."""

from __future__ import annotations

from collections.abc import Sequence

from heatbath.paper import five_protocols
from heatbath.paper.experiments import Experiment
from heatbath.paper.groups import CNN_SEEDS, Group, Scale, cnn, protocol_groups
from heatbath.paper.remarks import EPOCHS_NOT_SAID


def _groups(scale: Scale) -> Sequence[Group]:
    return protocol_groups(cnn(lr=5e-5), CNN_SEEDS) if scale == "paper" else ()


EXPERIMENT = Experiment(
    name="figure2",
    title="Five protocols on the convolutional network",
    question="Do the five protocols train Model 2 alike on MNIST, at a rate a hundred times smaller than figure 1's?",
    groups=_groups,
    claims=five_protocols.claims,
    panels=five_protocols.panels,
    errata=(
        "Figure 2 says l = 5e-5, figure 3 l = 0.005 for the same network: both are taken as printed.",
        "128 * 3 * 3 inputs of the last layer fix what is not said: 3x3 convolutions without padding, 2x2 max pooling.",
    ),
    remarks=lambda _scale: EPOCHS_NOT_SAID,
)
