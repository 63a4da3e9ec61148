"""Runs experiments and reports on them: what is in the store is taken from there, what is missing is trained first."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from heatbath.draws import check_integer
from heatbath.engine.options import Options
from heatbath.paper import SCALES, Scale, calculations, find_experiments
from heatbath.paper.claims import PAIRED_FROM
from heatbath.paper.conclusion import open_report
from heatbath.paper.experiments import Experiment, ProgressCallback, Records, Results
from heatbath.paper.groups import has_ended
from heatbath.report.panels import FigureData
from heatbath.report.study import about_runs
from heatbath.runs.configs import RunConfig
from heatbath.stats.verdicts import Verdict

_TRAINED, _COMPUTED = 0.85, 0.95  # the progress when calculations and when only the drawing are left
_CHECKPOINT_SECONDS = 20.0  # what an interrupt may cost; more often would slow small runs down
_TESTS = (
    f"Student's t of the differences by seed where groups are of {PAIRED_FROM} seeds or more, and Welch's t where they "
    "are of fewer; of losses by their logarithms; two one-sided tests for equality; the claims of a figure are a "
    "family, in which the chance of any wrong verdict is at most 5 %"
)


@dataclass(frozen=True)
class Reproduction:
    """What came of it: the figures, the page, the names of experiments that the scale lacks, and how long it took."""

    figures: tuple[FigureData, ...]
    report: Path
    left_out: tuple[str, ...]
    seconds: float

    @property
    def verdicts(self) -> list[tuple[str, Verdict]]:
        """Every verdict with the name of its figure."""
        return [(figure.name, verdict) for figure in self.figures for verdict in figure.verdicts]


def reproduce(
    names: Sequence[str] = (),
    scale: Scale = "laptop",
    seeds: int | None = None,
    options: Options | None = None,
    *,
    store: str | os.PathLike[str] = "runs",
    out: str | os.PathLike[str] = "out",
    train: bool = True,
    progress: ProgressCallback = lambda _fraction, _message: None,
    say: Callable[..., None] = lambda _message, **_kind: None,
) -> Reproduction:
    """Run what is missing, draw and judge the figures, and write the report.

    All runs of all experiments are asked for at once, so that stacks are full and shared runs are trained once. An
    interrupted call goes on where it was, and a repeated one only draws.

    Args:
        names: of experiments, see `find_experiments`; all that exist at the scale if none is given.
        scale: ``"smoke"`` (seconds, for tests), ``"laptop"`` (minutes, embedded data) or ``"paper"``.
        seeds: runs per group, instead of the scale's own number; calculations keep theirs.
        options: how to train: device, workers, where the data is.
        store: the folder of the results.
        out: the folder of the report.
        train: False draws what is in the store and says what is missing.
        progress: called with the fraction done and what is being done.
        say: called with what the runner has to say, and whether that is ``routine``.

    Raises:
        ValueError: a name or the scale is unknown, a named experiment does not exist at the scale, or data or its
            folder is missing; nothing has been trained then.
        OSError: a folder cannot be written.
    """
    from heatbath.engine import run
    from heatbath.runs.store import Store

    start = time.monotonic()
    options = replace(options or Options(), checkpoint_seconds=_CHECKPOINT_SECONDS)
    # What is called back may change the working folder.
    folder, out = Path(store).absolute(), Path(out).absolute()
    if scale not in SCALES:
        raise ValueError(f"unknown scale {scale!r}: choose one of {', '.join(SCALES)}")
    if seeds is not None:
        seeds = check_integer("seeds", seeds, 2**20, least=1)
    experiments = find_experiments(names)
    left_out = [experiment.name for experiment in experiments if not experiment.exists(scale)]
    if names and left_out:
        raise ValueError(f"{', '.join(left_out)}: too much for the scale {scale}; use --scale paper, on a GPU")
    experiments = [experiment for experiment in experiments if experiment.name not in left_out]
    configs = _configs(experiments, scale, seeds)
    configs.sort(key=lambda config: config.seed)  # interrupted, all groups have a part of their seeds
    asked = [calculation for experiment in experiments for calculation in experiment.calculations(scale)]
    known = {record.run: record for record in run.load(folder)} if (folder / Store.FILE).exists() else {}
    results = calculations.cached_results(asked, folder)
    if train:
        left = [calculation for calculation in asked if calculation.name not in results]
        trained_at = 0.0
        if not all(has_ended(known, config) for config in configs):
            trained_at = _TRAINED if left else _COMPUTED
            trained = run.complete(configs, folder, options, _training(_part(progress, 0.0, trained_at), say))
            known |= {record.run: record for record in trained}
        results |= calculations.compute(left, folder, options, _part(progress, trained_at, _COMPUTED))
    progress(_COMPUTED, "drawing")
    figures, page = report_on(experiments, known, scale, seeds, results, out, left_out)
    progress(1.0, "done")
    return Reproduction(figures, page, tuple(left_out), time.monotonic() - start)


def report_on(
    experiments: Sequence[Experiment],
    records: Records,
    scale: Scale,
    seeds: int | None,
    results: Results,
    out: str | os.PathLike[str],
    left_out: Sequence[str] = (),
) -> tuple[tuple[FigureData, ...], Path]:
    """Judge and plot figures from what there is, write the report, and return the figures and the page.

    The report says that the experiments of the names ``left_out`` are missing.
    """
    from heatbath.report import page

    figures = tuple(experiment.figure(records, scale, seeds, results) for experiment in experiments)
    configs = _configs(experiments, scale, seeds)
    there = [records[config.run] for config in configs if config.run in records]
    about = {"scale": scale, **about_runs(there, len(configs)), "tests": _TESTS}
    about |= {"only at the scale paper": ", ".join(left_out)} if left_out else {}
    return figures, page.write_report(figures, Path(out), about=about, opening=open_report(figures, scale))


def _configs(experiments: Sequence[Experiment], scale: Scale, seeds: int | None) -> list[RunConfig]:
    """Each run once."""
    return list({config.run: config for e in experiments for config in e.configs(scale, seeds)}.values())


def _part(tell: ProgressCallback, start: float, end: float) -> ProgressCallback:
    """What a part of the work is to call: its own progress, from 0 to 1, takes ours from start to end."""
    return lambda fraction, what: tell(start + (end - start) * fraction, what)


def _training(tell: ProgressCallback, say: Callable[..., None]) -> Callable[[Any], None]:
    """What `heatbath.engine.run.complete` is to call."""

    def show(state: Any) -> None:
        if state.message is not None:
            say(state.message, routine=state.routine)
        if state.download is not None:
            name, here, size = state.download
            tell(0.0, f"downloading {name}, {here / 1e6:.1f} of {size / 1e6:.1f} MB")
            return
        words = f"training, {state.runs_done} of {state.runs_total} runs done"
        if state.test_accuracy is not None:
            words += f", test accuracy {state.test_accuracy:.4f}"
        tell(state.epochs_done / max(state.epochs_total, 1), words)

    return show
