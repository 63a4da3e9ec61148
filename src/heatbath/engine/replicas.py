"""Replicas that are computed in one call: their parameters, one step of them, and their evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from heatbath.data.datasets import Dataset, epoch_orders
from heatbath.draws import Stream, orbits
from heatbath.engine import split_bf16
from heatbath.engine.linear_step import linear_coefficients, linear_sgd
from heatbath.optim.kernels import SETTINGS, random_sgd
from heatbath.runs.configs import RunConfig
from heatbath.runs.records import Epoch
from heatbath.tasks.stacked_networks import Dropout, StackedNetwork

ReplicaState = dict[str, Tensor]
"""Weights, velocities and their unit on the CPU, and ``epoch``: with the config, all that a resume needs."""

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


class ReplicaGroup:
    """Replicas of shape (replicas, ...): any number of them on a GPU if the network stacks, else one.

    Args:
        configs: the runs.
        network: how they are computed.
        splits: the data by name, on the device to train on.
        precision: of the products; the weights are of single precision, but for ``"fp64"``, which is for checks.
        compiled: whether to compile the step.
    """

    def __init__(
        self,
        configs: Sequence[RunConfig],
        network: StackedNetwork,
        splits: Mapping[str, Split],
        precision: str,
        compiled: bool,
    ) -> None:
        self.configs, self._network, self._splits = tuple(configs), network, splits
        self._data = splits["train"]
        self._device = device = self._data.images.device
        self._dtype = {"bf16": torch.bfloat16, "fp64": torch.float64}.get(precision, torch.float32)
        kept = torch.promote_types(self._dtype, torch.float32)
        self._steps, self._batch_size = configs[0].steps_per_epoch, configs[0].batch_size
        with torch.device("meta"):
            shapes = [tensor.shape for tensor in network.pack(configs[0].network.layers())]
        halved = _in_halves(precision, device, compiled)
        form = self._dtype if halved else kept  # halves are computed with the upper ones, as they are
        self._params = [_zeros(len(configs), shape, form, device).requires_grad_() for shape in shapes]
        self._rests = [_zeros(len(configs), shape, torch.int16, device) for shape in shapes] if halved else []
        self._velocities = [_zeros(len(configs), shape, kept, device) for shape in shapes]
        self._loss = _compile(_loss) if compiled else _loss
        self._update: Callable[..., None] = _compile(linear_sgd) if compiled else linear_sgd
        self._sums = _compile(_sums) if compiled else _sums
        self._seeds = [config.seed for config in configs]
        key, gamma = orbits(self._seeds, Stream.DROPOUT)
        self._dropout = torch.from_numpy(key).to(device)[:, None], torch.from_numpy(gamma).to(device)[:, None]
        # What a step reads, by its number: filled anew for each epoch, in place, as a captured graph knows the place.
        self._rows = torch.zeros((len(configs), self._steps, self._batch_size), dtype=torch.int64, device=device)
        self._coefficients = torch.zeros((self._steps, 3, len(configs)), dtype=torch.float32, device=device)
        self._taken = torch.zeros(1, dtype=torch.int64, device=device)
        count = len(self._data.labels)
        self._sizes = [min(self._batch_size, count - start) for start in range(0, count, self._batch_size)]
        self._sample_weights = _sample_weights(self._sizes, self._batch_size).to(device)
        most = 500 if device.type == "cpu" else network.at_once // len(configs)
        self._evaluation_size = _common_divisor([len(split.labels) for split in splits.values()], most)
        self._factors: list[np.ndarray[Any, Any]] = []
        self._foreseen: tuple[int, list[np.ndarray[Any, Any]], np.ndarray[Any, Any]] | None = None
        self._knobs = [_knobs(config) for config in configs]
        self._per_row = [
            torch.tensor([knobs[name] for knobs in self._knobs], dtype=kept, device=device)
            for name in ("momentum", "weight_decay")
        ]
        self._unit = 1.0  # of the velocities, which `random_sgd` keeps over a number of its own

    def prepare(self, epoch: int) -> None:
        """Lay out the order of the images and the multipliers of the rate for one epoch, counted from 0."""
        count = len(self._data.labels)
        self._rows.view(len(self.configs), -1)[:, :count] = epoch_orders(count, self._seeds, epoch, self._device)
        if self._foreseen is None or self._foreseen[0] != epoch:
            self.foresee(epoch)
        assert self._foreseen is not None
        _, self._factors, coefficients = self._foreseen
        self._coefficients.copy_(torch.from_numpy(coefficients))
        self._taken.fill_(epoch * self._steps)

    def foresee(self, epoch: int) -> None:
        """Compute the multipliers of an epoch ahead of `prepare`, while a GPU is still busy with the one before."""
        factors = [
            knobs["protocol"].multipliers(knobs["law"], config.seed, epoch, self._steps)
            for config, knobs in zip(self.configs, self._knobs, strict=True)
        ]
        coefficients = [
            np.stack(linear_coefficients(row, *(knobs[name] for name in ("lr", "momentum", "nesterov", "coupling"))), 1)
            for row, knobs in zip(factors, self._knobs, strict=True)
        ]
        self._foreseen = epoch, factors, np.stack(coefficients, axis=2)

    def step(self, at: int) -> None:
        """Take step ``at`` of the epoch with the only replica, of whole weights, by the optimizer's own function."""
        grads = self._gradients(self._rows[:, at, : self._sizes[at]], at)
        for grad, gain in zip(grads, self._network.gains, strict=True):
            if gain != 1.0:
                grad.mul_(gain)
        buffers = self._velocities if self._knobs[0]["momentum"] else []
        multiplier, settings = float(self._factors[0][at]), {key: self._knobs[0][key] for key in SETTINGS}
        with torch.no_grad():
            self._unit = random_sgd(self._params, grads, buffers, multiplier=multiplier, unit=self._unit, **settings)

    def step_together(self, at: Tensor) -> None:
        """Take step ``at``, a tensor of shape (1,) that a CUDA graph reads anew, with all replicas."""
        rows = self._rows.index_select(1, at)[:, 0]
        weights = self._sample_weights.index_select(0, at)[0]
        dropout = Dropout(*self._dropout, self._taken + at, self._batch_size)
        loss = self._loss(self._network, self._params, self._data, rows, weights, dropout, self._dtype)
        grads = torch.autograd.grad(loss, self._params)
        coefficients = self._coefficients.index_select(0, at)[0].unbind()
        knobs = *self._per_row, self._network.gains
        with torch.no_grad():
            self._update(self._params, grads, self._velocities, coefficients, *knobs, self._rests)

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
        rates = [config.lr * float(row.mean()) for config, row in zip(self.configs, self._factors, strict=True)]
        return [Epoch(rate=rate, **values) for rate, values in zip(rates, measured, strict=True)]

    def load(self, states: Sequence[ReplicaState]) -> None:
        """Put the replicas into these states."""
        units = torch.stack([state["unit"] for state in states])
        together = len(states) > 1 or self._device.type != "cpu"
        self._unit = 1.0 if together else float(units[0])
        for kind, tensors in (("weight", self._params), ("velocity", self._velocities)):
            for at, (name, tensor) in enumerate(zip(self._network.names, tensors, strict=True)):
                stack = torch.stack([state[f"{kind}.{name}"] for state in states])
                if together and kind == "velocity":
                    stack = stack * units.view(-1, *[1] * (stack.ndim - 1)).to(stack.dtype)
                if self._rests and kind == "weight":
                    stack, rest = split_bf16.split(stack.to(self._device, torch.float32))
                    self._rests[at].copy_(rest)
                tensor.data.copy_(stack)

    @torch.no_grad()
    def states(self) -> list[ReplicaState]:
        """Return copies of their states, on the CPU, without the number of the epoch."""
        weights = map(split_bf16.join, self._params, self._rests) if self._rests else self._params
        stacks = {
            f"{kind}.{name}": tensor.cpu()
            for kind, tensors in (("weight", weights), ("velocity", self._velocities))
            for name, tensor in zip(self._network.names, tensors, strict=True)
        }
        unit = torch.tensor(self._unit, dtype=torch.float64, device="cpu")
        return [
            {"unit": unit, **{name: stack[i].clone() for name, stack in stacks.items()}}
            for i in range(len(self.configs))
        ]

    def _gradients(self, rows: Tensor, at: int) -> list[Tensor]:
        """The gradients of the only replica's mean loss."""
        if self._network.gradients is not None and self._dtype != torch.bfloat16:
            data = self._data
            images = data.dataset.normalize(data.images.index_select(0, rows[0]), self._dtype)
            with torch.no_grad():
                return self._network.gradients(self._params, images, data.labels.index_select(0, rows[0]))
        dropout = Dropout(*self._dropout, self._taken + at, self._batch_size)
        loss = self._loss(self._network, self._params, self._data, rows, None, dropout, self._dtype)
        found = torch.autograd.grad(loss, self._params)
        return [_like(param, grad) for param, grad in zip(self._params, found, strict=True)]

    def _evaluate(self, split: Split) -> Tensor:
        size = self._evaluation_size
        parts = zip(split.images.split(size), split.labels.split(size), strict=True)
        sums = [self._sums(self._network, self._params, split.dataset, *part, self._dtype) for part in parts]
        return torch.stack(sums).sum(0)


