"""A step of several groups of replicas, captured once as a CUDA graph; an epoch is a row of replays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from heatbath.engine.network_replicas import GpuReplicas
from heatbath.engine.precision import arithmetic


class CapturedGroups:
    """Groups of replicas on a GPU, each on a stream of its own, loaded after the capture, which changes weights.

    A step reads what varies (which images, with which coefficients) from the device, by its number there.
    """

    def __init__(self, groups: Sequence[GpuReplicas], device: torch.device, precision: str) -> None:
        self._groups, self._device = groups, device
        self._counter = torch.zeros(1, dtype=torch.int64, device=device)
        self._streams = [torch.cuda.Stream(device) for _ in groups]
        self._graph = self._capture(precision)

    def advance(self, epoch: int, steps: int) -> None:
        """Go once through the training images."""
        for group in self._groups:
            group.prepare(epoch)
        self._counter.zero_()
        for _ in range(steps):
            self._graph.replay()
        for group in self._groups:
            group.foresee(epoch + 1)

    def evaluate(self) -> list[Tensor]:
        """Return what `Replicas.evaluate` finds, for each group."""
        totals: list[Tensor] = []
        self._side_by_side(lambda group: totals.append(group.evaluate()))
        return totals

    def _capture(self, precision: str) -> torch.cuda.CUDAGraph:
        """Record one step of all groups."""

        def step() -> None:
            self._side_by_side(lambda group: group.step(self._counter))
            self._counter.add_(1)

        alone = len(self._groups) == 1  # the fastest algorithm leaves less of the GPU to others than cuDNN's choice
        with torch.cuda.device(self._device), arithmetic(precision, self._device, search=alone):
            for group in self._groups:
                group.prepare(0)
            warm_up = torch.cuda.Stream(self._device)
            warm_up.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(warm_up):
                needed = len(self._groups) * self._memory_of(self._groups[0])
                for _ in range(3):  # libraries choose their kernels, and the compiler compiles, outside the capture
                    self._counter.zero_()
                    step()
            torch.cuda.synchronize()
            # What a capture has taken before it fails is lost until the process ends; so a lack shows here.
            torch.cuda.empty_cache()
            torch.empty(needed, dtype=torch.uint8, device=self._device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
        return graph

    def _memory_of(self, group: GpuReplicas) -> int:
        """Return how much memory a step of one group takes for the time being, in bytes."""
        before = 0
        for _ in range(2):  # the first compiles and chooses kernels, which takes memory of its own
            torch.cuda.empty_cache()
            before = torch.cuda.memory_reserved(self._device)
            group.step(self._counter)
            torch.cuda.synchronize()
        return torch.cuda.memory_reserved(self._device) - before

    def _side_by_side(self, work: Callable[[GpuReplicas], None]) -> None:
        """Do something with each group, on its stream."""
        main = torch.cuda.current_stream(self._device)
        for group, stream in zip(self._groups, self._streams, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                work(group)
        for stream in self._streams:
            main.wait_stream(stream)
