"""What is trained, as a user gives it: a model, data, a loss and metrics."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from heatbath.tasks.facts import AnyTask, TaskFacts
from heatbath.tasks.fingerprints import NoFingerprintError, fingerprint
from heatbath.tasks.losses import Function, read_loss, read_metrics
from heatbath.tasks.models import weights_generator
from heatbath.tasks.samples import Samples, failure, gather, kind, resolve, size_in_words
from heatbath.tasks.transport import Packed, pack


class Task(AnyTask):
    """A model, data, a loss and metrics: what `RunConfig` trains in the place of a network of the paper.

    Data is held in memory, and read once: a torch Dataset is gone through from its first sample to its last, so that
    random transforms belong into ``augment``. Nothing is read or built before it is needed.

    Args:
        model: a function without arguments that returns a new ``nn.Module``, or ``"package.module:function"``. Its
            initial weights come from the run's seed, by way of torch's, NumPy's and Python's global generators, which
            are put back as they were. The model returns a tensor, or an object with ``.logits``.
        train: ``(inputs, targets)`` as tensors or arrays, a torch Dataset, a list of pairs, or a function (or
            ``"package.module:function"``) that returns them.
        test: likewise.
        loss: ``"cross_entropy"``, ``"binary_cross_entropy"``, ``"mse"``, ``"mae"``, or a function of outputs and
            targets that returns their mean over the batch.
        metrics: ``"accuracy"``, ``"top5_accuracy"``, ``"binary_accuracy"``, ``"mse"``, ``"rmse"``, ``"mae"``,
            ``"perplexity"``, and functions of outputs and targets that return a mean over the batch, or a number for
            each sample.
        name: by which tables call it; that of the model's function by default.
        augment: a function of inputs and a ``torch.Generator`` that returns other inputs, for each training batch.

    Example:
        >>> def model():
        ...     return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
        >>> task = hb.Task(model, (x, y), (test_x, test_y))
        >>> records = hb.run(hb.sweep(hb.RunConfig(task=task, batch_size=32), seed=range(30)), store="runs")
    """

    _packed: Packed | None = None  # in a worker, where the sender has put the data

    def __init__(
        self,
        model: Callable[[], nn.Module] | str,
        train: Any,
        test: Any,
        *,
        loss: str | Function = "cross_entropy",
        metrics: str | Function | Sequence[str | Function] = ("accuracy",),
        name: str | None = None,
        augment: Callable[[Tensor, torch.Generator], Tensor] | None = None,
    ) -> None:
        self._model: Callable[[], nn.Module] = resolve(model, "model") if isinstance(model, str) else model
        if isinstance(self._model, nn.Module):
            reason = "each seed starts from weights of its own"
            raise TypeError(
                f"model must be a function that returns a new network, got a {type(model).__name__}: {reason}"
            )
        if not callable(self._model):
            raise TypeError(f"model must be a function or 'package.module:function', got {model!r:.100}")
        if augment is not None and not callable(augment):
            raise TypeError(f"augment must be a function of inputs and a generator, got {augment!r:.100}")
        self._given = {"train": train, "test": test}
        self._words = {"loss": loss, "metrics": metrics}
        self.loss, self.metrics, self.augment = read_loss(loss), read_metrics(metrics), augment
        self.probed: Any = None  # what `heatbath.tasks.probe.probe` has found
        self.name = _check_name(name if name is not None else _name_of(self._model))

    def __repr__(self) -> str:
        data = "data not read yet"
        if "train" in self.__dict__ and "test" in self.__dict__:
            size = size_in_words(self.train.nbytes + self.test.nbytes)
            data = f"{len(self.train):,} + {len(self.test):,} samples, {size}"
        return f"Task({self.name!r}: {data}; {', '.join(self.measured)})"

    @cached_property
    def train(self) -> Samples:
        """The data to train on, read when first asked for."""
        if self._packed is not None:
            return self._packed.load(self.name)[0]
        return gather(self._given["train"], "train")

    @cached_property
    def test(self) -> Samples:
        """The data to test on, read when first asked for."""
        if self._packed is not None:
            return self._packed.load(self.name)[1]
        found = gather(self._given["test"], "test")
        for what in ("inputs", "targets"):
            ours, theirs = (
                f"{tuple(one.shape[1:])} {kind(one)}" for one in (getattr(found, what), getattr(self.train, what))
            )
            if ours != theirs:
                raise ValueError(f"{what} of a sample are {ours} in test and {theirs} in train")
        return found

    @property
    def measured(self) -> tuple[str, ...]:
        """The names of what is measured on each part of the data."""
        return ("loss", *(metric.name for metric in self.metrics))

    @cached_property
    def facts(self) -> TaskFacts:
        """What is known of it without its code and data; ValueError where a part has no digest."""
        code = {"model": self._model, "augment": self.augment, **self._words}
        parts = {part: self._digest(part, value) for part, value in code.items()}
        parts |= {"train": self.train.digest, "test": self.test.digest}
        return TaskFacts(self.name, len(self.train), len(self.test), self.measured, parts)

    def build(self, seed: int) -> nn.Module:
        """Return the model with the initial weights of a seed, on the CPU; no global random state is changed."""
        try:
            with seeded(seed), torch.device("cpu"):
                model = self._model()
                model = model.to("cpu") if isinstance(model, nn.Module) else model
        except Exception as error:
            raise ValueError(failure(f"the model's function of task {self.name}", error)) from error
        if not isinstance(model, nn.Module):
            raise TypeError(f"the model's function must return an nn.Module, got {model!r:.100}")
        return model

    def __reduce__(self) -> tuple[Any, ...]:
        packed = self._packed or pack(self, (self._model, self._words, self.augment), (self.train, self.test))
        return _revive, (self.name, self.facts, self.probed, packed)

    def _digest(self, part: str, value: Any) -> str:
        try:
            return fingerprint(value)
        except NoFingerprintError as error:
            reason = f"the {part} of task {self.name} refers to {error}, whose content has no digest, so that runs"
            remedy = "make it inside the function, or put it into a module and name it there"
            raise ValueError(f"{reason} would have no name: {remedy}") from None


def live_task(task: AnyTask | None) -> Task:
    """Return a task that can be trained; raise ValueError where only facts are known, as of a run from a store."""
    if isinstance(task, Task):
        return task
    name = "" if task is None else f" {task.facts.name}"
    raise ValueError(f"a store keeps no code of the task{name}: train it with RunConfig(task=...), or --task")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Global random numbers of torch, NumPy and Python that come from a seed inside; outside, what was there before."""
    generator = weights_generator(seed)
    with kept_random_states():
        torch.set_rng_state(generator.get_state())
        random.seed(seed)
        np.random.seed(generator.initial_seed() % 2**32)  # noqa: NPY002
        yield


