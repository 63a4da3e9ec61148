"""Replicas that are computed in one call: what those of a CPU and those of a GPU have in common."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from heatbath.data.datasets import Dataset, epoch_orders
from heatbath.draws import Stream, orbits
from heatbath.engine.optimizers import STATE_KINDS
from heatbath.runs.checkpoints import ReplicaState
from heatbath.runs.configs import RunConfig
from heatbath.runs.records import Epoch
from heatbath.tasks.stacked_networks import Dropout, StackedNetwork

_KINDS = ("loss", "accuracy")


@dataclass(frozen=True)
class Split:
    """The images and labels of one part of a data set, as a network reads them fastest.

    Attributes:
        images: uint8; of shape (N, channels, height, width), the last in memory being the channels unless ``flat``.
        labels: int64.
        dataset: whose mean and standard deviation normalise the images.
    """

    images: Tensor
    labels: Tensor
    dataset: Dataset

    @classmethod
    def of(cls, dataset: Dataset, name: str, flat: bool) -> Split:
        """Return the ``"train"``, ``"test"`` or ``"validation"`` part."""
        images = getattr(dataset, f"{name}_images")
        if not flat:
            images = images.contiguous(memory_format=torch.channels_last)
        return cls(images, getattr(dataset, f"{name}_labels"), dataset)

    @staticmethod
    def names(dataset: Dataset) -> list[str]:
        """Return which parts there are."""
        return ["train", "test", *(["validation"] if dataset.validation_images is not None else [])]


class Replicas(ABC):
    """Runs with parameters of shape (replicas, ...).

    Args:
        configs: the runs.
        network: how they are computed.
        splits: the data by name, on the device to train on.
        precision: of the products; the weights are of single precision, but for ``"fp64"``, which is for checks.
        at_once: how many images an evaluation takes at a time.
        stored: the format of the weights, if not that one.
    """

    def __init__(
        self,
        configs: Sequence[RunConfig],
        network: StackedNetwork,
        splits: Mapping[str, Split],
        precision: str,
        at_once: int,
        stored: torch.dtype | None = None,
    ) -> None:
        self.configs, self._network, self._splits = tuple(configs), network, splits
        self._data = splits["train"]
        self._device = self._data.images.device
        self._dtype = {"bf16": torch.bfloat16, "fp64": torch.float64}.get(precision, torch.float32)
        self._kept = torch.promote_types(self._dtype, torch.float32)
        self._steps, self._batch_size = configs[0].steps_per_epoch, configs[0].batch_size
        with torch.device("meta"):
            self._shapes = [tensor.shape for tensor in network.pack(configs[0].network.layers())]
        self._params = [tensor.requires_grad_() for tensor in self._zeros(stored or self._kept)]
        key, gamma = orbits([config.seed for config in configs], Stream.DROPOUT)
        self._key, self._gamma = (torch.from_numpy(part).to(self._device)[:, None] for part in (key, gamma))
        # What a step reads, by its number: filled anew for each epoch, in place, as a captured graph knows the place.
        shape = len(configs), self._steps, self._batch_size
        self._rows = torch.zeros(shape, dtype=torch.int64, device=self._device)
        self._taken = torch.zeros(1, dtype=torch.int64, device=self._device)
        count = len(self._data.labels)
        self._sizes = [min(self._batch_size, count - start) for start in range(0, count, self._batch_size)]
        self._evaluation_size = _common_divisor([len(split.labels) for split in splits.values()], at_once)

    @abstractmethod
    def prepare(self, epoch: int) -> None:
        """Lay out the order of the images and the multipliers of the rate for one epoch, counted from 0."""

    @abstractmethod
    def step(self, at: Any) -> None:
        """Take step ``at`` of the epoch: a number, on a GPU in a tensor of shape (1,)."""

    @abstractmethod
    def load(self, states: Sequence[ReplicaState]) -> None:
        """Put the replicas into these states."""

    @abstractmethod
    def states(self) -> list[ReplicaState]:
        """Return copies of their states, on the CPU, without the number of the epoch."""

    @torch.no_grad()
    def evaluate(self) -> Tensor:
        """Return the sums of losses and hits over each split, of shape (splits, 2, replicas), without dropout."""
        return torch.stack([self._evaluate(split) for split in self._splits.values()])

    def read(self, sums: Tensor) -> list[Epoch]:
        """Return what `evaluate` found, one `Epoch` for each replica."""
        sizes = [len(split.labels) for split in self._splits.values()]
        counts = torch.tensor(sizes, dtype=torch.float64, device="cpu")
        means = (sums.cpu() / counts[:, None, None]).permute(2, 0, 1).tolist()
        names = [f"{split}_{kind}" for split in self._splits for kind in _KINDS]
        measured = [dict(zip(names, (number for pair in rows for number in pair), strict=True)) for rows in means]
        return [Epoch(rate, values) for rate, values in zip(self._mean_rates(), measured, strict=True)]

    def _lay_out(self, epoch: int) -> None:
        """Fill in which images the steps of an epoch take."""
        count, flat = len(self._data.labels), self._rows.view(len(self.configs), -1)
        for sampling in dict.fromkeys(config.sampling for config in self.configs):
            which = [k for k, config in enumerate(self.configs) if config.sampling == sampling]
            seeds = [self.configs[k].seed for k in which]
            orders = epoch_orders(count, seeds, epoch, self._device, sampling)
            if len(which) == len(flat):
                flat[:, :count] = orders
            else:
                flat[torch.tensor(which, device=self._device), :count] = orders
        self._taken.fill_(epoch * self._steps)

    @abstractmethod
    def _mean_rates(self) -> list[float]:
        """The mean rate of the last epoch, for each replica."""

    def _dropout(self, at: int | Tensor) -> Dropout:
        return Dropout(self._key, self._gamma, self._taken + at, self._batch_size)

    def _sums(self, *arguments: Any) -> Tensor:
        return evaluation_sums(*arguments)

    def _evaluate(self, split: Split) -> Tensor:
        size = self._evaluation_size
        parts = zip(split.images.split(size), split.labels.split(size), strict=True)
        sums = [self._sums(self._network, self._params, split.dataset, *part, self._dtype) for part in parts]
        return torch.stack(sums).sum(0)

    def _zeros(self, dtype: torch.dtype) -> list[Tensor]:
        """A tensor for each parameter of all replicas."""
        return [_zeros(len(self.configs), shape, dtype, self._device) for shape in self._shapes]


def initial_state(network: StackedNetwork, model: nn.Module, optimizer: str) -> ReplicaState:
    """Return where a run starts: the weights of a network, and its optimizer at rest."""
    state = {"epoch": torch.tensor(0, device="cpu"), "unit": torch.tensor(1.0, dtype=torch.float64, device="cpu")}
    for name, tensor in zip(network.names, network.pack(model), strict=True):
        state[f"weight.{name}"] = tensor
        state |= {f"{kind}.{name}": torch.zeros_like(tensor) for kind in STATE_KINDS[optimizer]}
    return state


def summed_loss(
    network: StackedNetwork,
    params: list[Tensor],
    data: Split,
    rows: Tensor,
    weights: Tensor | None,
    dropout: Dropout,
    dtype: torch.dtype,
) -> Tensor:
    """Return the sum over the replicas of their mean losses on the images of ``rows``, of shape (replicas, batch).

    Where batches are padded to one size, ``weights`` has one over the true size, and 0 for what is to be left out.
    """
    flat = rows.flatten()
    images = data.dataset.normalize(data.images.index_select(0, flat), dtype).unflatten(0, rows.shape)
    logits = _at_least_single(network.logits(params, images, dropout)).flatten(0, 1)
    labels = data.labels.index_select(0, flat)
    if weights is None:
        return functional.cross_entropy(logits, labels)
    losses = functional.cross_entropy(logits, labels, reduction="none").view(rows.shape)
    return (losses * weights).sum()


def evaluation_sums(
    network: StackedNetwork, params: list[Tensor], dataset: Dataset, images: Tensor, labels: Tensor, dtype: torch.dtype
) -> Tensor:
    """Return the sums of losses and hits over some images, of shape (2, replicas)."""
    logits = _at_least_single(network.logits(params, dataset.normalize(images, dtype), None))
    targets = labels.expand(len(logits), -1)
    losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)
    hits = logits.argmax(2) == targets
    return torch.stack([losses.double().sum(1), hits.double().sum(1)])


def _at_least_single(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _common_divisor(counts: Sequence[int], most: int) -> int:
    """The largest part of at most this size that divides all counts, so that all parts have one shape.

    Where there is none of at least a quarter of it, the last part of each is smaller.
    """
    common = math.gcd(*counts)
    divisors = [size for size in range(1, most + 1) if common % size == 0]
    return divisors[-1] if divisors[-1] >= most // 4 else most


def _zeros(count: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros of shape (count, *shape); those of a convolution have their channels last in memory."""
    if len(shape) != 4:
        return torch.zeros((count, *shape), dtype=dtype, device=device)
    out, channels, height, width = shape
    return torch.zeros((count, out, height, width, channels), dtype=dtype, device=device).permute(0, 1, 4, 2, 3)
