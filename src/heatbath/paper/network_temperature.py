"""Experiment 9 of docs/preregistration.md: temperature and equilibrium of the CNN and VGG16, with weight decay."""

from __future__ import annotations

from typing import Any, NamedTuple

from heatbath.paper.experiments import Calculation, Experiment
from heatbath.paper.groups import FigureRuns, Scale
from heatbath.paper.temperature import (
    KINDS,
    MARGIN,
    Readings,
    claim_balance,
    claim_temperatures,
    draw_temperatures,
    late_balance,
    measure_temperatures,
)
from heatbath.report.panels import Panel
from heatbath.stats.verdicts import Judgeable

SEEDS = 4
_ARMS = ("constant", "random")


class Network(NamedTuple):
    """A network and how it is trained; the seconds are those of a run on one core of a CPU."""

    title: str
    dataset: str
    lr: float
    batch_size: int
    weight_decay: float
    epochs: int
    seconds: float


NETWORKS = {
    "cnn": Network("CNN", "mnist", 0.01, 64, 1e-2, 4, 500.0),
    "vgg16": Network("VGG16", "cifar10", 5e-3, 128, 1e-3, 60, 2e5),
}


def calculation(model: str, arm: str, seed: int) -> Calculation:
    """The readings of one run."""
    network = NETWORKS[model]
    settings: dict[str, Any] = {"kind": "thermometer", "format": 2, "model": model, "momentum": 0.9, "nesterov": True}
    settings |= {name: getattr(network, name) for name in ("dataset", "lr", "batch_size", "weight_decay", "epochs")}
    settings |= {"readings": 60, "seed": seed, **KINDS[arm][0]}
    return Calculation(f"{network.title}, {arm}, seed {seed}", settings, measure_temperatures, network.seconds)


def _calculations(scale: Scale) -> list[Calculation]:
    if scale != "paper":
        return []
    return [calculation(model, arm, seed) for model in NETWORKS for seed in range(SEEDS) for arm in _ARMS]


def _readings(found: FigureRuns, model: str) -> dict[str, list[Readings]]:
    """What has been measured of a network: for each arm a list for each seed."""
    readings: dict[str, list[Readings]] = {}
    for arm in _ARMS:
        results = [found.results.get(calculation(model, arm, seed).name) for seed in range(SEEDS)]
        readings[arm] = [list(result["readings"]) for result in results if result is not None]
    return readings


def _claims(found: FigureRuns) -> list[Judgeable]:
    """Those of the plan: at the end is the last reading of the CNN, and the last quarter of VGG16."""
    cnn = claim_temperatures(_readings(found, "cnn"), "CNN: ", lambda run: run[-1]["equilibrium_ratio"])
    return [*cnn, *claim_temperatures(_readings(found, "vgg16"), "VGG16: ")]


def _later_claims(found: FigureRuns) -> list[Judgeable]:
    return claim_balance(_readings(found, "cnn"), "CNN: In the last quarter", late_balance)


def _panels(found: FigureRuns) -> list[Panel]:
    panels = []
    for model, network in NETWORKS.items():
        first = {arm: runs[0] for arm, runs in _readings(found, model).items() if runs}
        if first:
            panels += draw_temperatures(first, f"{network.title}: ")
    return panels


EXPERIMENT = Experiment(
    name="network-temperature",
    title="Temperature and equilibrium of the CNN and VGG16",
    question=(
        "How hot are the CNN and VGG16 while they train with weight decay, and do they come to the equilibrium that "
        "the theory supposes?"
    ),
    calculations=_calculations,
    claims=_claims,
    later_claims=_later_claims,
    panels=_panels,
    in_parts=True,
    remarks=lambda _scale: {"margin": f"the ratios of temperatures and at equilibrium count as 1 within {MARGIN:g}"},
)
