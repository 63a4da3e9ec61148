"""Experiment 3 of docs/preregistration.md: does temperature regularise at equal summed rate?"""

from __future__ import annotations

from collections.abc import Sequence

from heatbath.paper.claims import above
from heatbath.paper.experiments import Experiment
from heatbath.paper.groups import FigureRuns, Group, Scale, cnn, vgg16
from heatbath.paper.pictures import group_panel
from heatbath.paper.quantities import FINAL_TEST
from heatbath.stats.verdicts import Judgeable

_SEEDS = 12
_BATCH_SIZES = (128, 256, 512)  # from hot to cold: at a given rate T falls as one over the batch size


def _groups(scale: Scale) -> Sequence[Group]:
    # An epoch of twice the batch size has half the steps: twice the epochs have the same summed rate.
    return [
        Group(f"C = {size}", base(protocol="constant", batch_size=size, epochs=180 * size // 256), _SEEDS, colour, part)
        for part, base in (("VGG16", vgg16), ("CNN", cnn))
        for colour, size in enumerate(_BATCH_SIZES)
        if scale == "paper"
    ]


def _claims(found: FigureRuns) -> list[Judgeable]:
    claims = []
    for part in found.parts:
        # Of the least-squares line over log2 T: T doubles twice, and the middle one has no weight.
        by_seed = zip(*found.pairs(*((group, FINAL_TEST) for group in found.part(part))), strict=True)
        slopes = [(hot - cold) / 2.0 for hot, _, cold in by_seed]
        claims.append(above(f"{part}: at equal summed rate the final test accuracy rises with log2 T", slopes, 0.0))
    return claims


EXPERIMENT = Experiment(
    name="regularisation",
    title="Temperature at equal summed rate",
    question=(
        "A higher temperature is often said to generalise better, and is compared at equal epochs, where a hotter run "
        "has a larger summed rate, too. Does temperature help at equal summed rate?"
    ),
    groups=_groups,
    claims=_claims,
    in_parts=True,
    panels=lambda found: [group_panel(found, found.part(part), FINAL_TEST, part) for part in found.parts],
)
