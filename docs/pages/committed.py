"""The committed records and what the claims say of them, for the numbers of the pages."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

from heatbath import Record
from heatbath.paper import EXPERIMENTS, PLANNED, calculations
from heatbath.paper.quantities import Quantity
from heatbath.report.panels import FigureData
from heatbath.runs.export import read_lines
from heatbath.stats.verdicts import Verdict

ROOT = Path(__file__).parents[2]
Runs = dict[str, list[Record]]
"""Runs by group, in the order of their seeds."""


def check(condition: bool, sentence: str) -> None:
    """Refuse to render a sentence that the records no longer bear out.

    Raises:
        ValueError: the condition does not hold.
    """
    if not condition:
        raise ValueError(f"the records no longer say so, rewrite the template: {sentence}")


@cache
def records() -> dict[str, Record]:
    """All runs, by their name."""
    files = ("perceptron", "cnn", "vgg16")
    return {record.run: record for name in files for record in read_lines(ROOT / f"results/{name}.jsonl.gz")}


@cache
def figures() -> dict[str, FigureData]:
    """Every figure at the paper's scale, by its name."""
    asked = [one for experiment in EXPERIMENTS.values() for one in experiment.calculations("paper")]
    results = calculations.cached_results(asked, ROOT / "results")
    return {name: experiment.figure(records(), "paper", None, results) for name, experiment in EXPERIMENTS.items()}


@cache
def planned() -> dict[str, FigureData]:
    """The preregistered experiments of which there are results, by their name."""
    asked = {name: experiment.calculations("paper") for name, experiment in PLANNED.items()}
    results = {name: calculations.cached_results(some, ROOT / "results") for name, some in asked.items()}
    found = {name: PLANNED[name].figure(records(), "paper", None, some) for name, some in results.items()}
    return {name: figure for name, figure in found.items() if figure.verdicts}


def verdicts(experiment: str) -> list[Verdict]:
    """Return the verdicts of an experiment."""
    return list((figures() | planned())[experiment].verdicts)


def verdict(experiment: str, *words: str) -> Verdict:
    """Return the one verdict of an experiment whose claim has all these words."""
    found = [one for one in verdicts(experiment) if all(word in one.claim for word in words)]
    if len(found) != 1:
        raise ValueError(f"{len(found)} claims of {experiment} have the words {words}")
    return found[0]


def runs_of(experiment: str, part: str = "") -> Runs:
    """Return the runs of an experiment, or of one part of it."""
    groups = [group for group in EXPERIMENTS[experiment].groups("paper") if part in ("", group.part)]
    return {g.label: [records()[config.run] for config in g.configs if config.run in records()] for g in groups}


def values(runs: Runs, quantity: Quantity) -> dict[str, list[float]]:
    """Return one number for each run, by group."""
    return {label: [quantity.of(run) for run in some] for label, some in runs.items()}


def means(runs: Runs, quantity: Quantity) -> dict[str, float]:
    """Return the mean of each group; its name has no colon or blank, so that a template can have it."""
    return {field(label): fmean(some) for label, some in values(runs, quantity).items()}


def field(label: str) -> str:
    """Return the label of a group as a name for a template: ``cyclic:6`` is ``cyclic6``."""
    return "".join(letter for letter in label if letter.isalnum())


def together(groups: Runs) -> list[Record]:
    """Return the runs of all groups."""
    return [run for runs in groups.values() for run in runs]


def late_gain(groups: Runs, label: str, rate: Literal["low", "high"], after: int = 60) -> float:
    """Return how far a cyclic protocol's test accuracy lies above constant's in the late epochs of low, or high, rate.

    By seed, over those that both have.
    """
    gains, constants = [], {run.config.seed: run for run in groups["constant"]}
    for run in groups[label]:
        constant = constants[run.config.seed]
        rates = np.array(run.curve("rate")) / run.config.lr
        chosen = (rates < 0.25 if rate == "low" else rates > 1.75) & (np.arange(len(rates)) >= after)
        ours, theirs = (np.mean(one.curve("test_accuracy"), where=chosen) for one in (run, constant))
        gains.append(ours - theirs)
    return float(np.mean(gains))


def interval(test: Any, level: float) -> SimpleNamespace:
    """Return estimate and ends of the interval of a test of scipy.stats."""
    low, high = test.confidence_interval(level)
    return SimpleNamespace(estimate=(low + high) / 2, low=low, high=high, level=level)


def benchmark(name: str) -> dict[str, Any]:
    """Return a record of the engine's benchmark."""
    found: dict[str, Any] = json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())
    return found
