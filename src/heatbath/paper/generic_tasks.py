"""The tasks of experiments 7 and 8: models that fit one page."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from heatbath.data.datasets import load_dataset
from heatbath.data.downloads import data_roots
from heatbath.tasks.task import Task

_CONTEXT, _BYTES = 64, 128
_ON_CIFAR = ("residual", "cifar perceptron")


def build_task(name: str, train: int, test: int, data_dir: Any) -> Task:
    """Return one of the tasks by its name, with so many samples to train and to test on."""
    if name == "table":
        from sklearn.datasets import load_breast_cancer

        inputs, labels = (torch.as_tensor(part) for part in load_breast_cancer(return_X_y=True))
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
        inputs = (inputs - inputs.mean(0)) / inputs.std(0)
        parts = [(inputs[rows].float(), labels[rows]) for rows in order.split([train, len(order) - train])]
    elif name == "gpt":
        parts = text_windows(train, test, data_dir)
    else:
        data = load_dataset("cifar10" if name in _ON_CIFAR else "mnist", device="cpu", data_dir=data_dir)
        parts = [
            (data.normalize(data.train_images[:train]), data.train_labels[:train]),
            (data.normalize(data.test_images[:test]), data.test_labels[:test]),
        ]
    return Task(_MODELS[name], *parts, name=name)


class Residual(nn.Module):
    """A convolution around which the input passes, halving the image and doubling the channels."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        out = channels * stride
        self.first, self.second = (nn.Conv2d(c, out, 3, s, 1, bias=False) for c, s in ((channels, stride), (out, 1)))
        self.norms = nn.ModuleList([nn.GroupNorm(4, out) for _ in range(2)])
        self.past = nn.Identity() if stride == 1 else nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both ways."""
        hidden = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(hidden)) + self.past(x))


class SmallGPT(nn.Module):
    """Next bytes, by torch's own transformer layers."""

    def __init__(self, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(_BYTES, width), nn.Embedding(_CONTEXT, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, _BYTES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores of shape (rows, places, bytes)."""
        later = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        scores: Tensor = self.head(self.encoder(x, mask=later, is_causal=True))
        return scores


def _perceptron(*sizes: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for inside, out in pairwise(sizes):
        layers += [nn.Linear(inside, out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _cnn() -> nn.Module:
    convolutions = (nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2))
    network = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(32 * 5 * 5, 10))
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return] # twice as fast


def _residual() -> nn.Module:
    first = (nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.GroupNorm(4, 16), nn.ReLU())
    blocks = (Residual(16, 1), Residual(16, 2), Residual(32, 2))
    return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def text_windows(train: int | None, test: int | None, data_dir: Any) -> list[tuple[Tensor, Tensor]]:
    """The first windows of the training text and of the last 2,000,000 bytes, which are for testing; None is all."""
    found = [f for folder in data_roots(data_dir) if (f := folder / "text" / "linux-doc.txt").is_file()]
    if not found:
        raise OSError("the byte GPT needs text/linux-doc.txt in the folder of HEATBATH_DATA")
    codes = torch.frombuffer(bytearray(found[0].read_bytes()), dtype=torch.uint8).long().clamp(max=_BYTES - 1)
    windows = [part.unfold(0, _CONTEXT + 1, _CONTEXT) for part in (codes[:-2_000_000], codes[-2_000_000:])]
    return [(part[:rows, :-1], part[:rows, 1:]) for part, rows in zip(windows, (train, test), strict=True)]


_MODELS: dict[str, Callable[[], nn.Module]] = {
    "softmax": partial(_perceptron, 784, 10),
    "perceptron": partial(_perceptron, 784, 100, 10),
    "cifar perceptron": partial(_perceptron, 3072, 100, 10),
    "cnn": _cnn,
    "residual": _residual,
    "gpt": SmallGPT,
    "table": partial(_perceptron, 30, 32, 2),
}
