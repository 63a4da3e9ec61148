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
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import combinations
from pathlib import Path
from typing import Any

from heatbath.draws import check_integer
from heatbath.engine.options import Options
from heatbath.engine.progress import Progress
from heatbath.engine.run import complete
from heatbath.runs.configs import RunConfig
from heatbath.runs.records import Record
from heatbath.stats import looks as look_records
from heatbath.stats.compare import parse_margin
from heatbath.stats.comparison import Comparison, Comparisons
from heatbath.stats.inputs import DEFAULT_METRIC, is_lower_better, read_sample
from heatbath.stats.samples import pair, treat_diverged
from heatbath.stats.sequential import Look, doubling_looks, plan_looks
from heatbath.stats.t_tests import check_probability

Train = Callable[[Sequence[RunConfig]], list[Record]]
_TIME = re.compile(r"\s*([0-9.]+)\s*(s|sec|seconds|m|min|minutes|h|hours)\s*")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Race:
    """How a race ended.

    Attributes:
        comparisons: of each two arms, at the look that decided or the last one; arms that never met have none.
        best: the arms that are not worse than any other.
        seeds: how many seeds each arm was trained with.
        ended: why: ``"decided"``, ``"seeds"`` (all planned ones are trained) or ``"budget"``.
        planned: how many runs the fixed design with all planned seeds has.
        records: the runs of each arm.
    """

    comparisons: Comparisons
    best: tuple[str, ...]
    seeds: dict[str, int]
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
        cost = f"{self.runs} runs instead of {self.planned}" if self.runs < self.planned else f"{self.runs} runs"
        why = {"decided": "", "seeds": "all planned seeds are trained; ", "budget": "the budget is spent; "}[self.ended]
        if len(self.best) == 1:
            return f"{self.best[0]} is the best of {len(self.seeds)} ({why}{cost})."
        equal = [one for one in self.comparisons if {one.a.name, one.b.name} <= set(self.best)]
        pairs = len(self.best) * (len(self.best) - 1) // 2
        if len(equal) == pairs and all(one.verdict == "equal" for one in equal):
            return f"{' and '.join(self.best)} are equal and the best of {len(self.seeds)} ({why}{cost})."
        return f"Undecided between {' and '.join(self.best)}, of {len(self.seeds)} ({why}{cost})."

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON knows it."""
        return {
            "sentence": self.sentence,
            "best": list(self.best),
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
    max_seeds: int = 40,
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
        max_seeds: the most seeds of an arm; with ``looks``, the last of them is.
        level: the chance that no verdict is wrong.
        looks: the planned numbers of seeds; by default they double, from 5 or more to ``max_seeds``.
        diverged: see `heatbath.compare`; by default diverged runs count as the worst of the race.
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
    check_probability("level", level, above=0.5)
    entered = _check_arms(arms)
    plan = plan_looks(doubling_looks(max_seeds) if looks is None else looks)
    allowed, seconds = _read_budget(budget)
    lower = is_lower_better(metric) if lower_is_better is None else lower_is_better
    options = Options(device=device, data_dir=data_dir, workers=workers, stack=stack)
    state = _Course(entered, plan, metric, parse_margin(margin), lower, (1.0 - level) / _pairs(len(entered)), diverged)
    ended, start = "seeds", time.monotonic()
    for look in plan:
        late = seconds is not None and time.monotonic() - start > seconds
        if late or (allowed is not None and sum(state.seeds.values()) + len(state.wanted(look)) > allowed):
            ended = "budget"
            break
        wanted = state.wanted(look)
        state.take(train(wanted) if train else complete(wanted, store, options, progress))
        with nullcontext() if store is None else look_records.recorded_looks(_looks_file(Path(store))) as record:
            state.look(look, record)
        if not state.running:
            ended = "decided"
            break
    found = Comparisons(tuple(state.found.values()), level)
    best = tuple(name for name in entered if name not in state.beaten)
    return Race(found, best, state.seeds, ended, len(entered) * plan[-1].seeds, state.records)


@dataclass
class _Course:
    """Where a race stands."""

    arms: Mapping[str, RunConfig]
    plan: Sequence[Look]
    metric: str
    margin: float | None
    lower_is_better: bool
    error: float
    diverged: str | float
    running: list[str] = field(init=False)
    records: dict[str, list[Record]] = field(init=False)
    found: dict[tuple[str, str], Comparison] = field(default_factory=dict)
    beaten: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.running = list(self.arms)
        self.records = {name: [] for name in self.arms}

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

    def look(self, look: Look, record: look_records.LookRecord | None) -> None:
        """Test what is open between running arms, and stop those that are decided."""
        read = [read_sample(name, self.records[name], self.metric) for name in self.running]
        treated = treat_diverged(read, self.diverged, lower_is_better=self.lower_is_better)
        samples = dict(zip(self.running, treated, strict=True))
        for names in self._open():
            a, b, paired, notes = pair(samples[names[0]], samples[names[1]])
            test = Comparison(
                metric=self.metric,
                a=a,
                b=b,
                margin=self.margin,
                paired=paired,
                error=self.error,
                family=_pairs(len(self.arms)),
                lower_is_better=self.lower_is_better,
                notes=notes,
            )
            charged = test if record is None else record.charge(test, look.plan)
            seen = self.found[names] = replace(charged, error=charged.error * look.share, look=look)
            if record is not None:
                record.enter(test, look.plan, seen)
            if seen.verdict in ("better", "worse"):
                self.beaten.add(names[0] if seen.verdict == "worse" else names[1])
        self.running = [name for name in self.running if name not in self.beaten]
        still = {name for names in self._open() for name in names}
        self.running = [name for name in self.running if name in still]

    def _open(self) -> list[tuple[str, str]]:
        pairs = combinations(self.running, 2)
        return [names for names in pairs if names not in self.found or self.found[names].verdict == "undecided"]


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
    if not isinstance(budget, str):
        return check_integer("budget", budget, least=1), None
    if budget.strip().isdigit():
        return check_integer("budget", int(budget), least=1), None
    found = _TIME.fullmatch(budget)
    if found is None:
        raise ValueError(f"budget must be a number of runs or a time such as '30 min', got {budget!r}")
    return None, float(found.group(1)) * _SECONDS[found.group(2)[0]]


def _looks_file(store: Path) -> Path:
    store.mkdir(parents=True, exist_ok=True)
    return store / look_records.FILE


def _pairs(count: int) -> int:
    return count * (count - 1) // 2
