"""How a network is computed with one replica in each row of its parameters.

A small network multiplies a whole stack in one batched product. Convolutional ones gain nothing from that (a
convolution of one replica fills a GPU, a grouped one wastes it): a stack of them is replicas side by side, each with a
leading dimension of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from heatbath.draws import random_bits


class Dropout(NamedTuple):
    """What decides the masks of one step."""

    key: Tensor  # of the replicas' streams, see `heatbath.draws.orbits`; shape (replicas, 1)
    gamma: Tensor  # likewise
    step: Tensor  # how many steps the replicas have taken, of shape (1,)
    batch_size: int  # of a full batch: the last one of an epoch may be smaller, or padded


# From parameters, images of shape (replicas, N, ...) or (N, ...) that all replicas see, and dropout or None, to
# (replicas, N, 10).
Logits = Callable[[Sequence[Tensor], Tensor, Dropout | None], Tensor]
# Of the mean loss of a single replica, from parameters, images and labels, where writing them out saves a good part of
# a small network's step; None leaves them to autograd.
Gradients = Callable[[Sequence[Tensor], Tensor, Tensor], list[Tensor]]


@dataclass(frozen=True)
class StackedNetwork:
    """How a network is computed from parameters of shape (replicas, ...)."""

    names: tuple[str, ...]  # of the parameters
    gains: tuple[float, ...]  # by which the gradient of each is multiplied
    logits: Logits
    stacks: bool  # whether ``logits`` takes more than one replica at a time
    # How many images an evaluation on a GPU takes at a time, shared by the replicas that it computes in one call: fewer
    # fit its caches better, but keep the host busy, which a small network waits for.
    at_once: int
    gradients: Gradients | None = None

    def pack(self, model: nn.Module) -> list[Tensor]:
        """Return what is trained of one network: its parameters, VGG16's first classifier layer folded."""
        state = model.state_dict()
        return [
            state[name] if gain == 1.0 else state[name].unflatten(1, (-1, int(gain))).sum(2)
            for name, gain in zip(self.names, self.gains, strict=True)
        ]


def drop_out(values: Tensor, dropout: Dropout, layer: int, layers: int) -> Tensor:
    """Return ``values``, of shape (replicas, batch, ...), with about half of them zero and the others doubled.

    The masks are a pure function of the replicas' seeds, the step and the place, the same on every device.
    """
    first = dropout.batch_size * values[0, 0].numel() * (layers * dropout.step + layer)
    position = torch.arange(values[0].numel(), device=values.device) + first
    keep = random_bits(dropout.key, dropout.gamma, position) >= 2**51
    return torch.where(keep.view(values.shape), values * 2.0, 0.0)


def only_replica(params: Sequence[Tensor], images: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return the parameters of the only replica, in the arithmetic of its images, and those."""
    images = images.squeeze(0) if images.ndim == 5 else images
    return [param.squeeze(0).to(images.dtype) for param in params], images  # an index would copy in the backward pass


def convolutions(widths: Sequence[int | str], channels: int, padding: int = 0, inplace: bool = False) -> nn.Sequential:
    """Return convolutions of 3 x 3 with ReLU, of some widths; what is no width is a pool of 2 x 2."""
    layers: list[nn.Module] = []
    for width in widths:
        if isinstance(width, int):
            layers += [nn.Conv2d(channels, width, 3, padding=padding), nn.ReLU(inplace)]
            channels = width
        else:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


def weights_and_biases(layers: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the parameters of some layers."""
    return tuple(f"{layer}.{part}" for layer in layers for part in ("weight", "bias"))
