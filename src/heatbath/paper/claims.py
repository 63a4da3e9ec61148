"""Kinds of claims that figures make, built from `heatbath.stats.verdicts.Claim` so that `judge` can weigh them all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import NormalDist
from typing import Literal

from heatbath.paper.groups import FigureRuns, Group
from heatbath.paper.quantities import Quantity
from heatbath.stats.verdicts import Claim, Evidence, Factor, Judgeable
from heatbath.tasks.registry import Margin

# Seeds of a group, from which on runs are compared by seed. A pair has the weights and the order of the images in
# common; that often makes runs alike, and with ten of them the degrees of freedom that pairs lose matter little.
PAIRED_FROM = 10
Pair = Sequence[Group]
LOSS_MARGIN = Factor(math.exp(0.1))  # of a training loss: about a tenth of it, which a plot on a log axis shows


@dataclass(frozen=True)
class _Reading:
    """A claim that is read in another way."""

    claim: Judgeable

    @property
    def statement(self) -> str:
        """That of the claim."""
        return self.claim.statement

    @property
    def margin(self) -> float:
        """That of the claim."""
        return self.claim.margin

    def weigh(self, error: float) -> Evidence:
        """Return the evidence of the claim."""
        return self.claim.weigh(error)

    def seeds_needed(self, error: float, power: float, spread: float = 1.0) -> int | None:
        """Return those of the claim."""
        return self.claim.seeds_needed(error, power, spread)


@dataclass(frozen=True)
class Not(_Reading):
    """The contrary of a claim, whose statement says that it is."""

    def weigh(self, error: float) -> Evidence:
        """Return the evidence with its sides changed."""
        found = self.claim.weigh(error)
        return replace(found, p_if_false=found.p_if_true, p_if_true=found.p_if_false)


@dataclass(frozen=True)
class _FewSeeds(_Reading):
    """A claim on groups of fewer than `PAIRED_FROM` seeds; if it needs as many, they will be compared by seed."""

    by_seed: Claim

    def seeds_needed(self, error: float, power: float, spread: float = 1.0) -> int | None:
        needed = self.claim.seeds_needed(error, power, spread)
        if needed is None or needed < PAIRED_FROM:
            return needed
        later = self.by_seed.seeds_needed(error, power, spread)
        return needed if later is None else max(PAIRED_FROM, later)


@dataclass(frozen=True)
class _AgainstNumber(_Reading):
    """A claim on a group and a number: a one-sample test, which is Welch's against a group without spread."""

    per_seed: bool = True

    def weigh(self, error: float) -> Evidence:
        found = self.claim.weigh(error)
        return replace(found, sizes=(found.sizes[0], 0))

    def seeds_needed(self, error: float, power: float, spread: float = 1.0) -> int | None:
        return self.claim.seeds_needed(error, power, spread) if self.per_seed else None


@dataclass(frozen=True)
class Every:
    """That each of several claims, by the name of what they compare, holds: an intersection-union test.

    It is as likely as its least likely part, so the largest p-value speaks for it; against it speaks any part alone,
    whose smallest p-value is multiplied by their number (Bonferroni).
    """

    statement: str
    parts: Mapping[str, Judgeable]

    @property
    def margin(self) -> float:
        """That of the parts."""
        return max((part.margin for part in self.parts.values()), default=0.0)

    def weigh(self, error: float) -> Evidence:
        """Return the evidence, with the numbers of the part that decides."""
        found = {name: part.weigh(error) for name, part in self.parts.items()}
        for name, evidence in found.items():
            if evidence.interval is None:
                return replace(evidence, part=name, parts=len(found))
        if not found:
            return Evidence(obstacle="empty")
        # Bootstrap p-values have a least value, which several parts may share: then the lowest interval is the weakest.
        weakest = max(found, key=lambda name: _weakness(found[name]))
        against = min(1.0, len(found) * min(evidence.p_if_true for evidence in found.values()))
        return replace(found[weakest], p_if_true=against, part=weakest, parts=len(found))

    def seeds_needed(self, error: float, power: float, spread: float = 1.0) -> int | None:
        """Return how many seeds settle it: against it, if the data speak against a part, else for all of them."""
        found = {name: part.weigh(error) for name, part in self.parts.items()}
        if not found or any(evidence.interval is None for evidence in found.values()):
            return None
        failing = [name for name, evidence in found.items() if evidence.p_if_true < evidence.p_if_false]
        if failing:
            against = [self.parts[name].seeds_needed(error / len(found), power, spread) for name in failing]
            return min((seeds for seeds in against if seeds is not None), default=None)
        each = [part.seeds_needed(error, power, spread) for part in self.parts.values()]
        needed = [seeds for seeds in each if seeds is not None]
        return _jointly(needed, error, power) if len(needed) == len(found) else None


