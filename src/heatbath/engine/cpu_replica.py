"""One run on a CPU: stepped by the optimizer's own function, so that its bits do not depend on any neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from heatbath.engine.optimizers import run_optimizer
from heatbath.engine.replicas import Replicas, Split, summed_loss
from heatbath.runs.checkpoints import ReplicaState
from heatbath.runs.configs import RunConfig
from heatbath.tasks.stacked_networks import StackedNetwork

_IMAGES_AT_ONCE = 500  # of an evaluation


class CpuReplica(Replicas):
    """A single replica.

    Args:
        config: the run.
        network: how it is computed.
        splits: the data by name.
        precision: see `Replicas`.
    """

    def __init__(self, config: RunConfig, network: StackedNetwork, splits: Mapping[str, Split], precision: str) -> None:
        super().__init__([config], network, splits, precision, _IMAGES_AT_ONCE)
        self._optimizer = run_optimizer(config, self._params, network.gains)

    def prepare(self, epoch: int) -> None:
        """Lay out the order of the images and the multipliers of the rate for one epoch, counted from 0."""
        self._lay_out(epoch)
        self._optimizer.prepare(epoch)

    def step(self, at: int) -> None:
        """Take step ``at`` of the epoch."""
        self._optimizer.step(self._gradients(self._rows[:, at, : self._sizes[at]], at), at)

    def load(self, states: Sequence[ReplicaState]) -> None:
        """Put the replicas into these states."""
        (state,) = states
        self._optimizer.unit = float(state["unit"])
        for kind, tensors in self._tensors().items():
            for name, tensor in zip(self._network.names, tensors, strict=True):
                tensor.data.copy_(state[f"{kind}.{name}"][None])

    @torch.no_grad()
    def states(self) -> list[ReplicaState]:
        """Return copies of their states, on the CPU, without the number of the epoch."""
        unit = torch.tensor(self._optimizer.unit, dtype=torch.float64, device="cpu")
        tensors = {
            f"{kind}.{name}": tensor[0].clone()
            for kind, stack in self._tensors().items()
            for name, tensor in zip(self._network.names, stack, strict=True)
        }
        return [{"unit": unit, **tensors}]

    def _mean_rates(self) -> list[float]:
        return [self._optimizer.mean_rate]

    def _tensors(self) -> dict[str, list[Tensor]]:
        return {"weight": self._params, **self._optimizer.state}

    def _gradients(self, rows: Tensor, at: int) -> list[Tensor]:
        """The gradients of the mean loss."""
        data = self._data
        if self._network.gradients is not None and self._dtype != torch.bfloat16:
            images = data.dataset.normalize(data.images.index_select(0, rows[0]), self._dtype)
            with torch.no_grad():
                return self._network.gradients(self._params, images, data.labels.index_select(0, rows[0]))
        loss = summed_loss(self._network, self._params, data, rows, None, self._dropout(at), self._dtype)
        found = torch.autograd.grad(loss, self._params)
        return [_like(param, grad) for param, grad in zip(self._params, found, strict=True)]


def _like(param: Tensor, grad: Tensor) -> Tensor:
    """The gradient laid out as its parameter: the fused kernel goes through both as they lie in memory."""
    return grad if grad.stride() == param.stride() else torch.empty_like(param).copy_(grad)
