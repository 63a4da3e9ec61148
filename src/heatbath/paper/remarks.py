"""What has to be said of several figures: how a small scale differs, and what the paper leaves open."""

from __future__ import annotations

from heatbath.paper.groups import Scale

EPOCHS_NOT_SAID = {"not said in the paper": "epochs of this figure; 180, as in figures 3 and 4"}
NESTEROV_NOT_SAID = {"not said in the paper": "Nesterov acceleration in this figure; taken, as in figures 1 and 2"}
_SHORT_TRAINING = (
    "4,000 images make 16 steps to an epoch where MNIST makes 235; rate, batch and momentum are the paper's, so the "
    "network is far from trained out, and the cyclic protocols end at different points of their cycles"
)


def remark_on_scale(scale: Scale) -> dict[str, str]:
    """Return what sets a small scale apart from the paper's."""
    return {} if scale == "paper" else {"unlike the paper": _SHORT_TRAINING}
