"""Runs that a GPU computes together: one call steps them all, compiled where that pays, and can be captured.

On a CPU it computes the same, which is how it is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heatbath.engine import split_bf16
from heatbath.engine.linear_step import linear_coefficients, linear_sgd
from heatbath.engine.replicas import Replicas, Split, evaluation_sums, summed_loss
from heatbath.runs.checkpoints import ReplicaState
from heatbath.runs.configs import RunConfig
from heatbath.tasks.stacked_networks import StackedNetwork


class GpuReplicas(Replicas):
    """Any number of replicas if the network stacks, else one.

    Args:
        configs: the runs.
        network: how they are computed.
        splits: the data by name, on the device to train on.
        precision: see `Replicas`.
        compiled: whether to compile the step.
        halved: whether to keep the weights in two halves, see `heatbath.engine.split_bf16`; by default where only this
            step, compiled for a GPU, goes over them, in one pass over memory.
    """

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
        self._loss = _compile(summed_loss) if compiled else summed_loss
        self._update: Callable[..., None] = _compile(linear_sgd) if compiled else linear_sgd
        self._sum_up = _compile(evaluation_sums) if compiled else evaluation_sums
        shape = self._steps, 3, len(configs)
        self._coefficients = torch.zeros(shape, dtype=torch.float32, device=self._device)
        self._sample_weights = _sample_weights(self._sizes, self._batch_size).to(self._device)
        self._foreseen: tuple[int, list[np.ndarray[Any, Any]], np.ndarray[Any, Any]] | None = None
        self._per_row = [
            torch.tensor([settings[name] for settings in self._settings], dtype=self._kept, device=self._device)
            for name in ("momentum", "weight_decay")
        ]

    def prepare(self, epoch: int) -> None:
        """Lay out the order of the images and the multipliers of the rate for one epoch, counted from 0."""
        self._lay_out(epoch)
        if self._foreseen is None or self._foreseen[0] != epoch:
            self.foresee(epoch)
        assert self._foreseen is not None
        _, self._multipliers, coefficients = self._foreseen
        self._coefficients.copy_(torch.from_numpy(coefficients))

    def foresee(self, epoch: int) -> None:
        """Compute the multipliers of an epoch ahead of `prepare`, while a GPU is still busy with the one before."""
        multipliers = self._draw(epoch)
        coefficients = [
            np.stack(linear_coefficients(row, *(knobs[name] for name in ("lr", "momentum", "nesterov", "coupling"))), 1)
            for row, knobs in zip(multipliers, self._settings, strict=True)
        ]
        self._foreseen = epoch, multipliers, np.stack(coefficients, axis=2)

    def step(self, at: Tensor) -> None:
        """Take step ``at``, a tensor of shape (1,) that a CUDA graph reads anew, with all replicas."""
        rows = self._rows.index_select(1, at)[:, 0]
        weights = self._sample_weights.index_select(0, at)[0]
        loss = self._loss(self._network, self._params, self._data, rows, weights, self._dropout(at), self._dtype)
        grads = torch.autograd.grad(loss, self._params)
        coefficients = self._coefficients.index_select(0, at)[0].unbind()
        knobs = *self._per_row, self._network.gains
        with torch.no_grad():
            self._update(self._params, grads, self._velocities, coefficients, *knobs, self._rests)

    def load(self, states: Sequence[ReplicaState]) -> None:
        """Put the replicas into these states."""
        units = torch.stack([state["unit"] for state in states])
        for kind, tensors in (("weight", self._params), ("velocity", self._velocities)):
            for at, (name, tensor) in enumerate(zip(self._network.names, tensors, strict=True)):
                stack = torch.stack([state[f"{kind}.{name}"] for state in states])
                if kind == "velocity":
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
        unit = torch.tensor(1.0, dtype=torch.float64, device="cpu")
        return [
            {"unit": unit, **{name: stack[i].clone() for name, stack in stacks.items()}}
            for i in range(len(self.configs))
        ]

    def _sums(self, *arguments: Any) -> Tensor:
        found: Tensor = self._sum_up(*arguments)
        return found


def keeps_halves(precision: str, device: torch.device, compiled: bool) -> bool:
    """Return whether the weights are kept in two halves: where a single pass over memory steps them."""
    return precision == "bf16" and device.type == "cuda" and compiled


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


def _sample_weights(sizes: Sequence[int], batch_size: int) -> Tensor:
    """One over the size of its batch for each sample, of shape (batches, batch size); 0 where the last has none."""
    counts = torch.tensor(sizes, dtype=torch.float32, device="cpu")[:, None]
    return torch.where(torch.arange(batch_size, device="cpu") < counts, 1.0 / counts, 0.0)
