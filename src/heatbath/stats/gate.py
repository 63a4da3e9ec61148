"""Is a new group no worse than the one that a verdict was made from? For the continuous integration of somebody."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from heatbath.stats.samples import Sample, pair
from heatbath.stats.verdict_files import read_verdict
from heatbath.stats.verdicts import Claim, Factor, Verdict, judge

Answer = Literal["not worse", "worse", "undecided"]


class Gated(NamedTuple):
    """What a gate says.

    Attributes:
        answer: certainly not worse by the margin, certainly worse by it, or undecided.
        baseline: the name of the group that was compared with.
        metric: what was compared.
        verdict: the numbers.
        notes: what was left out or not paired, in words.
    """

    answer: Answer
    baseline: str
    metric: str
    verdict: Verdict
    notes: tuple[str, ...]


class Baseline(NamedTuple):
    """One group of a verdict.

    Attributes:
        group: its numbers.
        metric: what they are.
        lower_is_better: whether a smaller one is better.
        margin: of the verdict; None if it had none.
    """

    group: Sample
    metric: str
    lower_is_better: bool
    margin: float | None


def read_baseline(path: Path, name: str | None = None) -> Baseline:
    """Return the group of a verdict that later ones are to keep up with: by its name, or the better one.

    Of groups that are equal, or not told apart, it is the first.

    Raises:
        ValueError: the file is no verdict, or has no such group, or several comparisons and no name was given.
    """
    comparisons, groups = read_verdict(path)
    names = list(dict.fromkeys(one[side] for one in comparisons for side in ("a", "b")))
    if name is None and len(comparisons) > 1:
        raise ValueError(f"{path} has {len(comparisons)} comparisons: say which group counts, of {', '.join(names)}")
    if name is not None and name not in names:
        raise ValueError(f"{path} has no group {name!r}: choose one of {', '.join(names)}")
    one = next(one for one in comparisons if name in (None, one["a"], one["b"]))
    chosen = name or one["b" if one["verdict"] == "worse" else "a"]
    return Baseline(groups[f"{chosen} {one['metric']}"], one["metric"], one["lower_is_better"], one["margin"])


def gate(baseline: Baseline, new: Sample, margin: float, level: float = 0.95) -> Gated:
    """Return whether a new group is worse than a baseline by a margin: a test of non-inferiority, one-sided each way.

    Args:
        baseline: what to keep up with.
        new: the new group.
        margin: how much worse is no matter; a `Factor` for a ratio of geometric means.
        level: the chance that "not worse" is right, and that "worse" is.
    """
    first, second, by_seed, notes = pair(new, baseline.group)
    allowed = Factor(1.0 / margin) if isinstance(margin, Factor) else -margin
    kind: Literal["less", "greater"] = "less" if baseline.lower_is_better else "greater"
    statement = f"{new.name} is not worse than {baseline.group.name}"
    (verdict,) = judge([Claim(statement, kind, first.values, second.values, allowed, by_seed)], level)
    answers: dict[str, Answer] = {"confirmed": "not worse", "contradicted": "worse", "undecided": "undecided"}
    return Gated(answers[verdict.outcome], baseline.group.name, baseline.metric, verdict, notes)
