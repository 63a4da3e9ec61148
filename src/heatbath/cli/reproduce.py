"""`heatbath reproduce`: the paper's figures, trained, drawn and judged."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heatbath.cli.errors import resumable
from heatbath.cli.progress import display
from heatbath.cli.screens import console, folder_option, print_table, write
from heatbath.cli.training import (
    DataOption,
    DeviceOption,
    QuietOption,
    StoreOption,
    WorkersOption,
    read_options,
)
from heatbath.cli.verdicts import print_verdicts, verdicts_to_json
from heatbath.runs.sources import exported_files
from heatbath.runs.store import Store
from heatbath.system.folders import check_folder

if TYPE_CHECKING:
    from heatbath.paper.reproduction import Reproduction


def reproduce_figures(
    figures: Annotated[
        list[str] | None,
        typer.Argument(metavar="FIGURE", help="Such as figure1, or just 1; all by default. --list names them."),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="smoke (seconds, a test), laptop (minutes, embedded data) or paper (for a GPU)."
        ),
    ] = "laptop",
    seeds: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Runs of each group, instead of the scale's own number.")
    ] = None,
    device: DeviceOption = "auto",
    store: StoreOption = Path("runs"),
    out: Annotated[Path, folder_option("--out", "The folder for the report and its pictures.")] = Path("out"),
    data_dir: DataOption = None,
    workers: WorkersOption = None,
    draw_only: Annotated[bool, typer.Option("--draw-only", help="Train nothing: draw what is in the store.")] = False,
    list_figures: Annotated[bool, typer.Option("--list", help="Print the figures, and train nothing.")] = False,
    quiet: QuietOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON.")] = False,
) -> None:
    """Train what the paper's figures need, draw them, and judge the paper's claims.

    What is in the store is not trained again: an interrupted command goes on where it was, and a repeated one draws.
    """
    from heatbath.paper import SCALES, find_experiments

    experiments = find_experiments(figures or ())
    if list_figures:
        rows = [(e.name, "" if e.exists("laptop") else "scale paper only", e.title) for e in experiments]
        print_table(("figure", "", "what it shows"), rows, left=3)
        return
    if scale not in SCALES:
        raise ValueError(f"unknown scale {scale!r}: choose one of {', '.join(SCALES)}")
    from heatbath.paper.reproduction import reproduce
    from heatbath.report import plots  # noqa: F401 - a missing extra is told before the work, not after it

    options = read_options(device, data_dir, workers)
    check_folder(out, "--out")
    _check_store(store, draw_only)
    with resumable(), display(quiet=quiet) as shown:
        shown.show(None, ("starting",))
        found = reproduce(
            figures or (),
            scale,
            seeds,
            options,
            store=store,
            out=out,
            train=not draw_only,
            progress=lambda fraction, doing: shown.show(fraction, (doing,)),
            say=shown.say,
        )
    if as_json:
        write(verdicts_to_json(found.verdicts, scale=scale, report=str(out / found.report.name)))
    else:
        _print_found(found, out)


def _print_found(found: Reproduction, out: Path) -> None:
    print_verdicts(found.verdicts)
    screen = console()
    if found.left_out:
        screen.print(f"\nOnly at the scale paper: {', '.join(found.left_out)}")
    missing = [figure.name for figure in found.figures if figure.missing]
    if missing:
        screen.print(f"\nNot complete: {', '.join(missing)}; the report says what is missing")
    screen.print(f"\nThe report: {out / found.report.name}")


def _check_store(store: Path, draw_only: bool) -> None:
    """Refuse a folder of exported runs, which would be trained anew; and to draw from one without any results."""
    if not draw_only:
        check_folder(store, "--store")
    if (store / Store.FILE).exists():
        return
    if store.is_dir() and exported_files(store):
        name = shlex.quote(str(store))
        hint = f"its files of 'runs export' are drawn by 'heatbath report {name}'"
        if not draw_only:
            hint += f"; to train what they lack, 'heatbath runs merge {name} --create --store NEW' first"
    elif not draw_only or (store / "calculations").is_dir():  # which are results without a database
        return
    else:
        hint = "name one with --store, or leave out --draw-only"
    raise FileNotFoundError(f"there is no store in {store}; {hint}")
