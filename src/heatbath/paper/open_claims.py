"""Experiment 10 of docs/preregistration.md: what figure 4 left open, with the seeds that probably decide it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heatbath.paper.claims import every_pair, greater, not_worse
from heatbath.paper.experiments import Experiment
from heatbath.paper.groups import PROTOCOLS, FigureRuns, Group, Scale, has_ended, protocol_groups, vgg16
from heatbath.paper.pictures import group_panel
from heatbath.paper.quantities import BEST_TEST, FINAL_TEST, Quantity
from heatbath.report.panels import Panel
from heatbath.stats.verdicts import Judgeable

_SCRATCH, _IMAGENET = "from scratch", "from ImageNet"
ALONE_SEEDS, SCRATCH_SEEDS, IMAGENET_SEEDS = 30, 21, 15


def _alone(scale: Scale) -> Sequence[Group]:
    return protocol_groups(vgg16(), ALONE_SEEDS, _SCRATCH, PROTOCOLS[:2]) if scale == "paper" else ()


def _open(scale: Scale) -> Sequence[Group]:
    if scale != "paper":
        return ()
    tuned = protocol_groups(vgg16(weights="imagenet"), IMAGENET_SEEDS, _IMAGENET, ("constant", "random", "cyclic:30"))
    return protocol_groups(vgg16(), SCRATCH_SEEDS, _SCRATCH, PROTOCOLS[1:]) + tuned


def _when_complete(found: FigureRuns, part: str, seeds: int) -> FigureRuns:
    """What there is, if all planned runs of a part have ended, and nothing before: nobody looks half-way."""
    runs = [group.config.with_(seed=seed) for group in found.part(part) for seed in range(seeds)]
    return found if all(has_ended(found.records, config) for config in runs) else replace(found, records={})


def _better(found: FigureRuns, part: str, quantity: Quantity, seeds: int) -> Judgeable:
    constant, random = found.labelled(part, "constant", "random")
    said = f"Random has a higher {quantity.name} than constant, {part}"
    return greater(_when_complete(found, part, seeds), said, (random, constant), quantity)


def _claims_alone(found: FigureRuns) -> list[Judgeable]:
    return [_better(found, _SCRATCH, FINAL_TEST, ALONE_SEEDS)]


def _open_claims(found: FigureRuns) -> list[Judgeable]:
    claims: list[Judgeable] = []
    for part, seeds in ((_SCRATCH, SCRATCH_SEEDS), (_IMAGENET, IMAGENET_SEEDS)):
        (random,) = found.labelled(part, "random")
        pairs = [(random, group) for group in found.part(part) if group.label.startswith("cyclic")]
        for quantity in (FINAL_TEST, BEST_TEST):
            said = f"Random reaches the {quantity.name} of the best cyclic protocol, {part}"
            claims.append(every_pair(not_worse, _when_complete(found, part, seeds), said, pairs, quantity))
    return [*claims, *(_better(found, _IMAGENET, quantity, IMAGENET_SEEDS) for quantity in (FINAL_TEST, BEST_TEST))]


def _panels(found: FigureRuns) -> list[Panel]:
    quantities = (FINAL_TEST, BEST_TEST)
    return [group_panel(found, found.part(part), quantity, part) for part in found.parts for quantity in quantities]


ALONE = Experiment(
    name="figure4-constant",
    title="VGG16 from scratch: random against constant",
    question="The paper's main point, as a single claim: does a random rate end higher than a constant one?",
    groups=_alone,
    claims=_claims_alone,
    panels=_panels,
    in_parts=True,
)
OPEN = Experiment(
    name="figure4-open",
    title="VGG16: what figure 4 left open",
    question="Does a random rate reach the best cyclic one, and from ImageNet end higher than a constant one?",
    groups=_open,
    claims=_open_claims,
    panels=_panels,
    in_parts=True,
)
