"""Runs of a user's task that a GPU computes in one call, with ``torch.func``: a replica in each row of the parameters.

On a CPU it computes the same, which is how it is tested.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, func
from torch.nn.attention import SDPBackend, sdpa_kernel

from heatbath.engine.batched_optimizer import BatchedOptimizer
from heatbath.engine.task_replica import Splits, StepDraws, TaskReplica, TaskReplicas, split_task
from heatbath.engine.traced_program import TracedProgram
from heatbath.runs.configs import RunConfig
from heatbath.tasks.dropout import SeededDropout, dropout_orbits
from heatbath.tasks.losses import read_outputs
from heatbath.tasks.probe import probe
from heatbath.tasks.task import live_task

TOLERANCE = 1e-3
"""By how much gradients of a batched step may differ from those of a replica alone, relative to the largest."""

Tensors = dict[str, Tensor]


class BatchedTask(TaskReplicas):
    """Any number of runs of one task; ``compiled`` compiles their gradients."""

    _optimizer: BatchedOptimizer

    def __init__(self, configs: Sequence[RunConfig], splits: Splits, precision: str, compiled: bool = False) -> None:
        super().__init__(configs, splits, precision)
        models = [self._task.build(config.seed).to(self._device) for config in configs]
        self._names = [name for name, one in models[0].named_parameters() if one.requires_grad]
        stacked, buffers = func.stack_module_state(models)
        self._params = [stacked[name].detach() for name in self._names]
        self._fixed: Tensors = {name: one.detach() for name, one in stacked.items() if name not in self._names}
        self._buffers: Tensors = dict(buffers)
        self._optimizer = BatchedOptimizer(configs, self._params, compiled=compiled)
        self._model = models[0]  # not on the meta device, where tied weights would come apart
        seeds = [config.seed for config in configs]
        self._draws = [StepDraws(seed, self._device) for seed in seeds]
        self._orbits = [part.to(self._device) for part in dropout_orbits(seeds, probe(self._task).dropout_calls)]
        self._gradients: Any = func.vmap(
            func.grad(self._loss, has_aux=True), in_dims=(0, 0, 0, 0, 0, 0, 0, None), randomness="error"
        )
        if compiled:
            self._gradients = TracedProgram(self._gradients)

    def step(self, at: int) -> None:
        """Take step ``at`` of the epoch with all replicas."""
        self._optimizer.step(self.gradients(at), torch.tensor([at], device=self._device))

    def gradients(self, at: int) -> list[Tensor]:
        """Return the gradients of step ``at``; buffers, such as running means, go on."""
        rows, taken = self._rows[at], self._taken + at
        batch = self._data.at(rows.flatten())
        inputs, targets = (part.unflatten(0, rows.shape) for part in (batch.inputs, batch.targets))
        if self._task.augment is not None:
            parts = zip(self._draws, inputs.unbind(), strict=True)
            inputs = torch.stack([draws.augment(self._task, part, taken) for draws, part in parts])
        tensors = self._trained(), self._fixed, self._buffers, inputs, targets, *self._orbits
        with _batchable_attention(self._device):
            found, self._buffers = self._gradients(*tensors, torch.tensor(taken, device=self._device))
        return [found[name] for name in self._names]

    @torch.no_grad()
    def evaluate(self) -> Tensor:
        """Return sums and counts, see `TaskReplicas.evaluate`."""
        with _batchable_attention(self._device):
            return super().evaluate()

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from super()._tensors()
        yield from ((f"buffer.{name}", one) for name, one in self._buffers.items())

    def _trained(self) -> Tensors:
        return dict(zip(self._names, self._params, strict=True))

    def _loss(
        self,
        params: Tensors,
        fixed: Tensors,
        buffers: Tensors,
        inputs: Tensor,
        targets: Tensor,
        starts: Tensor,
        increments: Tensor,
        taken: Tensor,
    ) -> tuple[Tensor, Tensors]:
        """The mean loss of one replica, and its buffers after that."""
        buffers = {name: one.clone() for name, one in buffers.items()}  # which a model changes in place
        with SeededDropout(lambda call: (starts[call], increments[call]), taken):
            outputs = self._call({**params, **fixed, **buffers}, inputs)
        return self._task.loss.mean(outputs, targets), buffers

    def _call(self, tensors: Tensors, inputs: Tensor) -> Tensor:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            return read_outputs(func.functional_call(self._model, tensors, (inputs,)))

    def _forward(self, inputs: Tensor) -> Tensor:
        tensors = {**self._trained(), **self._fixed, **self._buffers}
        found: Tensor = func.vmap(self._call, in_dims=(0, None))(tensors, inputs)
        return found


@contextmanager
def _batchable_attention(device: torch.device) -> Iterator[None]:
    """Attention inside by kernels that ``vmap`` has a rule for."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH) if device.type == "cpu" else nullcontext():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def task_groups(
    configs: Sequence[RunConfig], splits: Splits, precision: str, compiled: bool
) -> tuple[list[TaskReplica] | list[BatchedTask], str]:
    """Return the runs of a stack in groups that are computed in one call each, and how in words.

    On a CPU each is computed alone, so that its bits do not depend on its neighbours. On a GPU they are batched where
    that can be done.
    """
    how = "one by one"
    if splits["train"].inputs.device.type != "cpu":
        against = reason_against_batching(configs[0])
        if against is None:
            return [BatchedTask(configs, splits, precision, compiled)], "batched"
        how = f"one by one: {against}"
    return [TaskReplica(config, splits, precision) for config in configs], how


def reason_against_batching(config: RunConfig) -> str | None:
    """Return why runs of a task cannot be batched; None where a batched step has the gradients of each replica alone.

    Two replicas are tried on a small batch, on the CPU.
    """
    task = live_task(config.task)
    if probe(task).draws:
        return "the model draws random numbers of its own while it trains"
    few = config.with_(batch_size=min(8, config.training_images), validation=0, sampling="shuffled")
    splits = split_task(task, 0)
    try:
        together = BatchedTask([few.with_(seed=seed) for seed in (0, 1)], splits, "fp32")
        together.prepare(0)
        found = together.gradients(0)
        for row, seed in enumerate((0, 1)):
            alone = TaskReplica(few.with_(seed=seed), splits, "fp32")
            alone.prepare(0)
            expected = alone.gradients(0)
            scale = max(float(one.abs().max()) for one in expected)
            worst = max(float((one[row] - other).abs().max()) for one, other in zip(found, expected, strict=True))
            if not worst <= TOLERANCE * scale:
                return f"gradients differ by {worst:.1e} from those of a replica alone, which go up to {scale:.1e}"
    except Exception as error:  # whatever torch.func cannot do with this model
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]:.200}"
    return None
