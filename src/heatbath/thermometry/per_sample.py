"""Gradients of a model at fixed weights as the rows of a matrix: one row a sample, or one row a mini-batch.

The loss is taken as a pure function of the trainable parameters, so that nothing of the model is written: neither its
weights, ``.grad``, buffers and mode, nor the global random state. Rows are real and in at least single precision.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from heatbath.thermometry.containers import Data, leaves, map_leaves, repeat, take
from heatbath.thermometry.moments import widened

LossFn = Callable[[Any, Any], Tensor]
_PROBES, _PROBE = 8, 4  # batches that the loss and the model are tried on, and the samples of each


class Objective:
    """The mean loss of a model as a pure function of its trainable parameters.

    Tied parameters count once, under their first name, complex ones as their real and imaginary parts. Wrappers for
    data-parallel training and compilation are taken off.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFn) -> None:
        check_model(model, "measure_noise")
        if not callable(loss_fn):
            raise TypeError(f"loss_fn must be a function of outputs and targets, got {type(loss_fn).__name__}")
        self.model = model = innermost(model)
        self.loss_fn = loss_fn
        trainable = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
        self.parameters = {name: as_real(p) for name, p in trainable.items()}
        self._complex = {name for name, p in trainable.items() if p.is_complex()}
        if not self.parameters:
            raise ValueError(
                "the model has no trainable parameters, so that it has no gradient: set requires_grad on some"
            )
        self.device = next(iter(self.parameters.values())).device

    @property
    def dimension(self) -> int:
        """The number of trainable parameters, two for a complex one."""
        return sum(p.numel() for p in self.parameters.values())

    @property
    def row_bytes(self) -> int:
        """The memory of one gradient."""
        return sum(p.numel() * max(p.element_size(), 4) for p in self.parameters.values())

    def __call__(self, parameters: dict[str, Tensor], inputs: Data, targets: Data) -> Tensor:
        """Return the loss at ``parameters``; a layer that keeps statistics writes into copies of its buffers."""
        return cast("Tensor", self.within(parameters, lambda: self._loss(inputs, targets)))

    def gradient(self, inputs: Data, targets: Data) -> tuple[list[Tensor], Tensor]:
        """Return the gradient of the mean loss, a tensor for each parameter, and the loss."""
        leaves = {name: p.detach().requires_grad_() for name, p in self.parameters.items()}

        def differentiate() -> tuple[Tensor, tuple[Tensor, ...]]:
            loss = self._loss(inputs, targets)
            return loss, torch.autograd.grad(loss, [*leaves.values()], allow_unused=True, materialize_grads=True)

        with torch.enable_grad():
            loss, found = self.within(leaves, differentiate)
        # Of a parameter that the loss does not depend on, some releases of torch return zeros that require a gradient.
        dense = [g.detach().to_dense() if g.is_sparse else g.detach() for g in found]
        return [widened(g) for g in dense], loss.detach()

    def for_each_sample(self, what: Callable[..., Any], inputs: Data, targets: Data) -> Any:
        """Return what ``what(loss)`` is at the parameters for each sample's ``loss(parameters, ...)``, by vmap."""

        def loss(parameters: dict[str, Tensor], tensors: list[Tensor]) -> Tensor:
            parts = iter(tensors)  # the containers may be of types that vmap does not know
            sample = [map_leaves(data, lambda _: next(parts)[None]) for data in (inputs, targets)]
            return self(parameters, *sample)

        data = [*leaves(inputs), *leaves(targets)]
        is_fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with sdpa_kernel(SDPBackend.MATH):  # vmap knows no other attention: it warns, and takes samples one by one
                return torch.func.vmap(what(loss), in_dims=(None, 0))(self.parameters, data)
        finally:
            torch.backends.mha.set_fastpath_enabled(is_fast)

    def within(self, parameters: dict[str, Tensor], function: Callable[[], Any]) -> Any:
        """Return what a function of the model returns at ``parameters``, with copies of the buffers."""
        complex_ = {name: torch.view_as_complex(parameters[name]) for name in self._complex}
        buffers = {name: b.clone() for name, b in self.model.named_buffers()}
        return call_with(self.model, {**parameters, **complex_, **buffers}, function)

    def _loss(self, inputs: Data, targets: Data) -> Tensor:
        loss = self.loss_fn(call_model(self.model, inputs), targets)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
            raise ValueError(f"loss_fn must return one number, the mean over samples (reduction='mean'), got {what}")
        return loss.reshape(())

    @contextmanager
    def randomness(self, seed: int) -> Iterator[None]:
        """Let the model draw from its own ``seed``, and put the global random state back afterwards."""
        devices = sorted({p.device.index for p in self.parameters.values() if p.device.type == "cuda"})
        with torch.random.fork_rng(devices=devices):
            torch.default_generator.manual_seed(seed)
            for device in devices:
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(seed)
            yield


