"""Runs of the paper's networks: one on a CPU, stepped by the optimizer's own function, or many that a GPU computes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from heatbath.data.datasets import Dataset
from heatbath.draws import Stream, orbits
from heatbath.engine import split_bf16
from heatbath.engine.batched_optimizer import BatchedOptimizer, compile_once
from heatbath.engine.optimizers import STATE_KINDS, RunOptimizer
from heatbath.engine.planning import evaluation_size
from heatbath.engine.replicas import Replicas, draw_orders, like
from heatbath.runs.checkpoints import ReplicaState
from heatbath.runs.configs import RunConfig
from heatbath.runs.records import Epoch
from heatbath.tasks.stacked_networks import Dropout, StackedNetwork


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

    @classmethod
    def all_of(cls, dataset: Dataset, flat: bool) -> dict[str, Split]:
        """Return the parts that there are, by name."""
        names = ["train", "test", *(["validation"] if dataset.validation_images is not None else [])]
        return {name: cls.of(dataset, name, flat) for name in names}


class NetworkReplicas(Replicas):
    """What a CPU and a GPU have in common.

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
        self._data, self._count, self._names = splits["train"], len(splits["train"].labels), network.names
        self._device, self._batch_size = self._data.images.device, configs[0].batch_size
        self._dtype = {"bf16": torch.bfloat16, "fp64": torch.float64}.get(precision, torch.float32)
        kept = torch.promote_types(self._dtype, torch.float32)
        self._params = [tensor.requires_grad_() for tensor in self._zeros(stored or kept)]
        key, gamma = orbits([config.seed for config in configs], Stream.DROPOUT)
        self._key, self._gamma = (torch.from_numpy(part).to(self._device)[:, None] for part in (key, gamma))
        self._evaluation_size = _common_divisor([len(split.labels) for split in splits.values()], at_once)
        self._sum_up = evaluation_sums

    @torch.no_grad()
    def evaluate(self) -> Tensor:
        """Return the sums of losses and hits over each split, of shape (splits, 2, replicas), without dropout."""
        return torch.stack([self._evaluate(split) for split in self._splits.values()])

    def read(self, sums: Tensor) -> list[Epoch]:
        """Return what `evaluate` found, one `Epoch` for each replica."""
        sizes = [len(split.labels) for split in self._splits.values()]
        means = sums.cpu() / torch.tensor(sizes, dtype=torch.float64, device="cpu")[:, None, None]
        names = [f"{split}_{kind}" for split in self._splits for kind in ("loss", "accuracy")]
        rows = means.flatten(0, 1).T.tolist()
        rates = self._optimizer.mean_rates
        return [Epoch(rate, dict(zip(names, row, strict=True))) for rate, row in zip(rates, rows, strict=True)]

    def _evaluate(self, split: Split) -> Tensor:
        size = self._evaluation_size
        parts = zip(split.images.split(size), split.labels.split(size), strict=True)
        sums = [self._sum_up(self._network, self._params, split.dataset, *part, self._dtype) for part in parts]
        return torch.stack(sums).sum(0)

    def _zeros(self, dtype: torch.dtype) -> list[Tensor]:
        """A tensor for each parameter of all replicas; those of a convolution have their channels last in memory."""
        with torch.device("meta"):
            shapes = [tensor.shape for tensor in self._network.pack(self.configs[0].network.layers())]
        found = []
        for shape in shapes:
            last = [shape[0], *shape[2:], shape[1]] if len(shape) == 4 else shape
            zeros = torch.zeros((len(self.configs), *last), dtype=dtype, device=self._device)
            found.append(zeros.permute(0, 1, 4, 2, 3) if len(shape) == 4 else zeros)
        return found


class CpuReplica(NetworkReplicas):
    """A single replica, whose bits do not depend on any neighbours; see `NetworkReplicas`."""

    def __init__(self, config: RunConfig, network: StackedNetwork, splits: Mapping[str, Split], precision: str) -> None:
        at_once = evaluation_size(config, torch.device("cpu"))
        super().__init__([config], network, splits, precision, at_once)
        self._optimizer = RunOptimizer(config, self._params, network.gains)

    def gradients(self, at: int) -> list[Tensor]:
        """Return the gradients of the mean loss of step ``at``."""
        data, rows = self._data, self._rows[at]
        if self._network.gradients is not None and self._dtype != torch.bfloat16:
            images = data.dataset.normalize(data.images.index_select(0, rows[0]), self._dtype)
            with torch.no_grad():
                return self._network.gradients(self._params, images, data.labels.index_select(0, rows[0]))
        taken = torch.tensor([self._taken + at], device=self._device)
        dropout = Dropout(self._key, self._gamma, taken, self._batch_size)
        loss = summed_loss(self._network, self._params, data, rows, None, dropout, self._dtype)
        found = torch.autograd.grad(loss, self._params)
        return [like(param, grad) for param, grad in zip(self._params, found, strict=True)]


