"""The claim that a constant, a random and three cyclic rates of the same mean train alike: figures 1 and 2."""

from __future__ import annotations

from heatbath.paper.claims import LOSS_MARGIN, accuracy_margin, all_equal
from heatbath.paper.groups import FigureRuns
from heatbath.paper.pictures import curve_panel, summed_rate_panel
from heatbath.paper.quantities import GENERALISATION_ERROR, LOSSES_AT_SUMMED_RATES, TAIL_LOSS, TAIL_TEST, TAIL_TRAIN
from heatbath.report.panels import Panel
from heatbath.stats.verdicts import Judgeable


def claims(found: FigureRuns) -> list[Judgeable]:
    """Return the claims that all five learn alike."""
    accuracy = accuracy_margin(found.groups[0])
    alike = "All five protocols reach the same"
    parts = "At a quarter, half and three quarters of the summed rate all five have the same training loss"
    regularise = "The protocols regularise alike: their generalisation error is the same"
    return [
        all_equal(found, f"{alike} training loss", found.groups, TAIL_LOSS, LOSS_MARGIN),
        all_equal(found, f"{alike} train accuracy", found.groups, TAIL_TRAIN, accuracy),
        all_equal(found, f"{alike} test accuracy", found.groups, TAIL_TEST, accuracy),
        all_equal(found, parts, found.groups, LOSSES_AT_SUMMED_RATES, LOSS_MARGIN),
        all_equal(found, regularise, found.groups, GENERALISATION_ERROR, accuracy),
    ]


def panels(found: FigureRuns) -> list[Panel]:
    """Return the curves of the five protocols over epochs, and the loss over the summed rate."""
    note = "The same curves over the summed rate, of which an epoch at the peak of a cycle has more."
    return [
        curve_panel(found, found.groups, "train_loss", log=True),
        curve_panel(found, found.groups, "train_accuracy"),
        curve_panel(found, found.groups, "test_accuracy"),
        summed_rate_panel(found, found.groups, "train_loss", note, log=True),
    ]
