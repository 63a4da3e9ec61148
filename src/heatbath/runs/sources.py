"""Records from wherever they lie: a store, a file of ``runs export``, or a folder of such files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from heatbath.runs.records import Record
from heatbath.runs.store import Store

_EXPORTS = (".jsonl", ".jsonl.gz")


class Source(NamedTuple):
    """What was read.

    Attributes:
        records: of each run the best.
        differing: for each file the runs of which it has other numbers than an equally good record read before.
    """

    records: list[Record]
    differing: dict[Path, list[str]]


def read_records(source: Path) -> Source:
    """Return the records of a store, an exported file, or a folder of such files; of several of a run the best.

    Raises:
        OSError: there is nothing of the kind.
        ValueError: a file is damaged or something else.
    """
    if not source.exists():
        raise FileNotFoundError(f"there is no '{source}'; name a store or a file of 'heatbath runs export'")
    if not source.is_dir():
        return _read_files([source])
    if (source / Store.FILE).exists():
        with Store(source, read_only=True) as results:
            return Source(results.records(), {})
    files = exported_files(source)
    if not files:
        raise FileNotFoundError(f"there is no store in {source}, nor a .jsonl or .jsonl.gz file of 'runs export'")
    return _read_files(files)


def exported_files(folder: Path) -> list[Path]:
    """Return the files of 'runs export' in a folder."""
    return sorted(file for file in folder.iterdir() if file.name.endswith(_EXPORTS))


def _read_files(files: Iterable[Path]) -> Source:
    """Merged in a store of their own, which knows what is better than what."""
    with tempfile.TemporaryDirectory(prefix="heatbath-") as folder, Store(folder) as results:
        differing = {file: list(results.merge(file).differing) for file in files}
        return Source(results.records(), {file: runs for file, runs in differing.items() if runs})
