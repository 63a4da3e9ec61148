"""One training run as frozen data, with a content hash that names it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import product
from numbers import Real
from typing import Any, Generic, TypeVar

from heatbath.data.image_sets import IMAGE_SETS, OLD_SPLIT
from heatbath.draws import check_integer
from heatbath.laws import COUPLINGS, Constant, Law, Uniform, parse_law
from heatbath.runs.protocols import Protocol, parse_protocol
from heatbath.tasks.registry import Network, check_images, find_network, networks
from heatbath.thermostat import Thermostat

PRECISIONS = ("auto", "fp32", "tf32", "bf16")
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


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides the numbers of one training run.

    Attributes:
        model: ``"mlp"``, ``"cnn"`` or ``"vgg16"``.
        dataset: ``"mnist5k"``, ``"mnist"`` or ``"cifar10"``.
        protocol: ``"constant"``, ``"random"`` or ``"cyclic:P"``.
        law: of the multiplier, for ``random``: uniform on [0, 2] by default. Elsewhere it is the constant law.
        coupling: what the multiplier acts on, for ``random``: ``"gradient"`` or ``"update"``.
        lr: the mean learning rate.
        batch_size: images in a mini-batch; the last one of an epoch takes what is left.
        momentum: from 0 to below 1.
        nesterov: Nesterov's form of the step.
        weight_decay: part of the gradient, as in torch's SGD.
        epochs: how often the training images are gone through.
        precision: ``"fp32"``, ``"tf32"`` or ``"bf16"`` for the products; ``"auto"`` is fp32 on a CPU, and on a GPU tf32
            for the perceptron and bf16 for the convolutional networks. Weights and velocities are always fp32.
        weights: ``"imagenet"`` starts VGG16's convolutions from there, and normalises the images accordingly.
        seed: of weights, order, dropout and draws, each in a stream of its own.
        validation: how many training images to hold out.
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

    def __post_init__(self) -> None:
        put = self.__dict__.__setitem__  # a frozen dataclass forbids the usual way
        network = check_images(self.model, self.dataset)
        _choose("precision", self.precision, PRECISIONS)
        _choose("coupling", self.coupling, COUPLINGS)
        if type(self.law).__module__ != Law.__module__:
            raise ValueError(f"law {self.law} is not one of heatbath's, so that a stored run could not be read back")
        if self.protocol.kind != "random":
            put("law", Constant())
            put("coupling", "gradient")
        for name in ("lr", "momentum", "weight_decay"):
            put(name, _number(name, getattr(self, name)))
        if self.lr <= 0.0:
            raise ValueError(f"lr must be positive, got {self.lr}")
        if self.momentum >= 1.0:
            raise ValueError(f"momentum must be below 1, got {self.momentum}")
        if not isinstance(self.nesterov, bool):
            raise TypeError(f"nesterov must be True or False, got {self.nesterov!r}")
        if self.momentum == 0.0:  # the same step by other names
            put("nesterov", False)
            put("coupling", "gradient")
        put("batch_size", check_integer("batch_size", self.batch_size, 2**31, least=1))
        put("epochs", check_integer("epochs", self.epochs, 2**20, least=1))
        put("seed", check_integer("seed", self.seed))
        put("validation", check_integer("validation", self.validation, 2**31))
        images = IMAGE_SETS[self.dataset].training_images
        if self.validation >= images:
            raise ValueError(f"validation {self.validation}: {self.dataset} has {images:,} training images")
        if self.batch_size > self.training_images:
            raise ValueError(
                f"batch_size {self.batch_size}: {self.dataset} has {self.training_images:,} images to train on"
            )
        if self.weights not in (None, "imagenet"):
            raise ValueError(f"weights must be imagenet or left out, got {self.weights!r}")
        if self.weights is not None and network.pretrained is None:
            having = " or ".join(name for name, one in networks().items() if one.pretrained)
            raise ValueError(f"weights {self.weights} are for {having}; {self.model} starts from its seed alone")

    @property
    def network(self) -> Network:
        """What is known of the network that it trains."""
        return find_network(self.model)

    @property
    def training_images(self) -> int:
        """How many images it trains on."""
        return IMAGE_SETS[self.dataset].training_images - self.validation

    @property
    def steps_per_epoch(self) -> int:
        """How many mini-batches an epoch has."""
        return math.ceil(self.training_images / self.batch_size)

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
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**values, "protocol": str(self.protocol), "law": str(self.law)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunConfig:
        """Return the config of `to_dict`.

        Raises:
            ValueError: a field is missing, unknown or not allowed.
        """
        known = {field.name for field in fields(cls)}
        if set(values) != known:
            wrong = ", ".join(sorted(known ^ set(values)))
            raise ValueError(f"not the fields of a RunConfig: {wrong}")
        return cls(**values)

    def with_(self, **changes: Any) -> RunConfig:
        """Return a copy with some fields changed.

        A run that becomes random, or comes to have momentum, takes the default law, or Nesterov's form, unless told.
        """
        if changes.get("momentum", 0.0) and "nesterov" not in changes and self.momentum == 0.0:
            changes["nesterov"] = True
        if "protocol" in changes and "law" not in changes and self.protocol.kind != "random":
            changes["law"] = None
        return replace(self, **changes)


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
    """Return the config of a stored run.

    A run of mnist5k that was stored before its split was mended comes back as one of ``mnist5k-old``.

    Raises:
        ValueError: a field is missing, unknown or not allowed, or the run has another name.
    """
    config = RunConfig.from_dict(values)
    if config.run == run:
        return config
    if config.dataset == "mnist5k" and (old := replace(config, dataset=OLD_SPLIT)).run == run:
        return old
    raise ValueError(f"it is named {run}, but its config is {config.run}")


def _choose(name: str, value: Any, allowed: Iterable[str]) -> None:
    if value not in tuple(allowed):
        raise ValueError(f"unknown {name} {value!r}: choose one of {', '.join(allowed)}")


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    if value < 0.0:
        raise ValueError(f"{name} must not be negative, got {value!r}")
    return float(value) + 0.0  # -0.0 becomes 0.0
