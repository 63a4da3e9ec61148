"""Trying a task out before it is trained: what would fail or mislead is refused in one line."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from heatbath.tasks.dropout import SeededDropout
from heatbath.tasks.losses import IGNORED, LOSSES, class_scores, read_outputs
from heatbath.tasks.registry import Cost
from heatbath.tasks.samples import Samples
from heatbath.tasks.task import Task, seeded

_BATCH = 8
_FROM_MEAN = 0.25  # by which part a loss may differ from the mean of two halves: one that sums is off by a half
_PROCESS = 400 * 2**20  # bytes of a worker that has torch and no task yet
_LARGE = 20_000_000  # weights from which on a single process uses all cores


@dataclass(frozen=True)
class Probe:
    """What trying a task out has shown.

    Attributes:
        cost: in time and memory, roughly.
        dropout_calls: how many times a step drops something.
        draws: whether a model in training draws other random numbers too.
        same_start: whether all seeds start from the same weights.
        batch_norm: whether a batch of a single sample cannot be trained on.
    """

    cost: Cost
    dropout_calls: int
    draws: bool
    same_start: bool
    batch_norm: bool


class _Step(NamedTuple):
    """What one step has shown: besides the fields of `Probe`, its seconds and the bytes held for its way back."""

    dropout_calls: int
    draws: bool
    seconds: float
    held: int


def probe(task: Task) -> Probe:
    """Build the model and take a batch through it; once for each task, and not again in a worker.

    Raises:
        ValueError: the task cannot be trained; the message says why.
    """
    if task.probed is None:
        task.probed = _probe(task)
    found: Probe = task.probed
    return found


def _probe(task: Task) -> Probe:
    _check_labels(task, task.train, "train")
    _check_labels(task, task.test, "test")
    model, same_start = _check_model(task)
    batch = task.train.at(torch.arange(min(_BATCH, len(task.train))))
    inputs = _augment(task, batch.inputs)
    step = _check_step(task, model, inputs, batch.targets)
    model.eval()
    with torch.no_grad(), seeded(0):
        # Without an error of the model's own: it has just computed this batch.
        evaluated = read_outputs(model(batch.inputs))
        _check_mean(task, model, batch)
        for metric in task.metrics:
            try:
                total, count = metric.sums(evaluated, batch.targets)
            except Exception as error:
                raise ValueError(_failure(task, f"metric {metric.name}", error)) from error
            if not (total / count).isfinite():
                raise ValueError(f"metric {metric.name} of task {task.name} is {float(total / count)} at the start")
    weights = sum(parameter.numel() for parameter in model.parameters())
    cost = Cost(
        cpu_seconds=1.5 * step.seconds / len(batch),
        process_bytes=None if weights > _LARGE else _PROCESS + 20 * weights + 32 * step.held,
        weights=weights,
        activation_bytes=step.held // len(batch),
        most=1024,
        compiled_steps=2_000,
    )
    batch_norm = any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.modules())
    return Probe(cost, step.dropout_calls, step.draws, same_start, batch_norm)


def check_batches(task: Task, samples: int, batch_size: int) -> None:
    """Refuse a last batch of a single sample where BatchNorm would normalise it.

    Raises:
        ValueError: there would be one.
    """
    if probe(task).batch_norm and samples % batch_size == 1:
        reason = f"the last of {samples:,} samples would be alone in its batch, which BatchNorm cannot normalise"
        raise ValueError(f"batch_size {batch_size}: {reason}; choose another, or hold one out with validation=1")


def _check_model(task: Task) -> tuple[nn.Module, bool]:
    try:
        model, again, other = task.build(0), task.build(0), task.build(1)
    except TypeError:
        raise
    except Exception as error:
        raise ValueError(_failure(task, "the model's function", error)) from error
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"the model of task {task.name} has no parameters to train")
    if not _equal(model, again):
        raise ValueError(
            f"the model of task {task.name} starts from other weights each time it is made with one seed: "
            "its function must draw from torch's, NumPy's or Python's global generator, and nothing else"
        )
    return model, _equal(model, other)


def _equal(one: nn.Module, other: nn.Module) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(
        torch.equal(value, theirs[name]) for name, value in ours.items() if isinstance(value, Tensor)
    )


def _augment(task: Task, inputs: Tensor) -> Tensor:
    if task.augment is None:
        return inputs
    try:
        found = task.augment(inputs.clone(), torch.Generator().manual_seed(0))
    except Exception as error:
        raise ValueError(_failure(task, "augment", error)) from error
    if not isinstance(found, Tensor) or len(found) != len(inputs):
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(f"augment of task {task.name} returns {shape} for inputs of shape {tuple(inputs.shape)}")
    return found


def _check_step(task: Task, model: nn.Module, inputs: Tensor, targets: Tensor) -> _Step:
    """Take a batch to the gradients."""
    held: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    model.train()
    dropout = SeededDropout(lambda _call: (1, 1), 0)
    shape = f"inputs of shape {tuple(inputs.shape)}, {str(inputs.dtype).removeprefix('torch.')}"
    start = time.perf_counter()
    try:
        with seeded(0), dropout, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            before = torch.get_rng_state()
            returned = model(inputs)
            draws = not torch.equal(before, torch.get_rng_state())
    except Exception as error:
        raise ValueError(_failure(task, f"the model, on {shape},", error)) from error
    outputs = read_outputs(returned)
    _check_classes(task, outputs, targets)
    try:
        loss: Any = task.loss.mean(outputs, targets)
    except Exception as error:
        raise ValueError(_failure(task, "the loss", error)) from error
    if not isinstance(loss, Tensor) or loss.ndim != 0:
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"{loss!r:.80}"
        raise ValueError(f"the loss of task {task.name} returns {what}: it must return the mean over the batch")
    if not loss.isfinite():
        raise ValueError(f"the loss of task {task.name} is {loss.item()} before the first step")
    if not loss.requires_grad:
        raise ValueError(f"the loss of task {task.name} does not depend on the model's parameters")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    torch.autograd.grad(loss, trained, allow_unused=True)
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    sizes = sum(size for place, size in held.items() if place not in own)
    return _Step(dropout.calls, draws, time.perf_counter() - start, sizes)


def _check_mean(task: Task, model: nn.Module, batch: Samples) -> None:
    """Refuse a function that sums over the batch: its gradient would grow with the batch size."""
    half = len(batch) // 2
    if task.loss.values is not None or half == 0:
        return
    outputs = read_outputs(model(batch.inputs[: 2 * half]))
    whole, *parts = (
        float(task.loss.mean(outputs[a:b], batch.targets[a:b])) for a, b in ((0, 2 * half), (0, half), (half, 2 * half))
    )
    if abs(whole - sum(parts) / 2) > _FROM_MEAN * abs(whole):
        words = f"{whole:.6g} over {2 * half} samples, {parts[0]:.6g} and {parts[1]:.6g} over the halves of them"
        raise ValueError(
            f"the loss of task {task.name} is no mean over the batch: {words}; divide it by the batch size"
        )


def _check_labels(task: Task, part: Samples, name: str) -> None:
    integers = not part.targets.is_floating_point()
    if task.loss.values is LOSSES["cross_entropy"] and not integers:
        raise ValueError(f"{name} targets of task {task.name} are fractions: cross_entropy takes integer labels")
    if task.loss.values is LOSSES["cross_entropy"] and ((part.targets < 0) & (part.targets != IGNORED)).any():
        raise ValueError(f"{name} labels of task {task.name} go down to {part.targets.min()}: they start from 0")


def _check_classes(task: Task, outputs: Tensor, targets: Tensor) -> None:
    """Refuse labels that a model has no output for, which on a GPU would end the process."""
    if task.loss.values is not LOSSES["cross_entropy"]:
        return
    try:
        classes = class_scores(outputs, targets)[0].shape[-1]
    except ValueError as error:
        raise ValueError(f"task {task.name}: {error}") from None
    for name, part in (("train", task.train), ("test", task.test)):
        if part.targets.max() >= classes:
            most = int(part.targets.max())
            raise ValueError(
                f"{name} labels of task {task.name} go up to {most}: its model has {classes} classes, from 0"
            )


def _failure(task: Task, what: str, error: Exception) -> str:
    words = str(error).strip().partition("\n")[0]
    return f"{what} of task {task.name} fails: {type(error).__name__}: {words:.300}"
