"""Model 2 of the paper: five 3 x 3 convolutions, 64 - 64 | 128 - 128 - 128, two 2 x 2 max pools, one linear layer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from heatbath.tasks.registry import Cost, Margin, Network

if TYPE_CHECKING:
    from torch import Tensor, nn

    from heatbath.tasks.stacked_networks import Dropout, StackedNetwork

_WIDTHS = (64, 64, "pool", 128, 128, 128, "pool")


def layers() -> nn.Module:
    """Return the network of images of shape (N, 1, 28, 28); 418,122 parameters.

    The paper's last layer, 128 * 3 * 3 inputs, fixes what it does not say: no padding, so that the image shrinks
    28 - 26 - 24 | 12 - 10 - 8 - 6 | 3. ReLU after each convolution, no dropout.
    """
    from torch import nn

    from heatbath.tasks.stacked_networks import convolutions

    features = convolutions(_WIDTHS, 1)  # first, as the layers draw their weights when they are made
    last = {"flatten": nn.Flatten(), "classifier": nn.Linear(128 * 3 * 3, 10)}
    return nn.Sequential(OrderedDict(features=features, **last))


def rows() -> StackedNetwork:
    """Replicas side by side: a convolution of one fills a GPU, and a grouped one wastes it."""
    from heatbath.tasks.stacked_networks import StackedNetwork, weights_and_biases

    names = weights_and_biases([*(f"features.{i}" for i in (0, 2, 5, 7, 9)), "classifier"])
    return StackedNetwork(names, (1.0,) * 12, logits, stacks=False, at_once=5000)


def logits(params: Sequence[Tensor], images: Tensor, dropout: Dropout | None) -> Tensor:
    """See `StackedNetwork`."""
    from torch.nn import functional

    from heatbath.tasks.convolutions import convolve
    from heatbath.tasks.stacked_networks import only_replica

    del dropout
    tensors, values = only_replica(params, images)
    for layer in range(5):
        values = convolve(values, tensors[2 * layer], tensors[2 * layer + 1], pool=layer in (1, 4))
    return functional.linear(values.flatten(1), tensors[10], tensors[11])[None]


NETWORK = Network(
    name="cnn",
    title="CNN (Model 2)",
    input_shape=(1, 28, 28),
    dataset="mnist5k",
    margins={"mnist": Margin(0.001, "0.001 for the CNN on MNIST, about a tenth of the error that is left")},
    precision="bf16",
    cost=Cost(
        cpu_seconds=5e-3,
        process_bytes=1250 * 2**20,
        weights=418_122,
        activation_bytes=1_000_000,
        most=6,
        compiled_steps=100_000,
    ),
    layers=layers,
    rows=rows,
)
