"""Planned looks against a fixed number of seeds, by simulation: errors, power, and how many seeds they take.

    python benchmarks/looks.py [--trials 4000] [--json FILE]

Two groups of normal numbers of standard deviation 1, paired by seed with a correlation of 0.5 or not at all, are
compared by `heatbath.compare` at 5, 10, 20 and 40 seeds: by the plan, once at 40, and at all four numbers as if each
were the only one. The margin of equality is 0.74, a difference that 40 unpaired seeds find with a chance of 0.9.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np

import heatbath as hb

LOOKS = (5, 10, 20, 40)
MARGIN = 0.74
DIFFERENCES = (0.0, 0.37, 0.74, 1.11, 1.48)
Groups = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=4000, help="of each row")
    parser.add_argument("--json", help="also write the rows here")
    arguments = parser.parse_args()
    rows = []
    for paired in (False, True):
        for margin in (None, MARGIN):
            for difference in DIFFERENCES:
                row = simulate(difference, margin, paired, arguments.trials)
                rows.append(row)
                print({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()})
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"looks": LOOKS, "trials": arguments.trials, "rows": rows}, file, indent=1)
            file.write("\n")


def simulate(difference: float, margin: float | None, paired: bool, trials: int) -> dict[str, Any]:
    """Return how often each design decides for a difference and for equality, and the mean number of its seeds."""
    designs: dict[str, Callable[[Groups], tuple[str, int]]] = {
        "planned": lambda groups: planned(groups, margin, paired),
        "fixed": lambda groups: fixed(groups, margin, paired, LOOKS[-1]),
        "unplanned": lambda groups: unplanned(groups, margin, paired),
    }
    found: dict[str, list[tuple[str, int]]] = {name: [] for name in designs}
    for trial in range(trials):
        groups = draw(difference, paired, trial)
        for name, decide in designs.items():
            found[name].append(decide(groups))
    row: dict[str, Any] = {"difference": difference, "margin": margin, "paired": paired}
    for name, ends in found.items():
        for verdict in ("better", "worse", "equal"):
            row[f"{name}_{verdict}"] = sum(word == verdict for word, _ in ends) / trials
        row[f"{name}_seeds"] = sum(seeds for _, seeds in ends) / trials
    return row


def draw(difference: float, paired: bool, trial: int) -> Groups:
    """Return two groups of as many seeds as the last look takes."""
    rng = np.random.default_rng(trial)
    common, own = (math.sqrt(0.5) * rng.standard_normal(LOOKS[-1]), math.sqrt(0.5)) if paired else (0.0, 1.0)
    a, b = (common + own * rng.standard_normal(LOOKS[-1]) for _ in range(2))
    return a + difference, b


def planned(groups: Groups, margin: float | None, paired: bool) -> tuple[str, int]:
    one = hb.compare(*groups, margin=margin, paired=paired, looks=LOOKS)
    return one.verdict, len(one.a.values)


def fixed(groups: Groups, margin: float | None, paired: bool, seeds: int) -> tuple[str, int]:
    a, b = groups
    return hb.compare(a[:seeds], b[:seeds], margin=margin, paired=paired).verdict, seeds


def unplanned(groups: Groups, margin: float | None, paired: bool) -> tuple[str, int]:
    for seeds in LOOKS:
        verdict, taken = fixed(groups, margin, paired, seeds)
        if verdict != "undecided":
            break
    return verdict, taken


if __name__ == "__main__":
    main()
