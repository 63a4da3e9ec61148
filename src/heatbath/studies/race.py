"""A race: seeds are trained until it is decided which of several recipes is better, and no longer.

All arms are trained with the same seeds, in stacks. At each planned number of seeds one looks: an arm that is worse
than another stops, and so does one that is decided against all that still run. The race ends when nothing is open, or
the budget is spent. Each two arms have their share of the error, of which each look takes its own share
(`heatbath.stats.sequential`), so the chance that any verdict of the race is wrong is at most ``1 - level``.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import combinations
from math import comb
from pathlib import Path
from typing import Any

from heatbath.draws import check_integer
from heatbath.engine.options import Options
from heatbath.engine.progress import Progress
from heatbath.engine.run import complete
from heatbath.laws import check_number
from heatbath.runs.configs import RunConfig
from heatbath.runs.records import Record
from heatbath.stats import wording
from heatbath.stats.compare import compare
from heatbath.stats.comparison import Comparison, Comparisons
from heatbath.stats.looks import FILE, TakeLook, recorded_looks
from heatbath.stats.samples import DEFAULT_METRIC, is_lower_better, read_sample, treat_diverged
from heatbath.stats.sequential import Look, doubling_looks, plan_looks
from heatbath.stats.verdicts import parse_margin

Train = Callable[[Sequence[RunConfig]], list[Record]]
_MAX_SEEDS = 40  # of an arm, by default
_TIME = re.compile(r"\s*([0-9.]+)\s*(s|sec|seconds|m|min|minutes|h|hours)\s*")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Race:
    """How a race ended.

    Attributes:
        comparisons: of each two arms, at the look that decided or the last one; arms that never met have none.
        best: the arms that are not worse than any other.
        seeds: how many seeds each arm was trained with.
        lost: the arms of which every run diverged; they are not the best, without any test.
        ended: why: ``"decided"``, ``"seeds"`` (all planned ones are trained) or ``"budget"``.
        planned: how many runs the fixed design with all planned seeds has.
        records: the runs of each arm.
    """

    comparisons: Comparisons
    best: tuple[str, ...]
    seeds: dict[str, int]
    lost: tuple[str, ...]
    ended: str
    planned: int
    records: Mapping[str, Sequence[Record]] = field(repr=False)

    @property
    def runs(self) -> int:
        """How many runs the race took."""
        return sum(self.seeds.values())

    @property
    def sentence(self) -> str:
        """Which arm won, in words, and what it took."""
        between = [one.verdict for one in self.comparisons if {one.a.name, one.b.name} <= set(self.best)]
        equal = between == ["equal"] * comb(len(self.best), 2)
        return wording.race(self.best, self.lost, len(self.seeds), equal, self.ended, self.runs, self.planned)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON knows it."""
        return {
            "sentence": self.sentence,
            "best": list(self.best),
            "diverged": list(self.lost),
            "ended": self.ended,
            "seeds": self.seeds,
            "runs": self.runs,
            "planned": self.planned,
            **{key: value for key, value in self.comparisons.to_dict().items() if key != "sentence"},
        }

    def write_page(self, folder: str | os.PathLike[str]) -> Path:
        """Write a page with the curves of all arms and the verdicts, as ``heatbath report --by`` does; return it."""
        from heatbath.report.page import write_report
        from heatbath.report.study import about_study, open_study, study_figure

        figure = replace(study_figure(self.records, self.comparisons, ["arm"]), title="A race")
        opening = replace(open_study(figure, self.comparisons, ", ".join(self.seeds)), conclusion=(self.sentence,))
        about = about_study(self.records, self.comparisons.level)
        return write_report([figure], Path(folder), about=about, opening=opening)

    def _repr_html_(self) -> str:
        return f"<p>{self.sentence}</p>{self.comparisons._repr_html_()}"

    def __str__(self) -> str:
        return "\n".join([self.sentence, *(one.sentence for one in self.comparisons)])


