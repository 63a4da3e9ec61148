"""`heatbath reproduce`: the paper's figures, trained, drawn and judged."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from heatbath.cli.data import download_data
from heatbath.cli.errors import resumable
from heatbath.cli.progress import display
from heatbath.cli.report import exported_files
from heatbath.cli.screens import check_data_dir, check_folder, console, folder_option, print_table
from heatbath.cli.training import DataOption, DeviceOption, QuietOption, StoreOption, WorkersOption, unfinished
from heatbath.cli.verdicts import print_verdicts
from heatbath.store import Store


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
    from heatbath import machines, plots  # noqa: F401 - a missing extra is told before the work, not after it
    from heatbath.paper.reproduction import reproduce

    machines.check_device(device)
    check_data_dir(data_dir)
    check_folder(out, "--out")
    if not draw_only:
        check_folder(store, "--store")
    else:
        _check_drawable(store)
    with resumable(), display(quiet=quiet) as shown:
        shown.show(None, ("starting",))
        if not draw_only:
            machines.choose_device(device)
            configs = [config for experiment in experiments for config in experiment.configs(scale, seeds)]
            download_data(unfinished(configs, store), data_dir, shown)
        found = reproduce(
            figures or (),
            scale,
            seeds,
            device,
            store=store,
            out=out,
            data_dir=data_dir,
            workers=workers,
            train=not draw_only,
            progress=lambda fraction, doing: shown.show(fraction, (doing,)),
            say=shown.say,
        )
    print_verdicts(found.verdicts)
    screen = console()
    if found.left_out:
        screen.print(f"\nOnly at the scale paper: {', '.join(found.left_out)}")
    missing = [figure.name for figure in found.figures if figure.missing]
    if missing:
        screen.print(f"\nNot complete: {', '.join(missing)}; the report says what is missing")
    screen.print(f"\nThe report: {out / found.report.name}")


def _check_drawable(store: Path) -> None:
    """Refuse a folder without results; calculations, unlike runs, are results without a database."""
    if (store / Store.FILE).exists():
        return
    if store.is_dir() and exported_files(store):
        hint = f"its files of 'runs export' are drawn by 'heatbath report {shlex.quote(str(store))}'"
    elif not (store / "calculations").is_dir():
        hint = "name one with --store, or leave out --draw-only"
    else:
        return
    raise FileNotFoundError(f"there is no store in {store}; {hint}")
