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
GRID_EPOCHS: dict[Scale, int] = {"smoke": 2, "laptop": 15, "paper": 180}
_GRIDS: dict[Scale, tuple[tuple[float, ...], tuple[int, ...], tuple[float, ...]]] = {
    "smoke": ((5e-3, 2e-2), (64, 256), (0.5, 0.9)),
    "laptop": ((5e-3, 1e-2, 2e-2), (64, 128, 256), (0.0, 0.5, 0.9)),
    "paper": ((1.25e-3, 2.5e-3, 5e-3, 1e-2), (64, 256, 1024), (0.0, 0.5, 0.9)),
}
CNN_SEEDS, VGG16_SEEDS = 10, 5  # at the paper's scale, the only one at which they are trained
MORE_SEEDS = 10  # of VGG16, constant, random and the fastest cyclic rate, whose claims five left open


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone.

    Attributes:
        label: what the legend says; unique within the part.
        config: one of them; its seed does not matter.
        seeds: how many there are, from 0 on.
        colour: its place in the palette.
        part: of the figure, such as ``"CNN"``, where there are several.
    """

    label: str
    config: RunConfig
    seeds: int
    colour: int = 0
    part: str = ""

    @property
    def name(self) -> str:
        """The label with its part."""
        return f"{self.part}, {self.label}" if self.part else self.label

    @property
    def configs(self) -> list[RunConfig]:
        """The complete configurations of its runs."""
        return [self.config.with_(seed=seed) for seed in range(self.seeds)]


@dataclass(frozen=True)
class FigureRuns:
    """What there is for one figure: its groups, the runs that are finished, and the results of calculations.

    Attributes:
        scale: at which it was asked for.
        groups: all of them, whether there are runs or not.
        records: of the store, by the name of the run.
        results: of calculations, by their name.
    """

    scale: Scale
    groups: tuple[Group, ...]
    records: Mapping[str, Record]
    results: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def part(self, part: str) -> list[Group]:
        """Return the groups of one part of the figure."""
        return [group for group in self.groups if group.part == part]

    @property
    def parts(self) -> list[str]:
        """The parts of the figure, in order."""
        return list(dict.fromkeys(group.part for group in self.groups))

    def group(self, label: str, part: str | None = None) -> Group:
        """Return the group of that label, of the first part that has one if none is named."""
        return next(g for g in self.groups if g.label == label and part in (None, g.part))

    def runs(self, group: Group) -> list[Record]:
        """Return the finished runs of a group; those that diverged are none of them."""
        found = (self.records.get(config.run) for config in group.configs)
        return [record for record in found if record is not None and record.status == "finished" and record.epochs]

    def values(self, group: Group, quantity: Quantity) -> list[float]:
        """Return the quantity of each run that has ended: no number for one that diverged, which leaves claims open."""
        return list(self.by_seed(group, quantity).values())

    def pairs(self, a: tuple[Group, Quantity], b: tuple[Group, Quantity]) -> tuple[list[float], list[float]]:
        """Return the values of two groups, of those seeds whose runs have ended in both."""
        first, second = self.by_seed(*a), self.by_seed(*b)
        common = [seed for seed in first if seed in second]
        return [first[seed] for seed in common], [second[seed] for seed in common]

    def by_seed(self, group: Group, quantity: Quantity) -> dict[int, float]:
        """Return the same by the seed of the run."""
        ended = (self.records.get(config.run) for config in group.configs)
        return {
            record.config.seed: quantity.of(record) if record.status == "finished" else math.nan
            for record in ended
            if record is not None and record.status in ENDED and (record.epochs or record.status == "diverged")
        }

    @property
    def is_complete(self) -> bool:
        """Whether every run has come to its end, diverged ones included."""
        names = {config.run for group in self.groups for config in group.configs}
        return all(name in self.records and self.records[name].status in ENDED for name in names)

    @property
    def missing(self) -> tuple[str, ...]:
        """A sentence for each group that has fewer finished runs than it should."""
        return tuple(sentence for group in self.groups for sentence in self._lacking(group))

    def _lacking(self, group: Group) -> Iterable[str]:
        statuses = {
            config.seed: record.status if (record := self.records.get(config.run)) is not None else "missing"
            for config in group.configs
        }
        diverged = [str(seed) for seed, status in statuses.items() if status == "diverged"]
        open_ = sum(status not in ENDED for status in statuses.values())
        if diverged:
            yield (
                f"{group.name}: {len(diverged)} of {group.seeds} runs diverged (seed {', '.join(diverged)}) and are in "
                "no mean."
            )
        if open_ == group.seeds:
            yield f"{group.name}: none of its {group.seeds} runs is finished."
        elif open_:
            yield f"{group.name}: {open_} of {group.seeds} runs are not finished; what there is, is drawn."


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


def grid_groups(scale: Scale) -> list[Group]:
    """Return the perceptron with a random rate over a grid of rates, batch sizes and momenta."""
    rates, sizes, momenta = _GRIDS[scale]
    return [
        Group(
            f"l = {lr:g}, C = {size}, mu = {momentum:g}",
            perceptron(scale, lr=lr, batch_size=size, momentum=momentum, epochs=GRID_EPOCHS[scale]),
            SEEDS["paper"] if scale == "paper" else 2,
            RANDOM,
        )
        for lr in rates
        for size in sizes
        for momentum in momenta
    ]


def random_and_controls(base: RunConfig, seeds: int, part: str = "") -> list[Group]:
    """Return the random rate in both couplings, the constant one, and the constant ones of equal temperature."""
    gradient, update = base.with_(protocol="random"), base.with_(protocol="random", coupling="update")
    controls = [
        base.with_(protocol="constant", lr=run.thermostat.at(law="constant", coupling="gradient").lr)
        for run in (gradient, update)
    ]
    return [
        Group("constant", base.with_(protocol="constant"), seeds, CONSTANT, part),
        Group("random", gradient, seeds, RANDOM, part),
        Group("constant, T of random", controls[0], seeds, 5, part),
        Group("random update", update, seeds, 6, part),
        Group("constant, T of update", controls[1], seeds, SPARE, part),
    ]


def with_seeds(groups: Sequence[Group], seeds: int | None) -> tuple[Group, ...]:
    """Return the groups with another number of seeds, where one is given."""
    return tuple(groups) if seeds is None else tuple(replace(group, seeds=seeds) for group in groups)


def describe_runs(groups: Sequence[Group]) -> dict[str, str]:
    """Return the knobs of the runs in words, several values where groups differ."""
    if not groups:
        return {}
    names = {"model": "model", "dataset": "data", "lr": "mean rate l", "batch_size": "batch size C"}
    names |= {"momentum": "momentum mu", "nesterov": "Nesterov", "weight_decay": "weight decay", "epochs": "epochs"}
    names |= {"protocol": "protocol", "law": "law", "coupling": "coupling", "weights": "weights"}
    words = {
        title: ", ".join(dict.fromkeys(_word(getattr(group.config, name)) for group in groups))
        for name, title in names.items()
    }
    words["model"] = ", ".join(dict.fromkeys(group.config.network.title for group in groups))
    words["late values"] = "means of the last 20 epochs"
    words["runs per group"] = ", ".join(dict.fromkeys(str(group.seeds) for group in groups))
    return words


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "from scratch" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)