def near(statement: str, values: Sequence[float], target: float, margin: float, *, per_seed: bool = True) -> Judgeable:
    """Return the claim that the mean of a group is a given number, to a margin; a one-sample t test on either side.

    It trusts the values to be about normally distributed, more than a comparison of two groups does: see `judge`. More
    seeds could settle it if there is a value for each seed of a training, ``per_seed``.
    """
    return _AgainstNumber(Claim(statement, "equal", values, (target, target), margin), per_seed)


def above(statement: str, values: Sequence[float], target: float) -> Judgeable:
    """Return the claim that the mean of a group is above a given number; a one-sample t test."""
    return _AgainstNumber(Claim(statement, "greater", values, (target, target)))


def equal(
    found: FigureRuns,
    statement: str,
    pair: Pair,
    quantity: Quantity,
    margin: float | None = None,
    of_second: Quantity | None = None,
) -> Judgeable:
    """Return the claim that two groups agree in a quantity, or one in it and the second in another, to a margin."""
    margin = _margin_of(quantity, pair[0]) if margin is None else margin
    return _compare(found, "equal", statement, pair, quantity, margin, of_second)


def greater(found: FigureRuns, statement: str, pair: Pair, quantity: Quantity) -> Judgeable:
    """Return the claim that the first group exceeds the second in a quantity."""
    return _compare(found, "greater", statement, pair, quantity, 0.0)


def not_worse(found: FigureRuns, statement: str, pair: Pair, quantity: Quantity) -> Judgeable:
    """Return the claim that the first group does not fall short of the second in an accuracy by the margin."""
    return _compare(found, "greater", statement, pair, quantity, -accuracy_margin(pair[0]))


def every_pair(
    compare: Callable[[FigureRuns, str, Pair, Quantity], Judgeable],
    found: FigureRuns,
    statement: str,
    pairs: Iterable[Pair],
    quantity: Quantity,
) -> Every:
    """Return the claim that a comparison, such as `greater`, holds of every pair of groups."""
    return Every(
        statement, {f"{a.label} against {b.label}": compare(found, statement, (a, b), quantity) for a, b in pairs}
    )


def all_equal(
    found: FigureRuns, statement: str, groups: Sequence[Group], *quantities: Quantity, margin: float | None = None
) -> Every:
    """Return the claim that each two of the groups agree to a margin, in one quantity or several."""
    return Every(
        statement,
        {
            f"{a.label} against {b.label}" + f" {one.title}" * (len(quantities) > 1): equal(
                found, statement, (a, b), one, margin
            )
            for one in quantities
            for a, b in combinations(groups, 2)
        },
    )


def describe_margins(groups: Sequence[Group]) -> dict[str, str]:
    """Return what counts as equal, and why, in words."""
    reasons = list(dict.fromkeys(_accuracy_margin(group).reason for group in groups))
    losses = f"geometric means of training losses within {LOSS_MARGIN:.4g}"
    return {"margins": f"accuracies are equal within {'; '.join(reasons)}; {losses}"} if reasons else {}


def accuracy_margin(group: Group) -> float:
    """Return by how much accuracies on the group's data may differ and count as equal."""
    return _accuracy_margin(group).size


def _accuracy_margin(group: Group) -> Margin:
    return group.config.network.margins[group.config.dataset]


def _margin_of(quantity: Quantity, group: Group) -> float:
    return LOSS_MARGIN if quantity.by_ratio else accuracy_margin(group)


def _compare(
    found: FigureRuns,
    kind: Literal["equal", "greater"],
    statement: str,
    pair: Pair,
    quantity: Quantity,
    margin: float,
    of_second: Quantity | None = None,
) -> Judgeable:
    """A claim on two groups, tested by seed where the groups have seeds enough for that."""
    a, b = (pair[0], quantity), (pair[1], of_second or quantity)
    first, second = found.pairs(a, b)
    by_seed = Claim(statement, kind, first, second, margin, paired=True)
    if min(group.seeds for group in pair) >= PAIRED_FROM:
        return by_seed
    return _FewSeeds(Claim(statement, kind, found.values(*a), found.values(*b), margin), by_seed)


def _weakness(evidence: Evidence) -> tuple[float, float, float]:
    low = -math.inf if evidence.interval is None else evidence.interval.low
    return evidence.p_if_false, -evidence.p_if_true, -low


def _jointly(needed: Sequence[int], error: float, power: float) -> int:
    """Return how many seeds settle all parts at once, where each alone needs its own number, to one part in 100.

    A part that needs ``m`` seeds is at ``n`` of them ``z = (z_error + z_power) sqrt(n / m)`` standard errors off its
    margin, and fails with the chance ``Phi(z_error - z)``. These chances are to add up to ``1 - power`` at most.
    """
    normal = NormalDist()
    bound, n = normal.inv_cdf(1.0 - error), max(needed)
    reach = bound + normal.inv_cdf(power)
    allowed = (1.0 - power) * (1.0 + 1e-6)  # so that rounding asks a single part for no more than it needs
    while sum(normal.cdf(bound - reach * math.sqrt(n / own)) for own in needed) > allowed:
        n += max(1, n // 100)
    return n