class SampleGradients:
    """Row ``i`` is the gradient of sample ``order[i]``, by ``torch.func``; ``chunk`` rows are computed at a time."""

    size = 1

    def __init__(self, objective: Objective, inputs: Data, targets: Data, order: Tensor, chunk: int) -> None:
        self._objective, self._data, self._order = objective, (inputs, targets), order
        self.count, self.chunk = len(order), chunk
        self._losses = torch.zeros(self.count, dtype=torch.float64)
        self._loss, self._precision = 0.0, torch.float64

    def mean(self) -> list[Tensor]:
        """Return the mean of the rows, by plain backward passes."""
        total = [torch.zeros_like(widened(p)) for p in self._objective.parameters.values()]
        self._loss = 0.0
        for low in range(0, self.count, self.chunk):
            part = self._order[low : low + self.chunk]
            gradient, loss = self._objective.gradient(*self._take(part))
            self._loss, self._precision = self._loss + loss.item() * len(part) / self.count, loss.dtype
            for sum_, g in zip(total, gradient, strict=True):
                sum_.add_(g, alpha=len(part) / self.count)
        return total

    def block(self, low: int, high: int) -> list[Tensor]:
        """Return the rows from ``low`` to ``high``, a matrix for each parameter."""
        rows, losses = self._objective.for_each_sample(torch.func.grad_and_value, *self._take(self._order[low:high]))
        self._losses[low:high] = losses.detach()
        return [widened(rows[name].detach().reshape(high - low, -1)) for name in self._objective.parameters]

    def why_not(self) -> str | None:
        """Return why `mean` is not the mean of the rows, or None if it is; known when all of them have been computed.

        A few samples do not tell if it is only a rare one that its batch weighs otherwise.
        """
        both = torch.stack([torch.tensor(self._loss, dtype=torch.float64), self._losses.mean()]).to(self._precision)
        return _why_not_their_mean(both[0], both[1])

    def _take(self, index: Tensor) -> tuple[Data, Data]:
        inputs, targets = (take(data, index, self._objective.device) for data in self._data)
        return inputs, targets


