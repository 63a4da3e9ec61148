"""Experiment 3 of docs/preregistration.md: does temperature regularise at equal summed rate?"""

from __future__ import annotations

from collections.abc import Sequence

from heatbath.paper.claims import above
from heatbath.paper.experiments import Experiment
from heatbath.paper.groups import FigureRuns, Group, Scale, cnn, vgg16
from heatbath.paper.pictures import group_panel
from heatbath.paper.quantities import FINAL_TEST
from heatbath.report.panels import Panel
from heatbath.stats.verdicts import Judgeable

SEEDS = 12
BATCH_SIZES = (128, 256, 512)
"""From hot to cold: at a given rate T falls as one over the batch size."""
_COLOURS = (0, 1, 2)


def _groups(scale: Scale) -> Sequence[Group]:
    if scale != "paper":
        return ()
    # An epoch of twice the batch size has half the steps: twice the epochs have the same summed rate.
    return [
        Group(f"C = {size}", base(protocol="constant", batch_size=size, epochs=180 * size // 256), SEEDS, colour, part)
        for part, base in (("VGG16", vgg16), ("CNN", cnn))
        for size, colour in zip(BATCH_SIZES, _COLOURS, strict=True)
    ]


def _claims(found: FigureRuns) -> list[Judgeable]:
    return [
        above(
            f"{part}: at equal summed rate the final test accuracy rises with log2 T", _slopes(found, part), target=0.0
        )
        for part in found.parts
    ]


def _slopes(found: FigureRuns, part: str) -> list[float]:
    """Of the least-squares line over log2 T through the three groups, for each seed that all of them have."""
    hot, _, cold = by_size = [found.by_seed(group, FINAL_TEST) for group in found.part(part)]
    seeds = [seed for seed in hot if all(seed in accuracies for accuracies in by_size)]
    return [(hot[seed] - cold[seed]) / 2.0 for seed in seeds]  # T doubles twice; the middle one has no weight


def _panels(found: FigureRuns) -> list[Panel]:
    return [group_panel(found, found.part(part), FINAL_TEST, part) for part in found.parts]


EXPERIMENT = Experiment(
    name="regularisation",
    title="Temperature at equal summed rate",
    question=(
        "The paper holds that a higher temperature generalises better, and compares at equal epochs, where a hotter "
        "run has a larger summed rate, too. Does temperature help at equal summed rate?"
    ),
    groups=_groups,
    claims=_claims,
    panels=_panels,
)
