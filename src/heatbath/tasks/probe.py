"""Trying a task out before it is trained: what would fail or mislead is refused in one line."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from heatbath.tasks.dropout import SeededDropout
from heatbath.tasks.losses import IGNORED, LOSSES, class_scores, read_outputs
from heatbath.tasks.registry import Cost
from heatbath.tasks.samples import Samples, failure, kind
from heatbath.tasks.task import Task, random_states, seeded

_BATCH = 8
_FROM_MEAN = 0.25  # by which part a loss may differ from the mean of two halves: one that sums is off by a half
_PROCESS = 400 * 2**20  # bytes of a worker that has torch and no task yet
_LARGE = 20_000_000  # weights from which on a single process uses all cores
_LARGE_BATCH, _SHORT = 128, 0.02  # samples that are timed where _BATCH of them take fewer seconds


@dataclass(frozen=True)
class Probe:
    """What trying a task out has shown."""

    cost: Cost  # in time and memory, roughly
    dropout_calls: int  # how many times a step drops something
    draws: bool  # whether other random numbers are drawn, in training or evaluation
    same_start: bool  # whether all seeds start from the same weights
    batch_norm: bool  # whether a batch of a single sample cannot be trained on


def probe(task: Task) -> Probe:
    """Build the model and take a batch through it; once for each task, and not again in a worker.

    Raises:
        ValueError: the task cannot be trained; the message says why.
    """
    if task.probed is None:
        task.probed = _probe(task)
    found: Probe = task.probed
    return found


def check_batches(task: Task, samples: int, batch_size: int) -> None:
    """Refuse, by ValueError, a last batch of a single sample where BatchNorm would normalise it."""
    if probe(task).batch_norm and samples % batch_size == 1:
        reason = f"the last of {samples:,} samples would be alone in its batch, which BatchNorm cannot normalise"
        raise ValueError(f"batch_size {batch_size}: {reason}; choose another, or hold one out with validation=1")


def _probe(task: Task) -> Probe:
    model, other = _check_model(task)
    buffers = [buffer.clone() for buffer in other.buffers()]
    same_start = _equal(model, other)
    batch = task.train.at(torch.arange(min(_BATCH, len(task.train))))
    _check_order(task, model, batch)
    for name, part in (("train", task.train), ("test", task.test)):
        _check_targets(task, part.targets, name)
    found = _check_step(task, model, _augment(task, batch.inputs), batch.targets, same_start)
    _check_apart(task, model, other, buffers)
    model.eval()
    with torch.no_grad(), seeded(0):
        before = random_states()
        outputs = read_outputs(model(batch.inputs))  # without an error: it has just computed this batch
        _check_mean(task, outputs, batch.targets)
        for metric in task.metrics:
            total, count = _try(task, f"metric {metric.name}", metric.sums, outputs, batch.targets)
            if not (total / count).isfinite():
                raise ValueError(f"metric {metric.name} of task {task.name} is {float(total / count)} at the start")
        for name, part in (("train", task.train), ("test", task.test)):
            _check_extremes(task, model, part, name)
        return replace(found, draws=found.draws or random_states() != before)


def _try(task: Task, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a part of the user's code returns; one line where it raises."""
    try:
        return function(*arguments)
    except Exception as error:
        own = isinstance(error, ValueError) and str(error).startswith(what)  # it says already what is wrong
        raise ValueError(
            f"task {task.name}: {error}" if own else failure(f"{what} of task {task.name}", error)
        ) from error


def _check_order(task: Task, model: nn.Module, batch: Samples) -> None:
    """Refuse inputs that the model fails on, where it takes the targets instead, or numbers of another type."""
    model.eval()
    if _takes(model, batch.inputs):
        return
    if not _takes(model, batch.targets):
        _check_kind(task, model, batch.inputs)
        return
    inputs, targets = (f"{tuple(one.shape[1:])} {kind(one)}" for one in (batch.inputs, batch.targets))
    raise ValueError(
        f"task {task.name} seems to have its inputs and targets swapped: its model takes the targets, {targets} for a "
        f"sample, and not the inputs, {inputs}; give train and test as (inputs, targets)"
    )


def _check_kind(task: Task, model: nn.Module, inputs: Tensor) -> None:
    for taken in {parameter.dtype for parameter in model.parameters()} - {inputs.dtype}:
        if _takes(model, inputs.to(taken)):
            remedy = "give them as float32"
            if inputs.is_floating_point():
                remedy = "make the model float32, as data is held in single precision"
            what = f"{kind(inputs.to(taken))} inputs, those of train are {kind(inputs)}"
            raise ValueError(f"the model of task {task.name} takes {what}: {remedy}, or convert them in its forward")


