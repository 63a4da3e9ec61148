"""Networks by name, and what is known of one.

A network is a module of `heatbath.tasks.networks` that defines ``NETWORK``: its file is all that a new one needs. The
facts can be read without torch, which a module there imports inside the functions that build and compute the network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, NamedTuple

from heatbath.data.image_sets import DATASETS, IMAGE_SETS
from heatbath.tasks import networks as folder

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from heatbath.tasks.stacked_networks import StackedNetwork


class Margin(NamedTuple):
    """By how much two accuracies may differ and count as equal, and the reason in words."""

    size: float
    reason: str


@dataclass(frozen=True)
class Cost:
    """What a network costs: measured, see ``benchmarks``."""

    cpu_seconds: float  # of one core, for one image in one epoch, with evaluation; rough
    # Of a process that trains it on one core, without the activations; None where one process takes all cores.
    process_bytes: int | None
    weights: int  # how many numbers of a replica are trained
    activation_bytes: int  # for each image of a batch
    most: int  # replicas in a stack, beyond which it is hardly faster
    compiled_steps: int  # from which on compiling pays


@dataclass(frozen=True)
class Network:
    """One network: facts, and functions that import torch when they are called."""

    name: str
    title: str  # the name in words
    input_shape: tuple[int, int, int]
    dataset: str  # the one that is taken unless another is asked for
    margins: Mapping[str, Margin]  # of "equal" in accuracy, by data set
    precision: str  # of its products on a GPU, where none is asked for
    cost: Cost
    layers: Callable[[], nn.Module]  # returns it as torch builds it
    rows: Callable[[], StackedNetwork]  # returns how it is computed with a replica in each row of its parameters
    # Draws its initial weights; None starts each layer as PyTorch does.
    initialize: Callable[[nn.Module, torch.Generator], None] | None = None
    # Returns tensors to start from, given ``weights`` and ``data_dir`` of `build_model`, and what a download calls.
    pretrained: Callable[..., dict[str, Tensor]] | None = None

    @cached_property
    def stacked(self) -> StackedNetwork:
        """How a stack of it is computed; one object, which compiled code knows again."""
        return self.rows()

    @property
    def datasets(self) -> list[str]:
        """Those with images of its shape."""
        return [name for name in DATASETS if IMAGE_SETS[name].shape == self.input_shape]


@cache
def networks() -> dict[str, Network]:
    """Return all networks by name, those of few weights first."""
    modules = [import_module(f"{folder.__name__}.{module.name}") for module in iter_modules(folder.__path__)]
    found: list[Network] = sorted((module.NETWORK for module in modules), key=lambda network: network.cost.weights)
    return {network.name: network for network in found}


def find_network(name: str) -> Network:
    """Return the network of this name, or raise ValueError."""
    if name not in networks():
        raise ValueError(f"unknown model {name!r}: choose one of {', '.join(networks())}")
    return networks()[name]


def check_images(model: str, dataset: str) -> Network:
    """Return the network; refuse one that is not known, and images that are not, or do not go with it."""
    network = find_network(model)
    if dataset not in IMAGE_SETS:
        raise ValueError(f"unknown dataset {dataset!r}: choose one of {', '.join(DATASETS)}")
    if network.input_shape != IMAGE_SETS[dataset].shape:
        sides, fitting = " x ".join(map(str, network.input_shape)), " or ".join(network.datasets)
        raise ValueError(f"{model} takes images of {sides}, those of {fitting}; {dataset}'s are another shape")
    return network
