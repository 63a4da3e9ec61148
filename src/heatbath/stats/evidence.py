"""What the data of one claim say: numbers first, and the one place that puts them into words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from heatbath.stats.intervals import Interval

Measure = Literal["difference", "ratio", "explained", "lead"]
Obstacle = Literal["empty", "broken", "one seed", "no spread", "no order"]
_MANY = 1000  # seeds: where more are needed the difference is as large as the margin, and their number a guess
_DIGITS: dict[Measure, int] = {"difference": 5, "ratio": 4}


@dataclass(frozen=True)
class Evidence:
    """What the data of one claim say.

    Attributes:
        p_if_false: how likely data this much in favour are if the claim is false; a small one confirms.
        p_if_true: how likely data this much against it are if it is true; a small one contradicts.
        interval: of what is judged; None where there is nothing to judge.
        measure: what the interval is of: a difference of two means, the ratio of two geometric means, the variance
            between groups that an order explains, or by how much one order explains more than another.
        means: of both groups, or of one group and the number it is compared with.
        sizes: the values in each group, of pairs or of groups, 0 for a number; of an order its groups and all values.
        paired: whether the groups are compared seed by seed.
        obstacle: why there is no test, if there is none.
        broken: values that are no numbers.
        part: the comparison that these numbers are of, for a claim that makes several.
        parts: how many comparisons the claim makes.
    """

    p_if_false: float = 1.0
    p_if_true: float = 1.0
    interval: Interval | None = None
    measure: Measure = "difference"
    means: tuple[float, float] = (0.0, 0.0)
    sizes: tuple[int, int] = (0, 0)
    paired: bool = False
    obstacle: Obstacle | None = None
    broken: int = 0
    part: str = ""
    parts: int = 0

    @property
    def freedom(self) -> int:
        """The degrees of freedom of the spread between seeds."""
        first, second = self.sizes
        if self.measure in ("explained", "lead"):
            return second - first
        return first - 1 if self.paired or not second else first + second - 2

    def __str__(self) -> str:
        """The numbers in words, such as ``0.741 (n = 10) against 0.738 (n = 5), difference 0.0031 (95 %: ...)``."""
        if not self.part:
            return self._numbers()
        chosen = f"the hardest of {self.parts} comparisons, " if self.parts > 1 and self.interval else ""
        return f"{chosen}{self.part}: {self._numbers()}"

    def _numbers(self) -> str:
        if self.interval is None:
            return self._nothing()
        if self.measure in ("explained", "lead"):
            verb = "explains" if self.measure == "explained" else "leads in explaining by"
            return f"{verb} {self.interval} of the variance between {self.sizes[0]} groups"
        first, second = (f"{mean:.{_DIGITS[self.measure]}g}" for mean in self.means)
        if self.paired:
            compared = f"{first} against {second} (n = {self.sizes[0]} pairs)"
        else:
            of_second = f" (n = {self.sizes[1]})" if self.sizes[1] else ""
            compared = f"{first} (n = {self.sizes[0]}) against {second}{of_second}"
        reason = {"one seed": ": one seed does not tell the spread"}
        reason |= {"no spread": ": without a spread between seeds there is no test"}
        return f"{compared}, {self.measure} {self.interval}{reason.get(self.obstacle or '', '')}"

    def _nothing(self) -> str:
        if self.obstacle == "broken":
            values = f"{self.broken} of {sum(self.sizes)} values"
            return f"no number in {values}: runs diverged, are missing or too short"
        if self.obstacle == "no order":
            return "orders can be judged by two or more finite values in each group, of means that differ"
        return f"nothing to compare yet: n = {self.sizes[0]} against n = {self.sizes[1]}"


class SeedsNeeded(NamedTuple):
    """How many seeds per group would decide: if difference and spread are as they seem, and for other spreads.

    The range is for spreads between the ends of their own 80 % interval, which is wide when there are few seeds.
    """

    about: int
    low: int
    high: int


def seeds_in_words(about: int, low: int | None = None, high: int | None = None) -> str:
    """Return a number of seeds in words, to two digits, such as ``about 40 seeds``, or with its range (31 to 76)."""
    if about > _MANY:
        return f"over {_MANY} seeds"
    if low is None or high is None or low == high:
        return f"about {_rounded(about)} seeds"
    return f"about {_rounded(about)} seeds ({_rounded(low)} to {_rounded(high) if high <= _MANY else f'over {_MANY}'})"


def _rounded(seeds: int) -> int:
    unit = int(10 ** max(0, len(str(seeds)) - 2))
    return -(-seeds // unit) * unit
