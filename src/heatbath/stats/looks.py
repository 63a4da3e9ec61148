"""The record of looks: which comparisons were made of data that grow, so that a later one says so and pays for it."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from heatbath.stats.comparison import Comparison
from heatbath.stats.inputs import digest
from heatbath.system.whole_files import whole_file

FILE = "looks.json"  # beside the database of a store
_FORMAT = 1


class LookRecord:
    """What was looked at, by comparison: a list of designs, each a plan of looks or one look at certain data.

    The first design of a comparison has the whole error, each later one half of that of the one before, so that all of
    them together err with a chance of at most twice the error, which is told. A design that comes again is the same
    one: to repeat a look, or to go on with a plan, costs nothing.
    """

    def __init__(self, contents: dict[str, Any]) -> None:
        self.contents = contents

    def charge(self, test: Comparison, plan: Sequence[int] | None) -> Comparison:
        """Return the comparison with the error that is left for it, and a note if it was looked at before."""
        designs = self._designs(test)
        before = self._place(designs, test, plan)
        if before == 0:
            return test
        sizes = ", ".join(str(design["seeds"]) for design in designs[:before])
        total = 100.0 * test.error * test.family * (2.0 - 0.5**before)
        note = f"looked at before, with {sizes} seeds and no common plan: tested at {0.5**before:g} of the error"
        note += f", and the chance that any of these looks errs is at most {total:.3g} %"
        return replace(test, error=test.error * 0.5**before, notes=(*test.notes, note))

    def enter(self, test: Comparison, plan: Sequence[int] | None, seen: Comparison) -> None:
        """Keep that a comparison was made, and what was seen."""
        designs = self._designs(test)
        place = self._place(designs, test, plan)
        entry = {
            "plan": None if plan is None else list(plan),
            "digest": _digest(test) if plan is None else None,
            "seeds": min(len(seen.a.values), len(seen.b.values)),
            "verdict": seen.verdict,
        }
        designs[place:] = [entry, *designs[place + 1 :]]

    def _designs(self, test: Comparison) -> list[dict[str, Any]]:
        groups = sorted(group.settings or group.name for group in (test.a, test.b))
        names = sorted(group.name for group in (test.a, test.b))
        fresh = {"metric": test.metric, "groups": names, "designs": []}
        found = self.contents["comparisons"].setdefault(digest([test.metric, groups]), fresh)
        designs: list[dict[str, Any]] = found["designs"]
        return designs

    def _place(self, designs: list[dict[str, Any]], test: Comparison, plan: Sequence[int] | None) -> int:
        """Return where the design is, or would be added."""
        name = {"plan": list(plan), "digest": None} if plan is not None else {"plan": None, "digest": _digest(test)}
        same = [k for k, design in enumerate(designs) if {key: design[key] for key in name} == name]
        return same[0] if same else len(designs)


@contextmanager
def recorded_looks(path: Path) -> Iterator[LookRecord]:
    """Open the record in a file, alone, and write it at the end if it has changed.

    Raises:
        OSError: the file is damaged, of a later version, or cannot be written.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} for the record of looks")
    with open(path.with_name(f".{path.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        text = path.read_text() if path.exists() else json.dumps({"format": _FORMAT, "comparisons": {}})
        try:
            contents = json.loads(text)
            version = contents["format"]
            record = LookRecord({"format": version, "comparisons": dict(contents["comparisons"])})
        except (ValueError, KeyError, TypeError):
            raise OSError(f"{path} is damaged: put back a copy of it, or remove it to forget all looks") from None
        if version != _FORMAT:
            raise OSError(f"{path} was written by a later version of heatbath (format {version})")
        yield record
        new = json.dumps(record.contents, indent=1)
        if new != text:
            with whole_file(path) as file:
                file.write(new.encode())


def _digest(test: Comparison) -> str:
    groups = sorted((group.name, group.values.tolist()) for group in (test.a, test.b))
    return digest([test.metric, groups])