def race(
    arms: Mapping[str, RunConfig],
    metric: str = DEFAULT_METRIC,
    margin: float | str | None = None,
    budget: int | str | timedelta | None = None,
    max_seeds: int | None = None,
    *,
    level: float = 0.95,
    looks: Sequence[int] | None = None,
    diverged: str | float = "worst",
    lower_is_better: bool | None = None,
    store: str | os.PathLike[str] | None = None,
    device: str = "auto",
    data_dir: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    stack: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    train: Train | None = None,
) -> Race:
    """Train several recipes seed by seed until it is decided which one is better, or that they are equal.

    With a store, an interrupted race goes on where it was: the looks depend on the seeds alone, so that neither an
    interrupt nor a second call changes them or the verdict.

    Args:
        arms: the recipes by their names; their seeds do not count.
        metric: what is compared, see `heatbath.compare`.
        margin: within which arms are equal; without one, equal arms are only known by their budget.
        budget: the most runs of all arms together, or a time such as ``"30 min"`` after which no new look begins.
        max_seeds: the most seeds of an arm; by default the last of ``looks``, or 40.
        level: the chance that no verdict is wrong.
        looks: the planned numbers of seeds; by default they double, from 5 or more to ``max_seeds``.
        diverged: see `heatbath.compare`; by default diverged runs count as the worst of the race. An arm of which all
            runs diverged by the first look is out, unless they are to count as a number.
        lower_is_better: see `heatbath.compare`.
        store: the folder for results, by default one that is removed at the end.
        device: see `heatbath.run`, as for the next four.
        data_dir: where to look for the data first.
        workers: how many processes, on a CPU.
        stack: the most runs in one stack.
        progress: called after each epoch.
        train: in the place of `heatbath.run`: from configs to their records.

    Raises:
        ValueError: there are fewer than two arms, two are the same, or an argument is not allowed.
        KeyboardInterrupt: with how far it came; the same call with the same store goes on.
    """
    check_number("level", level, above=0.5, below=1.0)
    entered = _check_arms(arms)
    plan = _plan(looks, max_seeds)
    allowed, seconds = _read_budget(budget)
    lower = is_lower_better(metric) if lower_is_better is None else lower_is_better
    options = Options(device=device, data_dir=data_dir, workers=workers, stack=stack)
    course = _Course(entered, metric, parse_margin(margin), lower, (1.0 - level) / comb(len(entered), 2), diverged)
    ended, start = "seeds", time.monotonic()
    for look in plan:
        wanted = course.wanted(look)
        late = seconds is not None and time.monotonic() - start > seconds
        if late or (allowed is not None and sum(course.seeds.values()) + len(wanted) > allowed):
            ended = "budget"
            break
        course.take(train(wanted) if train else complete(wanted, store, options, progress))
        with _open_looks(store) as take_look:
            course.look(look, take_look)
        if not course.running:
            ended = "decided"
            break
    found = Comparisons(tuple(course.found.values()), level)
    best = tuple(name for name in entered if name not in course.beaten)
    return Race(found, best, course.seeds, tuple(course.lost), ended, len(entered) * plan[-1].seeds, course.records)