def _takes(model: nn.Module, inputs: Tensor) -> bool:
    try:
        with torch.no_grad(), seeded(0):
            model(inputs)
    except Exception:
        return False
    return True


def _check_targets(task: Task, targets: Tensor, name: str) -> None:
    """Refuse targets that the named loss would not take, or take and mislead."""
    of = f"of task {task.name}"
    if task.loss.values is LOSSES["binary_cross_entropy"] and not ((targets >= 0) & (targets <= 1)).all():
        raise ValueError(
            f"{name} targets {of} go from {targets.min():g} to {targets.max():g}: binary_cross_entropy takes 0 to 1"
        )
    if task.loss.values is not LOSSES["cross_entropy"]:
        return
    if targets.is_floating_point():
        raise ValueError(
            f"{name} targets {of} are fractions: cross_entropy takes integer labels; convert them, or name another loss"
        )
    counted = targets[targets != IGNORED]
    if not len(counted):
        raise ValueError(f"{name} labels {of} are all {IGNORED}, which counts nowhere")
    if counted.min() < 0:
        raise ValueError(f"{name} labels {of} go down to {counted.min()}: they start from 0")


def _check_model(task: Task) -> tuple[nn.Module, nn.Module]:
    """The models of two seeds."""
    model, again, other = task.build(0), task.build(0), task.build(1)
    if any(nn.parameter.is_lazy(parameter) for parameter in model.parameters()):
        raise ValueError(
            f"the model of task {task.name} has lazy layers, whose weights have no shape yet: give their sizes"
        )
    if any(parameter.is_complex() for parameter in model.parameters()):
        raise ValueError(
            f"the model of task {task.name} has complex weights: keep their real and imaginary parts as parameters, "
            "and join them with torch.view_as_complex"
        )
    if isinstance(task.loss.function, nn.Module) and any(one.requires_grad for one in task.loss.function.parameters()):
        raise ValueError(f"the loss of task {task.name} has weights of its own, which are not trained: freeze them")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"the model of task {task.name} has no parameters to train")
    if not _equal(model, again):
        raise ValueError(
            f"the model of task {task.name} starts from other weights each time it is made with one seed: "
            "its function must draw from torch's, NumPy's or Python's global generator, and nothing else"
        )
    return model, other


def _check_apart(task: Task, model: nn.Module, other: nn.Module, buffers: list[Tensor]) -> None:
    """Refuse models of which training one changes another, whose buffers were these, or gives it weights."""
    if model.state_dict().keys() != other.state_dict().keys():
        raise ValueError(f"the model of task {task.name} makes weights in its forward: make them in its __init__")
    ours, theirs = (
        {one.untyped_storage().data_ptr() for one in each.parameters() if one.requires_grad} for each in (model, other)
    )
    if ours & theirs or not all(map(_same, buffers, other.buffers())):
        raise ValueError(
            f"the models of task {task.name} share weights, so that training one would change the next: its function "
            "must return a new network each time, such as copy.deepcopy(network)"
        )


