"""Experiment 6 of docs/preregistration.md: does temperature order AdamW's runs of a small GPT, too?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from heatbath.paper.claims import Every
from heatbath.paper.experiments import Calculation, Experiment, ProgressCallback
from heatbath.paper.groups import CONSTANT, RANDOM, FigureRuns, Scale
from heatbath.paper.pictures import mean_points
from heatbath.report.panels import Panel
from heatbath.stats.verdicts import Claim, Judgeable

SEEDS = 8
MARGIN = 0.01  # nats for a byte, a seventeenth of what half the rate costs in the pilot
BASE: dict[str, Any] = {
    **{"lr": 1e-3, "batch_size": 8, "momentum": 0.9, "beta2": 0.99, "weight_decay": 0.1, "warmup": 40},
    **{"protocol": "constant", "law": "constant", "coupling": "gradient"},
}
_LARGE = {"batch_size": 32, "warmup": 10}  # four times the batch; as many bytes to warm up on
_RANDOM = {"protocol": "random", "law": "uniform:1.0"}
_HOT, _COOL = (math.sqrt(ratio) for ratio in (4 / 3, 3 / 4))
_STEP_FACTOR = 1.0 + (1.0 - 0.9) / (1.0 + 0.9) / 3.0  # of the temperature, where the multiplier acts on the step


class Arm(NamedTuple):
    """What an arm changes of the base, and the theory for gradients that are mostly noise, in units of the base."""

    changes: dict[str, Any]
    temperature: float  # l F / sqrt(C); random gradients have F = 4/3, and AdamW's denominator grows by its root
    summed_rate: float  # l times the steps over AdamW's denominator, which falls as one over sqrt(C)
    kind: str


_KINDS = {"constant": CONSTANT, "random on the gradient": RANDOM, "random on the step": 6, "batch x4": 3}
ARMS = {
    "base": Arm({}, 1.0, 1.0, "constant"),
    "constant, equal T": Arm({"lr": _HOT * BASE["lr"]}, _HOT, _HOT, "constant"),
    "constant, equal sum": Arm({"lr": _COOL * BASE["lr"]}, _COOL, _COOL, "constant"),
    "random on the gradient": Arm(_RANDOM, _HOT, _COOL, "random on the gradient"),
    "random on the step": Arm({**_RANDOM, "coupling": "update"}, _STEP_FACTOR, 1.0, "random on the step"),
    "x4, nothing": Arm(_LARGE, 0.5, 0.5, "batch x4"),
    "x4, square root": Arm(
        {**_LARGE, "lr": 2 * BASE["lr"], "momentum": 0.9**4, "beta2": 0.99**4, "weight_decay": 0.2},
        *(1.0, 1.0, "batch x4"),
    ),
    "x4, linear": Arm({**_LARGE, "lr": 4 * BASE["lr"]}, 2.0, 2.0, "batch x4"),
}
"""The two constant ones beside the base have the temperature and the summed rate of the random one on the gradient."""


def train_arms(
    settings: Mapping[str, Any], *, device: str, data_dir: Any, progress: ProgressCallback
) -> dict[str, Any]:
    """Train all arms of one seed; return the losses that each ends with, no number where it diverged."""
    from heatbath.engine.run import run
    from heatbath.paper.generic_tasks import SmallGPT, text_windows
    from heatbath.runs.configs import RunConfig
    from heatbath.tasks.task import Task

    parts = [
        tuple(one[:: len(one) // rows][:rows] for one in part)  # from all over the text
        for part, rows in zip(text_windows(None, None, data_dir), (settings["train"], settings["test"]), strict=True)
    ]
    task = Task(partial(SmallGPT, settings["width"], settings["layers"]), *parts, name="gpt")
    found: dict[str, Any] = {"test_loss": {}, "train_loss": {}}
    for done, (arm, knobs) in enumerate(settings["arms"].items()):
        progress(done / len(settings["arms"]), arm)
        config = RunConfig(task=task, optimizer="adamw", epochs=1, seed=settings["seed"], **knobs)
        (record,) = run([config], device=device, workers=1)  # alone: on a CPU a stack of these is slower
        for metric, losses in found.items():
            losses[arm] = record.final(metric) if record.status == "finished" else math.nan
    return found


def _calculation(seed: int) -> Calculation:
    settings = {"kind": "AdamW and batch size", "format": 1, "width": 144, "layers": 4, "train": 4800, "test": 1000}
    settings |= {"seed": seed, "arms": {name: {**BASE, **arm.changes} for name, arm in ARMS.items()}}
    return Calculation(f"seed {seed}", settings, train_arms, 280.0)  # on one core of a CPU


def _calculations(scale: Scale) -> list[Calculation]:
    return [_calculation(seed) for seed in range(SEEDS)] if scale == "paper" else []


def _losses(found: FigureRuns) -> dict[str, list[float]]:
    """The test losses of each arm, by seed."""
    results = [found.results[one.name] for one in _calculations(found.scale) if one.name in found.results]
    return {arm: [result["test_loss"][arm] for result in results] for arm in ARMS}


def _claims(found: FigureRuns) -> list[Judgeable]:
    losses = _losses(found)

    def same(statement: str, first: str, second: str = "base") -> Claim:
        return Claim(statement, "equal", losses[first], losses[second], MARGIN, paired=True)

    def higher(statement: str, first: str, second: str) -> Claim:
        return Claim(statement, "greater", losses[first], losses[second], paired=True)

    large, gradient = "four times the batch size", "a random rate on the gradient"
    order = "constant rates: an arm of twice the temperature, and twice the summed rate, ends with a lower test loss"
    pairs = (("x4, nothing", "base"), ("base", "x4, linear"))
    return [
        same(f"{large}, rate by the square root and half-lives kept: the same test loss", "x4, square root"),
        same(f"{large}, rate in proportion: the same test loss", "x4, linear"),
        same(f"{large}, nothing else changed: the same test loss", "x4, nothing"),
        same("a random rate on the step: the same test loss as a constant rate", "random on the step"),
        same(
            f"{gradient}: the same test loss as a constant rate of its temperature",
            *("random on the gradient", "constant, equal T"),
        ),
        same(
            f"{gradient}: the same test loss as a constant rate of its summed rate",
            *("random on the gradient", "constant, equal sum"),
        ),
        Every(order, {f"{cold} against {hot}": higher(order, cold, hot) for cold, hot in pairs}),
        higher(
            f"{gradient}: a higher test loss than the base, though it is hotter, as its summed rate is smaller",
            *("random on the gradient", "base"),
        ),
    ]


def _panels(found: FigureRuns) -> list[Panel]:
    losses = _losses(found)
    if len(losses["base"]) < 2:
        return []
    note = "Mean over seeds of the difference from the base, with its 95 % interval. A quantity that decides the loss "
    note += "puts all points on one line."
    over = {
        arm: [ours - base for ours, base in zip(values, losses["base"], strict=True)] for arm, values in losses.items()
    }
    panels = []
    for quantity, title in (("temperature", "Over the temperature"), ("summed_rate", "Over the summed rate")):
        series = []
        for kind, colour in _KINDS.items():
            arms = sorted((a for a in ARMS if ARMS[a].kind == kind), key=lambda a: getattr(ARMS[a], quantity))
            series.append(mean_points(kind, {float(getattr(ARMS[arm], quantity)): over[arm] for arm in arms}, colour))
        words = f"predicted {title.split(' the ')[1]} over that of the base"
        panels.append(Panel(title, words, "test loss above the base", tuple(series), note=note))
    return panels


EXPERIMENT = Experiment(
    name="adamw-batch",
    title="AdamW and a small GPT",
    question=(
        "Does a byte-level GPT that AdamW trains end alike at four times the batch size by the square root rule, and "
        "does the temperature order runs of other rules and of random rates?"
    ),
    calculations=_calculations,
    claims=_claims,
    panels=_panels,
    in_parts=True,
)
