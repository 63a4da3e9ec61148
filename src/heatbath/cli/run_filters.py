"""Which store, and which of its runs, a command is about."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from heatbath.data.image_sets import DATASETS, OLD_SPLIT
from heatbath.runs.configs import RunConfig
from heatbath.runs.protocols import parse_protocol
from heatbath.runs.records import STATUSES, Record
from heatbath.runs.sources import exported_files
from heatbath.runs.store import Store
from heatbath.tasks.registry import networks


@dataclass(frozen=True)
class Filters:
    """A store, and what its runs are to be."""

    model: Annotated[str | None, "Only runs of {}."] = None
    dataset: Annotated[str | None, "Only runs on {}."] = None
    protocol: Annotated[str | None, "Only runs with constant, random, cyclic (any period) or cyclic:P."] = None
    status: str | None = None
    store: Path = Path("runs")

    def select(self, results: Store) -> list[Record]:
        """Return the runs that fit; a model or data set that is neither known nor in the store is refused."""
        any_cycle = self.protocol is not None and self.protocol.strip().lower() == "cyclic"
        wanted = None if self.protocol is None or any_cycle else parse_protocol(self.protocol)
        allowed = {"model": dict.fromkeys(networks()), "dataset": dict.fromkeys((*DATASETS, OLD_SPLIT))}

        def where(config: RunConfig) -> bool:
            for name, names in allowed.items():
                names.setdefault(getattr(config, name))
            fits = all(getattr(self, name) in (None, getattr(config, name)) for name in allowed)
            return fits and wanted in (None, config.protocol) and not (any_cycle and config.protocol.kind != "cyclic")

        if self.status not in (None, *STATUSES):
            raise ValueError(f"unknown status {self.status!r}: choose one of {', '.join(STATUSES)}")
        records = results.records(where=where)
        for name, names in allowed.items():
            if getattr(self, name) not in (None, *names):
                raise ValueError(f"unknown {name} {getattr(self, name)!r}: choose one of {', '.join(names)}")
        return [record for record in records if self.status in (None, record.status)]

    def __str__(self) -> str:
        names = ("model", "dataset", "protocol", "status")
        return " ".join(f"--{name} {getattr(self, name)}" for name in names if getattr(self, name) is not None)


def open_store(store: Path) -> Store:
    """To be read; a store that is not there is not made."""
    if store.is_dir() and (store / Store.FILE).exists():
        return Store(store, read_only=True)
    if store.is_dir() and exported_files(store):
        hint = f"its files of 'runs export' become one by 'heatbath runs merge {store} --create --store runs'"
    else:
        hint = "name one with --store, or make one with 'heatbath train'"
    raise FileNotFoundError(f"there is no store in {store}; {hint}")
