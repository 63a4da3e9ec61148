"""Which store, and which of its runs, a command is about: the options, and the runs that fit them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from heatbath.cli.screens import either, folder_option
from heatbath.data.image_sets import DATASETS, OLD_SPLIT
from heatbath.runs.configs import RunConfig
from heatbath.runs.protocols import parse_protocol
from heatbath.runs.records import STATUSES, Record
from heatbath.runs.sources import exported_files
from heatbath.runs.store import Store
from heatbath.tasks.registry import networks

ExistingStore = Annotated[Path, folder_option("--store", "The folder of the store.")]
ModelFilter = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help=f"Only those of {either(networks())}.")
]
DatasetFilter = Annotated[
    str | None, typer.Option("--dataset", metavar="NAME", help=f"Only those on {either(DATASETS)}.")
]
ProtocolFilter = Annotated[
    str | None,
    typer.Option("--protocol", metavar="NAME", help="Only constant, random, cyclic (of any period) or cyclic:P."),
]
StatusFilter = Annotated[
    str | None,
    typer.Option("--status", metavar="NAME", help=f"Only those that are {', '.join(STATUSES[:-1])} or {STATUSES[-1]}."),
]


def select_runs(
    results: Store, model: str | None, dataset: str | None, protocol: str | None, status: str | None
) -> list[Record]:
    """Return the runs that fit; a model or data set that is neither known nor in the store is refused."""
    likes_protocol = _protocol_filter(protocol)
    allowed = {"model": dict.fromkeys(networks()), "dataset": dict.fromkeys((*DATASETS, OLD_SPLIT))}
    asked = {"model": model, "dataset": dataset}

    def where(config: RunConfig) -> bool:
        for name, names in allowed.items():
            names.setdefault(getattr(config, name))
        return all(value in (None, getattr(config, name)) for name, value in asked.items()) and likes_protocol(config)

    if status is not None and status not in STATUSES:
        raise ValueError(f"unknown status {status!r}: choose one of {', '.join(STATUSES)}")
    records = results.records(where=where)
    for name, value in asked.items():
        if value is not None and value not in allowed[name]:
            raise ValueError(f"unknown {name} {value!r}: choose one of {', '.join(allowed[name])}")
    return [record for record in records if status in (None, record.status)]


def open_store(store: Path) -> Store:
    """To be read; a store that is not there is not made."""
    if store.is_dir() and (store / Store.FILE).exists():
        return Store(store, read_only=True)
    if store.is_dir() and exported_files(store):
        hint = f"its files of 'runs export' become one by 'heatbath runs merge {store} --create --store runs'"
    else:
        hint = "name one with --store, or make one with 'heatbath train'"
    raise FileNotFoundError(f"there is no store in {store}; {hint}")


def runs_in_words(number: int) -> str:
    """Return so many runs."""
    return "1 run" if number == 1 else f"{number} runs"


def _protocol_filter(protocol: str | None) -> Callable[[RunConfig], bool]:
    if protocol is None:
        return lambda _config: True
    if protocol.strip().lower() == "cyclic":
        return lambda config: config.protocol.kind == "cyclic"
    wanted = parse_protocol(protocol)
    return lambda config: config.protocol == wanted