def _equal(one: nn.Module, other: nn.Module) -> bool:
    """Whether two models have the same state."""
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(
        _same(value, theirs[name]) for name, value in ours.items() if isinstance(value, Tensor)
    )


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal, in which NaN equals NaN."""
    return torch.equal(one, other) or torch.allclose(one, other, 0.0, 0.0, equal_nan=True)


def _augment(task: Task, inputs: Tensor) -> Tensor:
    if task.augment is None:
        return inputs
    with seeded(0):
        found, again = (
            _try(task, "augment", task.augment, inputs.clone(), torch.Generator().manual_seed(0)) for _ in range(2)
        )
    if not isinstance(found, Tensor) or len(found) != len(inputs):
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(f"augment of task {task.name} returns {shape} for inputs of shape {tuple(inputs.shape)}")
    if found.shape != again.shape or not _same(found, again):
        raise ValueError(
            f"augment of task {task.name} draws otherwise each time: it must draw from the generator it is given, alone"
        )
    return found


def _check_step(task: Task, model: nn.Module, inputs: Tensor, targets: Tensor, same_start: bool) -> Probe:
    """Take a batch to the gradients, and see what that costs."""
    held: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    model.train()
    dropout = SeededDropout(lambda _call: (1, 1), 0)
    shape = f"inputs of shape {tuple(inputs.shape)}, {kind(inputs)}"
    with seeded(0), dropout:
        before = random_states()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            returned = _try(task, f"the model, on {shape},", model, inputs)
        outputs = read_outputs(returned)
        _check_classes(task, outputs, targets)
        loss = _try(task, "the loss", task.loss.mean, outputs, targets)
        draws = random_states() != before
    if not isinstance(loss, Tensor) or loss.ndim != 0:
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"{loss!r:.80}"
        raise ValueError(f"the loss of task {task.name} returns {what}: it must return the mean over the batch")
    if not loss.isfinite():
        raise ValueError(f"the loss of task {task.name} is {loss.item()} before the first step")
    if not loss.requires_grad:
        here = "" if torch.is_grad_enabled() else ", as gradients are turned off where it is called (torch.no_grad)"
        raise ValueError(f"the loss of task {task.name} does not depend on the model's parameters{here}")
    parameters = list(model.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    grads = _try(task, "the gradient", partial(torch.autograd.grad, allow_unused=True), loss, trained)
    if any(grad is not None and grad.layout != torch.strided for grad in grads):
        raise ValueError(f"the model of task {task.name} has sparse gradients: make its embeddings with sparse=False")
    own = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    kept = sum(size for place, size in held.items() if place not in own)
    weights = sum(parameter.numel() for parameter in parameters)
    cost = Cost(
        cpu_seconds=1.5 * _core_seconds(task, model),  # with the evaluation
        process_bytes=None if weights > _LARGE else _PROCESS + 30 * weights,  # moments, gradients, a checkpoint
        weights=weights,
        activation_bytes=kept // len(targets),
        most=1024,
        compiled_steps=2_000,
    )
    batch_norm = any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.modules())
    return Probe(cost, dropout.calls, draws, same_start, batch_norm)


def _core_seconds(task: Task, model: nn.Module) -> float:
    """How long one core takes to the gradients of a sample, in a batch that is large enough to hide what a call costs.

    The model has computed a batch before, so that nothing is set up here.
    """
    trained, threads = [one for one in model.parameters() if one.requires_grad], torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for most in (_BATCH, _LARGE_BATCH):
            few = task.train.at(torch.arange(min(most, len(task.train))))
            start = time.thread_time()
            with seeded(0), SeededDropout(lambda _call: (1, 1), 0):
                loss = task.loss.mean(read_outputs(model(few.inputs)), few.targets)
                torch.autograd.grad(loss, trained, allow_unused=True)
            taken = time.thread_time() - start
            if taken > _SHORT:
                break
    finally:
        torch.set_num_threads(threads)
    return taken / len(few)


def _check_mean(task: Task, outputs: Tensor, targets: Tensor) -> None:
    """Refuse a function that sums over the batch: its gradient would grow with the batch size."""
    half = len(targets) // 2
    if task.loss.values is not None or half == 0:
        return
    whole, *parts = (
        float(task.loss.mean(outputs[a:b], targets[a:b])) for a, b in ((0, 2 * half), (0, half), (half, 2 * half))
    )
    if abs(whole - sum(parts) / 2) > _FROM_MEAN * abs(whole):
        words = f"{whole:.6g} over {2 * half} samples, {parts[0]:.6g} and {parts[1]:.6g} over the halves of them"
        raise ValueError(
            f"the loss of task {task.name} is not a mean over the batch: {words}; divide it by the batch size"
        )


def _check_classes(task: Task, outputs: Tensor, targets: Tensor) -> None:
    """Refuse labels that a model has no output for, which on a GPU would end the process."""
    if task.loss.values is not LOSSES["cross_entropy"]:
        return
    classes = _try(task, "outputs", class_scores, outputs, targets)[0].shape[-1]
    for name, part in (("train", task.train), ("test", task.test)):
        if (most := int(part.targets.max())) >= classes:
            raise ValueError(
                f"{name} labels of task {task.name} go up to {most}: its model has {classes} classes, from 0"
            )


def _check_extremes(task: Task, model: nn.Module, part: Samples, name: str) -> None:
    """Try the least and the greatest integers: a token or label too large would end a process on a GPU."""
    rows = {
        int(place) // max(1, tensor[0].numel())
        for tensor in (part.inputs, part.targets)
        if not tensor.is_floating_point()
        for place in (tensor.argmin(), tensor.argmax())
    }
    if rows:
        few = part.at(torch.tensor(sorted({*rows, *range(min(_BATCH, len(part)))})))
        what = f"on the {name} samples of the least and the greatest numbers"
        outputs = read_outputs(_try(task, f"the model, {what},", model, few.inputs))
        _try(task, f"the loss, {what},", task.loss.mean, outputs, few.targets)
