"""What one figure is made of: the runs it needs, the claims it tests and what it shows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import Any, TypeAlias

from heatbath.paper.claims import describe_margins
from heatbath.paper.conclusion import paper_scale_beside
from heatbath.paper.groups import FigureRuns, Group, Scale, describe_runs, has_ended, with_seeds
from heatbath.report.panels import FigureData, Panel
from heatbath.runs.configs import RunConfig
from heatbath.runs.records import Record
from heatbath.stats.verdicts import Judgeable, judge

ProgressCallback: TypeAlias = Callable[[float, str], None]
"""Called with the fraction done, from 0 to 1, and what is being done."""
Records: TypeAlias = Mapping[str, Record]
Results: TypeAlias = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Calculation:
    """Something to compute that is not a training run of the store: a function of its settings, with a JSON result."""

    label: str  # what the legend says
    settings: Mapping[str, Any]  # all that decides the result, in the types of JSON
    compute: Callable[..., dict[str, Any]] = field(compare=False)  # of settings, ``device``, ``data_dir``, ``progress``
    seconds: float = 1.0  # about how long it takes, for the progress
    trains: bool = False  # whether ``compute`` also takes ``workers``, and a ``store`` for runs that go on after a kill

    @property
    def name(self) -> str:
        """16 hexadecimal digits that any change of the settings changes."""
        text = json.dumps(self.settings, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Experiment:
    """One figure of the paper, or one beyond it: what it asks, and its parts at a scale or of whatever is found."""

    name: str  # under which it is asked for
    title: str  # a short one
    question: str  # what it is to show, in one or two sentences
    claims: Callable[[FigureRuns], Sequence[Judgeable]]  # what it tests; `judge` makes a verdict of each
    panels: Callable[[FigureRuns], Sequence[Panel]]  # what it shows
    groups: Callable[[Scale], Sequence[Group]] = lambda _scale: ()  # its runs; none where it does not exist at a scale
    # Claims that were added when the runs had been looked at are a family of their own.
    later_claims: Callable[[FigureRuns], Sequence[Judgeable]] = lambda _found: ()
    calculations: Callable[[Scale], Sequence[Calculation]] = lambda _scale: ()  # what it computes besides
    errata: tuple[str, ...] = ()  # what the paper got wrong here, a sentence each
    remarks: Callable[[Scale], Mapping[str, str]] = lambda _scale: {}  # what else is to be known of the settings
    in_parts: bool = False  # whether it is run part by part, and shown without the claims that have no runs yet

    def exists(self, scale: Scale) -> bool:
        """Whether there is anything of it at this scale."""
        return bool(self.groups(scale) or self.calculations(scale))

    def configs(self, scale: Scale, seeds: int | None = None) -> list[RunConfig]:
        """Return the complete configurations of its runs; none where it does not exist at this scale."""
        return [config for group in with_seeds(self.groups(scale), seeds) for config in group.configs]

    def has_results(
        self, records: Records, scale: Scale, seeds: int | None = None, results: Results | None = None
    ) -> bool:
        """Return whether any of its runs has ended, or any of its calculations has a result; as `figure` is asked.

        An experiment in parts has results as soon as one of its claims can be judged.
        """
        if self.in_parts:
            return bool(self.figure(records, scale, seeds, results).verdicts)
        ended = any(has_ended(records, config) for config in self.configs(scale, seeds))
        return ended or any(calculation.name in (results or ()) for calculation in self.calculations(scale))

    def complete_seeds(self, records: Records, scale: Scale) -> int:
        """Return of how many seeds, from 0 on, the runs of all its groups have ended; 0 where it has no groups."""
        configs = [group.config for group in self.groups(scale)]
        whole = (configs and all(has_ended(records, config.with_(seed=seed)) for config in configs) for seed in count())
        return sum(1 for _ in takewhile(bool, whole))

    def figure(
        self, records: Records, scale: Scale, seeds: int | None = None, results: Results | None = None
    ) -> FigureData:
        """Return the figure, drawn and judged from whatever is there; records and results of other figures do no harm.

        It has as many ``seeds`` in each group as are asked for, if not the scale's own number.
        """
        found = FigureRuns(scale, with_seeds(self.groups(scale), seeds), records, results or {})
        if not self.exists(scale):
            reason = f"There is nothing of it at the scale {scale}: it needs the scale paper, and a GPU."
            return FigureData(self.name, self.title, self.question, (), errata=self.errata, missing=(reason,))
        lacking = [f"{c.label}: not computed." for c in self.calculations(scale) if c.name not in found.results]
        missing = [*found.missing, *lacking]
        if lacking or not found.is_complete:
            asked = "" if seeds is None else f" --seeds {seeds}"
            missing.append(f"'heatbath reproduce {self.name} --scale {scale}{asked}' runs what is missing.")
        remarks = self.remarks(scale)
        verdicts = (*judge(self.claims(found)), *judge(self.later_claims(found), planned=False))
        if self.in_parts:
            judged = tuple(one for one in verdicts if one.interval is not None)
            if len(judged) < len(verdicts):
                missing.insert(0, f"{len(verdicts) - len(judged)} of {len(verdicts)} claims wait for their runs.")
            verdicts = judged
        return FigureData(
            name=self.name,
            title=self.title,
            question=self.question,
            panels=tuple(self.panels(found)),
            verdicts=verdicts,
            errata=self.errata,
            settings={"scale": scale, **describe_runs(found.groups), **describe_margins(found.groups), **remarks},
            missing=tuple(missing),
            at_paper_scale={} if scale == "paper" else paper_scale_beside(self.name, (one.claim for one in verdicts)),
            unlike_the_paper=remarks.get("unlike the paper", "fewer and shorter runs"),
        )
