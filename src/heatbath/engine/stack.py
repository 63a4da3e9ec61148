"""Trains a stack of independent replicas as one program.

A `Stack` holds runs that agree in shapes (model, data, batch size, precision) and may differ in everything else that
is a number: seed, protocol, law, coupling, rate, momentum, Nesterov, decay. Initial weights, data order, dropout and
draws are pure functions of each run's seed, so that no replica depends on its neighbours. On a CPU, where a stack is
computed replica by replica, its numbers are those of the run alone bit for bit; on a GPU a batched product may add up
in another order, and they agree to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from heatbath.data.datasets import Dataset
from heatbath.engine.batched_task import task_groups
from heatbath.engine.cuda_graph import CapturedGroups
from heatbath.engine.network_replicas import CpuReplica, GpuReplicas, Split, initial_state
from heatbath.engine.planning import pays_to_compile, resolve_precision
from heatbath.engine.precision import arithmetic
from heatbath.engine.replicas import Replicas
from heatbath.engine.task_replica import Splits
from heatbath.runs.checkpoints import ReplicaState
from heatbath.runs.configs import RunConfig
from heatbath.runs.records import Epoch
from heatbath.tasks.models import build_model


class Stack:
    """Independent replicas trained as one program.

    Args:
        configs: the runs, alike in `heatbath.engine.planning.stack_key`.
        dataset: theirs, on any device; for tasks, their samples on the device.
        device: where to train.
        states: where each run stands, if not at its start; all after the same epoch.
        compile: whether to compile the step, on a GPU; by default where that pays, see `planning.pays_to_compile`.
        features: what VGG16's convolutions start from; by default looked for, where the runs name them.

    Attributes:
        groups: the replicas that are computed in one call each.
        epoch: how many epochs they have completed.
        precision: the one in use, never ``"auto"``.
        how: runs of a task are computed, in words; empty for the networks of the paper.
    """

    def __init__(
        self,
        configs: Sequence[RunConfig],
        dataset: Dataset | Splits,
        *,
        device: torch.device | str = "cpu",
        states: Sequence[ReplicaState] | None = None,
        compile: bool | None = None,  # noqa: A002 - torch's name for it
        features: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.configs = tuple(configs)
        self.device, first = torch.device(device), self.configs[0]
        self.precision, self.how = resolve_precision(first, self.device), ""
        compiled = pays_to_compile(self.configs, self.device) if compile is None else compile
        resumed = states is not None
        self.groups: Sequence[Replicas]
        self._captured: CapturedGroups | None = None
        if isinstance(dataset, Dataset):
            self._take_network(dataset.to(self.device), compiled)
            states = self._initial_states(features) if states is None else states
        else:
            self.groups, self.how = task_groups(self.configs, dataset, self.precision, compiled)
        self.epoch = int(states[0]["epoch"]) if states else 0
        if any(int(state["epoch"]) != self.epoch for state in states or ()):
            raise ValueError("the replicas of a stack must stand after the same epoch")
        if states is None:  # those of tasks start from their seeds
            return
        start = 0
        for group in self.groups:
            given = states[start : start + len(group.configs)]
            if resumed:
                _check_states(group.states(), given, start)
            group.load(given)
            start += len(given)

    def _take_network(self, dataset: Dataset, compiled: bool) -> None:
        network = self.configs[0].network.stacked
        splits = Split.all_of(dataset, network.stacks)
        if self.device.type == "cpu":
            # A CPU gains nothing from a batched product, whose bits would depend on the neighbours.
            self.groups = [CpuReplica(config, network, splits, self.precision) for config in self.configs]
            return
        together = len(self.configs) if network.stacks else 1
        parts = (self.configs[i : i + together] for i in range(0, len(self.configs), together))
        self.groups = groups = [GpuReplicas(part, network, splits, self.precision, compiled) for part in parts]
        self._captured = CapturedGroups(groups, self.device, self.precision)

    def train_epoch(self) -> list[Epoch]:
        """Go once through the training images; return what is measured after that, for each replica."""
        self.advance()
        return self.measure()

    def advance(self) -> None:
        """Go once through the training images."""
        steps = self.configs[0].steps_per_epoch
        with arithmetic(self.precision, self.device):
            if self._captured is not None:
                self._captured.advance(self.epoch, steps)
            else:
                for group in self.groups:
                    group.prepare(self.epoch)
                    for step in range(steps):
                        group.step(step)
        self.epoch += 1

    def measure(self) -> list[Epoch]:
        """Return losses and accuracies over all images, without dropout, and the rate of the last epoch."""
        with arithmetic(self.precision, self.device):
            captured = self._captured
            totals = captured.evaluate() if captured else [group.evaluate() for group in self.groups]
        return [epoch for group, sums in zip(self.groups, totals, strict=True) for epoch in group.read(sums)]

    def states(self) -> list[ReplicaState]:
        """Return copies of the replicas' states, on the CPU."""
        epoch = torch.tensor(self.epoch, device="cpu")
        return [{**state, "epoch": epoch} for group in self.groups for state in group.states()]

    def _initial_states(self, features: Mapping[str, Tensor] | None) -> list[ReplicaState]:
        first, network = self.configs[0], self.configs[0].network.stacked
        if features is None and first.weights is not None and first.network.pretrained is not None:
            features = first.network.pretrained(first.weights, None)
        models = (build_model(config.model, seed=config.seed, weights=features) for config in self.configs)
        return [initial_state(network, model, first.optimizer) for model in models]


class WrongStateError(ValueError):
    """A state is not one of the run ``replica``, counted from 0, that it should be of."""

    def __init__(self, replica: int, names: Sequence[str]) -> None:
        super().__init__(f"its {', '.join(names)} are not those of the network")
        self.replica = replica


def _check_states(expected: Sequence[ReplicaState], given: Sequence[ReplicaState], first: int) -> None:
    """Refuse what is not the state of such a run; a tensor of another shape might be copied all over the right one."""
    for replica, (wanted, state) in enumerate(zip(expected, given, strict=True), start=first):
        shapes, found = ({name: tensor.shape for name, tensor in each.items()} for each in (wanted, state))
        found.pop("epoch")
        if found != shapes:
            wrong = sorted(name for name in shapes.keys() | found.keys() if shapes.get(name) != found.get(name))
            raise WrongStateError(replica, wrong[:3])
