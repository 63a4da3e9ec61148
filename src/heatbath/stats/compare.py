"""Is A better than B? One call for anybody's numbers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import combinations
from numbers import Real
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

from heatbath.laws import check_number
from heatbath.stats.comparison import BestOf, Comparison, Comparisons, find_best
from heatbath.stats.looks import look_at, recorded_looks
from heatbath.stats.samples import is_lower_better, pair, read_sample, treat_diverged
from heatbath.stats.sequential import plan_looks
from heatbath.stats.verdicts import Margin, parse_margin

Metrics = str | Sequence[str] | None
Margins = Margin | Mapping[str, Margin]


class _More(TypedDict, total=False):
    level: float
    names: tuple[str, str]
    paired: bool | None
    diverged: str | float
    lower_is_better: bool | None
    power: float
    looks: Sequence[int] | None
    history: str | os.PathLike[str] | None


@overload
def compare(a: Any, b: Any, metric: str | None = None, margin: Margin = None, **more: Unpack[_More]) -> Comparison: ...
@overload
def compare(
    a: Any,
    b: Any = None,
    metric: Metrics = None,
    margin: Margins = None,
    *,
    against: Literal["best"],
    **more: Unpack[_More],
) -> BestOf: ...
@overload
def compare(
    a: Any,
    b: Any = None,
    metric: Metrics = None,
    margin: Margins = None,
    *,
    against: str | None = None,
    **more: Unpack[_More],
) -> Comparisons: ...
def compare(
    a: Any,
    b: Any = None,
    metric: Metrics = None,
    margin: Margins = None,
    level: float = 0.95,
    *,
    against: str | None = None,
    names: tuple[str, str] = ("A", "B"),
    paired: bool | None = None,
    diverged: str | float = "tell",
    lower_is_better: bool | None = None,
    power: float = 0.9,
    looks: Sequence[int] | None = None,
    history: str | os.PathLike[str] | None = None,
) -> Comparison | Comparisons | BestOf:
    """Return whether ``a`` is better or worse than ``b``, equal to it within a margin, or nothing is decided yet.

    A group is a list or array of numbers, a mapping from seeds to numbers, a data frame, or records of runs. Groups
    that know their seeds are compared by seed (Student's t of the differences) if at least half of the seeds are in
    both, others by Welch's t; the result says which. The chance of a wrong verdict is at most ``1 - level``, for all
    comparisons of a call together.

    Args:
        a: the first group; or, without ``b``, a mapping from names to groups, of which each two are compared.
        b: the second group.
        metric: the column of data frames, or what is taken of records (``"test_accuracy"`` by default): a curve, by its
            last value, or ``"best_..."`` or ``"tail_..."`` with its name. A list of several makes one family of them.
        margin: by how much means may differ and count as equal, such as 0.002; ``"5 %"`` compares geometric means by
            their ratio, for losses; None asks for the sign of the difference alone. A mapping has one for each metric.
        level: the chance that no verdict is wrong.
        against: of several groups the one that all others are compared with, instead of each two; or ``"best"``, which
            asks which group is the best one.
        names: of two groups, in words.
        paired: False forbids pairs. True asks for them, by place where there are no seeds.
        diverged: what to do with values that are no numbers: ``"tell"`` (nothing is decided), ``"exclude"``,
            ``"worst"`` (they count as the worst number of all groups), or a number that they count as. Of a group
            without a single number nothing is decided, unless they count as a number.
        lower_is_better: by default, whether the metric is called a loss or an error.
        power: the chance to decide with ``seeds_needed``.
        looks: the planned numbers of seeds, such as (5, 10, 20, 40), for data that grow: the same call may be repeated
            whenever there are more seeds. Each look takes the first seeds and its share of the error, and the first one
            that decides stands.
        history: a JSON file with a record of looks, made if need be: a comparison that was looked at before, and not by
            the same plan, says so and has half the error that it had then.

    Returns:
        A `Comparison` of two groups; `Comparisons` of several groups or metrics; `BestOf` for ``against="best"``.

    Raises:
        TypeError: a group is nothing of the kind.
        ValueError: a metric or name does not exist, a margin is not positive, or the runs of a group differ in more
            than the seed.
    """
    check_number("level", level, above=0.5, below=1.0)
    check_number("power", power, above=0.0, below=1.0)
    plan = None if looks is None else plan_looks(looks)
    metrics = [metric] if not isinstance(metric, Sequence) or isinstance(metric, str) else list(metric)
    if not metrics or len(set(metrics)) != len(metrics) or not all(isinstance(one, str | None) for one in metrics):
        raise ValueError(f"metric must be a name or several different ones, got {metric!r}")
    sources = _name_groups(a, b, names)
    best = against == "best" and "best" not in sources
    chosen = _choose_pairs(list(sources), None if best else against)
    family = len(metrics) * len(chosen)
    if best and (len(metrics) > 1 or plan is not None):
        raise ValueError("against='best' takes one metric, and no planned looks")
    error = 2.0 * (1.0 - level) / (len(sources) - 1) if best else (1.0 - level) / family
    # The worst of all numbers changes when seeds are added: a look takes the worst of those that it sees.
    at_once, at_look = ("tell", diverged) if plan is not None and diverged == "worst" else (diverged, "tell")
    found = []
    with recorded_looks(None if history is None else Path(history)) as take_look:
        for one in metrics:
            read = [read_sample(name, source, one) for name, source in sources.items()]
            if len(metrics) > 1 and not all(sample.metric for sample in read):
                raise ValueError("several metrics need data frames or records: plain numbers are of one metric")
            label = one or read[0].metric
            lower = is_lower_better(label) if lower_is_better is None else lower_is_better
            groups = dict(zip(sources, treat_diverged(read, at_once, lower_is_better=lower), strict=True))
            own = _read_margin(margin, label)
            for first, second in chosen:
                x, y, by_seed, notes = pair(groups[first], groups[second], paired)
                test = Comparison(label, x, y, own, by_seed, error, family, lower, power, None, notes)
                found.append(take_look(test, looks, lambda seen: look_at(seen, plan, at_look) if plan else seen))
    if best:
        return find_best(found, level)
    return found[0] if b is not None and len(metrics) == 1 else Comparisons(tuple(found), level)


def _read_margin(margin: Margins, metric: str) -> float | None:
    if not isinstance(margin, Mapping):
        return parse_margin(margin)
    if metric not in margin:
        raise ValueError(f"there is no margin for the metric {metric!r}, only for {', '.join(map(repr, margin))}")
    return parse_margin(margin[metric])


def _name_groups(a: Any, b: Any, names: tuple[str, str]) -> dict[str, Any]:
    if b is not None:
        if len(names) != 2 or names[0] == names[1]:
            raise ValueError(f"names must be two different ones, got {names!r}")
        return dict(zip(map(str, names), (a, b), strict=True))
    if not isinstance(a, Mapping) or any(value is None or isinstance(value, Real) for value in a.values()):
        raise TypeError("compare needs two groups, or a mapping from names to groups, such as records.groups('lr')")
    if len(a) < 2:
        raise ValueError(f"compare needs two groups or more, got {len(a)}")
    return {str(name): group for name, group in a.items()}


def _choose_pairs(names: Sequence[str], control: str | None) -> list[tuple[str, str]]:
    if control is None:
        return list(combinations(names, 2))
    if control not in names:
        raise ValueError(f"there is no group {control!r} to compare with: choose one of {', '.join(names)}, or 'best'")
    return [(name, control) for name in names if name != control]
