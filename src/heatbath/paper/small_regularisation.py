"""Experiment 8 of docs/preregistration.md: does temperature regularise small networks at equal summed rate?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heatbath.paper.claims import above
from heatbath.paper.experiments import Calculation, Experiment
from heatbath.paper.generic import train_protocols
from heatbath.paper.groups import FigureRuns, Scale
from heatbath.paper.pictures import mean_points
from heatbath.report.panels import Panel
from heatbath.stats.verdicts import Judgeable

_BATCH_SIZES = (32, 64, 128)  # from hot to cold: at a given rate T falls as one over the batch size


class Arena(NamedTuple):
    """One network; ``epochs`` are those of C = 64, and the seconds those of its three arms on one core of a CPU."""

    title: str
    rate: float
    epochs: int
    seeds: int
    seconds: float


ARENAS = {
    "perceptron": Arena("perceptron, MNIST", 0.02, 40, 40, 15.0),
    "cifar perceptron": Arena("perceptron, CIFAR-10", 0.003, 40, 30, 35.0),
    "cnn": Arena("CNN, MNIST", 0.01, 20, 12, 100.0),
}
_METRICS = {"accuracy": "test_accuracy", "loss": "test_loss"}


def _networks(scale: Scale) -> list[str]:
    return list(ARENAS) if scale == "paper" else []


def calculation(network: str, batch_size: int) -> Calculation:
    """Return the training of one network at one batch size, all its seeds."""
    arena = ARENAS[network]
    settings = {"kind": "generic", "format": 1, "task": network, "train": 5000, "test": 5000, "lr": arena.rate}
    settings |= {"batch_size": batch_size, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3}
    # An epoch of twice the batch size has half the steps: twice the epochs have the same summed rate.
    settings |= {"epochs": arena.epochs * batch_size // 64, "protocols": ["constant"], "seeds": arena.seeds}
    seconds = arena.seeds * arena.seconds * batch_size / sum(_BATCH_SIZES)
    return Calculation(f"{arena.title}, C = {batch_size}", settings, train_protocols, seconds, trains=True)


def _ends(found: FigureRuns, network: str, metric: str) -> list[list[float]]:
    """What each seed ends with at each batch size; nothing while one of them is missing."""
    results = [found.results.get(calculation(network, size).name) for size in _BATCH_SIZES]
    return [] if None in results else [list(result[metric]["constant"]) for result in results if result is not None]


def _claims(found: FigureRuns) -> list[Judgeable]:
    claims: list[Judgeable] = []
    for network in _networks(found.scale):
        for word, metric in _METRICS.items():
            ends = np.asarray(_ends(found, network, metric) or [[]] * len(_BATCH_SIZES), dtype=float)
            hot, _, cold = ends if word == "accuracy" else -np.log(ends)
            # Of the least-squares line over log2 T: T doubles twice, and the middle one has no weight.
            slopes = ((hot - cold) / 2.0).tolist()
            verb = "rises" if word == "accuracy" else "falls"
            said = f"{ARENAS[network].title}: at equal summed rate the final test {word} {verb} with log2 T"
            claims.append(above(said, slopes, 0.0))
    return claims


def _panels(found: FigureRuns) -> list[Panel]:
    panels = []
    for network in _networks(found.scale):
        ends = _ends(found, network, "test_accuracy")
        if ends:
            values = {f"C = {size}": several for size, several in zip(_BATCH_SIZES, ends, strict=True)}
            note = "From hot to cold, at equal summed rate. Mean over seeds with its 95 % interval."
            panels.append(
                Panel(ARENAS[network].title, "", "test accuracy", (mean_points("final", values, 0),), note=note)
            )
    return panels


EXPERIMENT = Experiment(
    name="small-regularisation",
    title="Temperature at equal summed rate, small networks",
    question=(
        "A higher temperature is often said to generalise better. Does it on three small networks, where the summed "
        "rate cannot be the reason?"
    ),
    calculations=lambda scale: [calculation(network, size) for network in _networks(scale) for size in _BATCH_SIZES],
    claims=_claims,
    panels=_panels,
    in_parts=True,
    remarks=lambda _scale: {
        "weight decay": "0.001",
        "rates": "; ".join(f"{a.title}: {a.rate}" for a in ARENAS.values()),
    },
)
