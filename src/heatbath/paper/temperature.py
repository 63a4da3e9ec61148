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

SEEDS: dict[Scale, int] = {"smoke": 2, "laptop": 3, "paper": 3}
EPOCHS: dict[Scale, int] = {"smoke": 4, "laptop": 30, "paper": 180}
READINGS: dict[Scale, int] = {"smoke": 20, "laptop": 60, "paper": 180}
MARGIN = 0.2  # of a ratio about 1
_KINDS = {
    "constant": ({"law": "constant", "coupling": "gradient"}, CONSTANT),
    "random": ({"law": "uniform:1.0", "coupling": "gradient"}, RANDOM),
    "random update": ({"law": "uniform:1.0", "coupling": "update"}, 6),
}


def measure_temperatures(
    settings: Mapping[str, Any], *, device: str, data_dir: Any, progress: ProgressCallback
) -> dict[str, Any]:
    """Train the perceptron and return the thermometer's readings."""
    import torch

    from heatbath.studies.measurement import measure_training
    from heatbath.thermostat import Thermostat

    knobs = Thermostat(
        settings["lr"],
        settings["batch_size"],
        settings["momentum"],
        settings["nesterov"],
        settings["law"],
        settings["coupling"],
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # steps of a perceptron are too short to be shared out
    try:
        found = measure_training(
            knobs,
            settings["model"],
            settings["dataset"],
            epochs=settings["epochs"],
            at_epochs=[settings["epochs"]],
            samples=8,
            readings=settings["readings"],
            seed=settings["seed"],
            device=device,
            data_dir=data_dir,
            progress=progress,
        )
    finally:
        torch.set_num_threads(threads)
    return {"readings": found.history, "test_accuracy": found.accuracies}


def _calculations(scale: Scale) -> Sequence[Calculation]:
    common = {"model": "mlp", "dataset": "mnist" if scale == "paper" else "mnist5k", "lr": 5e-3, "batch_size": 256}
    common |= {"momentum": 0.9, "nesterov": True, "epochs": EPOCHS[scale], "readings": READINGS[scale]}
    cost = 60.0 if scale == "paper" else 0.06 * EPOCHS[scale]
    return [
        Calculation(
            f"{label}, seed {seed}",
            {"kind": "thermometer", "format": 2, **common, **knobs, "seed": seed},
            measure_temperatures,
            cost,
        )
        for label, (knobs, _) in _KINDS.items()
        for seed in range(SEEDS[scale])
    ]


def _claims(found: FigureRuns) -> list[Judgeable]:
    by_label = _readings_by_label(found)
    hot = "The velocities are as hot as the gradient noise says, {}: the ratio of the two temperatures is 1"
    claims = [
        near(hot.format(label), [_agreement(run) for run in runs if run], 1.0, MARGIN)
        for label, runs in by_label.items()
    ]
    for label, runs in by_label.items():
        last = [run[-1]["equilibrium_ratio"] for run in runs if run and run[-1]["equilibrium_ratio"] is not None]
        statement = f"At the end the training is at equilibrium, {label}: dissipation balances fluctuation"
        claims.append(near(statement, last, 1.0, MARGIN))
    hotter = "The velocities of the random rate are hotter than those of the constant one of equal mean"
    random, constant = ([_late_motion(run) for run in by_label[label] if run] for label in ("random", "constant"))
    return [*claims, Claim(hotter, "greater", random, constant)]


def _panels(found: FigureRuns) -> list[Panel]:
    by_label = _readings_by_label(found)
    seen = "One run of each; the others differ in their seed. "
    return [
        _panel("From the gradient noise", "temperature", by_label, seen + "T = l F tr S1 / (2 C (1 - mu) d)."),
        _panel("From the velocity", "kinetic_temperature", by_label, seen + "It reads too hot while the loss falls."),
        _equilibrium_panel(by_label),
    ]


def _readings_by_label(found: FigureRuns) -> dict[str, list[list[dict[str, Any]]]]:
    """The readings of each kind of run, a list for each seed; an empty one for a seed that is not computed."""
    calculations, seeds = _calculations(found.scale), SEEDS[found.scale]
    readings = [list(found.results.get(one.name, {}).get("readings", ())) for one in calculations]
    return {label: readings[k * seeds : (k + 1) * seeds] for k, label in enumerate(_KINDS)}


def _late_motion(readings: Sequence[Mapping[str, Any]]) -> float:
    """The temperature from the velocity, mean over the last quarter of the readings.

    That from the noise is hotter by the law's factor for any run, so that it could not fail.
    """
    late = [row["kinetic_temperature"] for row in readings[-max(1, len(readings) // 4) :]]
    values = [value for value in late if value is not None]
    return float(sum(values)) / len(values) if values else math.nan


def _agreement(readings: Sequence[Mapping[str, Any]]) -> float:
    """The temperature from the velocity over that from the noise, mean over all readings but the first tenth."""
    rows = readings[len(readings) // 10 :]
    pairs = [(row["kinetic_temperature"], row["temperature"]) for row in rows]
    ratios = [motion / noise for motion, noise in pairs if motion is not None and noise]
    return float(sum(ratios)) / len(ratios) if ratios else math.nan


def _panel(title: str, key: str, by_label: Mapping[str, list[list[dict[str, Any]]]], note: str) -> Panel:
    series = []
    for label, runs in by_label.items():
        rows = [row for row in (runs[0] if runs else ()) if row[key] is not None and row[key] > 0.0]
        x, y = (tuple(float(row[name]) for row in rows) for name in ("step", key))
        series.append(Series(label, x, y, colour=_KINDS[label][1]))
    return Panel(title, "steps", "temperature T per direction", tuple(series), y_log=True, note=note)


def _equilibrium_panel(by_label: Mapping[str, list[list[dict[str, Any]]]]) -> Panel:
    series = []
    for label, runs in by_label.items():
        rows = [row for row in (runs[0] if runs else ()) if row["equilibrium_ratio"] is not None]
        columns = {key: tuple(row[f"equilibrium_{key}"] for row in rows) for key in ("ratio", "low", "high")}
        steps = tuple(float(row["step"]) for row in rows)
        series.append(Series(label, steps, columns["ratio"], columns["low"], columns["high"], colour=_KINDS[label][1]))
    steps = tuple(x for one in series for x in one.x if isinstance(x, float))
    if steps:
        ends = (min(steps), max(steps))
        series.append(Series("equilibrium", ends, (1.0, 1.0), colour=SPARE))
    note = "Dissipation over fluctuation with its 95 % interval: 1 in every stationary state, and in others."
    return Panel("Is it at equilibrium?", "steps", "equilibrium ratio", tuple(series), note=note)


def _remarks(scale: Scale) -> dict[str, str]:
    data = "MNIST" if scale == "paper" else "4,000 images of MNIST"
    return {
        "runs": f"the perceptron on {data}, l = 0.005, C = 256, mu = 0.9, Nesterov, {EPOCHS[scale]} epochs",
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
