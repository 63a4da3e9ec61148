"""Runs of a user's task: one alone, stepped by the optimizer's own function, and what batched ones share with it."""

from __future__ import annotations

import math
import random
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from heatbath.data.datasets import permutation
from heatbath.draws import Stream, orbits, random_bits
from heatbath.engine.optimizers import RunOptimizer
from heatbath.engine.planning import evaluation_size
from heatbath.engine.replicas import Replicas, like
from heatbath.runs.configs import RunConfig
from heatbath.runs.records import Epoch
from heatbath.tasks.dropout import SeededDropout
from heatbath.tasks.losses import read_outputs
from heatbath.tasks.probe import probe
from heatbath.tasks.samples import Samples
from heatbath.tasks.task import Task, kept_random_states, live_task

Splits = Mapping[str, Samples]


def split_task(task: Task, validation: int, device: torch.device | str = "cpu") -> dict[str, Samples]:
    """Return the parts of a task's data on a device: ``train``, ``test``, and ``validation`` where some is held out.

    The samples that are held out are the same for all seeds.
    """
    if validation == 0:
        return {"train": task.train.to(device), "test": task.test.to(device)}
    order = permutation(len(task.train), 0, Stream.CHOICE)
    held, kept = (torch.from_numpy(np.sort(part)) for part in (order[:validation], order[validation:]))
    parts = {"train": task.train.at(kept), "test": task.test, "validation": task.train.at(held)}
    return {name: part.to(device) for name, part in parts.items()}


