"""`heatbath report`: figures, verdicts and the page again, from results that are there."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from heatbath.cli.progress import display
from heatbath.cli.screens import check_folder, console, folder_option, terminal_width, warn
from heatbath.cli.summaries import name_some
from heatbath.cli.verdicts import print_verdicts
from heatbath.runs.records import Record

if TYPE_CHECKING:
    from heatbath.paper import Experiment, Scale

_EXPORTS = (".jsonl", ".jsonl.gz")


def rebuild_report(
    source: Annotated[
        Path, typer.Argument(metavar="DIR", help="A store, a file of 'runs export' (.jsonl[.gz]) or a folder of them.")
    ],
    scale: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="smoke, laptop or paper; by default the largest that there are runs of."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Runs of each group, instead of the scale's own number.")
    ] = None,
    out: Annotated[Path, folder_option("--out", "The folder for the report and its pictures.")] = Path("out"),
) -> None:
    """Draw every figure, judge every claim and write the page from results that are there; nothing is trained."""
    from heatbath.paper import SCALES, find_experiments, reproduction
    from heatbath.report import plots  # noqa: F401 - a missing extra is told before the work, not after it

    if scale is not None and scale not in SCALES:
        raise ValueError(f"unknown scale {scale!r}: choose one of {', '.join(SCALES)}")
    check_folder(out, "--out")
    said: list[str] = []
    with display(log=False) as shown:
        shown.show(None, ("reading the records",))
        known = {record.run: record for record in read_records(source, said.append)}
        folder = source if source.is_dir() else source.parent
        chosen = cast("Scale", scale or _largest_scale(known, source))
        experiments = [experiment for experiment in find_experiments() if experiment.exists(chosen)]
        left_out = [experiment.name for experiment in find_experiments() if not experiment.exists(chosen)]
        calculations = [calculation for experiment in experiments for calculation in experiment.calculations(chosen)]
        results = reproduction.cached_results(calculations, folder)
        if scale is not None:
            _check_scale(chosen, known, results, source)
        said += [f"{file} is damaged, and counts as missing" for file in reproduction.damaged_results(folder)]
        shown.show(None, ("drawing",))
        figures, page = reproduction.draw(experiments, known, chosen, seeds, results, out, left_out)
    empty = {e.name for e in experiments if not e.has_results(known, chosen, seeds, results)}
    verdicts = [(f.name, verdict) for f in figures if f.name not in empty for verdict in f.verdicts]
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


def read_records(source: Path, say: Callable[[str], None] | None = None) -> list[Record]:
    """Return the records of a store, an exported file, or a folder of such files; of several of a run the best.

    Args:
        source: the store, file or folder.
        say: called where files disagree about a run, with which of the equally good ones was taken.

    Raises:
        OSError: there is nothing of the kind.
        ValueError: a file is damaged or something else.
    """
    from heatbath.runs.store import Store

    if not source.exists():
        raise FileNotFoundError(f"there is no '{source}'; name a store or a file of 'heatbath runs export'")
    if not source.is_dir():
        return _read_files([source], say)
    if (source / Store.FILE).exists():
        with Store(source, read_only=True) as results:
            return results.records()
    files = exported_files(source)
    if not files:
        raise FileNotFoundError(f"there is no store in {source}, nor a .jsonl or .jsonl.gz file of 'runs export'")
    return _read_files(files, say)


def exported_files(folder: Path) -> list[Path]:
    """Return the files of 'runs export' in a folder."""
    return sorted(file for file in folder.iterdir() if file.name.endswith(_EXPORTS))


def _read_files(files: Iterable[Path], say: Callable[[str], None] | None) -> list[Record]:
    """Merged in a store of their own, which knows what is better than what."""
    from heatbath.runs.store import Store

    with tempfile.TemporaryDirectory(prefix="heatbath-") as folder, Store(folder) as results:
        for file in files:
            differing = results.merge(file).differing
            if differing and say is not None:
                runs = f"{len(differing)} run{'s' * (len(differing) != 1)}: {name_some(differing)}"
                say(f"{file} has other numbers than were read before, and taken, of {runs}")
        return results.records()


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
