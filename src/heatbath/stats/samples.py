"""Groups of numbers, one for each seed: what to do with diverged runs, and which values make pairs."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from heatbath.stats.t_tests import Floats


@dataclass(frozen=True, eq=False)  # arrays have no single truth to compare
class Sample:
    """One group: a name and one number for each seed.

    Attributes:
        name: what the group is called in words.
        values: NaN where a run has no number.
        seeds: of the values, in their order; None where they are not known.
        metric: what the numbers are; empty where it is not known.
        settings: what all runs of the group have in common, as text; empty where it is not known.
        digests: of the records that the numbers come from.
        versions: of the programs that made them.
        notes: what was left out or replaced, in words.
    """

    name: str
    values: Floats
    seeds: tuple[Hashable, ...] | None = None
    metric: str = ""
    settings: str = ""
    digests: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def broken(self) -> list[str]:
        """The values that are no numbers, by seed where it is known, else by their place."""
        names = self.seeds or range(len(self.values))
        return [str(name) for name, value in zip(names, self.values, strict=True) if not math.isfinite(value)]

    def take(self, places: Sequence[int]) -> Sample:
        """Return the values at some places."""
        seeds = None if self.seeds is None else tuple(self.seeds[k] for k in places)
        digests = tuple(self.digests[k] for k in places) if self.digests else ()
        return replace(self, values=self.values[list(places)], seeds=seeds, digests=digests)


def treat_diverged(samples: Sequence[Sample], treatment: str | float, *, lower_is_better: bool) -> list[Sample]:
    """Return the groups with their values that are no numbers kept (``"tell"``), left out or replaced by the worst.

    Args:
        samples: the groups.
        treatment: ``"tell"``, ``"exclude"``, ``"worst"`` (the worst number of all groups), or a number of its own.
        lower_is_better: which numbers are the worst.
    """
    if isinstance(treatment, str) and treatment not in ("tell", "exclude", "worst"):
        raise ValueError(f"diverged must be tell, exclude, worst or a number, got {treatment!r}")
    if treatment == "tell" or not any(sample.broken for sample in samples):
        return list(samples)
    if treatment == "exclude":
        return [_without(sample) for sample in samples]
    if isinstance(treatment, str):
        finite = np.concatenate([sample.values[np.isfinite(sample.values)] for sample in samples])
        if not finite.size:
            return list(samples)
        worst = float(finite.max() if lower_is_better else finite.min())
    else:
        worst = float(treatment)
        if not math.isfinite(worst):
            raise ValueError(f"diverged must be tell, exclude, worst or a finite number, got {treatment!r}")
    return [_with_worst(sample, worst) for sample in samples]


def pair(a: Sample, b: Sample, paired: bool | None = None) -> tuple[Sample, Sample, bool, tuple[str, ...]]:
    """Return two groups in the same order of seeds where they are to be compared by seed, whether they are, and notes.

    By default they are if both know their seeds and have at least half of them in common; those of one group alone are
    then left out. Groups that are not paired keep all their values.

    Args:
        a: the first group.
        b: the second group.
        paired: True asks for pairs: by seed, or by place where no seeds are known; False forbids them.
    """
    notes = (*a.notes, *b.notes)
    if paired is False:
        return a, b, False, notes
    if a.seeds is None or b.seeds is None:
        if paired and len(a.values) != len(b.values):
            sizes = f"{len(a.values)} and {len(b.values)}"
            raise ValueError(f"pairs need seeds, or as many values of {a.name} as of {b.name}: got {sizes}")
        return a, b, bool(paired), notes
    if a.seeds == b.seeds:
        return a, b, True, notes
    place = {seed: k for k, seed in enumerate(b.seeds)}
    common = [k for k, seed in enumerate(a.seeds) if seed in place]
    if paired and len(common) < 2:
        raise ValueError(f"{a.name} and {b.name} have {len(common)} seeds in common; pairs need two or more")
    if paired is None and 2 * len(common) < max(len(a.seeds), len(b.seeds)):
        some = f"only {len(common)} seeds" if common else "no seed"
        return a, b, False, (*notes, f"{a.name} and {b.name} have {some} in common")
    left_out = [f"{len(s.values) - len(common)} of {s.name}" for s in (a, b) if len(s.values) > len(common)]
    note = f"seeds of one group alone are left out: {' and '.join(left_out)}"
    return a.take(common), b.take([place[a.seeds[k]] for k in common]), True, (*notes, note)


def _without(sample: Sample) -> Sample:
    if not sample.broken:
        return sample
    kept = sample.take([k for k, value in enumerate(sample.values) if math.isfinite(value)])
    note = f"{len(sample.broken)} of {len(sample.values)} runs of {sample.name} diverged and are left out"
    return replace(kept, notes=(*sample.notes, note))


def _with_worst(sample: Sample, worst: float) -> Sample:
    if not sample.broken:
        return sample
    note = f"{len(sample.broken)} of {len(sample.values)} runs of {sample.name} diverged and count as {worst:.4g}"
    values = np.where(np.isfinite(sample.values), sample.values, worst)
    return replace(sample, values=values, notes=(*sample.notes, note))
