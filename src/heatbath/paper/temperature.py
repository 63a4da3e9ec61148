"""Temperature and equilibrium along the training, read from the `heatbath.Thermometer`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from heatbath.paper.claims import near
from heatbath.paper.experiments import Calculation, Experiment, ProgressCallback
from heatbath.paper.groups import CONSTANT, RANDOM, SPARE, FigureRuns, Scale
from heatbath.report.panels import Panel, Series
from heatbath.stats.verdicts import Claim, Judgeable

_SEEDS: dict[Scale, int] = {"smoke": 2, "laptop": 3, "paper": 3}
_EPOCHS: dict[Scale, int] = {"smoke": 4, "laptop": 30, "paper": 180}
_READINGS: dict[Scale, int] = {"smoke": 20, "laptop": 60, "paper": 180}
MARGIN = 0.2  # of a ratio about 1
KINDS = {
    "constant": ({"law": "constant", "coupling": "gradient"}, CONSTANT),
    "random": ({"law": "uniform:1.0", "coupling": "gradient"}, RANDOM),
    "random update": ({"law": "uniform:1.0", "coupling": "update"}, 6),
}
Readings = list[dict[str, Any]]


def measure_temperatures(
    settings: Mapping[str, Any], *, device: str, data_dir: Any, progress: ProgressCallback
) -> dict[str, Any]:
    """Train a network and return the thermometer's readings."""
    import torch

    from heatbath.studies.measurement import measure_training
    from heatbath.thermostat import Thermostat

    names = ("lr", "batch_size", "momentum", "nesterov", "law", "coupling")
    where = {"device": device, "data_dir": data_dir, "progress": progress}
    threads = torch.get_num_threads()
    if settings["model"] == "mlp":
        torch.set_num_threads(1)  # steps of a perceptron are too short to be shared out
    try:
        found = measure_training(
            Thermostat(*(settings[name] for name in names)),
            settings["model"],
            settings["dataset"],
            at_epochs=[settings["epochs"]],
            samples=8,
            weight_decay=settings.get("weight_decay", 0.0),
            **{name: settings[name] for name in ("epochs", "readings", "seed")},
            **where,
        )
    finally:
        torch.set_num_threads(threads)
    return {"readings": found.history, "test_accuracy": found.accuracies}


def _calculations(scale: Scale) -> Sequence[Calculation]:
    common = {"model": "mlp", "dataset": "mnist" if scale == "paper" else "mnist5k", "lr": 5e-3, "batch_size": 256}
    common |= {"momentum": 0.9, "nesterov": True, "epochs": _EPOCHS[scale], "readings": _READINGS[scale]}
    common |= {"kind": "thermometer", "format": 2}
    cost = 60.0 if scale == "paper" else 0.06 * _EPOCHS[scale]
    return [
        Calculation(f"{label}, seed {seed}", {**common, **knobs, "seed": seed}, measure_temperatures, cost)
        for label, (knobs, _) in KINDS.items()
        for seed in range(_SEEDS[scale])
    ]


def _readings(found: FigureRuns) -> dict[str, list[Readings]]:
    """The readings of each kind of run, a list for each seed; an empty one for a seed that is not computed."""
    results = [found.results.get(one.name, {}) for one in _calculations(found.scale)]
    readings, seeds = [list(result.get("readings", ())) for result in results], _SEEDS[found.scale]
    return {label: readings[k * seeds : (k + 1) * seeds] for k, label in enumerate(KINDS)}


def _claims(found: FigureRuns) -> list[Judgeable]:
    return claim_temperatures({label: [run for run in runs if run] for label, runs in _readings(found).items()})


def claim_temperatures(by_label: Mapping[str, Sequence[Readings]], of: str = "") -> list[Judgeable]:
    """What is claimed of the readings of a constant and a random rate, a list for each seed; `of` begins each claim."""
    hot = f"{of}The velocities are as hot as the gradient noise says, {{}}: the ratio of the two temperatures is 1"
    still = f"{of}At the end the training is at equilibrium, {{}}: dissipation balances fluctuation"
    ratios = {label: [run[-1]["equilibrium_ratio"] for run in runs] for label, runs in by_label.items()}
    hotter = f"{of}The velocities of the random rate are hotter than those of the constant one of equal mean"
    random, constant = ([_late_motion(run) for run in by_label[label]] for label in ("random", "constant"))
    return [
        *(near(hot.format(label), list(map(_agreement, runs)), 1.0, MARGIN) for label, runs in by_label.items()),
        *(near(still.format(k), [one for one in last if one is not None], 1.0, MARGIN) for k, last in ratios.items()),
        Claim(hotter, "greater", random, constant),
    ]


