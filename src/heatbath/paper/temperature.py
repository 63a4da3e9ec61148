"""Temperature and equilibrium along the training, read from the `heatbath.Thermometer`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from heatbath.paper.claims import near
from heatbath.paper.experiments import Calculation, Experiment, ProgressCallback
from heatbath.paper.groups import CONSTANT, RANDOM, SPARE, FigureRuns, Scale
from heatbath.report.panels import Panel, Series
from heatbath.stats.verdicts import Claim, Judgeable
from heatbath.thermometry.averages import ratio_of_means

_SEEDS: dict[Scale, int] = {"smoke": 2, "laptop": 3, "paper": 3}
_EPOCHS: dict[Scale, int] = {"smoke": 4, "laptop": 30, "paper": 180}
_READINGS: dict[Scale, int] = {"smoke": 20, "laptop": 60, "paper": 180}
MARGIN = 0.2  # of a ratio about 1
_WINDOW = 50  # readings over which the thermometer of these results averaged dissipation and fluctuation
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


def claim_temperatures(
    by_label: Mapping[str, Sequence[Readings]], of: str = "", balance: Callable[[Readings], float | None] | None = None
) -> list[Judgeable]:
    """What is claimed of the readings of a constant and a random rate, a list for each seed; `of` begins each claim.

    Whether a run is at equilibrium is read from its ``balance``, by default the `late_balance`.
    """
    hot = f"{of}The velocities are as hot as the gradient noise says, {{}}: the ratio of the two temperatures is 1"
    hotter = f"{of}The velocities of the random rate are hotter than those of the constant one of equal mean"
    random, constant = ([_late_motion(run) for run in by_label[label]] for label in ("random", "constant"))
    return [
        *(near(hot.format(label), list(map(_agreement, runs)), 1.0, MARGIN) for label, runs in by_label.items()),
        *claim_balance(by_label, f"{of}At the end", balance or late_balance),
        Claim(hotter, "greater", random, constant),
    ]


def claim_balance(
    by_label: Mapping[str, Sequence[Readings]], when: str, balance: Callable[[Readings], float | None]
) -> list[Judgeable]:
    """That each kind of run is at equilibrium then."""
    still = f"{when} the training is at equilibrium, {{}}: dissipation balances fluctuation"
    ratios = {label: [balance(run) for run in runs] for label, runs in by_label.items()}
    return [near(still.format(k), [x for x in some if x is not None], 1.0, MARGIN) for k, some in ratios.items()]


def late_balance(readings: Readings) -> float | None:
    """Dissipation over fluctuation in the last quarter of the readings.

    The ratio of a reading is over a window, which in a short run has most of the transient in it.
    """
    above, below = (sum(values[-max(1, len(readings) // 4) :]) for values in _sides(readings))
    return above / below if below > 0.0 else None


def _sides(readings: Readings) -> tuple[list[float], list[float]]:
    """The dissipation and the fluctuation of each reading, of which it tells the means over the window."""
    found = []
    for name in ("dissipation", "fluctuation"):
        sums = [0.0]  # over all readings so far
        for k, mean in enumerate((row[name] for row in readings if row[name] is not None), start=1):
            sums.append(min(k, _WINDOW) * mean + sums[max(0, k - _WINDOW)])
        found.append(np.diff(sums).tolist())
    return found[0], found[1]


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
    ratios = [_balance_series(label, readings) for label, readings in first.items()]
    steps = [x for one in ratios for x in one.x if isinstance(x, float)]
    if steps:
        ratios.append(Series("equilibrium", (min(steps), max(steps)), (1.0, 1.0), colour=SPARE))
    balance = (
        "Dissipation over fluctuation in the quarter of the training before, with its 95 % interval: 1 in every "
        "stationary state, and in others."
    )
    return [
        Panel(f"{of}From the gradient noise", "steps", axis, tuple(noise), y_log=True, note=seen + formula),
        Panel(f"{of}From the velocity", "steps", axis, tuple(motion), y_log=True, note=seen + cooling),
        Panel(f"{of}Is it at equilibrium?", "steps", "equilibrium ratio", tuple(ratios), note=balance),
    ]


def _series(readings: Mapping[str, Readings], key: str) -> list[Series]:
    """What there is of a temperature above 0."""
    series = []
    for label, every in readings.items():
        rows = [row for row in every if row[key] is not None and row[key] > 0.0]
        steps, values = ([row[name] for row in rows] for name in ("step", key))
        series.append(Series(label, tuple(map(float, steps)), tuple(values), colour=KINDS[label][1]))
    return series


def _balance_series(label: str, readings: Readings) -> Series:
    """Dissipation over fluctuation in the quarter of the readings before each, after the first tenth."""
    steps = [float(row["step"]) for row in readings if row["dissipation"] is not None]
    above, below = _sides(readings)
    first = max(4, len(readings) // 10)
    parts = [slice(max(0, k - max(4, len(readings) // 4)), k) for k in range(first, len(steps) + 1)]
    ratios = [ratio_of_means(above[part], below[part]) for part in parts]
    low, high = (tuple(getattr(ratio, end) for ratio in ratios) for end in ("low", "high"))
    return Series(label, tuple(steps[first - 1 :]), tuple(map(float, ratios)), low, high, colour=KINDS[label][1])


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
