r"""Model 3 of the paper: VGG16 as in torchvision, for the 10 classes of CIFAR-10.

At 32 x 32 it is folded: its pool repeats 512 numbers 49 times, so that the first classifier layer computes
``W x = (\sum_j W_j) h``. The sum ``U`` of the 49 blocks gets 49 times the gradient of one block, and its weight decay:
a layer of 512 inputs whose gradient has the gain 49 trains as the one of 25,088 does, with a quarter of the memory.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from heatbath.tasks.registry import Cost, Margin, Network

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from heatbath.tasks.stacked_networks import Dropout, StackedNetwork

_COPIES = 49  # of each feature, in the classifier


def layers() -> nn.Module:
    """Return the network of images of shape (N, 3, 32, 32) or larger; 134,301,514 parameters.

    Modules have torchvision's names, so that state dictionaries interchange. An image of 32 x 32 leaves the
    convolutions as a single pixel, which the adaptive pool repeats 7 x 7 times.
    """
    from torch import nn

    from heatbath.data.vgg16_features import VGG16_LAYOUT
    from heatbath.tasks.stacked_networks import convolutions

    features = convolutions(VGG16_LAYOUT, 3, 1, inplace=True)
    classifier = nn.Sequential(
        *(nn.Linear(512 * 7 * 7, 4096), nn.ReLU(inplace=True), nn.Dropout(0.5)),
        *(nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(0.5)),
        nn.Linear(4096, 10),
    )
    pool = {"avgpool": nn.AdaptiveAvgPool2d((7, 7)), "flatten": nn.Flatten()}
    return nn.Sequential(OrderedDict(features=features, **pool, classifier=classifier))


def initialize(model: nn.Module, generator: torch.Generator) -> None:
    """Draw the initial weights as torchvision does.

    Convolutions are normal with variance 2 / fan-out, linear layers normal with standard deviation 0.01, biases 0.
    """
    from torch import nn

    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu", generator=generator)
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, 0.0, 0.01, generator=generator)
        else:
            continue
        assert layer.bias is not None
        nn.init.zeros_(layer.bias)


def pretrained(
    weights: Any, data_dir: str | os.PathLike[str] | None, progress: Any = None, *, download: bool = True
) -> dict[str, Tensor]:
    """Return the convolutions: of ImageNet, found or downloaded; of a verified file; or the tensors given."""
    from heatbath.data.formats import DataError
    from heatbath.data.vgg16_features import check_features, feature_shapes, load_vgg16_features

    if not isinstance(weights, Mapping):
        return load_vgg16_features(weights, data_dir=data_dir, download_missing=download, progress=progress)
    try:
        check_features(weights)
    except DataError as error:
        raise ValueError(f"the weights are not VGG16's: {error}") from None
    return {name: weights[name] for name in feature_shapes()}


def rows() -> StackedNetwork:
    """Replicas side by side, folded."""
    from heatbath.data.vgg16_features import feature_shapes
    from heatbath.tasks.stacked_networks import StackedNetwork, weights_and_biases

    names = (*feature_shapes(), *weights_and_biases(("classifier.0", "classifier.3", "classifier.6")))
    gains = tuple(float(_COPIES) if name == "classifier.0.weight" else 1.0 for name in names)
    return StackedNetwork(names, gains, logits, stacks=False, at_once=2500)


def logits(params: Sequence[Tensor], images: Tensor, dropout: Dropout | None) -> Tensor:
    """See `StackedNetwork`."""
    from torch.nn import functional

    from heatbath.data.vgg16_features import VGG16_LAYOUT
    from heatbath.tasks.convolutions import convolve
    from heatbath.tasks.stacked_networks import drop_out, only_replica

    tensors, values = only_replica(params, images)
    remaining = iter(zip(tensors[::2], tensors[1::2], strict=True))
    for width, after in pairwise(VGG16_LAYOUT):
        if isinstance(width, int):
            values = convolve(values, *next(remaining), padding=1, pool=after == "pool")
    values = values.flatten(1)
    for layer in range(2):
        values = functional.linear(values, *next(remaining)).relu()
        if dropout is not None:
            values = drop_out(values[None], dropout, layer, 2)[0]
    return functional.linear(values, *next(remaining))[None]


NETWORK = Network(
    name="vgg16",
    title="VGG16 (Model 3)",
    input_shape=(3, 32, 32),
    dataset="cifar10",
    margins={"cifar10": Margin(0.005, "0.005 on CIFAR-10, the paper's standard deviation between seeds")},
    precision="bf16",
    cost=Cost(
        cpu_seconds=45e-3,
        process_bytes=None,
        weights=33_638_218,  # folded
        activation_bytes=5_000_000,
        most=5,
        compiled_steps=20_000,
    ),
    layers=layers,
    rows=rows,
    initialize=initialize,
    pretrained=pretrained,
)