@dataclass
class _Course:
    """Where a race stands."""

    arms: Mapping[str, RunConfig]
    metric: str
    margin: float | None
    lower_is_better: bool
    error: float
    diverged: str | float
    found: dict[tuple[str, str], Comparison] = field(default_factory=dict)
    beaten: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.running = list(self.arms)
        self.lost: list[str] = []
        self.records: dict[str, list[Record]] = {name: [] for name in self.arms}

    @property
    def seeds(self) -> dict[str, int]:
        return {name: len(records) for name, records in self.records.items()}

    def wanted(self, look: Look) -> list[RunConfig]:
        """The runs that a look takes and that are not here yet, arm by arm."""
        seeds = self.seeds
        return [self.arms[name].with_(seed=seed) for name in self.running for seed in range(seeds[name], look.seeds)]

    def take(self, records: Sequence[Record]) -> None:
        """Keep the records of `wanted`: as many of each running arm."""
        count = len(records) // len(self.running)
        for place, name in enumerate(self.running):
            self.records[name] += records[place * count : (place + 1) * count]

    def look(self, look: Look, take_look: TakeLook) -> None:
        """Test what is open between running arms, and stop those that are decided."""
        read = [read_sample(name, self.records[name], self.metric) for name in self.running]
        treated = treat_diverged(read, self.diverged, lower_is_better=self.lower_is_better)
        samples = dict(zip(self.running, treated, strict=True))
        if isinstance(self.diverged, str):
            self.lost += [sample.name for sample in read if len(sample.broken) == len(sample.values)]
            self.beaten.update(self.lost)
        family = comb(len(self.arms), 2)
        for first, second in self._open():
            two, names = (samples[first], samples[second]), (first, second)
            alone = compare(*two, self.metric, self.margin, names=names, lower_is_better=self.lower_is_better)
            test = replace(alone, error=self.error, family=family)
            seen = take_look(test, look.plan, lambda test: replace(test, error=test.error * look.share, look=look))
            self.found[first, second] = seen
            if seen.verdict in ("better", "worse"):
                self.beaten.add(first if seen.verdict == "worse" else second)
        self.running = [name for name in self.running if name not in self.beaten]
        still = {name for names in self._open() for name in names}
        self.running = [name for name in self.running if name in still]

    def _open(self) -> list[tuple[str, str]]:
        pairs = combinations(self.running, 2)
        return [names for names in pairs if names not in self.found or self.found[names].verdict == "undecided"]


def _plan(looks: Sequence[int] | None, max_seeds: int | None) -> tuple[Look, ...]:
    if looks is None:
        return plan_looks(doubling_looks(_MAX_SEEDS if max_seeds is None else max_seeds))
    plan = plan_looks(looks)
    if max_seeds is not None and plan[-1].seeds > max_seeds:
        raise ValueError(f"looks must not go beyond max_seeds = {max_seeds}, got {plan[-1].plan}")
    return plan


def _open_looks(store: str | os.PathLike[str] | None) -> AbstractContextManager[TakeLook]:
    if store is None:
        return recorded_looks(None)
    Path(store).mkdir(parents=True, exist_ok=True)
    return recorded_looks(Path(store) / FILE)


def _check_arms(arms: Mapping[str, RunConfig]) -> dict[str, RunConfig]:
    if not isinstance(arms, Mapping):
        raise TypeError(f"arms must be a mapping from names to RunConfigs, got {arms!r:.100}")
    if len(arms) < 2:
        raise ValueError(f"a race needs two arms or more, got {len(arms)}")
    by_run: dict[str, str] = {}
    for name, config in arms.items():
        if not isinstance(config, RunConfig):
            raise TypeError(f"arm {name} must be a RunConfig, got {config!r:.100}")
        same = by_run.setdefault(config.with_(seed=0).run, str(name))
        if same != str(name):
            raise ValueError(f"arms {same} and {name} are the same, but for the seed")
    return {str(name): config for name, config in arms.items()}


def _read_budget(budget: int | str | timedelta | None) -> tuple[int | None, float | None]:
    """Return the most runs, and the most seconds."""
    if budget is None:
        return None, None
    if isinstance(budget, timedelta):
        return None, budget.total_seconds()
    if not isinstance(budget, str) or budget.strip().isdigit():
        return check_integer("budget", int(budget) if isinstance(budget, str) else budget, least=1), None
    found = _TIME.fullmatch(budget)
    if found is None:
        raise ValueError(f"budget must be a number of runs or a time such as '30 min', got {budget!r}")
    return None, float(found.group(1)) * _SECONDS[found.group(2)[0]]