@contextmanager
def kept_random_states(devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """Whatever is drawn inside, torch's (of these GPUs too), NumPy's and Python's generators go on as they were."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - what the user's code draws from
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


def random_states() -> tuple[Any, ...]:
    """Return where these generators stand, to see whether something has been drawn."""
    numpy: Any = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), numpy[1].tobytes(), numpy[2:]


_REVIVED: dict[str, Task] = {}


def _revive(name: str, facts: TaskFacts, probed: Any, packed: Packed) -> Task:
    """Return a task in a worker: one object for all that are equal, with the facts that the sender found."""
    if facts.digest not in _REVIVED:
        model, words, augment = packed.unpack(name)
        task = Task(model, None, None, name=name, augment=augment, **words)
        task.__dict__ |= {"facts": facts, "probed": probed, "_packed": packed}
        for part, code in (("model", model), ("augment", augment)):
            if _is_imported(code) and fingerprint(code) != facts.parts[part]:
                reason = "its code, or a value that it uses, has been changed since it was imported here"
                remedy = "change it in the module and start again, or train with workers=1"
                raise ValueError(f"the {part} of task {name} is another one in a worker: {reason}; {remedy}")
        _REVIVED[facts.digest] = task
    return _REVIVED[facts.digest]


def _is_imported(code: Any) -> bool:
    """Whether a function or class came by the name of its module, and not by value."""
    module, name = getattr(code, "__module__", None), getattr(code, "__qualname__", "")
    return module not in (None, "__main__") and getattr(sys.modules.get(module), name, None) is code


def _name_of(model: Any) -> str:
    while isinstance(model, partial):
        model = model.func
    name = getattr(model, "__name__", type(model).__name__)
    return "model" if name == "<lambda>" else name


def _check_name(name: Any) -> str:
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > 60:
        raise ValueError(f"name must be printable text of at most 60 characters, got {name!r:.100}")
    return name
