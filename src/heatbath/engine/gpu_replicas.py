"""Runs that a GPU computes together: one call steps them all, compiled where that pays, and can be captured.

On a CPU it computes the same, which is how it is tested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from heatbath.engine import split_bf16
from heatbath.engine.batched_optimizer import BatchedOptimizer, compile_once
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
        self._optimizer = BatchedOptimizer(configs, self._params, network.gains, self._rests, compiled)
        self._loss = compile_once(summed_loss) if compiled else summed_loss
        self._sum_up = compile_once(evaluation_sums) if compiled else evaluation_sums
        self._sample_weights = _sample_weights(self._sizes, self._batch_size).to(self._device)

    def prepare(self, epoch: int) -> None:
        """Lay out the order of the images and the multipliers of the rate for one epoch, counted from 0."""
        self._lay_out(epoch)
        self._optimizer.prepare(epoch)

    def foresee(self, epoch: int) -> None:
        """Compute the multipliers of an epoch ahead of `prepare`, while a GPU is still busy with the one before."""
        self._optimizer.foresee(epoch)

    def step(self, at: Tensor) -> None:
        """Take step ``at``, a tensor of shape (1,) that a CUDA graph reads anew, with all replicas."""
        rows = self._rows.index_select(1, at)[:, 0]
        weights = self._sample_weights.index_select(0, at)[0]
        loss = self._loss(self._network, self._params, self._data, rows, weights, self._dropout(at), self._dtype)
        self._optimizer.step(torch.autograd.grad(loss, self._params), at)

    def load(self, states: Sequence[ReplicaState]) -> None:
        """Put the replicas into these states."""
        units = torch.stack([state["unit"] for state in states])
        for kind, tensors in {"weight": self._params, **self._optimizer.state}.items():
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
            for kind, tensors in {"weight": weights, **self._optimizer.state}.items()
            for name, tensor in zip(self._network.names, tensors, strict=True)
        }
        unit = torch.tensor(1.0, dtype=torch.float64, device="cpu")
        return [
            {"unit": unit, **{name: stack[i].clone() for name, stack in stacks.items()}}
            for i in range(len(self.configs))
        ]

    def _mean_rates(self) -> list[float]:
        return self._optimizer.mean_rates

    def _sums(self, *arguments: Any) -> Tensor:
        found: Tensor = self._sum_up(*arguments)
        return found


def keeps_halves(precision: str, device: torch.device, compiled: bool) -> bool:
    """Return whether the weights are kept in two halves: where a single pass over memory steps them."""
    return precision == "bf16" and device.type == "cuda" and compiled


def _sample_weights(sizes: Sequence[int], batch_size: int) -> Tensor:
    """One over the size of its batch for each sample, of shape (batches, batch size); 0 where the last has none."""
    counts = torch.tensor(sizes, dtype=torch.float32, device="cpu")[:, None]
    return torch.where(torch.arange(batch_size, device="cpu") < counts, 1.0 / counts, 0.0)
