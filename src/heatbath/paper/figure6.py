"""Figure 6: runs of the deep networks at equal temperature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heatbath.paper.claims import accuracy_margin, equal, near
from heatbath.paper.experiments import Experiment
from heatbath.paper.groups import (
    CNN_SEEDS,
    CONSTANT,
    MORE_SEEDS,
    RANDOM,
    SPARE,
    VGG16_SEEDS,
    FigureRuns,
    Group,
    Scale,
    cnn,
    vgg16,
)
from heatbath.paper.pictures import curve_panel, group_panel
from heatbath.paper.quantities import FINAL_TEST, MEAN_TEST
from heatbath.report.panels import Panel, Series
from heatbath.stats.verdicts import Judgeable

_CNN, _VGG16 = "CNN", "VGG16"
PRINTED = {"C = 128, l = 2.5e-4": (0.73036, 0.00444), "C = 256, l = 5e-4": (0.73002, 0.00526)}
"""The paper's mean and standard deviation of the final test accuracy of VGG16."""


def _groups(scale: Scale) -> Sequence[Group]:
    if scale != "paper":
        return ()
    shallow = cnn(lr=0.0025)
    return [
        Group("C = 60, mu = 0.75", shallow.with_(batch_size=60, momentum=0.75), CNN_SEEDS, RANDOM, _CNN),
        Group("C = 30, mu = 0.5", shallow.with_(batch_size=30, momentum=0.5), CNN_SEEDS, 5, _CNN),
        Group("C = 128, l = 2.5e-4", vgg16(batch_size=128, lr=2.5e-4), VGG16_SEEDS, 6, _VGG16),
        Group("C = 256, l = 5e-4", vgg16(), MORE_SEEDS, SPARE, _VGG16),
    ]


def _claims(found: FigureRuns) -> list[Judgeable]:
    claims: list[Judgeable] = []
    for part in found.parts:
        one, two = found.part(part)
        ends = f"{part}: two runs of equal temperature end at the same test accuracy"
        alike = f"{part}: they learn alike throughout, by the mean test accuracy over all epochs"
        claims.append(equal(found, ends, one, two, FINAL_TEST, accuracy_margin(one)))
        claims.append(equal(found, alike, one, two, MEAN_TEST, accuracy_margin(one)))
    for label, (mean, deviation) in PRINTED.items():
        if _VGG16 in found.parts:
            statement = f"VGG16 at {label} ends at the printed {mean}, to two of the printed standard deviations"
            values = found.values(found.group(label, _VGG16), FINAL_TEST)
            claims.append(near(statement, values, mean, 2.0 * deviation))
    return claims


def _panels(found: FigureRuns) -> list[Panel]:
    panels: list[Panel] = []
    for part in found.parts:
        panels.append(curve_panel(found, found.part(part), "test_accuracy", f"{part}: test accuracy"))
        panels.append(group_panel(found, found.part(part), FINAL_TEST, part))
        if part == _VGG16 and panels[-1].series:
            panels[-1] = replace(panels[-1], series=(*panels[-1].series, _printed()))
    return panels


def _printed() -> Series:
    low, mean, high = zip(*((mean - error, mean, mean + error) for mean, error in PRINTED.values()), strict=True)
    name = "printed, with its standard deviation"
    return Series(name, tuple(PRINTED), mean, low, high, style="points", colour=CONSTANT)


EXPERIMENT = Experiment(
    name="figure6",
    title="Runs of equal temperature: the deep networks",
    question="Do deep networks learn alike at the same l / (C (1 - mu))?",
    groups=_groups,
    claims=_claims,
    panels=_panels,
    errata=(
        "A rate uniform on [0, 0.005] has the mean l = 0.0025.",
        "The paper does not say how many runs its mean and standard deviation are of, so that its standard error is "
        "not known: the margin is two of its standard deviations.",
    ),
    remarks=lambda _scale: {
        "not said in the paper": "weight decay and epochs of this figure; 1e-3 and 180, as in figures 3 and 4"
    },
)
