"""Records from wherever they lie (a store, a file of ``runs export``, a folder of such files), and anybody's tables."""

from __future__ import annotations

import csv
import gzip
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from heatbath.runs.collection import Records, in_words
from heatbath.runs.records import Record
from heatbath.runs.store import Store

_EXPORTS = (".jsonl", ".jsonl.gz")
_OURS = {"run", "config", "curves"}  # what a line of our own exports has
_NOT_A_TABLE = (csv.Error, json.JSONDecodeError, UnicodeDecodeError, gzip.BadGzipFile, EOFError)
_Row = Mapping[str, Any]


class Source(NamedTuple):
    """What was read: of each run the best record."""

    records: list[Record]
    differing: dict[Path, list[str]]  # the runs of a file that have other numbers than an equally good record before


@dataclass(frozen=True)
class Table:
    """Rows of a file: what `heatbath.stats.samples` needs of a data frame. A value is None where there is none."""

    columns: tuple[str, ...]
    rows: Sequence[_Row]
    source: str

    def __getitem__(self, column: str) -> list[Any]:
        return [self._value(row.get(column), column) for row in self.rows]

    def _value(self, value: Any, column: str) -> Any:
        try:
            if column == "seed":
                return int(value)
            return None if value in (None, "") else float(value)
        except (TypeError, ValueError):
            if column == "seed":  # it may be any word
                return value
            raise ValueError(f"{self.source}: {value!r} in the column {column} is not a number") from None


def read_records(source: Path) -> Source:
    """Return the records of a store, an exported file, or a folder of such files; of several of a run the best."""
    if not source.exists():
        raise FileNotFoundError(f"there is no '{source}'; name a store or a file of 'heatbath runs export'")
    if (source / Store.FILE).exists():
        with Store(source, read_only=True) as results:
            return Source(results.records(), {})
    files = exported_files(source) if source.is_dir() else [source]
    if not files:
        raise FileNotFoundError(f"there is no store in {source}, nor a .jsonl or .jsonl.gz file of 'runs export'")
    # Merged in a store of their own, which knows what is better than what.
    with tempfile.TemporaryDirectory(prefix="heatbath-") as folder, Store(folder) as results:
        differing = {file: list(results.merge(file).differing) for file in files}
        return Source(results.records(), {file: runs for file, runs in differing.items() if runs})


def exported_files(folder: Path) -> list[Path]:
    """Return the files of 'runs export' in a folder."""
    return sorted(file for file in folder.iterdir() if file.name.endswith(_EXPORTS))


def read_groups(
    source: Path, by: Sequence[str], where: Mapping[str, str] | None = None
) -> dict[str, Records] | dict[str, Table]:
    """Return the runs of a store or file by the values of some settings or columns, in the order of their first run.

    The source is what `read_records` takes, or a table: CSV with a line of headings, or JSONL with an object on each
    line, whose objects inside have columns such as ``config.lr``. Of a table with a row for each epoch of a run, as our
    own CSV, the last epoch of each run is taken. ``where`` has settings or columns that must have a value, as text.
    """
    where = where or {}
    kind = source.name.removesuffix(".gz")
    if not source.is_dir() and kind.endswith((".csv", ".jsonl")):
        rows = _read_table(source, kind)
        if rows is not None:
            columns = tuple(dict.fromkeys(key for row in rows for key in row))
            _check_names([*by, *where], columns, f"column of {source}")
            groups: dict[str, list[_Row]] = {}
            for row in _last_epochs(rows):
                if _matches(row, where):
                    name = ", ".join(in_words(key, str(row.get(key))) for key in by) or "all runs"
                    groups.setdefault(name, []).append(row)
            _check_some(groups, source, where)
            return {name: Table(columns, members, str(source)) for name, members in groups.items()}
    records = read_records(source).records
    names = [*records[0].config.settings()] if records else []
    _check_names([*by, *where], names, f"setting of the runs in {source}")
    chosen = Records(record for record in records if _matches(record.config.settings(), where))
    _check_some(chosen, source, where)
    return chosen.groups(by)


def _read_table(path: Path, kind: str) -> list[dict[str, Any]] | None:
    """Return the rows of a file; None if its lines are records of ours."""
    if not path.exists():
        raise FileNotFoundError(f"there is no '{path}'")
    is_csv = kind.endswith(".csv")
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8", newline="")
            if path.suffix == ".gz"
            else path.open(newline="") as file
        ):
            return _read_csv(path, file) if is_csv else _read_jsonl(path, file)
    except _NOT_A_TABLE as error:
        raise ValueError(f"{path} is not {'a CSV table' if is_csv else 'JSONL'} ({error})") from None


def _read_csv(path: Path, file: Iterable[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = list(csv.DictReader(file, restkey="", strict=True))
    for number, row in enumerate(rows, start=2):
        if "" in row or None in row.values():
            many = "more" if "" in row else "fewer"
            raise ValueError(f"{path}: row {number} has {many} values than there are headings")
    return rows


def _read_jsonl(path: Path, file: Iterable[str]) -> list[dict[str, Any]] | None:
    rows = []
    for number, line in enumerate(file, start=1):
        row = json.loads(line) if line.strip() else {}
        if not isinstance(row, dict):
            raise ValueError(f"{path}: line {number} is not a JSON object")
        if row.keys() >= _OURS:
            return None
        rows += [_flatten(row)] if row else []
    return rows


def _flatten(row: _Row, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in row.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _last_epochs(rows: Sequence[_Row]) -> Iterable[_Row]:
    if not rows or not {"run", "epoch"} <= rows[0].keys():
        return rows
    last: dict[Any, _Row] = {}
    for row in rows:
        if row["run"] not in last or float(row["epoch"]) >= float(last[row["run"]]["epoch"]):
            last[row["run"]] = row
    return last.values()


def _check_names(names: Iterable[str], known: Sequence[str], what: str) -> None:
    allowed = f"choose one of {', '.join(known)}" if known else "there is nothing in it"
    for name in names:
        if name not in known:
            raise ValueError(f"{name!r} is not a {what}: {allowed}")


def _check_some(groups: Sized, source: Path, where: Mapping[str, str]) -> None:
    if not groups:
        chosen = f" with {', '.join(f'{key}={value}' for key, value in where.items())}" if where else ""
        raise ValueError(f"there are no runs{chosen} in {source}")


def _matches(values: _Row, where: Mapping[str, str]) -> bool:
    """Whether all values are the wanted ones, as text or as numbers."""
    for key, wanted in where.items():
        text = str(values.get(key))
        try:
            if text != wanted and float(text) != float(wanted):
                return False
        except ValueError:
            return False
    return True
