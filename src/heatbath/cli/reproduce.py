"""`heatbath reproduce`: the paper's figures, trained, drawn and judged."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

from heatbath.cli.errors import resumable
from heatbath.cli.options import read_seeds
from heatbath.cli.screens import Answer, print_table
from heatbath.cli.training import Training
from heatbath.cli.verdicts import answer_with_figures
from heatbath.engine.progress_bar import display
from heatbath.runs.sources import exported_files
from heatbath.runs.store import Store
from heatbath.system.whole_files import check_folder


def reproduce_figures(
    *,
    figures: list[str] | None = None,
    scale: str = "laptop",
    seeds: int | None = None,
    training: Training,
    out: Annotated[Path, "Folder for the report and its pictures."] = Path("out"),
    draw_only: bool = False,
    list_figures: bool = False,
) -> Answer:
    """Train the networks of the paper's figures, draw the figures, and judge the paper's claims.

    Finished runs are cached. Run the command again to resume it, or to redraw the figures.
    """
    from heatbath.paper import EXPERIMENTS, PLANNED, SCALES, find_experiments

    experiments = find_experiments(figures or (list_figures and [*EXPERIMENTS, *PLANNED]) or ())
    if list_figures:
        rows = [(e.name, "" if e.exists("laptop") else "scale paper only", e.title) for e in experiments]
        data = [{"figure": name, "paper_only": bool(only), "title": title} for name, only, title in rows]
        return Answer(data, lambda: print_table(("figure", "", "what it shows"), rows, left=3))
    if scale not in SCALES:
        raise ValueError(f"unknown scale {scale!r}: choose one of {', '.join(SCALES)}")
    read_seeds(seeds)
    options = training.options()
    check_folder(out, "--out")
    _check_store(training.store, draw_only)
    with resumable(), display(quiet=training.quiet) as shown:
        from heatbath.paper.reproduction import reproduce
        from heatbath.report import plots  # noqa: F401 - a missing extra is told before the work, not after it

        rest: dict[str, Any] = {"store": training.store, "out": out, "say": shown.say}
        found = reproduce(
            figures or (), scale, seeds, options, train=not draw_only, progress=shown.follow_fraction, **rest
        )
    notes = [f"Only at the scale paper: {', '.join(found.left_out)}"] if found.left_out else []
    return answer_with_figures(found.figures, out / found.report.name, scale, notes=notes)


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
