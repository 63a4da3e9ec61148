"""Looks at data that grow: how much of the error each planned look may take.

Seeds that are added until a test passes make it pass too often. A plan names the numbers of seeds at which one will
look. Up to the fraction ``t`` of the last one, the share ``t^1.5`` of the error is spent; a look takes what has come
since the one before. The shares add up to the whole, so the chance that any look errs is at most that, for every test
and every dependence between looks (Bonferroni). Boundaries that use the correlation of the looks gain 1 to 2 % of power
but exceed the error with few seeds: at 5, 10, 20 and 40 pairs 0.0515 for 0.05, since t values of few pairs are less
correlated than the Brownian motion that those boundaries suppose.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from heatbath.draws import check_integer

_POWER = 1.5  # of the spending: larger saves more for the last look, smaller decides more at the first ones


class Look(NamedTuple):
    """One look of a plan."""

    number: int  # which one, from 1 on
    seeds: int  # how many seeds per group it takes
    plan: tuple[int, ...]  # the numbers of seeds of all looks
    share: float  # of the error, that this look may take


def plan_looks(looks: Sequence[int]) -> tuple[Look, ...]:
    """Return the looks of a plan, rising numbers of seeds per group, with their shares of the error."""
    if isinstance(looks, int | str) or not isinstance(looks, Sequence):
        raise TypeError(f"looks must be numbers of seeds such as (5, 10, 20, 40), got {looks!r}")
    plan = tuple(check_integer("looks", seeds, least=2) for seeds in looks)
    if not plan or any(later <= earlier for earlier, later in pairwise(plan)):
        raise ValueError(f"looks must be rising numbers of seeds such as (5, 10, 20, 40), got {tuple(looks)!r}")
    spent = [(seeds / plan[-1]) ** _POWER for seeds in plan]
    shares = [later - earlier for earlier, later in pairwise([0.0, *spent])]
    return tuple(Look(k, n, plan, share) for k, (n, share) in enumerate(zip(plan, shares, strict=True), start=1))


def doubling_looks(most: int, first: int = 5) -> tuple[int, ...]:
    """Return a plan that doubles its seeds from ``first`` to ``most``: 5, 10, 20, 40 for at most 40."""
    most = check_integer("max_seeds", most, least=2)
    looks = [most]
    while looks[0] >= 2 * first:
        looks.insert(0, -(-looks[0] // 2))
    return tuple(looks)
