"""What becomes of two records of one run, when the runs of one store are taken over by another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from heatbath.runs.export import same_curves
from heatbath.runs.records import Record

Verdict: TypeAlias = Literal["added", "improved", "differing", "busy", "known"]
_ORDER: tuple[Verdict, ...] = ("added", "improved", "differing", "busy", "known")


@dataclass(frozen=True)
class Merged:
    """What a merge did: how many runs were new here, got better, were known already; and which were left alone.

    Attributes:
        differing: finished here and there, with other numbers; ours were kept.
        busy: being trained here; merge again when they have ended.
    """

    added: int
    improved: int
    known: int
    differing: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()


def judge(ours: Record | None, theirs: Record) -> Verdict:
    """Return what a merge does with their record of a run.

    A finished run beats a diverged or partial one, and a longer one a shorter one.
    """
    if ours is None:
        return "added"
    if ours.status == theirs.status == "finished":
        return "known" if same_curves(ours, theirs) else "differing"
    if _rank(theirs) <= _rank(ours):
        return "known"
    return "busy" if ours.status == "running" else "improved"


def count(verdicts: Iterable[tuple[str, Verdict]]) -> Merged:
    """Return what happened to the runs. One that a file has more than once counts for the most that was done."""
    several: dict[str, list[Verdict]] = {}
    for run, verdict in verdicts:
        several.setdefault(run, []).append(verdict)
    counts = Counter(min(found, key=_ORDER.index) for found in several.values())
    differing, busy = (tuple(run for run, found in several.items() if word in found) for word in ("differing", "busy"))
    return Merged(counts["added"], counts["improved"], counts["known"], differing, busy)


def _rank(record: Record) -> tuple[bool, int, bool]:
    """What beats what: finished first, then the longer, then the diverged one, which will get no longer."""
    return record.status == "finished", len(record.epochs), record.status == "diverged"
