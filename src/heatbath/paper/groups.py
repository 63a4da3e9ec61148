"""Groups of runs that differ in their seed alone, and what is found of them in a store.

The groups of a figure use the same seeds, so that run k of each starts from the same weights and sees the data in the
same order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from heatbath.paper.quantities import Quantity
from heatbath.runs.configs import RunConfig
from heatbath.runs.records import ENDED, Record

Scale = Literal["smoke", "laptop", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "laptop", "paper")

PROTOCOLS = ("constant", "random", "cyclic:6", "cyclic:18", "cyclic:30")
"""The five that the paper compares, in the order of their colours in every figure."""
CONSTANT, RANDOM = 0, 1  # colours that other groups of the same kind share
SPARE = 2  # after 5 and 6, the palette's last, a colour of a cyclic protocol serves where there is none
EPOCHS: dict[Scale, int] = {"smoke": 3, "laptop": 60, "paper": 180}
SEEDS: dict[Scale, int] = {"smoke": 2, "laptop": 6, "paper": 20}
CNN_SEEDS, VGG16_SEEDS = 10, 5  # at the paper's scale, the only one at which they are trained
MORE_SEEDS = 10  # of VGG16, constant, random and the fastest cyclic rate, whose claims five left open
_SHORT_TRAINING = (
    "4,000 images make 16 steps to an epoch where MNIST makes 235; rate, batch and momentum are the paper's, so the "
    "network is far from trained out, and the cyclic protocols end at different points of their cycles"
)
_TITLES = {
    **{"dataset": "data", "lr": "mean rate l", "batch_size": "batch size C", "momentum": "momentum mu"},
    **{"nesterov": "Nesterov", "weight_decay": "weight decay", "epochs": "epochs", "protocol": "protocol"},
    **{"law": "law", "coupling": "coupling", "weights": "weights"},
}


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone."""

    label: str  # what the legend says; unique within the part
    config: RunConfig  # one of them; its seed does not matter
    seeds: int  # how many there are, from 0 on
    colour: int = 0  # its place in the palette
    part: str = ""  # of the figure, such as "CNN", where there are several

    @property
    def name(self) -> str:
        """The label with its part."""
        return f"{self.part}, {self.label}" if self.part else self.label

    @property
    def configs(self) -> list[RunConfig]:
        """The complete configurations of its runs."""
        return [self.config.with_(seed=seed) for seed in range(self.seeds)]

    @property
    def temperature(self) -> float:
        """That of its knobs, in units of the gradient's variance."""
        return self.config.thermostat.temperature()


@dataclass(frozen=True)
class FigureRuns:
    """What there is for one figure: all its groups, and by name the records of a store and results of calculations."""

    scale: Scale
    groups: tuple[Group, ...]
    records: Mapping[str, Record]
    results: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def parts(self) -> list[str]:
        """The parts of the figure, in order."""
        return list(dict.fromkeys(group.part for group in self.groups))

    def part(self, part: str) -> list[Group]:
        """Return the groups of one part of the figure."""
        return [group for group in self.groups if group.part == part]

    def labelled(self, part: str, *labels: str) -> list[Group]:
        """Return the groups of these labels in one part of the figure."""
        by_label = {group.label: group for group in self.part(part)}
        return [by_label[label] for label in labels]

    def runs(self, group: Group) -> list[Record]:
        """Return the finished runs of a group; those that diverged are none of them."""
        found = (self.records.get(config.run) for config in group.configs)
        return [record for record in found if record is not None and record.status == "finished" and record.epochs]

    def values(self, group: Group, quantity: Quantity) -> list[float]:
        """Return the quantity of each run that has ended: no number for one that diverged, which leaves claims open."""
        return list(self.by_seed(group, quantity).values())

    def pairs(self, *groups: tuple[Group, Quantity]) -> list[list[float]]:
        """Return the values of groups, each by its quantity, of those seeds whose runs have ended in all of them."""
        values = [self.by_seed(*group) for group in groups]
        common = [seed for seed in values[0] if all(seed in others for others in values)] if values else []
        return [[some[seed] for seed in common] for some in values]

    def by_seed(self, group: Group, quantity: Quantity) -> dict[int, float]:
        """Return the same as `values`, by the seed of the run."""
        ended = (self.records.get(config.run) for config in group.configs)
        return {
            record.config.seed: quantity.of(record) if record.status == "finished" else math.nan
            for record in ended
            if record is not None and record.status in ENDED and (record.epochs or record.status == "diverged")
        }

    @property
    def is_complete(self) -> bool:
        """Whether every run has come to its end, diverged ones included."""
        return all(has_ended(self.records, config) for group in self.groups for config in group.configs)

    @property
    def missing(self) -> tuple[str, ...]:
        """A sentence for each group that has fewer finished runs than it should."""
        return tuple(f"{group.name}: {words}" for group in self.groups for words in self._lacking(group))

    def _lacking(self, group: Group) -> Iterable[str]:
        ended = [config for config in group.configs if has_ended(self.records, config)]
        diverged = [str(config.seed) for config in ended if self.records[config.run].status == "diverged"]
        if diverged:
            count = f"{len(diverged)} of {group.seeds} runs"
            yield f"{count} diverged (seed {', '.join(diverged)}) and are in no mean."
        if not ended:
            yield f"none of its {group.seeds} runs is finished."
        elif len(ended) < group.seeds:
            yield f"{group.seeds - len(ended)} of {group.seeds} runs are not finished; what there is, is drawn."


