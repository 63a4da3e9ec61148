"""`heatbath report`: figures, verdicts and the page again, from results that are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from heatbath.cli.compare import print_comparisons, read_two_groups, with_record
from heatbath.cli.options import read_diverged, read_seeds, read_where
from heatbath.cli.screens import Answer, count, say, warn
from heatbath.cli.summaries import name_some
from heatbath.cli.verdicts import answer_with_figures, describe_verdicts
from heatbath.engine.progress_bar import display
from heatbath.runs.collection import Records, main_metric
from heatbath.runs.records import Record
from heatbath.runs.sources import read_records
from heatbath.system.whole_files import check_folder

if TYPE_CHECKING:
    from heatbath.paper import Experiment, Scale


def rebuild_report(
    source: Path,
    scale: Annotated[str | None, "{}; by default the largest with runs in the source."] = None,
    seeds: int | None = None,
    by: Annotated[list[str] | None, "Report on your own study: the setting that defines its groups."] = None,
    metric: Annotated[list[str] | None, "With --by: the metric to compare, test_accuracy by default."] = None,
    margin: Annotated[str | None, "With --by: means this close count as equal, as in compare."] = None,
    level: Annotated[float, "With --by: confidence that no verdict is wrong."] = 0.95,
    against: Annotated[str | None, "With --by: compare every group with this one."] = None,
    where: list[str] | None = None,
    diverged: str = "tell",
    out: Annotated[Path, "Folder for the report and its pictures."] = Path("out"),
) -> Answer:
    """Write a page of figures and verdicts from stored runs. Nothing is trained.

    Without --by, the page is about the paper's figures and claims. With --by, it shows the curves of each group with
    intervals, and a verdict for each pair of groups.
    """
    check_folder(out, "--out")
    if by:
        if scale is not None or seeds is not None:
            raise ValueError("--scale and --seeds are for the report on the paper: leave them out, or --by")
        if against == "best":
            raise ValueError("--against best has no pairs to show; 'heatbath compare' asks for the best group")
        options = {"margin": margin, "level": level, "against": against, "diverged": read_diverged(diverged)}
        return _report_on_study(source, by, read_where(where), {"metric": metric, **options}, out)
    if metric or margin or against or where:
        raise ValueError("--metric, --margin, --against and --where need --by, the setting that makes the groups")
    read_seeds(seeds)
    return _report_on_paper(source, scale, seeds, out)


def _report_on_study(
    source: Path, by: list[str], where: Mapping[str, str], options: dict[str, Any], out: Path
) -> Answer:
    with display("reading the records") as shown:
        from heatbath.report import plots  # noqa: F401 - a missing extra is told before the work, not after it
        from heatbath.report.page import write_report
        from heatbath.report.study import about_study, open_study, study_figure
        from heatbath.stats.compare import compare

        groups = read_two_groups(source, by, where)
        runs = {name: members for name, members in groups.items() if isinstance(members, Records)}
        asked = options["metric"] or [main_metric(record for members in runs.values() for record in members)]
        options["metric"] = asked if len(asked) > 1 else asked[0]
        found, told = with_record(source, lambda history: compare(groups, **options, history=history))
        shown.show(None, ("drawing",))
        figure = study_figure(runs, found, by)
        opening, about = open_study(figure, found, str(source)), about_study(runs, options["level"])
        page = write_report([figure], out, about=about, opening=opening)

    def show() -> None:
        print_comparisons(found)
        for text in (*figure.missing, *filter(None, [told])):
            warn(text)
        say(f"\nThe report: {page}")

    return Answer(describe_verdicts([(figure.name, one) for one in figure.verdicts], report=str(page)), show)


def _report_on_paper(source: Path, scale: str | None, seeds: int | None, out: Path) -> Answer:
    """Draw every figure, judge every claim and write the page."""
    with display("reading the records") as shown:
        from heatbath.paper import PLANNED, SCALES, calculations, find_experiments, reproduction
        from heatbath.report import plots  # noqa: F401 - a missing extra is told before the work, not after it

        if scale is not None and scale not in SCALES:
            raise ValueError(f"unknown scale {scale!r}: choose one of {', '.join(SCALES)}")
        records, differing = read_records(source)
        known = {record.run: record for record in records}
        folder = source if source.is_dir() else source.parent
        chosen = _choose_scale(known, scale, folder, source)
        asked = [one for e in (*find_experiments(), *PLANNED.values()) for one in e.calculations(chosen)]
        results = calculations.cached_results(asked, folder)
        experiments = [experiment for experiment in find_experiments() if experiment.exists(chosen)]
        experiments += [one for one in PLANNED.values() if one.has_results(known, chosen, seeds, results)]
        left_out = [experiment.name for experiment in find_experiments() if not experiment.exists(chosen)]
        taken = "has other numbers than were read before, and taken, of"
        warnings = [f"{file} {taken} {count(len(runs), 'run')}: {name_some(runs)}" for file, runs in differing.items()]
        warnings += [f"{file} is damaged, and counts as missing" for file in calculations.damaged_results(folder)]
        shown.show(None, ("drawing",))
        figures, page = reproduction.report_on(experiments, known, chosen, seeds, results, out, left_out)
    empty = [e.name for e in experiments if not e.has_results(known, chosen, seeds, results)]
    notes = [f"Without any results: {', '.join(empty)}"] if empty else []
    notes += _spare_seeds(experiments, known, chosen) if seeds is None else []
    return answer_with_figures(figures, page, chosen, warnings=warnings, empty=empty, notes=notes)


def _choose_scale(known: Mapping[str, Record], scale: Scale | None, folder: Path, source: Path) -> Scale:
    """The scale that is asked for, or the largest that there are runs of.

    One that there is nothing of is refused: neither runs, nor calculations that are no other scale's as well.
    """
    from heatbath.paper import SCALES, calculations, find_experiments

    experiments = find_experiments()
    there = [name for name in SCALES if any(c.run in known for e in experiments for c in e.configs(name))]
    if scale is None and there:
        return there[-1]
    if scale is not None:
        own = [calculation for e in experiments if e.exists(scale) for calculation in e.calculations(scale)]
        shared = {calculation.name for name in there for e in experiments for calculation in e.calculations(name)}
        if scale in there or calculations.cached_results(own, folder).keys() - shared:
            return scale
    hint = f"there are runs of {' and '.join(there)}" if there else "'heatbath reproduce' makes those that do"
    at = f" at the scale {scale}" if scale is not None else ""
    raise ValueError(f"no run in {source} belongs to a figure{at}; {hint}")


def _spare_seeds(experiments: Sequence[Experiment], known: Mapping[str, Record], scale: Scale) -> list[str]:
    """What to say where figures have more seeds than the scale takes."""
    complete = {experiment.name: experiment.complete_seeds(known, scale) for experiment in experiments}
    taken = {e.name: max((group.seeds for group in e.groups(scale)), default=0) for e in experiments}
    more = [name for name, seeds in complete.items() if seeds > taken[name]]
    words = f"The scale {scale} takes fewer seeds than there are of {', '.join(more)}"
    return [f"{words}: --seeds {max(complete.values())} takes them too"] if more else []
