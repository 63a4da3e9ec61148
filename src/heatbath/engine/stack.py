"""Trains a stack of independent replicas as one program.

A `Stack` holds runs that agree in shapes (model, data, batch size, precision) and may differ in everything else that
is a number: seed, protocol, law, coupling, rate, momentum, Nesterov, decay. Initial weights, data order, dropout and
draws are pure functions of each run's seed, so that no replica depends on its neighbours. On a CPU, where a stack is
computed replica by replica, its numbers are those of the run alone bit for bit; on a GPU a batched product may add up
in another order, and they agree to rounding.

On a GPU a step is captured once as a CUDA graph that reads what changes from step to step (which images, with which
coefficients) from the device, so that an epoch is a row of replays.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import torch

from heatbath.data.datasets import Dataset
from heatbath.engine.planning import pays_to_compile, resolve_precision
from heatbath.engine.precision import arithmetic
from heatbath.engine.replicas import ReplicaGroup, ReplicaState, Split
from heatbath.runs.configs import RunConfig
from heatbath.runs.records import Epoch
from heatbath.tasks.models import build_model


class Stack:
    """Independent replicas trained as one program.

    Args:
        configs: the runs, alike in `heatbath.engine.planning.stack_key`.
        dataset: theirs, on any device.
        device: where to train.
        states: where each run stands, if not at its start; all after the same epoch.
        compile: whether to compile the step; by default where that pays, see `planning.pays_to_compile`.
        data_dir: where to look for ImageNet's features first.

    Attributes:
        configs: the runs.
        epoch: how many epochs they have completed.
        precision: the one in use, never ``"auto"``.
    """

    def __init__(
        self,
        configs: Sequence[RunConfig],
        dataset: Dataset,
        *,
        device: torch.device | str = "cpu",
        states: Sequence[ReplicaState] | None = None,
        compile: bool | None = None,  # noqa: A002 - torch's name for it
        data_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self.configs = tuple(configs)
        self.device = torch.device(device)
        self.precision = resolve_precision(self.configs[0], self.device)
        compiled = pays_to_compile(self.configs, self.device) if compile is None else compile
        network = self.configs[0].network.stacked
        # A CPU gains nothing from a batched product, whose bits would depend on the neighbours.
        together = len(self.configs) if network.stacks and self.device.type != "cpu" else 1
        dataset = dataset.to(self.device)
        splits = {name: Split.of(dataset, name, network.stacks) for name in Split.names(dataset)}
        self._groups = [
            ReplicaGroup(self.configs[i : i + together], network, splits, self.precision, compiled)
            for i in range(0, len(self.configs), together)
        ]
        self._counter = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._streams = [torch.cuda.Stream(self.device) for _ in self._groups if self.device.type == "cuda"]
        self._graph = self._capture() if self.device.type == "cuda" else None
        states = self._initial_states(data_dir) if states is None else states
        self.epoch = int(states[0]["epoch"])
        if any(int(state["epoch"]) != self.epoch for state in states):
            raise ValueError("the replicas of a stack must stand after the same epoch")
        rest = iter(states)
        for group in self._groups:
            group.load([next(rest) for _ in group.configs])

    def train_epoch(self) -> list[Epoch]:
        """Go once through the training images; return what is measured after that, for each replica."""
        self.advance()
        return self.measure()

    def advance(self) -> None:
        """Go once through the training images."""
        steps = self.configs[0].steps_per_epoch
        with arithmetic(self.precision, self.device):
            for group in self._groups:
                group.prepare(self.epoch)
            if self._graph is None:
                for group in self._groups:
                    for step in range(steps):
                        group.step(step)
            else:
                self._counter.zero_()
                for _ in range(steps):
                    self._graph.replay()
                for group in self._groups:
                    group.foresee(self.epoch + 1)
        self.epoch += 1

    def measure(self) -> list[Epoch]:
        """Return losses and accuracies over all images, without dropout, and the rate of the last epoch."""
        totals: list[torch.Tensor] = []
        with arithmetic(self.precision, self.device):
            self._side_by_side(lambda group: totals.append(group.evaluate()))
        return [epoch for group, sums in zip(self._groups, totals, strict=True) for epoch in group.read(sums)]

    def states(self) -> list[ReplicaState]:
        """Return copies of the replicas' states, on the CPU."""
        epoch = torch.tensor(self.epoch, device="cpu")
        return [{**state, "epoch": epoch} for group in self._groups for state in group.states()]

    def _initial_states(self, data_dir: str | os.PathLike[str] | None) -> list[ReplicaState]:
        first, network = self.configs[0], self.configs[0].network.stacked
        pretrained = first.network.pretrained if first.weights is not None else None
        features = None if pretrained is None else pretrained(first.weights, data_dir)
        states = []
        for config in self.configs:
            packed = network.pack(build_model(config.model, seed=config.seed, weights=features))
            unit = torch.tensor(1.0, dtype=torch.float64, device="cpu")
            state = {"epoch": torch.tensor(0, device="cpu"), "unit": unit}
            for name, tensor in zip(network.names, packed, strict=True):
                state |= {f"weight.{name}": tensor, f"velocity.{name}": torch.zeros_like(tensor)}
            states.append(state)
        return states

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Record one step of all groups; the weights are still to be loaded."""

        def step() -> None:
            self._side_by_side(lambda group: group.step_together(self._counter))
            self._counter.add_(1)

        alone = len(self._groups) == 1  # the fastest algorithm leaves less of the GPU to others than cuDNN's choice
        with torch.cuda.device(self.device), arithmetic(self.precision, self.device, search=alone):
            for group in self._groups:
                group.prepare(0)
            warm_up = torch.cuda.Stream(self.device)
            warm_up.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(warm_up):
                needed = len(self._groups) * self._memory_of(self._groups[0])
                for _ in range(3):  # libraries choose their kernels, and the compiler compiles, outside the capture
                    self._counter.zero_()
                    step()
            torch.cuda.synchronize()
            # What a capture has taken before it fails is lost until the process ends; so a lack shows here.
            torch.cuda.empty_cache()
            torch.empty(needed, dtype=torch.uint8, device=self.device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
        return graph

    def _memory_of(self, group: ReplicaGroup) -> int:
        """Return how much memory a step of one group takes for the time being, in bytes."""
        before = 0
        for _ in range(2):  # the first compiles and chooses kernels, which takes memory of its own
            torch.cuda.empty_cache()
            before = torch.cuda.memory_reserved(self.device)
            group.step_together(self._counter)
            torch.cuda.synchronize()
        return torch.cuda.memory_reserved(self.device) - before

    def _side_by_side(self, work: Callable[[ReplicaGroup], None]) -> None:
        """Do something with each group, on a GPU each on a stream of its own."""
        if self.device.type == "cpu":
            for group in self._groups:
                work(group)
            return
        main = torch.cuda.current_stream(self.device)
        for group, stream in zip(self._groups, self._streams, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                work(group)
        for stream in self._streams:
            main.wait_stream(stream)