class TaskReplicas(Replicas):
    """Runs of one task; see `TaskReplica` and `heatbath.engine.batched_task.BatchedTask`.

    Args:
        configs: the runs; their task can be trained.
        splits: the data by name, on the device to train on.
        precision: ``"fp32"``, ``"tf32"`` or ``"bf16"``, for which torch's autocast chooses what is rounded.
    """

    _model: nn.Module

    def __init__(self, configs: Sequence[RunConfig], splits: Splits, precision: str) -> None:
        self.configs, self._splits, self._data = tuple(configs), splits, splits["train"]
        self._task, self._bf16, self._count = live_task(configs[0].task), precision == "bf16", len(self._data)
        self._device = self._data.inputs.device
        self._evaluation_size = max(1, evaluation_size(configs[0], self._device) // len(configs))

    @torch.no_grad()
    def evaluate(self) -> Tensor:
        """Return the sums of loss and metrics over each split and their counts, (splits, measures, 2, replicas)."""
        self._model.eval()
        return torch.stack([self._sums(split) for split in self._splits.values()])

    def read(self, sums: Tensor) -> list[Epoch]:
        """Return what `evaluate` found, one `Epoch` for each replica."""
        rates, found = self._optimizer.mean_rates, sums.cpu().unbind(-1)
        return [read_sums(self._task, self._splits, one, rate) for one, rate in zip(found, rates, strict=True)]

    @abstractmethod
    def _forward(self, inputs: Tensor) -> Iterable[Tensor]:
        """What each replica makes of the same inputs."""

    def _lay_out(self, epoch: int) -> None:
        super()._lay_out(epoch)
        self._model.train()

    def _sums(self, split: Samples) -> Tensor:
        measures, size = (self._task.loss, *self._task.metrics), self._evaluation_size
        total = torch.zeros(len(measures), 2, len(self.configs), dtype=torch.float64, device=self._device)
        for inputs, targets in zip(split.inputs.split(size), split.targets.split(size), strict=True):
            for row, outputs in enumerate(self._forward(inputs)):
                total[:, :, row] += torch.stack([torch.stack(one.sums(outputs, targets)) for one in measures])
        return total


class TaskReplica(TaskReplicas):
    """A single run, computed alone by its own module."""

    def __init__(self, config: RunConfig, splits: Splits, precision: str) -> None:
        super().__init__([config], splits, precision)
        self._model = self._task.build(config.seed).to(self._device)
        trained = {name: one for name, one in self._model.named_parameters() if one.requires_grad}
        self._names, self._params = list(trained), list(trained.values())
        self._optimizer = RunOptimizer(config, self._params)
        self._draws = StepDraws(config.seed, self._device)

    def gradients(self, at: int) -> list[Tensor]:
        """Return the gradients of step ``at``; buffers, such as running means, go on."""
        taken = self._taken + at
        batch = self._data.at(self._rows[at][0])
        inputs = self._draws.augment(self._task, batch.inputs, taken)
        with self._draws.forward(self._task, taken):
            loss = self._task.loss.mean(self._forward(inputs)[0], batch.targets)
        found = torch.autograd.grad(loss, self._params, allow_unused=True)
        return [like(param, grad) for param, grad in zip(self._params, found, strict=True)]

    def evaluate(self) -> Tensor:
        """Return sums and counts, see `TaskReplicas.evaluate`."""
        with self._draws.evaluation(self._task):
            return super().evaluate()

    def _forward(self, inputs: Tensor) -> list[Tensor]:
        if not self._bf16:
            return [read_outputs(self._model(inputs))]
        with torch.autocast(self._device.type, torch.bfloat16):
            return [read_outputs(self._model(inputs))]

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        buffers = ((f"buffer.{name}", one) for name, one in self._model.named_buffers())
        for name, tensor in (*super()._tensors(), *buffers):
            yield name, tensor[None]


class StepDraws:
    """The random numbers of one replica's steps, each a function of its seed and the step alone."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed, self._device = seed, device
        self._generator = torch.Generator(device)
        self._orbits: list[tuple[int, int]] = []

    def augment(self, task: Task, inputs: Tensor, step: int) -> Tensor:
        """Return the inputs of one step as they are trained on."""
        if task.augment is None:
            return inputs
        return task.augment(inputs, self._generator.manual_seed(self._number(Stream.AUGMENT, step)))

    @contextmanager
    def forward(self, task: Task, step: int) -> Iterator[None]:
        """Whatever a model draws inside depends on the seed and the step alone."""
        dropout = SeededDropout(self.dropout_orbit, step) if probe(task).dropout_calls else nullcontext()
        with dropout, self.evaluation(task, step):
            yield

    @contextmanager
    def evaluation(self, task: Task, step: int = -1) -> Iterator[None]:
        """Whatever is drawn inside, besides dropout, depends on the seed and the step alone."""
        if not probe(task).draws:
            yield
            return
        number = self._number(Stream.FORWARD, step)
        with kept_random_states([self._device] if self._device.type == "cuda" else []):
            torch.manual_seed(number)
            random.seed(number)
            np.random.seed(number % 2**32)  # noqa: NPY002
            yield

    def dropout_orbit(self, call: int) -> tuple[int, int]:
        """Return the start and increment of the stream of one call of dropout in each step."""
        while len(self._orbits) <= call:
            key, gamma = orbits([self._seed], Stream.DROPOUT.at(len(self._orbits)))
            self._orbits.append((int(key[0]), int(gamma[0])))
        return self._orbits[call]

    def _number(self, stream: Stream, step: int) -> int:
        key, gamma = orbits([self._seed], stream)
        return int(random_bits(key, gamma, np.int64(step))[0])


def read_sums(task: Task, splits: Splits, sums: Tensor, rate: float) -> Epoch:
    """Return what one replica measured from sums of shape (splits, measures, 2)."""
    metrics = {}
    for split, rows in zip(splits, sums.tolist(), strict=True):
        for measure, (total, count) in zip((task.loss, *task.metrics), rows, strict=True):
            metrics[f"{split}_{measure.name}"] = measure.finish(total / count) if count else math.nan
    epoch = Epoch(rate, metrics)
    lacking = [name for name, value in metrics.items() if not math.isfinite(value)]
    if epoch.is_finite and lacking:  # a run whose loss is no number has diverged, and its metrics with it
        raise ValueError(f"{lacking[0]} of task {task.name} is {metrics[lacking[0]]}, where its loss is a number still")
    return epoch
