"""Taking looks at data that grow, and the record of them, so that a later one says so and pays for it."""

from __future__ import annotations

import fcntl
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from heatbath.stats.comparison import Comparison
from heatbath.stats.samples import digest, treat_diverged
from heatbath.stats.sequential import Look
from heatbath.system.whole_files import whole_file

TakeLook = Callable[[Comparison, Sequence[int] | None, Callable[[Comparison], Comparison]], Comparison]
FILE = "looks.json"  # beside the database of a store
_FORMAT = 1


def look_at(test: Comparison, plan: Sequence[Look], diverged: str | float = "tell") -> Comparison:
    """Return a comparison at the first planned look that decides, or else at the last one that there are seeds for.

    What the looks see depends on the order of the seeds alone, so that they stay what they were when seeds are added.
    """
    there = min(len(test.a.values), len(test.b.values))
    due = [look for look in plan if look.seeds <= there]
    if not due:
        notes = (*test.notes, f"the first look is planned at {plan[0].seeds} seeds, and there are {there}")
        return replace(test, error=test.error * plan[0].share, a=test.a.take([]), b=test.b.take([]), notes=notes)
    for look in due:
        first = [group.take(range(look.seeds)) for group in (test.a, test.b)]
        a, b = treat_diverged(first, diverged, lower_is_better=test.lower_is_better)
        notes = (*test.notes, *a.notes[len(test.a.notes) :], *b.notes[len(test.b.notes) :])
        seen = replace(test, a=a, b=b, notes=notes, error=test.error * look.share, look=look)
        if seen.verdict != "undecided":
            break
    rest, later = there - look.seeds, next((one.seeds for one in plan if one.seeds > there), None)
    if not rest:
        return seen
    note = f"{rest} more seeds wait for the look at {later}" if later else f"{rest} seeds beyond the plan are not used"
    if seen.verdict != "undecided":
        note = f"decided at this look; {rest} later seeds are not used"
    return replace(seen, notes=(*seen.notes, note))


@contextmanager
def recorded_looks(path: Path | None) -> Iterator[TakeLook]:
    """Open the record in a file, alone, and write it at the end if it has changed; give what takes a look.

    It is called with a comparison, its plan and how to see it. By comparison the record has a list of designs, each a
    plan of looks or one look at certain data. The first design of a comparison has the whole error, each later one half
    of that of the one before, so that all of them together err with a chance of at most twice the error, which is told.
    A design that comes again is the same one: to repeat a look, or to go on with a plan, costs nothing. Without a file
    nothing is kept, nor charged.
    """
    if path is None:
        yield lambda test, _plan, see: see(test)
        return
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} for the record of looks")
    with open(path.with_name(f".{path.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        text = path.read_text() if path.exists() else json.dumps({"format": _FORMAT, "comparisons": {}})
        try:
            contents = json.loads(text)
            version, comparisons = contents["format"], dict(contents["comparisons"])
        except (ValueError, KeyError, TypeError):
            raise OSError(f"{path} is damaged: put back a copy of it, or remove it to forget all looks") from None
        if version != _FORMAT:
            raise OSError(f"{path} was written by a later version of heatbath (format {version})")
        yield partial(_take_look, comparisons)
        new = json.dumps({"format": version, "comparisons": comparisons}, indent=1)
        if new != text:
            with whole_file(path) as file:
                file.write(new.encode())


def _take_look(
    comparisons: dict[str, Any], test: Comparison, plan: Sequence[int] | None, see: Callable[[Comparison], Comparison]
) -> Comparison:
    """Return what is seen of a comparison with the error that is left for it, and keep that it was made."""
    name = {"plan": None if plan is None else list(plan), "digest": _digest(test) if plan is None else None}
    groups = sorted(group.settings or group.name for group in (test.a, test.b))
    fresh = {"metric": test.metric, "groups": sorted((test.a.name, test.b.name)), "designs": []}
    designs = comparisons.setdefault(digest([test.metric, groups]), fresh)["designs"]
    same = [k for k, design in enumerate(designs) if {key: design[key] for key in name} == name]
    place = same[0] if same else len(designs)
    seen = see(_charge(test, [design["seeds"] for design in designs[:place]]))
    if seen.interval is None or math.isinf(seen.interval.high - seen.interval.low):  # it could decide nothing
        return seen
    entry = {**name, "seeds": min(len(seen.a.values), len(seen.b.values)), "verdict": seen.verdict}
    designs[place : place + 1] = [entry]
    return seen


def _charge(test: Comparison, before: Sequence[int]) -> Comparison:
    """The comparison with the error that earlier looks, at so many seeds each, have left, and a note of them."""
    if not before:
        return test
    left = 0.5 ** len(before)
    total = 100.0 * test.error * test.family * (2.0 - left)
    note = f"looked at before, with {', '.join(map(str, before))} seeds and no common plan: tested at {left:g} of the "
    note += f"error, and the chance that any of these looks errs is at most {total:.3g} %"
    return replace(test, error=test.error * left, notes=(*test.notes, note))


def _digest(test: Comparison) -> str:
    groups = sorted((group.name, group.values.tolist()) for group in (test.a, test.b))
    return digest([test.metric, groups])
