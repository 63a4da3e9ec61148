"""The committed records, and the words of ``docs/results.md``, for tests that compare the two."""

from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from heatbath import Record
from heatbath.paper import EXPERIMENTS
from heatbath.runs.export import read_lines

ROOT = Path(__file__).parents[2]

PROSE = " ".join((ROOT / "docs/results.md").read_text().partition("## All claims")[0].split())
"""The words before the table, on one line."""


@cache
def records() -> dict[str, Record]:
    """All runs, by their name."""
    files = ("perceptron", "cnn", "vgg16")
    return {record.run: record for name in files for record in read_lines(ROOT / f"results/{name}.jsonl.gz")}


def runs_of(experiment: str, part: str = "") -> dict[str, list[Record]]:
    """The runs of an experiment at the paper's scale, or of one part of it: by group, in the order of their seeds."""
    groups = [group for group in EXPERIMENTS[experiment].groups("paper") if part in ("", group.part)]
    assert len({group.label for group in groups}) == len(groups)
    return {g.label: [records()[config.run] for config in g.configs if config.run in records()] for g in groups}


def late_gain(groups: dict[str, list[Record]], label: str, rate: Literal["low", "high"], after: int = 60) -> float:
    """How far a cyclic protocol's test accuracy lies above constant's in the late epochs whose rate is low, or high.

    By seed, over those that both have.
    """
    gains, constants = [], {run.config.seed: run for run in groups["constant"]}
    for run in groups[label]:
        constant = constants[run.config.seed]
        rates = np.array(run.curve("rate")) / run.config.lr
        chosen = (rates < 0.25 if rate == "low" else rates > 1.75) & (np.arange(len(rates)) >= after)
        gains.append(
            np.mean(run.curve("test_accuracy"), where=chosen) - np.mean(constant.curve("test_accuracy"), where=chosen)
        )
    return float(np.mean(gains))


def together(groups: dict[str, list[Record]]) -> list[Record]:
    """The runs of all groups."""
    return [run for runs in groups.values() for run in runs]