class BatchGradients:
    """Row ``j`` is the gradient of the ``j``-th mini-batch of ``size`` samples in the given order.

    Samples that do not fill a batch are left out. Each batch draws its dropout masks from a seed of its own, so that a
    row is the same whenever it is asked for. If all rows are at most ``held`` they are computed once and kept.
    """

    def __init__(
        self, objective: Objective, inputs: Data, targets: Data, order: Tensor, size: int, seed: int, held: int
    ) -> None:
        self._objective, self._data, self._order = objective, (inputs, targets), order
        self.size, self.count = size, len(order) // size
        self.chunk = max(1, min(self.count, held // 2))
        generator = torch.Generator().manual_seed(seed)
        self._seeds = torch.randint(2**31, (self.count,), generator=generator).tolist()
        self._kept: dict[int, list[Tensor]] | None = {} if self.count <= held else None

    def mean(self) -> list[Tensor]:
        """Return the mean of the rows."""
        total = [torch.zeros_like(widened(p)) for p in self._objective.parameters.values()]
        for j in range(self.count):
            for sum_, g in zip(total, self.block(j, j + 1), strict=True):
                sum_.add_(g.reshape(sum_.shape), alpha=1.0 / self.count)
        return total

    def block(self, low: int, high: int) -> list[Tensor]:
        """Return the rows from ``low`` to ``high``, a matrix for each parameter."""
        rows = [self._row(j) for j in range(low, high)]
        return [torch.stack(parts).reshape(high - low, -1) for parts in zip(*rows, strict=True)]

    def _row(self, j: int) -> list[Tensor]:
        if self._kept is not None and j in self._kept:
            return self._kept[j]
        index = self._order[j * self.size : (j + 1) * self.size]
        with self._objective.randomness(self._seeds[j]):
            row, _ = self._objective.gradient(*(take(data, index, self._objective.device) for data in self._data))
        if self._kept is not None:
            self._kept[j] = row
        return row


def innermost(model: nn.Module) -> nn.Module:
    """Return the module within wrappers for data-parallel training and compilation.

    Another batch size would compile it anew, and no rank must wait for the others.
    """
    while True:
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def check_model(model: nn.Module, what: str) -> None:
    """Raise TypeError if it is no module, or sharded: by FSDP, of either kind, or as tensors of a mesh."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    # By its name: the module that has the class takes long to import.
    is_wrapped = any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules())
    if is_wrapped or any(hasattr(p, "full_tensor") for p in model.parameters()):
        raise TypeError(
            f"{what} does not support sharded parameters (FSDP, tensor parallelism), of which a rank sees a part: "
            "call measure_noise on an unsharded copy of the model"
        )


def call_model(model: nn.Module, inputs: Data) -> Any:
    """Return the model's outputs: a tuple or list of inputs are positional arguments, a dict keyword arguments."""
    try:
        if isinstance(inputs, Mapping):
            return model(**inputs)
        return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)
    except Exception as error:
        tensors = [leaf for leaf in leaves(inputs) if isinstance(leaf, Tensor)]
        given = " and ".join(f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}" for x in tensors)
        error.add_note(f"heatbath called the model with the inputs {given}: check that inputs come before targets.")
        raise


def call_with(model: nn.Module, tensors: dict[str, Tensor], function: Callable[[], Any]) -> Any:
    """Return what a function that calls the model returns with these tensors, under their first names, in its places.

    A backward pass belongs inside: a checkpointed layer runs again in it, and writes into its buffers again. A tied
    tensor is replaced wherever it is, and each place once: torch's own tying replaces those of a layer that has several
    names as often, and then puts the replacement back in place of the original.
    """
    first: dict[int, str] = {}
    places: dict[str, Tensor] = {}
    for prefix, layer in model.named_modules():  # each layer once
        for members in (layer.named_parameters, layer.named_buffers):
            for name, tensor in members(prefix, recurse=False, remove_duplicate=False):
                if (known := first.setdefault(id(tensor), name)) in tensors:
                    places[f"model.{name}"] = tensors[known]
    whole = nn.Module()  # of which the function is the forward pass, with all that it does to the model
    whole.model, whole.forward = model, function
    return torch.func.functional_call(whole, places, (), tie_weights=False)


def as_real(tensor: Tensor) -> Tensor:
    """The tensor itself, or the real and imaginary parts of a complex one as a last dimension of length 2."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def check_mean_reduction(objective: Objective, inputs: Data, targets: Data, seed: int) -> None:
    """Raise if the loss grows alike each time the same samples are given again: it sums where it should average."""
    inputs, targets = next(_probes(objective, inputs, targets))
    samples = len(next(leaves(targets)))
    with torch.no_grad(), objective.randomness(seed):
        loss = objective(objective.parameters, inputs, targets)  # raises if it is not one number
        if not bool(torch.isfinite(loss)):
            raise ValueError(
                f"the loss is {float(loss)}: there is no gradient to measure at these weights on these data"
            )
        outputs = objective.within(objective.parameters, lambda: call_model(objective.model, inputs))
        if not all(isinstance(x, Tensor) for x in leaves(outputs)):
            return  # outputs of a type of their own, which cannot be repeated here
        once = float(objective.loss_fn(outputs, targets))
        try:
            repeats = ([repeat(data, samples, times) for data in (outputs, targets)] for times in (2, 3))
            twice, thrice = (float(objective.loss_fn(*both)) for both in repeats)
        except Exception:  # whatever the loss raises: these outputs cannot be repeated by hand, nor the loss be checked
            return
    growth, rounding = twice - once, torch.finfo(loss.dtype).eps
    is_linear = abs(thrice - twice - growth) <= max(1e-2, 8.0 * rounding) * abs(growth)
    if is_linear and abs(growth) > rounding**0.5 * abs(once):  # what does not grow is a penalty on the weights
        raise ValueError(
            f"loss_fn sums over the samples: the same {samples} samples given twice have loss {twice:.6g}, once "
            f"{once:.6g}; it must average (reduction='mean'), or the noise would depend on the batch size"
        )


def why_no_sample_gradients(objective: Objective, inputs: Data, targets: Data, seed: int) -> str | None:
    """Return why the gradient of the mean loss is no mean of per-sample gradients, or None if it is one."""
    for name, layer in objective.model.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and (layer.training or layer.running_mean is None):
            return (
                f"layer {name!r} is a BatchNorm that normalises by its batch (training mode), so that the gradient of "
                "a sample depends on the other samples: there is no per-sample gradient"
            )
    reasons = (_why_not_here(objective, *probe, seed) for probe in _probes(objective, inputs, targets))
    return next((reason for reason in reasons if reason), None)


def activation_bytes(objective: Objective, inputs: Data, targets: Data) -> int:
    """Return the memory that one sample's forward pass keeps for its backward pass."""
    known = {p.data_ptr() for p in objective.model.parameters()}
    seen: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        if x.data_ptr() not in known:
            seen[x.data_ptr()] = x.numel() * x.element_size()
        return x

    inputs, targets = (take(data, torch.arange(1), objective.device) for data in (inputs, targets))
    leaves = {name: p.detach().requires_grad_() for name, p in objective.parameters.items()}
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x), objective.randomness(0):
        loss = objective(leaves, inputs, targets)  # alive until here, so that no address is counted for two tensors
    del loss
    return sum(seen.values())


