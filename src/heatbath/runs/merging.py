"""What becomes of two records of one run, when the runs of one store are taken over by another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from heatbath.runs.export import rounded_curves
from heatbath.runs.records import Record

Verdict: TypeAlias = Literal["added", "improved", "differing", "busy", "known"]
_ORDER = get_args(Verdict)


@dataclass(frozen=True)
class Merged:
    """What a merge did: how many runs were new here, got better, were known already; and which were left alone."""

    added: int
    improved: int
    known: int
    differing: tuple[str, ...] = ()  # with other numbers here and there, as far as both go; ours were kept
    busy: tuple[str, ...] = ()  # being trained here; merge again when they have ended


def judge(ours: Record | None, theirs: Record) -> Verdict:
    """Return what a merge does with their record of a run.

    Of two records that agree as far as both go the longer one is better. That a run has diverged is a statement of
    its own, which stands where its next epoch would.
    """
    if ours is None:
        return "added"
    mine, other = _statements(ours), _statements(theirs)
    if any(a != b for a, b in zip(mine, other, strict=False)):
        return "differing"
    if len(other) <= len(mine):
        return "known"
    return "busy" if ours.status == "running" else "improved"


def count(verdicts: Mapping[str, Sequence[Verdict]]) -> Merged:
    """Return what happened to the runs. One that a file has more than once counts for the most that was done."""
    counts = Counter(min(found, key=_ORDER.index) for found in verdicts.values())
    differing, busy = (tuple(run for run, found in verdicts.items() if word in found) for word in ("differing", "busy"))
    return Merged(counts["added"], counts["improved"], counts["known"], differing, busy)


def _statements(record: Record) -> list[object]:
    """What a record says, epoch by epoch, to the digits that an export keeps."""
    curves = rounded_curves(record)
    epochs: list[object] = [dict(zip(curves, numbers, strict=True)) for numbers in zip(*curves.values(), strict=True)]
    return [*epochs, "diverged"] if record.status == "diverged" else epochs
