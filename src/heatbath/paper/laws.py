"""The law of the multiplier: its width, from no randomness to the paper's, and its shape at a given variance."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from heatbath.laws import Arcsine, Law, LogNormal, TwoPoint, Uniform
from heatbath.paper.claims import above, accuracy_margin, all_equal, greater, near
from heatbath.paper.experiments import Experiment
from heatbath.paper.groups import CONSTANT, RANDOM, SEEDS, SPARE, FigureRuns, Group, Scale, perceptron, remark_on_scale
from heatbath.paper.pictures import overview, scan
from heatbath.paper.quantities import BEST_TEST, ROUGHNESS, TAIL_LOSS, TAIL_TEST
from heatbath.report.panels import Panel
from heatbath.stats.verdicts import Judgeable

_SMALL_WIDTHS, _WIDTHS = (0.0, 0.5, 1.0), (0.0, 0.25, 0.5, 0.75, 1.0)
_VARIANCE = Uniform(1.0).variance
_LAWS: dict[str, tuple[Law, int]] = {  # of variance 1/3 each; the first is the paper's
    "random": (Uniform(1.0), RANDOM),
    "two-point": (TwoPoint(math.sqrt(_VARIANCE)), 5),
    "arcsine": (Arcsine(math.sqrt(2.0 * _VARIANCE)), 6),
    "log-normal": (LogNormal(math.sqrt(math.log1p(_VARIANCE))), SPARE),
}


def _groups_of_laws(scale: Scale) -> Sequence[Group]:
    return [
        Group(label, perceptron(scale, protocol="random", law=law), SEEDS[scale], colour)
        for label, (law, colour) in _LAWS.items()
        if scale == "paper" or label != "arcsine"
    ]


def _claims_on_laws(found: FigureRuns) -> list[Judgeable]:
    alike = "Laws of equal variance reach the same"
    return [
        all_equal(found, f"{alike} test accuracy", found.groups, TAIL_TEST),
        all_equal(found, f"{alike} training loss", found.groups, TAIL_LOSS),
    ]


def _widths(scale: Scale) -> tuple[float, ...]:
    return _WIDTHS if scale == "paper" else _SMALL_WIDTHS


def _groups_of_widths(scale: Scale) -> Sequence[Group]:
    def knobs(width: float) -> dict[str, str]:
        return {"protocol": "random", "law": f"uniform:{width}"} if width else {"protocol": "constant"}

    colours = {0.0: CONSTANT, 1.0: RANDOM}
    return [
        Group(f"Delta = {width:g}", perceptron(scale, **knobs(width)), SEEDS[scale], colours.get(width, 5))
        for width in _widths(scale)
    ]


def _claims_on_widths(found: FigureRuns) -> list[Judgeable]:
    narrow, *_, wide = found.groups
    # For each seed the slope over Delta^2, which the variance is proportional to.
    squares = np.square(_widths(found.scale))
    weights = (squares - squares.mean()) / np.square(squares - squares.mean()).sum()
    by_seed = zip(*found.pairs(*((group, TAIL_TEST) for group in found.groups)), strict=True)
    slopes = [float(weights @ values) for values in by_seed]
    same = "Test accuracy does not change from Delta = 0 to 1 along the line through all widths"
    return [
        greater(found, "Delta = 1 has a higher test accuracy than Delta = 0", (wide, narrow), TAIL_TEST),
        above("The wider the law the better: test accuracy grows with Delta^2", slopes, 0.0),
        near(same, slopes, 0.0, accuracy_margin(wide)),
        greater(found, "Delta = 1 shakes the training loss more than Delta = 0", (wide, narrow), ROUGHNESS),
    ]


def _panels_of_widths(found: FigureRuns) -> list[Panel]:
    note = "Mean over the runs and its 95 % interval. Delta = 0 is the constant rate."
    shown = {"Test accuracy": TAIL_TEST, "Best test accuracy": BEST_TEST, "Train loss": TAIL_LOSS}
    panels = []
    for title, quantity in (shown | {"Roughness": ROUGHNESS}).items():
        curve = scan(found, found.groups, _widths(found.scale), quantity, "uniform law", RANDOM)
        panels.append(Panel(title, "Delta", quantity.axis, (curve,), note=note))
    return panels


EQUAL_VARIANCE = Experiment(
    name="laws",
    title="Laws of equal variance",
    question="Does it matter how the rate is distributed, once its variance, 1/3, is given?",
    groups=_groups_of_laws,
    claims=_claims_on_laws,
    panels=lambda found: overview(found, TAIL_TEST),
    errata=(
        "The printed second moment, 1 + Delta / 3, should be 1 + Delta^2 / 3; they agree at the paper's Delta = 1.",
    ),
    remarks=remark_on_scale,
)
DELTA = Experiment(
    name="delta",
    title="From a constant to a random rate",
    question="How do accuracy, loss and its fluctuations change as the law of the rate widens from Delta = 0 to 1?",
    groups=_groups_of_widths,
    claims=_claims_on_widths,
    panels=_panels_of_widths,
    errata=("The temperature grows with Delta^2, by 1 + Delta^2 / 3, and not by 1 + Delta / 3 as printed.",),
    remarks=remark_on_scale,
)
