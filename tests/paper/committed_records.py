"""The committed records, and the words of ``docs/results.md``, for tests that compare the two."""

from functools import cache
from pathlib import Path

from heatbath import Record
from heatbath.archives import read_lines
from heatbath.paper import EXPERIMENTS

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


def together(groups: dict[str, list[Record]]) -> list[Record]:
    """The runs of all groups."""
    return [run for runs in groups.values() for run in runs]
