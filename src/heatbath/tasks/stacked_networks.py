r"""The paper's networks with one replica in each row of their parameters.

The perceptron multiplies a whole stack in one batched product. The convolutional networks gain nothing from that (a
convolution of one replica fills a GPU, a grouped one wastes it): a stack of them is replicas side by side, each with a
leading dimension of one.

VGG16 at 32 x 32 is folded: its pool repeats 512 numbers 49 times, so that the first classifier layer computes
``W x = (\sum_j W_j) h``. The sum ``U`` of the 49 blocks gets 49 times the gradient of one block, and its weight decay:
a layer of 512 inputs whose gradient has the gain 49 trains as the one of 25,088 does, with a quarter of the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from heatbath.data.vgg16_features import VGG16_LAYOUT, feature_shapes
from heatbath.draws import random_bits
from heatbath.tasks.convolutions import convolve

_COPIES = 49  # of each feature, in VGG16's classifier


class Dropout(NamedTuple):
    """What decides the masks of one step.

    Attributes:
        key: of the replicas' streams, see `heatbath.draws.orbits`; shape (replicas, 1).
        gamma: likewise.
        step: how many steps the replicas have taken, of shape (1,).
        batch_size: of a full batch: the last one of an epoch may be smaller, or padded.
    """

    key: Tensor
    gamma: Tensor
    step: Tensor
    batch_size: int


Logits = Callable[[Sequence[Tensor], Tensor, Dropout | None], Tensor]
Gradients = Callable[[Sequence[Tensor], Tensor, Tensor], list[Tensor]]


@dataclass(frozen=True)
class StackedNetwork:
    """How a network is computed from parameters of shape (replicas, ...).

    Attributes:
        names: of the parameters, as in `heatbath.tasks.models`.
        gains: by which the gradient of each is multiplied.
        logits: from parameters, images of shape (replicas, N, ...) or (N, ...) that all replicas see, and dropout or
            None, to (replicas, N, 10).
        stacks: whether ``logits`` takes more than one replica at a time.
        at_once: how many images an evaluation on a GPU takes at a time, shared by the replicas that it computes in
            one call: fewer fit its caches better, but keep the host busy, which a small network waits for.
        gradients: of the mean loss of a single replica, from parameters, images and labels, where writing them out
            saves a good part of a small network's step; None leaves them to autograd.
    """

    names: tuple[str, ...]
    gains: tuple[float, ...]
    logits: Logits
    stacks: bool
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


def _perceptron(params: Sequence[Tensor], images: Tensor, dropout: Dropout | None) -> Tensor:
    del dropout
    weight, bias, out_weight, out_bias = (param.to(images.dtype) for param in params)
    if len(weight) == 1:
        # With the images as columns: on a CPU these products are faster than those of the rows by a third.
        hidden = torch.addmm(bias.t(), weight.squeeze(0), images.view(-1, 784).t()).relu()
        return torch.addmm(out_bias.t(), out_weight.squeeze(0), hidden).t()[None]
    if images.ndim == 5:
        hidden = torch.baddbmm(bias[:, None], images.flatten(2), weight.transpose(1, 2))
    else:  # one product, as all replicas see the same images
        hidden = functional.linear(images.flatten(1), weight.flatten(0, 1), bias.flatten())
        hidden = hidden.view(len(hidden), *bias.shape).transpose(0, 1)
    return torch.baddbmm(out_bias[:, None], hidden.relu(), out_weight.transpose(1, 2))


def _perceptron_gradients(params: Sequence[Tensor], images: Tensor, labels: Tensor) -> list[Tensor]:
    r"""The chain rule by hand, with a sample in each column.

    With ``h = relu(W x + b)`` and ``z = U h + c`` the mean cross entropy has ``dz = (softmax(z) - onehot) / N``,
    ``dU = dz h^T``, ``dc = \sum dz``, ``dh = (U^T dz) [h > 0]``, ``dW = dh x^T`` and ``db = \sum dh``.
    """
    weight, bias, out_weight, out_bias = (param.squeeze(0) for param in params)
    rows = images.view(-1, 784)
    hidden = torch.addmm(bias[:, None], weight, rows.t()).relu_()
    grad = torch.softmax(torch.addmm(out_bias[:, None], out_weight, hidden), 0)
    grad[labels, torch.arange(len(labels), device=labels.device)] -= 1.0
    grad.div_(len(labels))
    back = torch.mm(out_weight.t(), grad).mul_(hidden > 0)
    grads = torch.mm(back, rows), back.sum(1), torch.mm(grad, hidden.t()), grad.sum(1)
    return [one[None] for one in grads]


def _convolutional(params: Sequence[Tensor], images: Tensor, dropout: Dropout | None) -> Tensor:
    del dropout
    tensors, values = _only(params, images)
    for layer in range(5):
        values = convolve(values, tensors[2 * layer], tensors[2 * layer + 1], pool=layer in (1, 4))
    return functional.linear(values.flatten(1), tensors[10], tensors[11])[None]


def _vgg16(params: Sequence[Tensor], images: Tensor, dropout: Dropout | None) -> Tensor:
    tensors, values = _only(params, images)
    layers = iter(zip(tensors[::2], tensors[1::2], strict=True))
    for width, after in pairwise(VGG16_LAYOUT):
        if isinstance(width, int):
            values = convolve(values, *next(layers), padding=1, pool=after == "pool")
    values = values.flatten(1)
    for layer in range(2):
        values = functional.linear(values, *next(layers)).relu()
        if dropout is not None:
            values = drop_out(values[None], dropout, layer, 2)[0]
    return functional.linear(values, *next(layers))[None]


def _only(params: Sequence[Tensor], images: Tensor) -> tuple[list[Tensor], Tensor]:
    """The parameters of the only replica, in the arithmetic of its images, and those."""
    images = images.squeeze(0) if images.ndim == 5 else images
    return [param.squeeze(0).to(images.dtype) for param in params], images  # an index would copy in the backward pass


def _both(layers: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{layer}.{part}" for layer in layers for part in ("weight", "bias"))


_VGG16_NAMES = (*feature_shapes(), *_both(("classifier.0", "classifier.3", "classifier.6")))

NETWORKS = {
    "mlp": StackedNetwork(_both(("hidden", "output")), (1.0,) * 4, _perceptron, True, 2**20, _perceptron_gradients),
    "cnn": StackedNetwork(
        _both([*(f"features.{i}" for i in (0, 2, 5, 7, 9)), "classifier"]), (1.0,) * 12, _convolutional, False, 5000
    ),
    "vgg16": StackedNetwork(
        _VGG16_NAMES,
        tuple(float(_COPIES) if name == "classifier.0.weight" else 1.0 for name in _VGG16_NAMES),
        _vgg16,
        stacks=False,
        at_once=2500,
    ),
}
