"""Networks with initial weights that are a pure function of a seed."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from heatbath.draws import check_integer
from heatbath.tasks.registry import find_network, networks

Weights = str | os.PathLike[str] | Mapping[str, Tensor] | None


def build_model(
    name: str,
    *,
    seed: int = 0,
    weights: Weights = None,
    data_dir: str | os.PathLike[str] | None = None,
    device: torch.device | str = "cpu",
) -> nn.Module:
    """Return a network of the paper with initial weights.

    The weights are drawn on the CPU, so they do not depend on the device, and no global random state is read or
    changed. With pretrained features the other layers are those that the same seed has without.

    ``weights`` are for VGG16's convolutions: ``"imagenet"``, which is looked for, in ``data_dir`` first, and downloaded
    if need be; a verified file of the ImageNet weights (``.npz`` or torchvision's ``.pth``); or any tensors under
    torchvision's names. A name, seed or weights that do not fit raise ValueError.
    """
    network = find_network(name)
    features: dict[str, Tensor] = {}
    if weights is not None:
        if network.pretrained is None:
            having = " or ".join(name for name, one in networks().items() if one.pretrained)
            raise ValueError(f"weights {weights!r} are for {having}; {name} starts from its seed alone")
        features = network.pretrained(weights, data_dir)  # first, as it is what can fail
    with torch.device("meta"):
        model = network.layers()
    for layer in model.modules():  # what to_empty does, without the second that its first call takes
        for key, parameter in layer.named_parameters(recurse=False):
            # Whatever torch's default type and device are here: both would decide the numbers drawn.
            values = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
            setattr(layer, key, nn.Parameter(values))
    (network.initialize or initialize)(model, weights_generator(seed))
    if features:
        model.load_state_dict({**model.state_dict(), **features})
    return model.to(device)


def initialize(model: nn.Module, generator: torch.Generator) -> None:
    """Draw the initial weights of a network, layer by layer, as PyTorch's would be."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            assert layer.bias is not None
            bound = 1.0 / math.sqrt(layer.weight[0].numel())
            nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5.0), generator=generator)
            nn.init.uniform_(layer.bias, -bound, bound, generator=generator)


def weights_generator(seed: int) -> torch.Generator:
    """Return the stream of initial weights that belongs to a run's seed.

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