def _in_halves(precision: str, device: torch.device, compiled: bool) -> bool:
    """Whether the weights are kept in two halves: where only `step_together` steps them, in one pass over memory."""
    return precision == "bf16" and device.type == "cuda" and compiled


def _loss(
    network: StackedNetwork,
    params: list[Tensor],
    data: Split,
    rows: Tensor,
    weights: Tensor | None,
    dropout: Dropout,
    dtype: torch.dtype,
) -> Tensor:
    """The sum over the replicas of their mean losses on the images of ``rows``, of shape (replicas, batch).

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


def _sums(
    network: StackedNetwork, params: list[Tensor], dataset: Dataset, images: Tensor, labels: Tensor, dtype: torch.dtype
) -> Tensor:
    """The sums of losses and hits over some images, of shape (2, replicas)."""
    logits = _at_least_single(network.logits(params, dataset.normalize(images, dtype), None))
    targets = labels.expand(len(logits), -1)
    losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)
    hits = logits.argmax(2) == targets
    return torch.stack([losses.double().sum(1), hits.double().sum(1)])


def _like(param: Tensor, grad: Tensor) -> Tensor:
    """The gradient laid out as its parameter: the fused kernel goes through both as they lie in memory."""
    return grad if grad.stride() == param.stride() else torch.empty_like(param).copy_(grad)


def _at_least_single(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _knobs(config: RunConfig) -> dict[str, Any]:
    """The settings of `heatbath.optim.kernels.random_sgd`, and the protocol and law behind its multipliers."""
    return {
        "protocol": config.protocol,
        "law": config.law,
        "lr": config.lr,
        "momentum": config.momentum,
        "nesterov": config.nesterov,
        "weight_decay": config.weight_decay,
        # Constant and cyclic protocols act on the rate, as a scheduler does.
        "coupling": config.coupling if config.protocol.kind == "random" else "update",
        "dampening": 0.0,
        "maximize": False,
        "foreach": False,
        "fused": True,
    }


def _common_divisor(counts: Sequence[int], most: int) -> int:
    """The largest part of at most this size that divides all counts, so that all parts have one shape.

    Where there is none of at least a quarter of it, the last part of each is smaller.
    """
    common = math.gcd(*counts)
    divisors = [size for size in range(1, most + 1) if common % size == 0]
    return divisors[-1] if divisors[-1] >= most // 4 else most


@cache
def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    from torch._dynamo import config as dynamo_config  # takes a second or two, which a CPU is spared

    compiled: Callable[..., Any] = torch.compile(function, dynamic=False)
    limit = "recompile_limit" if hasattr(dynamo_config, "recompile_limit") else "cache_size_limit"

    def call(*arguments: Any) -> Any:
        # Stacks of many shapes may be trained in one process, and each is to be compiled.
        with dynamo_config.patch({limit: 1000}):
            return compiled(*arguments)

    return call


def _zeros(count: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros of shape (count, *shape); those of a convolution have their channels last in memory."""
    if len(shape) != 4:
        return torch.zeros((count, *shape), dtype=dtype, device=device)
    out, channels, height, width = shape
    return torch.zeros((count, out, height, width, channels), dtype=dtype, device=device).permute(0, 1, 4, 2, 3)


def _sample_weights(sizes: Sequence[int], batch_size: int) -> Tensor:
    """One over the size of its batch for each sample, of shape (batches, batch size); 0 where the last has none."""
    counts = torch.tensor(sizes, dtype=torch.float32, device="cpu")[:, None]
    return torch.where(torch.arange(batch_size, device="cpu") < counts, 1.0 / counts, 0.0)