class GpuReplicas(NetworkReplicas):
    """Any number of replicas if the network stacks, else one: one call steps them all, and can be captured.

    On a CPU it computes the same, which is how it is tested. Weights are kept in two halves, see
    `heatbath.engine.split_bf16`, by default where only this step, compiled for a GPU, goes over them, in one pass.
    """

    _optimizer: BatchedOptimizer

    def __init__(
        self,
        configs: Sequence[RunConfig],
        network: StackedNetwork,
        splits: Mapping[str, Split],
        precision: str,
        compiled: bool,
        *,
        halved: bool | None = None,
    ) -> None:
        if halved is None:
            halved = keeps_halves(precision, splits["train"].images.device, compiled)
        stored = torch.bfloat16 if halved else None  # the upper halves, with which they are computed as they are
        super().__init__(configs, network, splits, precision, network.at_once // len(configs), stored)
        self._rests = self._zeros(torch.int16) if halved else []
        self._optimizer = BatchedOptimizer(configs, self._params, network.gains, self._rests, compiled)
        self._loss: Any = compile_once(summed_loss) if compiled else summed_loss
        self._sum_up = compile_once(evaluation_sums) if compiled else evaluation_sums
        # What a step reads, by its number: filled anew for each epoch, in place, as a captured graph knows the place.
        shape = len(configs), configs[0].steps_per_epoch, self._batch_size
        self._rows = torch.zeros(shape, dtype=torch.int64, device=self._device)
        self._taken = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._sample_weights = _sample_weights(self._count, self._batch_size).to(self._device)

    def foresee(self, epoch: int) -> None:
        """Compute the multipliers of an epoch ahead of `prepare`, while a GPU is still busy with the one before."""
        self._optimizer.foresee(epoch)

    def gradients(self, at: Tensor) -> list[Tensor]:
        """Return the gradients of step ``at``, a tensor of shape (1,) that a CUDA graph reads anew."""
        rows = self._rows.index_select(1, at)[:, 0]
        weights = self._sample_weights.index_select(0, at)[0]
        dropout = Dropout(self._key, self._gamma, self._taken + at, self._batch_size)
        loss = self._loss(self._network, self._params, self._data, rows, weights, dropout, self._dtype)
        return list(torch.autograd.grad(loss, self._params))

    @torch.no_grad()
    def load(self, states: Sequence[ReplicaState]) -> None:
        """Put the replicas into these states."""
        super().load(states)
        for name, param, rest in zip(self._names, self._params, self._rests, strict=bool(self._rests)):
            stack = torch.stack([state[f"weight.{name}"] for state in states])
            high, low = split_bf16.split(stack.to(self._device, torch.float32))
            param.copy_(high)
            rest.copy_(low)

    def _lay_out(self, epoch: int) -> None:
        orders = draw_orders(self.configs, self._count, epoch, self._device)
        self._rows.view(len(self.configs), -1)[:, : self._count] = orders
        self._taken.fill_(epoch * self.configs[0].steps_per_epoch)

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        whole = {f"weight.{name}": k for k, name in enumerate(self._names)} if self._rests else {}
        for name, tensor in super()._tensors():
            yield name, split_bf16.join(tensor, self._rests[whole[name]]) if name in whole else tensor


def keeps_halves(precision: str, device: torch.device, compiled: bool) -> bool:
    """Return whether the weights are kept in two halves: where a single pass over memory steps them."""
    return precision == "bf16" and device.type == "cuda" and compiled


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


def _sample_weights(count: int, batch_size: int) -> Tensor:
    """One over the size of its batch for each sample, of shape (batches, batch size); 0 where the last has none."""
    sizes = [min(batch_size, count - start) for start in range(0, count, batch_size)]
    counts = torch.tensor(sizes, dtype=torch.float32, device="cpu")[:, None]
    return torch.where(torch.arange(batch_size, device="cpu") < counts, 1.0 / counts, 0.0)
