"""Two groups of numbers, tested: is the first better, worse, or equal to the second within a margin?"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from heatbath.stats.assumptions import Check, check_assumptions
from heatbath.stats.intervals import Interval
from heatbath.stats.samples import Sample
from heatbath.stats.sequential import Look
from heatbath.stats.verdicts import Claim, Evidence, Factor, SeedsNeeded, range_of_seeds

Outcome = Literal["better", "worse", "equal", "undecided"]


@dataclass(frozen=True, eq=False, repr=False)  # arrays have no single truth to compare
class PairTest:
    """What two groups say: the answer to "is ``a`` better than ``b``?".

    Better and worse mean that the sign of the difference is certain, equal that the difference is certainly within the
    margin, which wins where both are so. The chance of a wrong verdict is at most ``error``: if the means are equal,
    of better and worse together; if they differ by the margin or more, of equal and the wrong sign together, as both
    need a bound of the difference that misses it on the same side; and in between the wrong sign alone is wrong.
    """

    metric: str  # what is compared
    a: Sample  # the first group; of pairs, with the seeds of both groups alone
    b: Sample  # the second group
    # by how much means may differ and count as equal; a `Factor` for the ratio of geometric means; None where only the
    # sign of the difference is asked for
    margin: float | None
    paired: bool  # whether seed is compared with seed (Student's t of the differences), or group with group (Welch's t)
    error: float  # the chance of a wrong verdict that this comparison may take
    family: int = 1  # how many comparisons share the error that was asked for
    lower_is_better: bool = False  # whether a smaller metric is a better one
    power: float = 0.9  # the chance to decide with ``seeds_needed``
    look: Look | None = None  # which of the planned looks decided, or is the last so far; None without a plan
    notes: tuple[str, ...] = ()  # what was left out, replaced or not paired, in words

    @cached_property
    def verdict(self) -> Outcome:
        """Whether ``a`` is better or worse than ``b``, equal to it within the margin, or nothing is decided."""
        if self.within is not None and self.within.p_if_false <= self.error:
            return "equal"
        if min(self.above.p_if_false, self.above.p_if_true) > 0.5 * self.error:
            return "undecided"
        is_above = self.above.p_if_false <= 0.5 * self.error
        return "better" if is_above != self.lower_is_better else "worse"

    @property
    def difference(self) -> float:
        """``mean(a) - mean(b)``; with a relative margin the ratio of their geometric means."""
        return self.interval.estimate

    @property
    def interval(self) -> Interval:
        """Of the difference, at the level ``1 - error``: it excludes 0 where the sign is certain."""
        return self.above.interval or Interval(math.nan, -math.inf, math.inf, 1.0 - self.error)

    @property
    def p(self) -> float:
        """The p-value behind the verdict, times the family: of "not equal" where it is equal, else of no difference."""
        if self.verdict == "equal" and self.within is not None:
            return min(1.0, self.family * self.within.p_if_false)
        return min(1.0, 2.0 * self.family * min(self.above.p_if_false, self.above.p_if_true))

    @property
    def is_beyond(self) -> bool:
        """Whether the difference is certainly larger than the margin: the whole interval is beyond it."""
        if self.margin is None:
            return False
        lowest = 1.0 / self.margin if self.is_relative else -self.margin
        return self.interval.low > self.margin or self.interval.high < lowest

    @property
    def is_relative(self) -> bool:
        """Whether geometric means are compared by their ratio, and not means by their difference."""
        return isinstance(self.margin, Factor)

    @property
    def is_open(self) -> bool:
        """Whether more seeds could decide something: the margin, or without one the sign."""
        return self.verdict == "undecided" or not (self.margin is None or self.verdict == "equal" or self.is_beyond)

    @cached_property
    def seeds_needed(self) -> SeedsNeeded | None:
        """How many seeds per group would decide what is open: the margin, or without one the sign; None if nothing is.

        None as well where nobody can say: without a spread, or with a difference just as large as the margin.
        """
        if not self.is_open:
            return None
        claim, error = self._above, 0.5 * self.error
        if self.margin is not None and abs(self._scaled(self.difference)) <= self._scaled(self.margin):
            claim, error = self._equal, self.error
        elif self.margin is not None:
            kind: Literal["greater", "less"] = "greater" if self.above.p_if_false < self.above.p_if_true else "less"
            claim = replace(claim, kind=kind, margin=self.margin)
        return range_of_seeds(claim, error, self.power, self.above.freedom)

    @cached_property
    def check(self) -> Check:
        """What speaks against the t test, and what a permutation test says instead."""
        a, b = (np.log(x.values) if self.is_relative else x.values for x in (self.a, self.b))
        margin = None if self.verdict != "equal" or self.margin is None else self._scaled(self.margin)
        return check_assumptions(a, b, paired=self.paired, margin=margin)

    @cached_property
    def above(self) -> Evidence:
        """What the data say of ``mean(a) > mean(b)``."""
        return self._above.weigh(0.5 * self.error)

    @cached_property
    def within(self) -> Evidence | None:
        """What the data say of equality within the margin; None without one."""
        return None if self.margin is None else self._equal.weigh(self.error)

    def _scaled(self, value: float) -> float:
        """A difference or margin of the numbers that are tested: logarithms, with a relative margin."""
        return math.log(value) if self.is_relative else value

    @cached_property
    def _above(self) -> Claim:
        margin = Factor(1.0) if self.is_relative else 0.0
        return Claim("", "greater", self.a.values, self.b.values, margin, self.paired)

    @property
    def _equal(self) -> Claim:
        return replace(self._above, kind="equal", margin=self.margin or 0.0)
