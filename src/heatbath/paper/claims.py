"""Kinds of claims that figures make, built from `heatbath.stats.verdicts.Claim` so that `judge` can weigh them all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist
from typing import Literal

from heatbath.paper.groups import Found, Group, Quantity
from heatbath.stats.verdicts import Claim, Evidence, Factor, Judgeable
from heatbath.tasks.registry import Margin

# Seeds of a group, from which on runs are compared by seed. A pair has the weights and the order of the images in
# common; that often makes runs alike, and with ten of them the degrees of freedom that pairs lose matter little.
PAIRED_FROM = 10
LOSS_MARGIN = Factor(math.exp(0.1))  # of a training loss: about a tenth of it, which a plot on a log axis shows


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
        # Bootstrap p-values have a least value, which several parts may share: then the lowest interval is the weakest.
        weakest = max(found, key=lambda n: (found[n].p_if_false, -found[n].p_if_true, -found[n].interval.low))
        against = min(1.0, len(found) * min(evidence.p_if_true for evidence in found.values()))
        numbers = f"the hardest of {len(found)} comparisons, {weakest}: {found[weakest].numbers}"
        return Evidence(
            found[weakest].p_if_false,
            against,
            found[weakest].interval,
            numbers if len(found) > 1 else f"{weakest}: {found[weakest].numbers}",
            self._seeds(found, error, power),
        )

    def _seeds(self, found: Mapping[str, Evidence], error: float, power: float) -> int | None:
        """How many seeds would settle it: against it, if the data speak against a part, else for all of them."""
        failing = [name for name, evidence in found.items() if evidence.p_if_true < evidence.p_if_false]
        if failing:
            stricter = [self.parts[name].weigh(error / len(found), power) for name in failing]
            known = [one.seeds_needed for one in stricter if not isinstance(one, str) and one.seeds_needed is not None]
            return min(known, default=None)
        needed = [evidence.seeds_needed for evidence in found.values() if evidence.seeds_needed is not None]
        return _jointly(needed, error, power) if len(needed) == len(found) else None


@dataclass(frozen=True)
class Near:
    """That the mean of a group is a given number, to a margin; a one-sample t test on either side.

    It trusts the values to be about normally distributed, more than a comparison of two groups does: see `judge`.

    Attributes:
        per_seed: whether there is a value for each seed of a training, so that more seeds could settle the claim.
    """

    statement: str
    values: Sequence[float]
    target: float
    margin: float
    per_seed: bool = True

    def weigh(self, error: float, power: float) -> Evidence | str:
        """Return the evidence."""
        found = _against_number("equal", self.statement, self.values, self.target, self.margin, error, power)
        return found if isinstance(found, str) or self.per_seed else found._replace(seeds_needed=None)


@dataclass(frozen=True)
class Above:
    """That the mean of a group is above a given number; a one-sample t test."""

    statement: str
    values: Sequence[float]
    target: float
    margin: float = 0.0

    def weigh(self, error: float, power: float) -> Evidence | str:
        """Return the evidence."""
        return _against_number("greater", self.statement, self.values, self.target, self.margin, error, power)


def equal(
    found: Found,
    statement: str,
    a: Group,
    b: Group,
    quantity: Quantity,
    margin: float,
    of_b: Quantity | None = None,
) -> Judgeable:
    """Return the claim that two groups agree in a quantity, or one in it and the other in ``of_b``, to a margin."""
    return _compare(found, "equal", statement, (a, quantity), (b, of_b or quantity), margin)


def greater(found: Found, statement: str, a: Group, b: Group, quantity: Quantity, margin: float = 0.0) -> Judgeable:
    """Return the claim that the first group exceeds the second in a quantity by more than the margin."""
    return _compare(found, "greater", statement, (a, quantity), (b, quantity), margin)


def not_worse(found: Found, statement: str, a: Group, b: Group, quantity: Quantity, margin: float) -> Judgeable:
    """Return the claim that the first group does not fall short of the second by the margin."""
    return greater(found, statement, a, b, quantity, Factor(1.0 / margin) if isinstance(margin, Factor) else -margin)


def all_equal(
    found: Found, statement: str, groups: Sequence[Group], quantities: Quantity | Sequence[Quantity], margin: float
) -> Every:
    """Return the claim that each two of the groups agree to a margin, in one quantity or several."""
    several = (quantities,) if isinstance(quantities, Quantity) else quantities
    return Every(
        statement,
        {
            f"{a.label} against {b.label}{f' {one.title}' if len(several) > 1 else ''}": equal(
                found, statement, a, b, one, margin
            )
            for one in several
            for a, b in combinations(groups, 2)
        },
    )


def describe_margins(groups: Sequence[Group]) -> dict[str, str]:
    """Return what counts as equal, and why, in words."""
    reasons = list(dict.fromkeys(_margin(group).reason for group in groups))
    if not reasons:
        return {}
    losses = f"geometric means of training losses within {LOSS_MARGIN:.4g}"
    return {"margins": f"accuracies are equal within {'; '.join(reasons)}; {losses}"}


def accuracy_margin(group: Group) -> float:
    """Return by how much accuracies on the group's data may differ and count as equal."""
    return _margin(group).size


def _compare(
    found: Found,
    kind: Literal["equal", "greater"],
    statement: str,
    a: tuple[Group, Quantity],
    b: tuple[Group, Quantity],
    margin: float,
) -> Judgeable:
    """A claim on two groups, tested by seed where the groups have seeds enough for that."""
    by_seed = Claim(statement, kind, *found.pairs(a, b), margin, paired=True)
    if min(a[0].seeds, b[0].seeds) >= PAIRED_FROM:
        return by_seed
    return _FewSeeds(Claim(statement, kind, found.values(*a), found.values(*b), margin), by_seed)


@dataclass(frozen=True)
class _FewSeeds:
    """A claim on groups of fewer than `PAIRED_FROM` seeds; if it needs as many, they will be compared by seed."""

    claim: Claim
    by_seed: Claim

    @property
    def statement(self) -> str:
        return self.claim.statement

    @property
    def margin(self) -> float:
        return self.claim.margin

    def weigh(self, error: float, power: float) -> Evidence | str:
        found = self.claim.weigh(error, power)
        if isinstance(found, str) or found.seeds_needed is None or found.seeds_needed < PAIRED_FROM:
            return found
        later = self.by_seed.weigh(error, power)
        if isinstance(later, str) or later.seeds_needed is None:
            return found
        return found._replace(seeds_needed=max(PAIRED_FROM, later.seeds_needed))


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


def _margin(group: Group) -> Margin:
    return group.config.network.margins[group.config.dataset]


def _against_number(
    kind: Literal["equal", "greater"],
    statement: str,
    values: Sequence[float],
    target: float,
    margin: float,
    error: float,
    power: float,
) -> Evidence | str:
    """The evidence of a one-sample test, which is Welch's against a group without spread."""
    if len(values) == 0:
        return "nothing to compare yet: n = 0"
    found = Claim(statement, kind, [*values], (target, target), margin).weigh(error, power)
    if isinstance(found, str):
        return found
    mean = math.fsum(values) / len(values)
    numbers = f"{mean:.5g} (n = {len(values)}) against {target:.5g}, difference {found.interval}"
    return found._replace(numbers=numbers)