def has_ended(records: Mapping[str, Record], config: RunConfig) -> bool:
    """Return whether a run is there and has come to its end, be it that it diverged."""
    return config.run in records and records[config.run].status in ENDED


def protocol_groups(base: RunConfig, seeds: int, part: str = "", protocols: Sequence[str] = PROTOCOLS) -> list[Group]:
    """Return a group for each protocol at the knobs of ``base``."""
    return [
        Group(name, base.with_(protocol=name), seeds, PROTOCOLS.index(name) if name in PROTOCOLS else 5, part)
        for name in protocols
    ]


def perceptron(scale: Scale, **changes: Any) -> RunConfig:
    """Return Model 1 at the knobs of figure 1, on the data and for the epochs that the scale allows."""
    dataset = "mnist" if scale == "paper" else "mnist5k"
    return RunConfig(model="mlp", dataset=dataset, lr=5e-3, epochs=EPOCHS[scale]).with_(**changes)


def cnn(**changes: Any) -> RunConfig:
    """Return Model 2 at the knobs of figure 3; it is trained at the paper's scale alone."""
    return RunConfig(model="cnn", dataset="mnist", lr=5e-3, weight_decay=1e-3, epochs=180).with_(**changes)


def vgg16(**changes: Any) -> RunConfig:
    """Return Model 3 at the knobs of figure 4, from scratch; it is trained at the paper's scale alone."""
    return RunConfig(model="vgg16", dataset="cifar10", lr=5e-4, weight_decay=1e-3, epochs=180).with_(**changes)


def with_seeds(groups: Sequence[Group], seeds: int | None) -> tuple[Group, ...]:
    """Return the groups with another number of seeds, where one is given."""
    return tuple(groups) if seeds is None else tuple(replace(group, seeds=seeds) for group in groups)


def describe_runs(groups: Sequence[Group]) -> dict[str, str]:
    """Return the knobs of the runs in words, several values where groups differ."""

    def several(words: Iterable[str]) -> str:
        return ", ".join(dict.fromkeys(words))

    if not groups:
        return {}
    return {
        "model": several(group.config.network.title for group in groups),
        **{title: several(_word(getattr(g.config, name)) for g in groups) for name, title in _TITLES.items()},
        "late values": "means of the last 20 epochs",
        "runs per group": several(str(group.seeds) for group in groups),
    }


def remark_on_scale(scale: Scale) -> dict[str, str]:
    """Return what sets a small scale apart from the paper's."""
    return {} if scale == "paper" else {"unlike the paper": _SHORT_TRAINING}


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "from scratch" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)
