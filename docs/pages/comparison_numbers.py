"""Numbers of docs/compare.md: an example from the committed records, and the simulation of planned looks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import heatbath as hb
from committed import benchmark, check, records

_TEN_SEEDS = {"lr": 0.005, "batch_size": 256, "momentum": 0.9}  # of the CNN


def example() -> SimpleNamespace:
    """Return sentences on the CNN of figure 3, whose runs anybody can compare from the shell."""
    runs: dict[str, list[Any]] = {}
    for record in records().values():
        config = record.config
        if config.model == "cnn" and all(getattr(config, name) == value for name, value in _TEN_SEEDS.items()):
            runs.setdefault(str(config.protocol), []).append(record)
    two = hb.compare(runs["random"], runs["constant"], margin=0.001, names=("random", "constant"))
    loss = hb.compare(runs["random"], runs["constant"], "train_loss", "10 %", names=("random", "constant"))
    best = hb.compare(runs, margin=0.001, against="best")
    return SimpleNamespace(two=two, loss=loss, best=best, family=hb.compare(runs, margin=0.001))


def looks() -> SimpleNamespace:
    """Return what the simulation says of planned looks, a fixed number of seeds, and looks without a plan."""
    found = benchmark("looks")
    rows = found["rows"]
    for row in rows:
        if row["difference"] == 0.0:
            wrong = row["planned_better"] + row["planned_worse"]
            check(wrong < 0.05, "planned looks tell equal means apart in less than 5 %")
        if row["difference"] == row["margin"]:
            wrong = row["planned_equal"] + row["planned_worse"]
            check(wrong < 0.05, "planned looks call means a margin apart equal in less than 5 %")
    table = "\n".join(_row(row) for row in rows)
    plain = [row for row in rows if row["margin"] is None and row["difference"] == 0.0]
    unplanned = max(row["unplanned_better"] + row["unplanned_worse"] for row in plain)
    power = next(row for row in rows if row["difference"] == 0.74 and row["margin"] is None and not row["paired"])
    return SimpleNamespace(table=table, unplanned=unplanned, trials=found["trials"], power=power)


def _row(row: dict[str, Any]) -> str:
    test = "pairs" if row["paired"] else "Welch"
    margin = "none" if row["margin"] is None else f"{row['margin']:g}"
    cells = [f"{row[f'{design}_{verdict}']:.3f}" for design in ("planned", "fixed", "unplanned") for verdict in _SHOWN]
    seeds = [f"{row[f'{design}_seeds']:.1f}" for design in ("planned", "unplanned")]
    return (
        f"| {test} | {margin} | {row['difference']:g} | "
        + " | ".join([*cells[:2], seeds[0], *cells[2:], seeds[1]])
        + " |"
    )


_SHOWN = ("better", "equal")
