"""`heatbath report`: figures, verdicts and the page again, from results that are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from heatbath.cli.comparisons import (
    MARGINS,
    DivergedOption,
    WhereOption,
    parse_diverged,
    parse_where,
    print_comparisons,
    with_record,
)
from heatbath.cli.progress import display
from heatbath.cli.screens import console, folder_option, terminal_width, warn, write
from heatbath.cli.summaries import name_some
from heatbath.cli.verdicts import print_verdicts, verdicts_to_json
from heatbath.runs.collection import main_metric
from heatbath.runs.records import Record
from heatbath.runs.sources import read_records
from heatbath.system.folders import check_folder

if TYPE_CHECKING:
    from heatbath.paper import Experiment, Scale


def rebuild_report(
    source: Annotated[
        Path,
        typer.Argument(metavar="SOURCE", help="A store, a file of 'runs export' (.jsonl[.gz]), a folder of them."),
    ],
    scale: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="smoke, laptop or paper; by default the largest that there are runs of."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Runs of each group, instead of the scale's own number.")
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="A report on any study: the setting that makes its groups; may be repeated."),
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="With --by: what to compare, by default test_accuracy.")
    ] = None,
    margin: Annotated[str | None, typer.Option(metavar="X", help=f"With --by. {MARGINS}")] = None,
    level: Annotated[float, typer.Option(help="With --by: the chance that no verdict is wrong.")] = 0.95,
    against: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --by: the group that all others are compared with.")
    ] = None,
    where: WhereOption = None,
    diverged: DivergedOption = "tell",
    out: Annotated[Path, folder_option("--out", "The folder for the report and its pictures.")] = Path("out"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON.")] = False,
) -> None:
    """Write a page of figures and verdicts from runs that are there; nothing is trained.

    Without --by it is on the paper's figures and claims, with it on any runs: curves of each group with intervals, and
    a verdict for each two groups.
    """
    if by:
        if scale is not None or seeds is not None:
            raise ValueError("--scale and --seeds are for the report on the paper: leave them out, or --by")
        options = {"margin": margin, "level": level, "against": against, "diverged": parse_diverged(diverged)}
        _report_on_study(source, by, metric, parse_where(where), options, out, as_json=as_json)
    elif metric or margin or against or where:
        raise ValueError("--metric, --margin, --against and --where need --by, the setting that makes the groups")
    else:
        _report_on_paper(source, scale, seeds, out, as_json=as_json)


def _report_on_study(
    source: Path,
    by: Sequence[str],
    metric: list[str] | None,
    where: Mapping[str, str],
    options: dict[str, Any],
    out: Path,
    *,
    as_json: bool,
) -> None:
    from heatbath import Records, compare
    from heatbath.report import plots  # noqa: F401 - a missing extra is told before the work, not after it
    from heatbath.report.page import write_report
    from heatbath.report.study import about_study, open_study, study_figure
    from heatbath.runs.read_groups import read_groups

    check_folder(out, "--out")
    if options["against"] == "best":
        raise ValueError("--against best has no pairs to show; 'heatbath compare' asks for the best group")
    with display(log=False) as shown:
        shown.show(None, ("reading the records",))
        groups = read_groups(source, by, where)
        runs = {name: members for name, members in groups.items() if isinstance(members, Records)}
        if len(groups) < 2:
            raise ValueError(f"{source} has one group only, {next(iter(groups))}: choose another --by")
        asked = (metric if len(metric) > 1 else metric[0]) if metric else _main_metric(runs)
        found, told = with_record(source, lambda history: compare(groups, metric=asked, **options, history=history))
        shown.show(None, ("drawing",))
        figure = study_figure(runs, found, by)
        opening, about = open_study(figure, found, str(source)), about_study(runs, options["level"])
        page = write_report([figure], out, about=about, opening=opening)
    if as_json:
        write(verdicts_to_json([(figure.name, verdict) for verdict in figure.verdicts], report=str(page)))
        return
    print_comparisons(found)
    for text in figure.missing:
        warn(text)
    if told:
        warn(told)
    console().print(f"\nThe report: {page}")


def _main_metric(groups: Mapping[str, Sequence[Record]]) -> str:
    return main_metric(record for members in groups.values() for record in members)


def _report_on_paper(source: Path, scale: str | None, seeds: int | None, out: Path, *, as_json: bool) -> None:
    """Draw every figure, judge every claim and write the page."""
    from heatbath.paper import SCALES, calculations, find_experiments, reproduction
    from heatbath.report import plots  # noqa: F401 - a missing extra is told before the work, not after it

    if scale is not None and scale not in SCALES:
        raise ValueError(f"unknown scale {scale!r}: choose one of {', '.join(SCALES)}")
    check_folder(out, "--out")
    with display(log=False) as shown:
        shown.show(None, ("reading the records",))
        records, differing = read_records(source)
        said = [_tell_differing(file, runs) for file, runs in differing.items()]
        known = {record.run: record for record in records}
        folder = source if source.is_dir() else source.parent
        chosen = cast("Scale", scale or _largest_scale(known, source))
        experiments = [experiment for experiment in find_experiments() if experiment.exists(chosen)]
        left_out = [experiment.name for experiment in find_experiments() if not experiment.exists(chosen)]
        asked = [calculation for experiment in experiments for calculation in experiment.calculations(chosen)]
        results = calculations.cached_results(asked, folder)
        if scale is not None:
            _check_scale(chosen, known, results, source)
        said += [f"{file} is damaged, and counts as missing" for file in calculations.damaged_results(folder)]
        shown.show(None, ("drawing",))
        figures, page = reproduction.report_on(experiments, known, chosen, seeds, results, out, left_out)
    empty = {e.name for e in experiments if not e.has_results(known, chosen, seeds, results)}
    verdicts = [(f.name, verdict) for f in figures if f.name not in empty for verdict in f.verdicts]
    if as_json:
        write(verdicts_to_json(verdicts, scale=chosen, report=str(page)))
        return
    if verdicts:
        print_verdicts(verdicts)
    screen = console(wrap=terminal_width() is not None)
    for text in said:
        screen.print()
        warn(text)
    missing = [figure.name for figure in figures if figure.missing and figure.name not in empty]
    if missing:
        screen.print(f"\nNot complete: {', '.join(missing)}; the report says what is missing")
    if empty:
        screen.print(f"\nWithout any results: {', '.join(f.name for f in figures if f.name in empty)}")
    spare = None if seeds is not None else _spare_seeds(experiments, known, chosen)
    if spare is not None:
        screen.print(f"\n{spare}")
    console().print(f"\nThe report, at the scale {chosen}: {page}")  # a path stays whole


def _tell_differing(file: Path, runs: Sequence[str]) -> str:
    some = f"{len(runs)} run{'s' * (len(runs) != 1)}: {name_some(runs)}"
    return f"{file} has other numbers than were read before, and taken, of {some}"


def _largest_scale(known: Mapping[str, Record], source: Path) -> str:
    from heatbath.paper import SCALES

    for scale in reversed(SCALES):
        if _has_runs(scale, known):
            return scale
    raise ValueError(f"no run in {source} belongs to a figure; 'heatbath reproduce' makes those that do")


def _check_scale(
    scale: Scale, known: Mapping[str, Record], results: Mapping[str, Mapping[str, Any]], source: Path
) -> None:
    """Refuse a scale that there is nothing of: neither runs, nor calculations that are no other scale's as well."""
    from heatbath.paper import SCALES, find_experiments

    there = [name for name in SCALES if _has_runs(name, known)]
    shared = {c.name for name in there for experiment in find_experiments() for c in experiment.calculations(name)}
    if scale in there or results.keys() - shared:
        return
    hint = f"there are runs of {' and '.join(there)}" if there else "'heatbath reproduce' makes those that do"
    raise ValueError(f"no run in {source} belongs to a figure at the scale {scale}; {hint}")


def _has_runs(scale: Scale, known: Mapping[str, Record]) -> bool:
    from heatbath.paper import find_experiments

    return any(config.run in known for experiment in find_experiments() for config in experiment.configs(scale))


def _spare_seeds(experiments: Sequence[Experiment], known: Mapping[str, Record], scale: Scale) -> str | None:
    """What to say where figures have more seeds than the scale takes; None where they do not."""
    complete = {experiment.name: experiment.complete_seeds(known, scale) for experiment in experiments}
    taken = {e.name: max((group.seeds for group in e.groups(scale)), default=0) for e in experiments}
    more = [name for name, seeds in complete.items() if seeds > taken[name]]
    if not more:
        return None
    words = f"The scale {scale} takes fewer seeds than there are of {', '.join(more)}"
    return f"{words}: --seeds {max(complete.values())} takes them too"
