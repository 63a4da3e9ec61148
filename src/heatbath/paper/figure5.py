"""Figure 5: runs of the perceptron at equal temperature, without momentum, and a counter-check."""

from __future__ import annotations

from collections.abc import Sequence

from heatbath.paper.claims import Not, accuracy_margin, equal
from heatbath.paper.experiments import Experiment
from heatbath.paper.groups import RANDOM, FigureRuns, Group, Scale, perceptron
from heatbath.paper.pictures import curve_panel, group_panel, summed_rate_panel
from heatbath.paper.quantities import FINAL_TEST, MEAN_TEST, Quantity
from heatbath.report.panels import Panel
from heatbath.runs.records import Record
from heatbath.stats.verdicts import Judgeable

SEEDS: dict[Scale, int] = {"smoke": 2, "laptop": 6, "paper": 50}
EPOCHS: dict[Scale, int] = {"smoke": 2, "laptop": 24, "paper": 180}
SPEED_UP = 50  # of the rates off the paper's scale: 24 epochs of 67 steps then have the summed rate of 80 of 1,000


def _groups(scale: Scale) -> Sequence[Group]:
    knobs = {"I: C = 60, 2l": (60, 2e-4), "II: C = 30, l": (30, 1e-4), "III: C = 60, l": (60, 1e-4)}
    factor = 1 if scale == "paper" else SPEED_UP
    return [
        Group(
            label,
            perceptron(scale, lr=lr * factor, batch_size=size, momentum=0.0, epochs=EPOCHS[scale]),
            SEEDS[scale],
            colour,
        )
        for (label, (size, lr)), colour in zip(knobs.items(), (RANDOM, 5, 6), strict=True)
    ]


def _claims(found: FigureRuns) -> list[Judgeable]:
    one, two, three = found.groups
    margin = accuracy_margin(one)
    ends = "I and II, of equal temperature, end at the same test accuracy"
    alike = "I and II learn alike throughout: their mean test accuracy over all epochs is the same"
    differs = "III, at half the temperature, learns otherwise than I: its mean test accuracy over all epochs differs"
    halfway = "III ends where I is after half its epochs: the summed rate sets it apart, not the temperature"
    return [
        equal(found, ends, one, two, FINAL_TEST, margin),
        equal(found, alike, one, two, MEAN_TEST, margin),
        Not(differs, equal(found, differs, one, three, MEAN_TEST, margin)),
        equal(found, halfway, three, one, FINAL_TEST, margin, of_b=_HALFWAY),
    ]


def _panels(found: FigureRuns) -> list[Panel]:
    note = "The same curves over the summed rate, of which a group at half the rate has half in each epoch."
    return [
        curve_panel(found, found.groups, "test_accuracy"),
        summed_rate_panel(found, found.groups, "test_accuracy", note),
        group_panel(found, found.groups, FINAL_TEST),
    ]


def _at_half(record: Record) -> float:
    return float(record.epochs[(len(record.epochs) - 1) // 2].test_accuracy)


_HALFWAY = Quantity("test accuracy after half the epochs", _at_half, "test accuracy", "after half the epochs")


def _remarks(scale: Scale) -> dict[str, str]:
    choice = {"epochs": "the paper does not say how many; 180 as elsewhere"}
    if scale == "paper":
        return {"not said in the paper": choice["epochs"]}
    reason = f"rates are {SPEED_UP} times the paper's, in its ratio: 4,000 images make 67 steps to an epoch, not 1,000"
    return {"unlike the paper": reason}


EXPERIMENT = Experiment(
    name="figure5",
    title="Runs of equal temperature: the perceptron",
    question="Do runs of the same l / C learn alike, and does one of half that temperature learn differently?",
    groups=_groups,
    claims=_claims,
    panels=_panels,
    errata=(
        "The caption says convolutional; the model is the perceptron.",
        "The counter-check has half the temperature and half the summed rate: T is proportional to the summed rate of "
        "an epoch, l N / (C (1 - mu)), so the figure cannot tell one from the other.",
    ),
    remarks=_remarks,
)