def _late_motion(readings: Readings) -> float:
    """The temperature from the velocity, mean over the last quarter of the readings.

    That from the noise is hotter by the law's factor for any run, so that it could not fail.
    """
    late = [row["kinetic_temperature"] for row in readings[-max(1, len(readings) // 4) :]]
    return _mean([value for value in late if value is not None])


def _agreement(readings: Readings) -> float:
    """The temperature from the velocity over that from the noise, mean over all readings but the first tenth."""
    pairs = [(row["kinetic_temperature"], row["temperature"]) for row in readings[len(readings) // 10 :]]
    return _mean([motion / noise for motion, noise in pairs if motion is not None and noise])


def _mean(values: Sequence[float]) -> float:
    return float(sum(values)) / len(values) if values else math.nan


def _panels(found: FigureRuns) -> list[Panel]:
    return draw_temperatures({label: runs[0] if runs else [] for label, runs in _readings(found).items()})


def draw_temperatures(first: Mapping[str, Readings], of: str = "") -> list[Panel]:
    """The readings of one run of each kind; `of` begins each title."""
    seen, axis = "One run of each; the others differ in their seed. ", "temperature T per direction"
    formula, cooling = "T = l F tr S1 / (2 C (1 - mu) d).", "It reads too hot while the loss falls."
    noise, motion = (_series(first, key) for key in ("temperature", "kinetic_temperature"))
    ratios = _series(first, "equilibrium_ratio")
    steps = [x for one in ratios for x in one.x if isinstance(x, float)]
    if steps:
        ratios.append(Series("equilibrium", (min(steps), max(steps)), (1.0, 1.0), colour=SPARE))
    balance = "Dissipation over fluctuation with its 95 % interval: 1 in every stationary state, and in others."
    return [
        Panel(f"{of}From the gradient noise", "steps", axis, tuple(noise), y_log=True, note=seen + formula),
        Panel(f"{of}From the velocity", "steps", axis, tuple(motion), y_log=True, note=seen + cooling),
        Panel(f"{of}Is it at equilibrium?", "steps", "equilibrium ratio", tuple(ratios), note=balance),
    ]


def _series(readings: Mapping[str, Readings], key: str) -> list[Series]:
    """What there is of a key; temperatures above 0, and of the ratio its interval."""
    ends = ("equilibrium_low", "equilibrium_high") if key == "equilibrium_ratio" else ("", "")
    series = []
    for label, every in readings.items():
        rows = [row for row in every if row[key] is not None and (ends[0] or row[key] > 0.0)]
        steps = tuple(float(row["step"]) for row in rows)
        y, low, high = (tuple(row[name] for row in rows) if name else None for name in (key, *ends))
        series.append(Series(label, steps, y or (), low, high, colour=KINDS[label][1]))
    return series


def _remarks(scale: Scale) -> dict[str, str]:
    data = "MNIST" if scale == "paper" else "4,000 images of MNIST"
    return {
        "runs": f"the perceptron on {data}, l = 0.005, C = 256, mu = 0.9, Nesterov, {_EPOCHS[scale]} epochs",
        "margin": f"the ratios of temperatures and at equilibrium count as 1 within {MARGIN:g}",
    }


EXPERIMENT = Experiment(
    name="temperature",
    title="Temperature and equilibrium along the training",
    question="How hot is the perceptron while it trains, and does it come to the equilibrium that the theory supposes?",
    calculations=_calculations,
    claims=_claims,
    panels=_panels,
    errata=(
        "The stochastic equation needs the noise sqrt(D / (C l)) dW; as printed its temperature is off by a factor l. "
        "The headline formula is right.",
    ),
    remarks=_remarks,
)
