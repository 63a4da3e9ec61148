"""Figures 5 and 6: runs of equal temperature, of the perceptron with a counter-check and of the deep networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heatbath.paper.claims import Not, equal, near
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
    perceptron,
    vgg16,
)
from heatbath.paper.pictures import curve_panel, group_panel, summed_rate_panel
from heatbath.paper.quantities import FINAL_TEST, MEAN_TEST, Quantity
from heatbath.report.panels import Panel, Series
from heatbath.stats.verdicts import Judgeable

_SEEDS: dict[Scale, int] = {"smoke": 2, "laptop": 6, "paper": 50}
_EPOCHS: dict[Scale, int] = {"smoke": 2, "laptop": 24, "paper": 180}
_SPEED_UP = 50  # of the rates off the paper's scale: 24 epochs of 67 steps then have the summed rate of 80 of 1,000
PRINTED = {"C = 128, l = 2.5e-4": (0.73036, 0.00444), "C = 256, l = 5e-4": (0.73002, 0.00526)}
"""The paper's mean and standard deviation of the final test accuracy of VGG16."""
_HALFWAY = Quantity(
    "test accuracy after half the epochs",
    lambda record: float(record.epochs[(len(record.epochs) - 1) // 2].test_accuracy),
    "test accuracy",
    "after half the epochs",
)


def _groups_of_perceptron(scale: Scale) -> Sequence[Group]:
    base = perceptron(scale, momentum=0.0, epochs=_EPOCHS[scale])
    factor = 1 if scale == "paper" else _SPEED_UP
    return [
        Group("I: C = 60, 2l", base.with_(batch_size=60, lr=2e-4 * factor), _SEEDS[scale], RANDOM),
        Group("II: C = 30, l", base.with_(batch_size=30, lr=1e-4 * factor), _SEEDS[scale], 5),
        Group("III: C = 60, l", base.with_(batch_size=60, lr=1e-4 * factor), _SEEDS[scale], 6),
    ]


def _claims_on_perceptron(found: FigureRuns) -> list[Judgeable]:
    one, two, three = found.groups
    ends = "I and II, of equal temperature, end at the same test accuracy"
    alike = "I and II learn alike throughout: their mean test accuracy over all epochs is the same"
    differs = "III, at half the temperature, learns otherwise than I: its mean test accuracy over all epochs differs"
    halfway = "III ends where I is after half its epochs: the summed rate sets it apart, not the temperature"
    return [
        equal(found, ends, (one, two), FINAL_TEST),
        equal(found, alike, (one, two), MEAN_TEST),
        Not(equal(found, differs, (one, three), MEAN_TEST)),
        equal(found, halfway, (three, one), FINAL_TEST, of_second=_HALFWAY),
    ]


def _panels_of_perceptron(found: FigureRuns) -> list[Panel]:
    note = "The same curves over the summed rate, of which a group at half the rate has half in each epoch."
    return [
        curve_panel(found, found.groups, "test_accuracy"),
        summed_rate_panel(found, found.groups, "test_accuracy", note),
        group_panel(found, found.groups, FINAL_TEST),
    ]


def _remarks_on_perceptron(scale: Scale) -> dict[str, str]:
    if scale == "paper":
        return {"not said in the paper": "the paper does not say how many; 180 as elsewhere"}
    reason = f"rates are {_SPEED_UP} times the paper's, in its ratio: 4,000 images make 67 steps to an epoch, not 1,000"
    return {"unlike the paper": reason}


def _groups_of_deep(scale: Scale) -> Sequence[Group]:
    if scale != "paper":
        return ()
    shallow = cnn(lr=0.0025)
    return [
        Group("C = 60, mu = 0.75", shallow.with_(batch_size=60, momentum=0.75), CNN_SEEDS, RANDOM, "CNN"),
        Group("C = 30, mu = 0.5", shallow.with_(batch_size=30, momentum=0.5), CNN_SEEDS, 5, "CNN"),
        Group("C = 128, l = 2.5e-4", vgg16(batch_size=128, lr=2.5e-4), VGG16_SEEDS, 6, "VGG16"),
        Group("C = 256, l = 5e-4", vgg16(), MORE_SEEDS, SPARE, "VGG16"),
    ]


def _claims_on_deep(found: FigureRuns) -> list[Judgeable]:
    claims: list[Judgeable] = []
    for part in found.parts:
        ends = f"{part}: two runs of equal temperature end at the same test accuracy"
        alike = f"{part}: they learn alike throughout, by the mean test accuracy over all epochs"
        claims.append(equal(found, ends, found.part(part), FINAL_TEST))
        claims.append(equal(found, alike, found.part(part), MEAN_TEST))
    for group in found.part("VGG16"):
        mean, deviation = PRINTED[group.label]
        printed = f"VGG16 at {group.label} ends at the printed {mean}, to two of the printed standard deviations"
        claims.append(near(printed, found.values(group, FINAL_TEST), mean, 2.0 * deviation))
    return claims


def _panels_of_deep(found: FigureRuns) -> list[Panel]:
    panels: list[Panel] = []
    low, mean, high = zip(*((mean - error, mean, mean + error) for mean, error in PRINTED.values()), strict=True)
    name = "printed, with its standard deviation"
    printed = Series(name, tuple(PRINTED), mean, low, high, style="points", colour=CONSTANT)
    for part in found.parts:
        means = group_panel(found, found.part(part), FINAL_TEST, part)
        with_printed = replace(means, series=(*means.series, printed)) if part == "VGG16" and means.series else means
        panels += [curve_panel(found, found.part(part), "test_accuracy", part), with_printed]
    return panels


FIGURE5 = Experiment(
    name="figure5",
    title="Runs of equal temperature: the perceptron",
    question="Do runs of the same l / C learn alike, and does one of half that temperature learn differently?",
    groups=_groups_of_perceptron,
    claims=_claims_on_perceptron,
    panels=_panels_of_perceptron,
    errata=(
        "The caption says convolutional; the model is the perceptron.",
        "The counter-check has half the temperature and half the summed rate: T is proportional to the summed rate of "
        "an epoch, l N / (C (1 - mu)), so the figure cannot tell one from the other.",
    ),
    remarks=_remarks_on_perceptron,
)
FIGURE6 = Experiment(
    name="figure6",
    title="Runs of equal temperature: the deep networks",
    question="Do deep networks learn alike at the same l / (C (1 - mu))?",
    groups=_groups_of_deep,
    claims=_claims_on_deep,
    panels=_panels_of_deep,
    errata=(
        "A rate uniform on [0, 0.005] has the mean l = 0.0025.",
        "The paper does not say how many runs its mean and standard deviation are of, so that its standard error is "
        "not known: the margin is two of its standard deviations.",
    ),
    remarks=lambda _scale: {
        "not said in the paper": "weight decay and epochs of this figure; 1e-3 and 180, as in figures 3 and 4"
    },
)
