"""One training run as frozen data, with a content hash that names it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import product
from typing import Any, Generic, TypeVar

import numpy as np

from heatbath.data.image_sets import IMAGE_SETS, OLD_SPLIT
from heatbath.draws import check_integer
from heatbath.laws import COUPLINGS, Constant, Law, Uniform, check_number, parse_law
from heatbath.runs.protocols import SCHEDULES, Array, Protocol, parse_protocol, schedule_factors
from heatbath.tasks.facts import AnyTask, TaskFacts
from heatbath.tasks.registry import Cost, Network, check_images, find_network, networks
from heatbath.thermostat import Thermostat

PRECISIONS = ("auto", "fp32", "tf32", "bf16")
_CHOICES = {
    "precision": PRECISIONS,
    "coupling": COUPLINGS,
    "optimizer": ("sgd", "adamw"),
    "schedule": SCHEDULES,
    "sampling": ("shuffled", "replacement"),
}
_INTEGERS = {  # the most and the least
    **{"batch_size": (2**31, 1), "epochs": (2**20, 1), "seed": (2**64, 0)},
    **dict.fromkeys(("validation", "warmup"), (2**31, 0)),
}
# Fields that came after the first runs were stored: left out of the hash where they have their default.
_LATER = {"task", "optimizer", "schedule", "warmup", "clip_norm", "sampling", "beta2"}
_FORMATS = {"mnist5k": 2}  # of the hash, by data set; else 1: raised when the same fields come to mean other numbers
_Given = TypeVar("_Given")
_Kept = TypeVar("_Kept")


class _Read(Generic[_Given, _Kept]):
    """A field that may be given in words and is kept as what they mean, for type checkers too."""

    def __init__(self, read: Callable[[_Given], _Kept], default: _Given) -> None:
        self._read, self._default = read, default

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, config: Any, owner: type) -> _Kept:
        return self._read(self._default) if config is None else config.__dict__[self._name]

    def __set__(self, config: Any, value: _Given) -> None:
        config.__dict__[self._name] = self._read(value)


def _read_law(law: Law | str | None) -> Law:
    return parse_law(Uniform(1.0) if law is None else law)


@dataclass(frozen=True, kw_only=True, repr=False)
class RunConfig:
    """Everything that decides the numbers of one training run.

    Attributes:
        model: ``"mlp"``, ``"cnn"`` or ``"vgg16"``; with a task, its name.
        dataset: ``"mnist5k"``, ``"mnist"`` or ``"cifar10"``; with a task, a short name of its data.
        protocol: ``"constant"``, ``"random"`` or ``"cyclic:P"``, from twice the rate to 0 in P epochs and back.
        law: of the multiplier, for ``random``: uniform on [0, 2] by default. Elsewhere it is the constant law.
        coupling: what the multiplier acts on, for ``random``: ``"gradient"`` or ``"update"``.
        lr: the mean learning rate.
        batch_size: samples in a mini-batch; the last one of an epoch takes what is left.
        momentum: from 0 to below 1; AdamW's first beta.
        nesterov: Nesterov's form of the step, for SGD.
        weight_decay: part of the gradient, as in torch's SGD; for AdamW apart from it, as in torch's AdamW.
        epochs: how often the training samples are gone through.
        precision: ``"fp32"``, ``"tf32"`` or ``"bf16"`` for the products; ``"auto"`` is fp32 on a CPU, and on a GPU tf32
            for the perceptron and bf16 for the convolutional networks. Weights and velocities are always fp32.
        weights: ``"imagenet"`` starts VGG16's convolutions from there, and normalises the images accordingly.
        seed: of weights, order, dropout and draws, each in a stream of its own.
        validation: how many training samples to hold out.
        task: a `heatbath.Task`, in the place of a model and a dataset; from a store, the facts on one.
        optimizer: ``"sgd"`` or ``"adamw"``.
        schedule: ``"constant"``, ``"cosine"`` or ``"linear"``: what the rate falls to 0 by, on top of the protocol.
        warmup: over how many steps the rate first grows to its full size.
        clip_norm: the largest norm of a gradient; longer ones are shortened. None leaves them as they are.
        sampling: ``"shuffled"`` goes through the samples in a new order in each epoch; ``"replacement"`` draws each
            sample of a batch independently.
        beta2: AdamW's second beta, from 0 to below 1.
    """

    model: str = "mlp"
    dataset: str = "mnist5k"
    protocol: _Read[Protocol | str, Protocol] = _Read(parse_protocol, "random")
    law: _Read[Law | str | None, Law] = _Read(_read_law, None)
    coupling: str = "gradient"
    lr: float = 0.005
    batch_size: int = 256
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 0.0
    epochs: int = 20
    precision: str = "auto"
    weights: str | None = None
    seed: int = 0
    validation: int = 0
    task: AnyTask | None = None
    optimizer: str = "sgd"
    schedule: str = "constant"
    warmup: int = 0
    clip_norm: float | None = None
    sampling: str = "shuffled"
    beta2: float = 0.999

    def __post_init__(self) -> None:
        put = self.__dict__.__setitem__  # a frozen dataclass forbids the usual way
        if self.task is None:
            self._check_network()
        else:
            self._take_task(self.task)
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"unknown {name} {getattr(self, name)!r}: choose one of {', '.join(allowed)}")
        if type(self.law).__module__ != Law.__module__:
            raise ValueError(f"law {self.law} is not one of heatbath's, so that a stored run could not be read back")
        if self.protocol.kind != "random":
            put("law", Constant())
            put("coupling", "gradient")
        for name in ("lr", *["clip_norm"] * (self.clip_norm is not None)):
            put(name, check_number(name, getattr(self, name), above=0.0))
        for name in ("momentum", "beta2"):
            put(name, check_number(name, getattr(self, name), least=0.0, below=1.0))
        put("weight_decay", check_number("weight_decay", self.weight_decay, least=0.0))
        if not isinstance(self.nesterov, bool):
            raise TypeError(f"nesterov must be True or False, got {self.nesterov!r}")
        if self.optimizer == "adamw":
            put("nesterov", False)
        else:
            put("beta2", RunConfig.beta2)
            if self.momentum == 0.0:  # the same step by other names
                put("nesterov", False)
                put("coupling", "gradient")
        for name, (most, least) in _INTEGERS.items():
            put(name, check_integer(name, getattr(self, name), most, least=least))
        self._check_sizes()

    def _check_network(self) -> None:
        network = check_images(self.model, self.dataset)
        if self.weights not in (None, "imagenet"):
            raise ValueError(f"weights must be imagenet or left out, got {self.weights!r}")
        if self.weights is not None and network.pretrained is None:
            having = " or ".join(name for name, one in networks().items() if one.pretrained)
            raise ValueError(f"weights {self.weights} are for {having}; {self.model} starts from its seed alone")

    def _take_task(self, task: AnyTask) -> None:
        if not isinstance(task, AnyTask):
            raise TypeError(f"task must be a heatbath.Task, got {task!r:.100}")
        for name, value, usual in (
            ("model", task.facts.name, RunConfig.model),
            ("dataset", task.facts.data, RunConfig.dataset),
            ("weights", None, None),
        ):
            given = getattr(self, name)
            if given not in (usual, value):
                raise ValueError(f"{name} {given!r} and a task: give one of them")
            self.__dict__[name] = value

    def _check_sizes(self) -> None:
        data, word = (self.dataset, "images") if self.task is None else (f"task {self.model}", "samples")
        if self.validation >= self._all_images:
            raise ValueError(f"validation {self.validation}: {data} has {self._all_images:,} training {word}")
        if self.batch_size > self.training_images:
            raise ValueError(f"batch_size {self.batch_size}: {data} has {self.training_images:,} {word} to train on")
        if self.warmup >= self.steps:
            raise ValueError(f"warmup {self.warmup} is as long as the run, which has {self.steps:,} steps")

    @property
    def _all_images(self) -> int:
        return self.task.facts.samples if self.task is not None else IMAGE_SETS[self.dataset].training_images

    def __repr__(self) -> str:
        hidden = () if self.task is None else ("model", "dataset")
        shown = [
            f"{name}={value if name == 'task' else repr(value)}"
            for name, value in {**self.settings(), "task": self.task}.items()
            if name not in hidden and str(value) != str(getattr(RunConfig, name))
        ]
        return f"RunConfig({', '.join(shown)})"

    @property
    def network(self) -> Network:
        """What is known of the network that it trains."""
        return find_network(self.model)

    @property
    def cost(self) -> Cost:
        """What it costs in time and memory, roughly."""
        if self.task is None:
            return self.network.cost
        from heatbath.tasks.probe import probe
        from heatbath.tasks.task import live_task

        return probe(live_task(self.task)).cost

    @property
    def training_images(self) -> int:
        """How many images, or other samples, it trains on."""
        return self._all_images - self.validation

    @property
    def steps_per_epoch(self) -> int:
        """How many mini-batches an epoch has."""
        return math.ceil(self.training_images / self.batch_size)

    @property
    def steps(self) -> int:
        """How many mini-batches the run has."""
        return self.epochs * self.steps_per_epoch

    def schedule_factors(self, epoch: int) -> Array:
        """Return what the schedule and the warmup multiply the rate by at each step of an epoch, counted from 0."""
        steps = np.arange(self.steps_per_epoch, dtype=float) + epoch * self.steps_per_epoch
        return schedule_factors(self.schedule, self.warmup, self.steps, steps)

    @property
    def thermostat(self) -> Thermostat:
        """Its knobs, for their temperature. A cyclic run is taken at its mean rate."""
        knobs = (self.lr, self.batch_size, self.momentum, self.nesterov, self.law, self.coupling)
        return Thermostat(*knobs, self.training_images)

    @cached_property
    def run(self) -> str:
        """The name of the run: 16 hexadecimal digits that any change of a field changes."""
        fields = self.to_dict()
        form = _FORMATS.get(self.dataset, 1)
        if self.dataset == OLD_SPLIT:  # which had that name then
            fields["dataset"] = "mnist5k"
        text = json.dumps({"format": form, **fields}, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON knows them; `from_dict` reads them back."""
        own = self.__dict__
        values = {name: own[name] for name, usual in _USUAL.items() if name not in _LATER or own[name] != usual}
        if self.task is not None:
            values["task"] = self.task.facts.to_dict()
        return {**values, "protocol": str(self.protocol), "law": str(self.law)}

    def settings(self) -> dict[str, Any]:
        """Return all fields for a table: as in `to_dict`, defaults too, and of a task its name and digest."""
        values = {name: self.__dict__[name] for name in _USUAL} | self.to_dict()
        return {**values, "task": None if self.task is None else self.task.label}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunConfig:
        """Return the config of `to_dict`.

        Raises:
            ValueError: a field is missing, unknown or not allowed.
        """
        wrong = (_USUAL.keys() ^ values.keys()) - _LATER
        if wrong:
            raise ValueError(f"not the fields of a RunConfig: {', '.join(sorted(wrong))}")
        task = values.get("task")
        return cls(**{**values, "task": None if task is None else TaskFacts.from_dict(task)})

    def with_(self, **changes: Any) -> RunConfig:
        """Return a copy with some fields changed.

        A run that becomes random, or comes to have momentum, takes the default law, or Nesterov's form, unless told.
        A task takes the place of the model and the data.
        """
        if "task" in changes:
            changes = {"model": RunConfig.model, "dataset": RunConfig.dataset, "weights": None, **changes}
        if changes.get("momentum", 0.0) and "nesterov" not in changes and self.momentum == 0.0:
            changes["nesterov"] = True
        if "protocol" in changes and "law" not in changes and self.protocol.kind != "random":
            changes["law"] = None
        return replace(self, **changes)


_USUAL = {field.name: field.default for field in fields(RunConfig)}  # asked for with each run: `fields` is slow


def sweep(base: RunConfig, **axes: Any) -> list[RunConfig]:
    """Return every combination of the axes, the last one fastest: ``sweep(base, lr=(0.1, 0.2), seed=range(5))``.

    An axis is any collection of values; a single value, such as a text or a number, is an axis of one.
    """
    if not isinstance(base, RunConfig):
        raise TypeError(f"base must be a RunConfig, got {base!r}")
    single = (str, Law, Protocol)
    values = [
        list(axis) if isinstance(axis, Iterable) and not isinstance(axis, single) else [axis] for axis in axes.values()
    ]
    return [base.with_(**dict(zip(axes, chosen, strict=True))) for chosen in product(*values)]


def read_config(values: Mapping[str, Any], run: str) -> RunConfig:
    """Return the config of a stored run, if that is its name.

    A run of mnist5k that was stored before its split was mended comes back as one of ``mnist5k-old``.
    """
    config = RunConfig.from_dict(values)
    if config.run == run:
        return config
    if config.dataset == "mnist5k" and (old := replace(config, dataset=OLD_SPLIT)).run == run:
        return old
    raise ValueError(f"it is named {run}, but its config is {config.run}")
