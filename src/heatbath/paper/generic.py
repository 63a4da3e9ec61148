"""Experiment 7 of docs/preregistration.md: is a random rate generically the best strategy at small learning rates?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from heatbath.paper.claims import Every, above, near
from heatbath.paper.experiments import Calculation, Experiment, ProgressCallback
from heatbath.paper.groups import CONSTANT, FigureRuns, Scale
from heatbath.paper.pictures import mean_points
from heatbath.report.panels import Panel, Series
from heatbath.stats.verdicts import Judgeable

SEEDS: dict[Scale, int] = {"smoke": 2, "laptop": 6, "paper": 20}
EPOCHS = 60
CYCLIC = ("cyclic:2", "cyclic:6", "cyclic:10")  # 30, 10 and 6 half cycles in a training, as in the paper's 180 epochs
PROTOCOLS = ("constant", "random", *CYCLIC)


class Arena(NamedTuple):
    """One task at three small rates; the seconds are those of a run on one core of a CPU."""

    title: str
    rates: tuple[float, float, float]
    batch_size: int
    train: int
    test: int
    seconds: float


ARENAS = {
    "table": Arena("MLP, a table", (5e-4, 2e-3, 8e-3), 32, 455, 114, 0.4),
    "softmax": Arena("softmax regression, MNIST", (1e-4, 5e-4, 2.5e-3), 64, 5000, 5000, 1.5),
    "perceptron": Arena("perceptron, MNIST", (1e-4, 5e-4, 2.5e-3), 64, 5000, 5000, 3.0),
    "cnn": Arena("CNN, MNIST", (1e-4, 5e-4, 2.5e-3), 64, 5000, 5000, 30.0),
    "residual": Arena("residual network, CIFAR-10", (5e-4, 2e-3, 8e-3), 64, 5000, 5000, 280.0),
    "gpt": Arena("byte GPT, technical prose", (2e-3, 8e-3, 3.2e-2), 64, 5000, 2000, 300.0),
}
_METRICS = {"loss": "test_loss", "accuracy": "test_accuracy"}
MARGINS = {"loss": 0.02, "accuracy": 0.002}  # of a logarithm, and of a share: what nobody would change a recipe for


def train_protocols(
    settings: Mapping[str, Any],
    *,
    device: str,
    data_dir: Any,
    progress: ProgressCallback,
    workers: int | None = 1,
    store: Path | None = None,
) -> dict[str, Any]:
    """Train all protocols and seeds of a task at one rate; return what each ends with, by protocol and seed."""
    from heatbath.engine.run import run
    from heatbath.paper.generic_tasks import build_task
    from heatbath.runs.configs import RunConfig, sweep

    task = build_task(settings["task"], settings["train"], settings["test"], data_dir)
    knobs = {name: settings[name] for name in ("lr", "batch_size", "momentum", "nesterov", "weight_decay", "epochs")}
    base, seeds = RunConfig(task=task, **knobs), settings["seeds"]
    runs = sweep(base, protocol=settings["protocols"], seed=range(seeds))
    records = run(
        runs,
        store,
        device,
        workers=workers,
        progress=lambda at: progress(at.runs_done / at.runs_total, settings["task"]),
    )
    found = {metric: np.asarray([record.final(metric) for record in records]) for metric in _METRICS.values()}
    return {
        metric: dict(zip(settings["protocols"], values.reshape(-1, seeds).tolist(), strict=True))
        for metric, values in found.items()
    }


def _calculation(scale: Scale, task: str, rate: float) -> Calculation:
    arena = ARENAS[task]
    settings = {"kind": "generic", "format": 1, "task": task, "train": arena.train, "test": arena.test, "lr": rate}
    settings |= {"batch_size": arena.batch_size, "momentum": 0.9, "nesterov": True, "weight_decay": 0.0}
    settings |= {"epochs": EPOCHS, "protocols": list(PROTOCOLS), "seeds": SEEDS[scale]}
    seconds = arena.seconds * len(PROTOCOLS) * SEEDS[scale]
    return Calculation(f"{arena.title}, l = {rate:g}", settings, train_protocols, seconds, trains=True)


def _tasks(scale: Scale) -> Sequence[str]:
    return list(ARENAS) if scale == "paper" else list(ARENAS)[:1]


def _calculations(scale: Scale) -> list[Calculation]:
    return [_calculation(scale, task, rate) for task in _tasks(scale) for rate in ARENAS[task].rates]


def _gains(found: FigureRuns, task: str, metric: str, other: str) -> list[float]:
    """How much better random ends than another protocol, for each seed: the mean over the three rates.

    Of accuracies it is the difference, of losses that of the logarithms, positive where random is better.
    """
    rates = []
    for rate in ARENAS[task].rates:
        result = found.results.get(_calculation(found.scale, task, rate).name)
        if result is None:
            return []
        random, control = (np.asarray(result[metric][name], dtype=float) for name in ("random", other))
        rates.append(random - control if metric == "test_accuracy" else np.log(control) - np.log(random))
    return list(np.mean(rates, axis=0).round(12).tolist())  # equal accuracies differ by nothing


def _claims(found: FigureRuns) -> list[Judgeable]:
    claims: list[Judgeable] = []
    for task in _tasks(found.scale):
        for word, metric in _METRICS.items():
            said = f"{ARENAS[task].title}: random ends with a better test {word} than "
            gains = {other: _gains(found, task, metric, other) for other in PROTOCOLS if other != "random"}
            claims.append(above(f"{said}constant", gains["constant"], 0.0))
            best = f"{said}the best of three cyclic protocols"
            claims.append(Every(best, {other: above(best, gains[other], 0.0) for other in CYCLIC}))
            same = f"{ARENAS[task].title}: random and constant end with the same test {word}"
            claims.append(near(same, gains["constant"], 0.0, MARGINS[word]))
    return claims


def _panels(found: FigureRuns) -> list[Panel]:
    axes = {"loss": "ln(other / random)", "accuracy": "random - other"}
    note = (
        "Mean over seeds and three rates with its 95 % interval. Above 0 random is better; in the band they are alike."
    )
    panels = []
    for word, metric in _METRICS.items():
        series = []
        for other in (name for name in PROTOCOLS if name != "random"):
            gains = {ARENAS[task].title: _gains(found, task, metric, other) for task in _tasks(found.scale)}
            some = {title: values for title, values in gains.items() if values}
            colour = CONSTANT if other == "constant" else 2 + CYCLIC.index(other)
            if some:
                series.append(mean_points(f"against {other}", some, colour))
        if series:
            titles = tuple(dict.fromkeys(str(title) for one in series for title in one.x))
            low, zero, high = ((sign * MARGINS[word],) * len(titles) for sign in (-1.0, 0.0, 1.0))
            series.append(Series("equal", titles, zero, low, high, colour=5))
            panels.append(Panel(f"Random against others: test {word}", "", axes[word], tuple(series), note=note))
    return panels


EXPERIMENT = Experiment(
    name="generic",
    title="Is a random rate generically the best?",
    question=(
        "The abstract suggests that a random rate is generically the best strategy at small learning rates. Is it, on "
        "six tasks at three small rates each?"
    ),
    calculations=_calculations,
    claims=_claims,
    panels=_panels,
    in_parts=True,
    remarks=lambda _scale: {"rates": "; ".join(f"{a.title}: {', '.join(map(str, a.rates))}" for a in ARENAS.values())},
)