def _why_not_here(objective: Objective, inputs: Data, targets: Data, seed: int) -> str | None:
    """The reasons that show on a small batch."""
    with torch.no_grad():
        losses = []
        for attempt in (seed, seed + 1):
            with objective.randomness(attempt):
                losses.append(objective(objective.parameters, inputs, targets))
        if not bool(torch.isfinite(losses[0])):
            return None  # the gradient will tell
        if not _close(*losses):
            return "the forward pass is not deterministic (dropout in training mode?): a sample has no one gradient"
    try:
        with torch.no_grad():
            alone = objective.for_each_sample(lambda loss: loss, inputs, targets).mean()
        SampleGradients(objective, inputs, targets, torch.arange(1), chunk=1).block(0, 1)
    except Exception as error:  # whatever the model or its loss raises when it meets one sample alone
        reason = textwrap.shorten(str(error).strip().partition("\n")[0], 160, placeholder=" ...")
        if "randomness" in reason:
            return "the forward pass draws random numbers (dropout in training mode?): a sample has no one gradient"
        return f"torch.func cannot take per-sample gradients of this model ({reason})"
    return _why_not_their_mean(losses[0], alone)


def _why_not_their_mean(loss: Tensor, mean: Tensor) -> str | None:
    if _close(loss, mean):
        return None
    return (
        f"the loss of a batch ({float(loss):.6g}) is not the mean of the losses of its samples "
        f"({float(mean):.6g}), because a layer couples them or the loss weighs them by their batch"
    )


def _probes(objective: Objective, inputs: Data, targets: Data) -> Iterator[tuple[Data, Data]]:
    """Small batches, each spread over all samples: sorted data or periodic ones have no batch of samples alike."""
    golden = 0.5 * (math.sqrt(5.0) - 1.0)  # the multiples of which, modulo 1, are spread most evenly
    places = torch.arange(_PROBES * _PROBE, dtype=torch.float64).mul(golden).remainder(1.0)
    for index in (places * len(next(leaves(targets)))).long().split(_PROBE):
        yield take(inputs, index, objective.device), take(targets, index, objective.device)


def _close(one: Tensor, other: Tensor) -> bool:
    tolerance = torch.finfo(one.dtype).eps ** 0.5  # above the rounding of another order of sums
    return bool((one - other).abs() <= tolerance * torch.maximum(one.abs(), other.abs()) + tolerance**2)
