"""Replicas that are computed in one call: their steps and states, whatever is trained and wherever."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from heatbath.data.datasets import epoch_orders
from heatbath.engine.batched_optimizer import BatchedOptimizer
from heatbath.engine.optimizers import RunOptimizer
from heatbath.runs.checkpoints import ReplicaState
from heatbath.runs.configs import RunConfig
from heatbath.runs.records import Epoch


class Replicas(ABC):
    """Runs with a replica in each row of their tensors.

    Attributes:
        configs: the runs.
    """

    configs: tuple[RunConfig, ...]
    _names: Sequence[str]
    _params: list[Tensor]
    _optimizer: RunOptimizer | BatchedOptimizer
    _count: int  # of training samples
    _device: torch.device

    def prepare(self, epoch: int) -> None:
        """Lay out the order of the samples and the multipliers of the rate for one epoch, counted from 0."""
        self._lay_out(epoch)
        self._optimizer.prepare(epoch)

    def step(self, at: Any) -> None:
        """Take step ``at`` of the epoch: a number, or where it is captured a tensor of shape (1,)."""
        self._optimizer.step(self.gradients(at), at)

    @abstractmethod
    def gradients(self, at: Any) -> list[Tensor]:
        """Return the gradients of step ``at``; buffers, such as running means, go on."""

    @abstractmethod
    def evaluate(self) -> Tensor:
        """Return sums over each split, without dropout, for `read`."""

    @abstractmethod
    def read(self, sums: Tensor) -> list[Epoch]:
        """Return what `evaluate` found, one `Epoch` for each replica."""

    @torch.no_grad()
    def load(self, states: Sequence[ReplicaState]) -> None:
        """Put the replicas into these states."""
        factors = self._optimizer.take_units([float(state["unit"]) for state in states])
        for name, tensor in self._tensors():
            stack = torch.stack([state[name] for state in states])
            if name.startswith("velocity."):
                stack = stack * stack.new_tensor(factors).view(-1, *[1] * (stack.ndim - 1))
            tensor.copy_(stack)

    @torch.no_grad()
    def states(self) -> list[ReplicaState]:
        """Return copies of their states, on the CPU, without the number of the epoch."""
        unit = torch.tensor(self._optimizer.unit, dtype=torch.float64, device="cpu")
        stacks = {name: tensor.detach().cpu() for name, tensor in self._tensors()}
        rows = range(len(self.configs))
        return [{"unit": unit, **{name: stack[row].clone() for name, stack in stacks.items()}} for row in rows]

    def _lay_out(self, epoch: int) -> None:
        """Set which samples the steps of an epoch take, and how many steps came before."""
        orders = draw_orders(self.configs, self._count, epoch, self._device)
        self._rows: Any = orders.split(self.configs[0].batch_size, 1)
        self._taken: Any = epoch * self.configs[0].steps_per_epoch

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        """All that training changes, by kind and name, of shape (replicas, ...)."""
        for kind, tensors in {"weight": self._params, **self._optimizer.state}.items():
            for name, tensor in zip(self._names, tensors, strict=True):
                yield f"{kind}.{name}", tensor


def draw_orders(configs: Sequence[RunConfig], count: int, epoch: int, device: torch.device) -> Tensor:
    """Return which of ``count`` samples the steps of an epoch take, one after another, a row for each run."""
    kinds = dict.fromkeys(config.sampling for config in configs)
    seeds = {kind: [config.seed for config in configs if config.sampling == kind] for kind in kinds}
    found = {kind: epoch_orders(count, seeds[kind], epoch, device, kind) for kind in kinds}
    if len(found) == 1:
        return found[configs[0].sampling]
    rows = {kind: iter(orders) for kind, orders in found.items()}
    return torch.stack([next(rows[config.sampling]) for config in configs])


def like(param: Tensor, grad: Tensor | None) -> Tensor:
    """Return a gradient laid out as its parameter, as the fused kernel needs it; zero where the loss has none."""
    if grad is None:
        return torch.zeros_like(param)
    return grad if grad.stride() == param.stride() else torch.empty_like(param).copy_(grad)
