"""The width of the uniform law, from no randomness to the paper's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heatbath.paper.claims import above, accuracy_margin, greater, near
from heatbath.paper.experiments import Experiment
from heatbath.paper.groups import CONSTANT, RANDOM, SEEDS, FigureRuns, Group, Scale, perceptron
from heatbath.paper.pictures import scan
from heatbath.paper.quantities import BEST_TEST, ROUGHNESS, TAIL_LOSS, TAIL_TEST, Quantity
from heatbath.paper.remarks import remark_on_scale
from heatbath.report.panels import Panel
from heatbath.stats.verdicts import Judgeable

_WIDTHS: dict[Scale, tuple[float, ...]] = {
    "smoke": (0.0, 0.5, 1.0),
    "laptop": (0.0, 0.5, 1.0),
    "paper": (0.0, 0.25, 0.5, 0.75, 1.0),
}


def _groups(scale: Scale) -> Sequence[Group]:
    base = perceptron(scale)
    return [
        Group(
            f"Delta = {width:g}",
            base.with_(protocol="random", law=f"uniform:{width}") if width else base.with_(protocol="constant"),
            SEEDS[scale],
            RANDOM if width == 1.0 else CONSTANT if not width else 5,
        )
        for width in _WIDTHS[scale]
    ]


def _claims(found: FigureRuns) -> list[Judgeable]:
    narrow, wide = found.groups[0], found.groups[-1]
    slopes = _slopes(found, TAIL_TEST)
    same = "Test accuracy does not change from Delta = 0 to 1 along the line through all widths"
    return [
        greater(found, "Delta = 1 has a higher test accuracy than Delta = 0", wide, narrow, TAIL_TEST),
        above("The wider the law the better: test accuracy grows with Delta^2", slopes, 0.0),
        near(same, slopes, 0.0, accuracy_margin(wide)),
        greater(found, "Delta = 1 shakes the training loss more than Delta = 0", wide, narrow, ROUGHNESS),
    ]


def _panels(found: FigureRuns) -> list[Panel]:
    note = "Mean over the runs and its 95 % interval. Delta = 0 is the constant rate."
    shown = {"Test accuracy": TAIL_TEST, "Best test accuracy": BEST_TEST, "Train loss": TAIL_LOSS}
    panels = []
    for title, quantity in (shown | {"Roughness": ROUGHNESS}).items():
        curve = scan(found, found.groups, _WIDTHS[found.scale], quantity, "uniform law", RANDOM)
        panels.append(Panel(title, "Delta", quantity.axis, (curve,), note=note))
    return panels


def _slopes(found: FigureRuns, quantity: Quantity) -> list[float]:
    """The slope of the quantity over Delta^2 for each seed whose runs have ended at every width.

    No number where one of them diverged, which leaves claims open.
    """
    by_seed = [found.by_seed(group, quantity) for group in found.groups]
    squares = np.square(_WIDTHS[found.scale])
    weights = (squares - squares.mean()) / np.square(squares - squares.mean()).sum()
    seeds = set.intersection(*(set(values) for values in by_seed))
    return [float(weights @ [values[seed] for values in by_seed]) for seed in sorted(seeds)]


EXPERIMENT = Experiment(
    name="delta",
    title="From a constant to a random rate",
    question="How do accuracy, loss and its fluctuations change as the law of the rate widens from Delta = 0 to 1?",
    groups=_groups,
    claims=_claims,
    panels=_panels,
    errata=("The temperature grows with Delta^2, by 1 + Delta^2 / 3, and not by 1 + Delta / 3 as printed.",),
    remarks=remark_on_scale,
)
