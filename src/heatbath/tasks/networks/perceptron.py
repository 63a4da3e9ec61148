"""Model 1 of the paper: 784 - 100 - 10 with ReLU, on MNIST."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from heatbath.tasks.registry import Cost, Margin, Network

if TYPE_CHECKING:
    from torch import Tensor, nn

    from heatbath.tasks.stacked_networks import Dropout, StackedNetwork


def layers() -> nn.Module:
    """Return the network of images of shape (N, 1, 28, 28), which are flattened; 79,510 parameters."""
    from torch import nn

    linear = {"hidden": nn.Linear(28 * 28, 100), "relu": nn.ReLU(), "output": nn.Linear(100, 10)}
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), **linear))


def rows() -> StackedNetwork:
    """A whole stack is one batched product."""
    from heatbath.tasks.stacked_networks import StackedNetwork, weights_and_biases

    return StackedNetwork(
        weights_and_biases(("hidden", "output")), (1.0,) * 4, logits, stacks=True, at_once=2**20, gradients=gradients
    )


def logits(params: Sequence[Tensor], images: Tensor, dropout: Dropout | None) -> Tensor:
    """See `StackedNetwork`."""
    import torch
    from torch.nn import functional

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


def gradients(params: Sequence[Tensor], images: Tensor, labels: Tensor) -> list[Tensor]:
    r"""The chain rule by hand, with a sample in each column.

    With ``h = relu(W x + b)`` and ``z = U h + c`` the mean cross entropy has ``dz = (softmax(z) - onehot) / N``,
    ``dU = dz h^T``, ``dc = \sum dz``, ``dh = (U^T dz) [h > 0]``, ``dW = dh x^T`` and ``db = \sum dh``.
    """
    import torch

    weight, bias, out_weight, out_bias = (param.squeeze(0) for param in params)
    samples = images.view(-1, 784)
    hidden = torch.addmm(bias[:, None], weight, samples.t()).relu_()
    grad = torch.softmax(torch.addmm(out_bias[:, None], out_weight, hidden), 0)
    grad[labels, torch.arange(len(labels), device=labels.device)] -= 1.0
    grad.div_(len(labels))
    back = torch.mm(out_weight.t(), grad).mul_(hidden > 0)
    grads = torch.mm(back, samples), back.sum(1), torch.mm(grad, hidden.t()), grad.sum(1)
    return [one[None] for one in grads]


NETWORK = Network(
    name="mlp",
    title="perceptron (Model 1)",
    input_shape=(1, 28, 28),
    dataset="mnist5k",
    margins={
        "mnist": Margin(0.002, "0.002 for the perceptron on MNIST, a tenth of the error that is left"),
        "mnist5k": Margin(0.01, "0.01 on the embedded data, ten of the 1,000 test images"),
    },
    precision="tf32",
    cost=Cost(
        cpu_seconds=1e-5,
        process_bytes=500 * 2**20,
        weights=79_510,
        activation_bytes=10_000,
        most=1024,
        compiled_steps=10_000,
    ),
    layers=layers,
    rows=rows,
)
