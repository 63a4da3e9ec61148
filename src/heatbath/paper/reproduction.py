"""Runs experiments and reports on them: what is in the store is taken from there, what is missing is trained first."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from heatbath.draws import check_integer
from heatbath.engine.options import Options
from heatbath.paper import SCALES, Scale, calculations, find_experiments
from heatbath.paper.claims import PAIRED_FROM
from heatbath.paper.conclusion import open_report
from heatbath.paper.experiments import Experiment, ProgressCallback
from heatbath.report.panels import FigureData, Judged
from heatbath.runs.configs import RunConfig
from heatbath.runs.records import ENDED, Record

_TRAINED, _COMPUTED = 0.85, 0.95  # the progress when calculations and when only the drawing are left
_CHECKPOINT_SECONDS = 20.0  # what an interrupt may cost; more often would slow small runs down
_TESTS = (
    f"Student's t of the differences by seed where groups are of {PAIRED_FROM} seeds or more, and Welch's t where they "
    "are of fewer; of losses by their logarithms; two one-sided tests for equality; the claims of a figure are a "
    "family, in which the chance of any wrong verdict is at most 5 %"
)


@dataclass(frozen=True)
class Reproduction:
    """What came of it.

    Attributes:
        figures: judged and plotted.
        report: the page.
        left_out: names of experiments that do not exist at the scale.
        seconds: of this call.
    """

    figures: tuple[FigureData, ...]
    report: Path
    left_out: tuple[str, ...]
    seconds: float

    @property
    def verdicts(self) -> list[tuple[str, Judged]]:
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
    progress: ProgressCallback | None = None,
    say: Callable[..., None] | None = None,
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
    tell = progress or (lambda _fraction, _message: None)
    if scale not in SCALES:
        raise ValueError(f"unknown scale {scale!r}: choose one of {', '.join(SCALES)}")
    if seeds is not None:
        seeds = check_integer("seeds", seeds, 2**20, least=1)
    experiments, left_out = _choose(names, scale)
    configs = list({c.run: c for e in experiments for c in e.configs(scale, seeds)}.values())
    configs.sort(key=lambda config: config.seed)  # interrupted, all groups have a part of their seeds
    asked = [calculation for experiment in experiments for calculation in experiment.calculations(scale)]
    known = {record.run: record for record in run.load(folder)} if (folder / Store.FILE).exists() else {}
    if train:
        open_ = [config for config in configs if config.run not in known or known[config.run].status not in ENDED]
        results = calculations.cached_results(asked, folder)
        left = [calculation for calculation in asked if calculation.name not in results]
        trained_at = 0.0 if not open_ else _TRAINED if left else _COMPUTED
        if open_:
            trained = run.complete(configs, folder, options, _training(_part(tell, 0.0, trained_at), say))
            known |= {record.run: record for record in trained}
        results |= calculations.compute(left, folder, options, _part(tell, trained_at, _COMPUTED))
    else:
        results = calculations.cached_results(asked, folder)
    tell(_COMPUTED, "drawing")
    figures, page = report_on(experiments, known, scale, seeds, results, out, left_out)
    tell(1.0, "done")
    return Reproduction(figures, page, tuple(left_out), time.monotonic() - start)


def report_on(
    experiments: Sequence[Experiment],
    records: Mapping[str, Record],
    scale: Scale,
    seeds: int | None,
    results: Mapping[str, Mapping[str, Any]],
    out: str | os.PathLike[str],
    left_out: Sequence[str] = (),
) -> tuple[tuple[FigureData, ...], Path]:
    """Judge and plot figures from what there is, and write the report.

    Args:
        experiments: whose figures.
        records: by the name of the run.
        scale: whose runs to look for.
        seeds: runs per group, if not the scale's own number.
        results: of calculations, by their name.
        out: the folder of the report.
        left_out: names of experiments that the report says are missing.

    Returns:
        The figures and the page.
    """
    from heatbath.report import page

    configs = list({c.run: c for e in experiments for c in e.configs(scale, seeds)}.values())
    figures = tuple(experiment.figure(records, scale, seeds, results) for experiment in experiments)
    about = _about(scale, configs, records, left_out)
    return figures, page.write_report(figures, Path(out), about=about, opening=open_report(figures, scale))


def _choose(names: Sequence[str], scale: Scale) -> tuple[list[Experiment], list[str]]:
    chosen = find_experiments(names)
    absent = [experiment.name for experiment in chosen if not experiment.exists(scale)]
    if names and absent:
        raise ValueError(f"{', '.join(absent)}: too much for the scale {scale}; use --scale paper, on a GPU")
    return [experiment for experiment in chosen if experiment.name not in absent], absent


def _part(tell: ProgressCallback, start: float, end: float) -> ProgressCallback:
    """What a part of the work is to call: its own progress, from 0 to 1, takes ours from start to end."""
    return lambda fraction, what: tell(start + (end - start) * fraction, what)


def _training(tell: ProgressCallback, say: Callable[..., None] | None) -> Callable[[Any], None]:
    """What `heatbath.engine.run.complete` is to call."""

    def show(state: Any) -> None:
        if state.message is not None and say is not None:
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


def _about(
    scale: Scale,
    configs: Sequence[RunConfig],
    known: Mapping[str, Record],
    left_out: Sequence[str],
) -> dict[str, str]:
    records = [known[config.run] for config in configs if config.run in known]
    ended = [record for record in records if record.status in ENDED]
    versions = sorted({f"{name} {version}" for record in ended for name, version in record.versions.items()})
    about = {
        "scale": scale,
        "runs": f"{len(ended)} of {len(configs)} ended, {sum(r.status == 'diverged' for r in ended)} of them diverged",
        "training": f"{sum(record.seconds for record in records):,.0f} s in all",
        "devices": ", ".join(sorted({record.device for record in ended if record.device})) or "none",
        "versions": ", ".join(versions) or "none",
        "tests": _TESTS,
    }
    return {**about, "only at the scale paper": ", ".join(left_out)} if left_out else about
