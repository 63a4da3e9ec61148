"""The page of anybody's study: runs in groups, their curves with intervals, settings, and a verdict for each pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heatbath.report.curves import FEW, curves_panel, means_panel
from heatbath.report.panels import FigureData, Opening, Panel
from heatbath.runs.collection import concerned, varying
from heatbath.runs.records import ENDED, Record
from heatbath.stats import wording
from heatbath.stats.comparison import Comparison, Comparisons
from heatbath.stats.verdicts import Verdict

Groups = Mapping[str, Sequence[Record]]
_UNTOLD = ("run", "seed")  # settings of a run that say nothing of a study


def study_figure(groups: Groups, comparisons: Comparisons, by: Sequence[str]) -> FigureData:
    """Return the one figure of a study.

    Args:
        groups: the runs by the name of their group; none for numbers of a table, which have no curves.
        comparisons: of these groups.
        by: the settings that make the groups.
    """
    metrics = list(dict.fromkeys(one.metric for one in comparisons))
    margins = {one.metric: wording.margin(one.margin) for one in reversed(comparisons) if one.margin}
    words = [f"{metric.replace('_', ' ')} within {margins[metric]}" for metric in metrics if metric in margins]
    sizes = {sample.name: len(sample.values) for one in comparisons for sample in (one.a, one.b)}
    sizes |= {name: len(runs) for name, runs in groups.items()}
    settings = {"groups": ", ".join(f"{name} ({size} runs)" for name, size in sizes.items()), **_common(groups)}
    return FigureData(
        name="study",
        title=f"Runs by {' and '.join(by)}",
        question=f"Do the groups differ in {' and '.join(metric.replace('_', ' ') for metric in metrics)}?",
        panels=tuple(_panels(groups, comparisons, metrics)),
        verdicts=tuple(map(_judged, comparisons)),
        settings={**settings, "equal means": "; ".join(words)} if words else settings,
        missing=tuple(sentence for name, runs in groups.items() for sentence in _lacking(name, runs)),
    )


def open_study(figure: FigureData, comparisons: Comparisons, source: str) -> Opening:
    """Return what the page of a study says first: the first comparisons in words, and the metric that was compared."""
    few = [one.sentence for one in comparisons][:3]
    return Opening(
        title=f"{figure.title}: {source}",
        asked=figure.question,
        conclusion=tuple(few) if len(comparisons) <= len(few) else (comparisons.sentence,),
        key=tuple(("study", number) for number in range(min(3, len(figure.panels)))),
    )


def about_study(groups: Groups, level: float) -> dict[str, str]:
    """Return what was run, in words; of a table only how it was judged."""
    records = [record for runs in groups.values() for record in runs]
    how = "Student's t of the differences by seed where seeds match, else Welch's t"
    told = about_runs(records, len(records)) if records else {}
    return {**told, "tests": f"{how}; {wording.promise(level)}"}


def about_runs(records: Sequence[Record], asked: int) -> dict[str, str]:
    """Return what runs there are of those that were asked for: how many, how long, where and with what."""
    ended, diverged = (sum(record.status in kinds for record in records) for kinds in (ENDED, ("diverged",)))
    versions = sorted({f"{name} {version}" for record in records for name, version in record.versions.items()})
    return {
        "runs": f"{ended} of {asked} ended, {diverged} of them diverged",
        "training": f"{sum(record.seconds for record in records):,.0f} s in all",
        "devices": ", ".join(sorted({record.device for record in records if record.device})) or "none",
        "versions": ", ".join(versions) or "none",
    }


def _judged(one: Comparison) -> Verdict:
    """A comparison as a line of the page."""
    told = wording.question(one), one.verdict, one.above, one.margin or 0.0, one.family, one.seeds_needed
    return Verdict(*told, told=one.sentence)


def _panels(groups: Groups, comparisons: Comparisons, metrics: Sequence[str]) -> list[Panel]:
    """The values that were compared, then the curves, those of what was compared first."""
    panels = []
    for metric in metrics:
        samples = [sample for one in comparisons if one.metric == metric for sample in (one.a, one.b)]
        words = metric.replace("_", " ")
        values = {sample.name: list(map(float, sample.values)) for sample in samples}
        panels.append(means_panel(values, words, f"{words.capitalize()} by group"))
    curves = dict.fromkeys(name for runs in groups.values() for record in runs for name in record.curves)
    compared = [name for name in curves if any(metric.endswith(name) for metric in metrics)]
    for name in dict.fromkeys((*compared, *(name for name in curves if name != "rate"))):
        panel = curves_panel(groups, name, few=FEW)
        positive = all(y is not None and y > 0.0 for series in panel.series for y in series.y)
        panels.append(curves_panel(groups, name, few=FEW, log=True) if positive and name.endswith("loss") else panel)
    return panels


def _common(groups: Groups) -> dict[str, str]:
    """The settings that all runs share."""
    configs = [record.config for runs in groups.values() for record in runs]
    names = [name for name in (configs[0].settings() if configs else ()) if name not in (*varying(configs), *_UNTOLD)]
    of = {name: concerned(configs, name) for name in names}  # a law, say, of random runs alone
    return {name.replace("_", " "): str(some[0].settings()[name]) for name, some in of.items() if some}


def _lacking(name: str, runs: Sequence[Record]) -> list[str]:
    diverged = [str(record.config.seed) for record in runs if record.status == "diverged"]
    unfinished = sum(record.status not in ENDED for record in runs)
    told = f"{name}: {len(diverged)} of {len(runs)} runs diverged (seed {', '.join(diverged)}) and are in no curve."
    left = f"{name}: {unfinished} of {len(runs)} runs are not finished."
    return [told] * bool(diverged) + [left] * bool(unfinished)
