"""`heatbath compare`: is one group of runs better than another?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from heatbath.cli.comparisons import (
    MARGINS,
    SOURCES,
    DivergedOption,
    JsonOption,
    WhereOption,
    parse_diverged,
    parse_looks,
    parse_where,
    print_comparisons,
    print_lines,
    with_record,
)
from heatbath.cli.screens import print_table, warn, write


def compare_runs(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help=SOURCES)],
    by: Annotated[
        list[str], typer.Option(metavar="KEY", help="The setting or column that makes the groups; may be repeated.")
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="What to compare, by default test_accuracy; several make one family."),
    ] = None,
    margin: Annotated[str | None, typer.Option(metavar="X", help=MARGINS)] = None,
    level: Annotated[float, typer.Option(help="The chance that no verdict is wrong.")] = 0.95,
    against: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Compare all groups with this one, or 'best' to ask for the best one."),
    ] = None,
    looks: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="Planned numbers of seeds, such as 5,10,20,40, for runs that are added."),
    ] = None,
    where: WhereOption = None,
    diverged: DivergedOption = "tell",
    lower_is_better: Annotated[
        bool | None,
        typer.Option("--lower-is-better/--higher-is-better", help="By default, lower where it is a loss or an error."),
    ] = None,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the verdict to this JSON file, for 'heatbath gate'.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say which of two or more groups of runs is better, or that they are equal within a margin, or undecided.

    Groups are compared by seed where their seeds match. The looks at a store are kept in it: a comparison that was
    looked at before with fewer seeds says so, and pays for it with a part of its error, unless the looks were planned.
    """
    from heatbath import __version__, compare
    from heatbath.runs.read_groups import read_groups
    from heatbath.stats.best_of import BestOf
    from heatbath.stats.verdict_files import write_verdict

    groups = read_groups(source, by, parse_where(where))
    if len(groups) < 2:
        raise ValueError(f"{source} has one group only, {next(iter(groups))}: choose another --by")
    options: dict[str, Any] = {"metric": metric[0] if metric and len(metric) == 1 else metric or None}
    options |= {"margin": margin, "level": level, "against": against}
    options |= {"looks": None if looks is None else parse_looks(looks), "diverged": parse_diverged(diverged)}
    options |= {"lower_is_better": lower_is_better}
    found, told = with_record(source, lambda history: compare(groups, **options, history=history))
    if export is not None:
        if isinstance(found, BestOf):
            raise ValueError("--export writes comparisons: leave out --against best")
        write_verdict(export, found, __version__)
    if as_json:
        write(json.dumps(found.to_dict(), indent=2, allow_nan=False))
        return
    if isinstance(found, BestOf):
        print_lines([str(found)])
        print_table(("group", "mean", "verdict"), [(g.name, f"{g.mean:.5g}", g.verdict) for g in found], left=1)
    else:
        print_comparisons(found)
    if told:
        warn(told)
