"""Numbers of docs/evidence.md on all claims at once: how many are settled, and which depend on rules and margins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from committed import ROOT, check, figures, records, verdicts
from heatbath.paper import EXPERIMENTS, PLANNED, calculations
from heatbath.paper.claims import Every
from heatbath.paper.experiments import Experiment
from heatbath.paper.groups import FigureRuns
from heatbath.report.page import verdict_table
from heatbath.stats.order import OrderClaim
from heatbath.stats.verdicts import Claim, Factor, Judgeable, Verdict, judge

Key = tuple[str, str]  # the name of a figure and its claim


def claims() -> SimpleNamespace:
    """Return how many claims there are of each outcome, and their table."""
    everything = [one for figure in figures().values() for one in figure.verdicts]
    by_plan, later = (Counter(one.outcome for one in everything if one.planned == planned) for planned in (True, False))
    families = {(figure.name, one.planned) for figure in figures().values() for one in figure.verdicts}
    shaken = [
        one.evidence
        for name in ("coupling", "delta")
        for one in verdicts(name)
        if "shakes" in one.claim and ("no draw" in one.claim or "Delta = 0" in one.claim)
    ]
    check(len(shaken) == 2 and shaken[0] == shaken[1], "some claims of two families are one comparison")
    return SimpleNamespace(
        total=len(everything),
        undecided=by_plan["undecided"] + later["undecided"],
        by_plan=SimpleNamespace(total=by_plan.total(), **by_plan),
        later=SimpleNamespace(total=later.total(), **later),
        families=len(families),
        table=verdict_table(list(figures().values())).rstrip(),
    )


def choice_of_the_test() -> SimpleNamespace:
    """Return the p-values, by Welch's test, of the claims whose verdict depends on the rule of pairs."""
    by_welch = _judge(lambda claim: replace(claim, paired=False))
    differing = [key for key, one in _judge().items() if one.outcome != by_welch[key].outcome]
    changed, later = ([key for key in differing if by_welch[key].planned == planned] for planned in (True, False))
    check([by_welch[key].outcome for key in later] == ["confirmed"] * 2, "by Welch's test it would be confirmed")
    found = [(name, by_welch[name, claim].outcome) for name, claim in changed]
    said = [("figure2", "undecided")] * 2 + [("figure4", "contradicted")] * 2 + [("coupling", "undecided")]
    check(found == said, "five verdicts depend on the rule: three would be undecided, two contradicted")
    by_pairs = _judge(of_few=lambda claim: claim.by_seed)
    same = all(one.outcome == by_pairs[key].outcome for key, one in _judge().items())
    check(same, "by pairs no verdict on VGG16 would be another")
    names = ("parts", "error", "final", "best", "shaken", "apart", "apart_best")
    keys = [*changed, *later]
    return SimpleNamespace(**{name: by_welch[key].p_value for name, key in zip(names, keys, strict=True)})


def check_the_first_margins() -> None:
    """Check what the page says of the CNN's margin as it was first."""
    first = _judge(lambda claim: replace(claim, margin=2.0 * claim.margin) if abs(claim.margin) == 0.001 else claim)
    changed = {key: first[key].outcome for key, one in _judge().items() if one.outcome != first[key].outcome}
    check(set(changed.values()) == {"confirmed"}, "with the first margins they would be confirmed")
    names = [(name, "train" in claim) for name, claim in changed]
    said = [("figure2", True), ("figure2", False), ("figure6", False)]
    check(names == said, "figure 2's accuracies and the CNN's end in figure 6")


def margins() -> SimpleNamespace:
    """Return the margins and their reasons, as the report tells them."""
    configs = [group.config for experiment in EXPERIMENTS.values() for group in experiment.groups("paper")]
    reasons = dict.fromkeys(config.network.margins[config.dataset].reason for config in configs)
    return SimpleNamespace(words="; ".join(reasons))


def margin_table() -> str:
    """Return the claims whose verdict changes when all margins are halved or doubled, as a table in Markdown."""
    everything = EXPERIMENTS | PLANNED
    said = _judge(experiments=everything)
    halved, doubled = (_judge(partial(_scale_margin, factor), experiments=everything) for factor in (0.5, 2.0))
    rows = [
        f"| {name} | {claim} | {one.outcome} | {halved[name, claim].outcome} | {doubled[name, claim].outcome} |"
        for (name, claim), one in said.items()
        if not one.outcome == halved[name, claim].outcome == doubled[name, claim].outcome
    ]
    head = "| figure | claim | verdict | at half the margin | at twice the margin |\n| --- | --- | --- | --- | --- |\n"
    return head + "\n".join(rows)


def _scale_margin(factor: float, claim: Claim) -> Claim:
    if isinstance(claim.margin, Factor):
        return replace(claim, margin=Factor(claim.margin**factor))
    return replace(claim, margin=factor * claim.margin)


def _judge(
    change: Callable[[Claim], Claim] = lambda claim: claim,
    of_few: Callable[[Any], Judgeable] | None = None,
    experiments: Mapping[str, Experiment] = EXPERIMENTS,
) -> dict[Key, Verdict]:
    """The verdicts on all claims, with every comparison of two groups changed."""
    asked = [one for experiment in experiments.values() for one in experiment.calculations("paper")]
    results = calculations.cached_results(asked, ROOT / "results")
    found: dict[Key, Verdict] = {}
    for name, experiment in experiments.items():
        runs = FigureRuns("paper", tuple(experiment.groups("paper")), records(), results)
        for claims_of, planned in ((experiment.claims, True), (experiment.later_claims, False)):
            family = [_changed(claim, change, of_few) for claim in claims_of(runs)]
            found |= {(name, verdict.claim): verdict for verdict in judge(family, planned=planned)}
    return found


def _changed(claim: Any, change: Callable[[Claim], Claim], of_few: Callable[[Any], Judgeable] | None) -> Any:
    """The same claim of changed comparisons; orders, which compare no two groups, stay."""
    if isinstance(claim, Claim):
        return change(claim)
    if isinstance(claim, OrderClaim):
        return claim
    if isinstance(claim, Every):
        return replace(claim, parts={name: _changed(part, change, of_few) for name, part in claim.parts.items()})
    if of_few is not None and hasattr(claim, "by_seed"):
        return of_few(claim)
    return replace(claim, claim=_changed(claim.claim, change, of_few))
