"""Verdicts as small JSON files, and gates: is a new group no worse than the one that a verdict was made from?

For the continuous integration of somebody.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, NamedTuple

from heatbath.stats import wording
from heatbath.stats.comparison import Comparison, Comparisons
from heatbath.stats.intervals import as_sample
from heatbath.stats.samples import Sample, digest, pair
from heatbath.stats.verdicts import Claim, Factor, Verdict, judge
from heatbath.system.whole_files import whole_file

Answer = Literal["not worse", "worse", "undecided"]
_ANSWERS: dict[str, Answer] = {"confirmed": "not worse", "contradicted": "worse", "undecided": "undecided"}
_FORMAT = 1


class Gated(NamedTuple):
    """What a gate says."""

    answer: Answer  # certainly not worse by the margin, certainly worse by it, or undecided
    baseline: str  # the name of the group that was compared with
    metric: str  # what was compared
    margin: float  # how much worse is no matter
    verdict: Verdict  # the numbers
    notes: tuple[str, ...]  # what was left out or not paired, in words

    @property
    def sentence(self) -> str:
        """The answer and the numbers behind it, in words."""
        return wording.gate(self.answer, self.verdict, self.baseline, self.metric, self.margin)


class Baseline(NamedTuple):
    """One group of a verdict: its numbers, what they are, whether lower is better, and the margin, if there was one."""

    group: Sample
    metric: str
    lower_is_better: bool
    margin: float | None


def write_verdict(path: Path, found: Comparison | Comparisons, version: str) -> None:
    """Write one comparison or several to a file, with the version of heatbath."""
    several = Comparisons((found,), 1.0 - found.error) if isinstance(found, Comparison) else found
    contents = {"format": _FORMAT, "heatbath": version, **several.to_dict()}
    with whole_file(path) as file:
        file.write(json.dumps({**contents, "digest": _digest(contents)}, indent=1, allow_nan=False).encode() + b"\n")


def read_verdict(path: Path) -> tuple[list[dict[str, Any]], dict[str, Sample]]:
    """Return the comparisons of a file, as `Comparison.summary` gives them, and its groups by their names and metrics.

    What is no verdict, was written by a later version, or has been changed is refused.
    """
    try:
        contents = json.loads(path.read_text())
        given = contents.pop("digest")
        version, comparisons, groups = contents["format"], contents["comparisons"], contents["groups"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{path} is not a verdict of 'heatbath compare --export'") from None
    if version != _FORMAT:
        raise ValueError(f"{path} was written by a later version of heatbath (format {version})")
    if given != _digest(contents):
        raise ValueError(f"{path} has been changed since it was written: its digest is another one")
    for one in comparisons:
        one["margin"] = Factor(one["margin"]) if one["relative"] and one["margin"] else one["margin"]
    return comparisons, {f"{group['name']} {group['metric']}": _group(group) for group in groups}


def read_baseline(path: Path, name: str | None = None) -> Baseline:
    """Return the group of a verdict that later ones are to keep up with: by its name, or the better one.

    Of groups that are equal, or not told apart, it is the first. Of several comparisons a name must be given.
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

    A margin that is a `Factor` is for the ratio of geometric means. The level is the chance that "not worse" is right,
    and that "worse" is.
    """
    first, second, by_seed, notes = pair(new, baseline.group)
    allowed = Factor(1.0 / margin) if isinstance(margin, Factor) else -margin
    statement = f"{new.name} is not worse than {baseline.group.name}"
    kind: Literal["less", "greater"] = "less" if baseline.lower_is_better else "greater"
    (verdict,) = judge([Claim(statement, kind, first.values, second.values, allowed, by_seed)], level)
    return Gated(_ANSWERS[verdict.outcome], baseline.group.name, baseline.metric, margin, verdict, notes)


def _group(values: dict[str, Any]) -> Sample:
    numbers = as_sample(values["values"])
    seeds = None if values["seeds"] is None else tuple(values["seeds"])
    return Sample(
        values["name"], numbers, seeds, values["metric"], "", tuple(values["digests"]), tuple(values["versions"])
    )


def _digest(contents: dict[str, Any]) -> str:
    return digest(json.dumps(contents, sort_keys=True))
