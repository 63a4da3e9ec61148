"""Kinds of claims that figures make, built from `heatbath.statistics.Claim` so that `judge` can weigh them all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heatbath.paper.groups import Found, Group, Quantity
from heatbath.statistics import Claim, Evidence, Judgeable

# Margins of "equal", in accuracy. Each is about the smallest difference that a reader of the paper's plots could see.
MARGINS = {"mnist": 0.002, "mnist5k": 0.01, "cifar10": 0.005}
_REASONS = {
    "mnist": "0.002 on MNIST, a tenth of the error that is left",
    "mnist5k": "0.01 on the embedded data, ten of the 1,000 test images",
    "cifar10": "0.005 on CIFAR-10, the paper's standard deviation between seeds",
}
LOSS_MARGIN = 0.1  # of the logarithm of a training loss: a tenth of the loss, which a plot on a log axis shows


@dataclass(frozen=True)
class Not:
    """The contrary of a claim."""

    statement: str
    claim: Judgeable

    @property
    def margin(self) -> float:
        """That of the claim."""
        return self.claim.margin

    def weigh(self, error: float, power: float) -> Evidence | str:
        """Return the evidence with its sides changed."""
        found = self.claim.weigh(error, power)
        return found if isinstance(found, str) else found._replace(p_if_false=found[1], p_if_true=found[0])


@dataclass(frozen=True)
class Every:
    """That each of several claims holds: an intersection-union test.

    It is as likely as its least likely part, so the largest p-value speaks for it; against it speaks any part alone,
    whose smallest p-value is multiplied by their number (Bonferroni).

    Attributes:
        statement: the claim in one sentence.
        parts: the claims by the name of what they compare.
    """

    statement: str
    parts: Mapping[str, Judgeable]

    @property
    def margin(self) -> float:
        """That of the parts."""
        return max((part.margin for part in self.parts.values()), default=0.0)

    def weigh(self, error: float, power: float) -> Evidence | str:
        """Return the evidence, with the numbers of the part that decides."""
        found: dict[str, Evidence] = {}
        for name, part in self.parts.items():
            evidence = part.weigh(error, power)
            if isinstance(evidence, str):
                return f"{name}: {evidence}"
            found[name] = evidence
        if not found:
            return "There is nothing to compare"
        weakest = max(found, key=lambda name: (found[name].p_if_false, -found[name].p_if_true))
        seeds = [evidence.seeds_needed for evidence in found.values()]
        against = min(1.0, len(found) * min(evidence.p_if_true for evidence in found.values()))
        numbers = f"of {len(found)} the hardest, {weakest}: {found[weakest].numbers}"
        return Evidence(
            found[weakest].p_if_false,
            against,
            found[weakest].interval,
            numbers if len(found) > 1 else f"{weakest}: {found[weakest].numbers}",
            None if None in seeds else max(seed for seed in seeds if seed is not None),
        )


@dataclass(frozen=True)
class Near:
    """That the mean of a group is a given number, to a margin; a one-sample t test on either side.

    Attributes:
        per_seed: whether there is a value for each seed of a training, so that more seeds could settle the claim.
    """

    statement: str
    values: Sequence[float]
    target: float
    margin: float
    per_seed: bool = True

    def weigh(self, error: float, power: float) -> Evidence | str:
        """Return the evidence; Welch's test against a group without spread is the one-sample test."""
        values = [*self.values]
        if not values:
            return "nothing to compare yet: n = 0"
        found = Claim(self.statement, "equal", values, (self.target, self.target), self.margin).weigh(error, power)
        if isinstance(found, str):
            return found
        mean = math.fsum(values) / len(values)
        numbers = f"{mean:.5g} (n = {len(values)}) against {self.target:.5g}, difference {found.interval}"
        return found._replace(numbers=numbers, seeds_needed=found.seeds_needed if self.per_seed else None)


def equal(found: Found, statement: str, a: Group, b: Group, quantity: Quantity, margin: float) -> Claim:
    """Return the claim that two groups agree in a quantity to a margin."""
    return Claim(statement, "equal", found.values(a, quantity), found.values(b, quantity), margin)


def greater(found: Found, statement: str, a: Group, b: Group, quantity: Quantity, margin: float = 0.0) -> Claim:
    """Return the claim that the first group exceeds the second in a quantity by more than the margin."""
    return Claim(statement, "greater", found.values(a, quantity), found.values(b, quantity), margin)


def not_worse(found: Found, statement: str, a: Group, b: Group, quantity: Quantity, margin: float) -> Claim:
    """Return the claim that the first group does not fall short of the second by the margin."""
    return greater(found, statement, a, b, quantity, -margin)


def all_equal(found: Found, statement: str, groups: Sequence[Group], quantity: Quantity, margin: float) -> Every:
    """Return the claim that every group agrees with the random one (the first, if there is none) to a margin."""
    first = next((group for group in groups if group.label == "random"), groups[0])
    others = [group for group in groups if group is not first]
    return Every(
        statement,
        {f"{first.label} against {g.label}": equal(found, statement, first, g, quantity, margin) for g in others},
    )


def describe_margins(groups: Sequence[Group]) -> dict[str, str]:
    """Return what counts as equal, and why, in words."""
    reasons = [_REASONS[name] for name in dict.fromkeys(group.config.dataset for group in groups)]
    if not reasons:
        return {}
    losses = "training losses within a tenth of them, by their logarithms"
    return {"margins": f"accuracies are equal within {'; '.join(reasons)}; {losses}"}


def accuracy_margin(group: Group) -> float:
    """Return by how much accuracies on the group's data may differ and count as equal."""
    return MARGINS[group.config.dataset]
