"""The paper's three networks (its appendix C), with initial weights that are a pure function of a seed."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from heatbath.data.formats import DataError
from heatbath.data.vgg16_features import VGG16_LAYOUT, check_features, feature_shapes, load_vgg16_features
from heatbath.draws import check_integer

Weights = str | os.PathLike[str] | Mapping[str, Tensor] | None


class Perceptron(nn.Module):
    """Model 1: 784 - 100 - 10 with ReLU; 79,510 parameters. Images of shape (N, 1, 28, 28) are flattened."""

    input_shape: ClassVar = (1, 28, 28)

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(28 * 28, 100)
        self.output = nn.Linear(100, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images of shape (N, 1, 28, 28)."""
        logits: Tensor = self.output(self.hidden(images.flatten(1)).relu())
        return logits


class ConvolutionalNetwork(nn.Module):
    """Model 2: five 3 x 3 convolutions, 64 - 64 | 128 - 128 - 128, two 2 x 2 max pools, one linear layer.

    The paper's last layer, 128 * 3 * 3 inputs, fixes what it does not say: no padding, so that the image shrinks
    28 - 26 - 24 | 12 - 10 - 8 - 6 | 3. ReLU after each convolution, no dropout; 418,122 parameters.
    """

    input_shape: ClassVar = (1, 28, 28)

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 64, 3),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 128, 3),
            nn.ReLU(),
            nn.Conv2d(128, 128, 3),
            nn.ReLU(),
            nn.Conv2d(128, 128, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Linear(128 * 3 * 3, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images of shape (N, 1, 28, 28)."""
        logits: Tensor = self.classifier(self.features(images).flatten(1))
        return logits


class VGG16(nn.Module):
    """Model 3: VGG16 as in torchvision, for 10 classes; 134,301,514 parameters, dropout 0.5 in the classifier.

    Modules have torchvision's names, so that state dictionaries interchange. An image of 32 x 32 leaves the
    convolutions as a single pixel, which the adaptive pool repeats 7 x 7 times.
    """

    input_shape: ClassVar = (3, 32, 32)

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width in VGG16_LAYOUT:
            if isinstance(width, int):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            else:
                layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(4096, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images of shape (N, 3, 32, 32), or any size from there on."""
        logits: Tensor = self.classifier(self.avgpool(self.features(images)).flatten(1))
        return logits


Model = Perceptron | ConvolutionalNetwork | VGG16

MODELS: dict[str, type[Model]] = {"mlp": Perceptron, "cnn": ConvolutionalNetwork, "vgg16": VGG16}


def build_model(
    name: str,
    *,
    seed: int = 0,
    weights: Weights = None,
    data_dir: str | os.PathLike[str] | None = None,
    device: torch.device | str = "cpu",
) -> Model:
    """Return a network of the paper with initial weights.

    The weights are drawn on the CPU, so they do not depend on the device, and no global random state is read or
    changed. The perceptron and the convolutional network start as PyTorch's layers do, VGG16 as torchvision's does:
    convolutions normal with variance 2 / fan-out, linear layers normal with standard deviation 0.01, biases 0. With
    pretrained features the classifier is the one that the same seed has without.

    Args:
        name: ``"mlp"``, ``"cnn"`` or ``"vgg16"``.
        seed: an integer with ``0 <= seed < 2**64``.
        weights: for VGG16's convolutions: ``"imagenet"``, which is looked for and downloaded if need be; a verified
            file of the ImageNet weights (``.npz`` or torchvision's ``.pth``); or any tensors under torchvision's names.
        data_dir: where to look for ``"imagenet"`` first.
        device: where the network is to be.

    Raises:
        ValueError: the name is unknown, the seed out of range or the weights are not for this network.
    """
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}: choose one of {', '.join(MODELS)}")
    if weights is not None and name != "vgg16":
        raise ValueError(f"weights {weights!r} are for vgg16; {name} starts from its seed alone")
    features = _features(weights, data_dir)  # first, as it is what can fail
    with torch.device("meta"):
        model = MODELS[name]()
    for layer in model.modules():  # what to_empty does, without the second that its first call takes
        for key, parameter in layer.named_parameters(recurse=False):
            # Whatever torch's default type and device are here: both would decide the numbers drawn.
            values = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
            setattr(layer, key, nn.Parameter(values))
    initialize(model, _weights_generator(seed))
    if features is not None:
        model.load_state_dict({**model.state_dict(), **features})
    return model.to(device)


def initialize(model: nn.Module, generator: torch.Generator) -> None:
    """Draw the initial weights of a network, layer by layer, as PyTorch's (or, for VGG16, torchvision's) would be."""
    for layer in model.modules():
        if not isinstance(layer, nn.Linear | nn.Conv2d):
            continue
        assert layer.bias is not None
        if not isinstance(model, VGG16):
            bound = 1.0 / math.sqrt(layer.weight[0].numel())
            nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5.0), generator=generator)
            nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
        else:
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu", generator=generator)
            else:
                nn.init.normal_(layer.weight, 0.0, 0.01, generator=generator)
            nn.init.zeros_(layer.bias)


def count_parameters(model: nn.Module) -> int:
    """Return how many numbers a network trains."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _features(weights: Weights, data_dir: str | os.PathLike[str] | None) -> dict[str, Tensor] | None:
    if weights is None:
        return None
    if not isinstance(weights, Mapping):
        return load_vgg16_features(weights, data_dir=data_dir)
    try:
        check_features(weights)
    except DataError as error:
        raise ValueError(f"the weights are not VGG16's: {error}") from None
    return {name: weights[name] for name in feature_shapes()}


def _weights_generator(seed: int) -> torch.Generator:
    """The stream of initial weights that belongs to a run's seed.

    torch's generator on the CPU takes 32 bits of its seed. They are mixed, so that a neighbouring use of the same
    seed does not meet the same numbers, by a permutation, so that seeds below 2**32 never collide.
    """
    seed = check_integer("seed", seed)
    return torch.Generator().manual_seed(_permute(_permute(seed >> 32) ^ (seed & 0xFFFFFFFF) ^ 0x57E16475))


def _permute(word: int) -> int:
    """A bijection of the 32-bit words that spreads every bit and keeps 0 (the mixer of MurmurHash3)."""
    word = (word ^ (word >> 16)) * 0x85EBCA6B & 0xFFFFFFFF
    word = (word ^ (word >> 13)) * 0xC2B2AE35 & 0xFFFFFFFF
    return word ^ (word >> 16)
