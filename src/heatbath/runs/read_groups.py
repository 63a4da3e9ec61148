"""Groups of runs to compare, from a store or an export of ours, or from anybody's CSV or JSONL table."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heatbath.runs.collection import Records
from heatbath.runs.sources import read_records

_OURS = {"run", "config", "curves"}  # what a line of our own exports has


@dataclass(frozen=True)
class Table:
    """Rows of a file: what `heatbath.stats.inputs` needs of a data frame.

    Attributes:
        columns: their names.
        rows: a value for each column, None where there is none.
        source: the file, for messages.
    """

    columns: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]
    source: str

    def __getitem__(self, column: str) -> list[Any]:
        values = [row.get(column) for row in self.rows]
        return [_seed(value) for value in values] if column == "seed" else [self._number(v, column) for v in values]

    def _number(self, value: Any, column: str) -> float | None:
        if value is None or value == "":
            return None
        try:
            return float(value)
        except (TypeError, ValueError):
            raise ValueError(f"{self.source}: {value!r} in the column {column} is not a number") from None


def read_groups(
    source: Path, by: Sequence[str], where: Mapping[str, str] | None = None
) -> dict[str, Records] | dict[str, Table]:
    """Return the runs of a store or file by the values of some settings or columns, in the order of their first run.

    Args:
        source: a store, a file of ``heatbath runs export``, a folder of such files, or a table: CSV with a line of
            headings, or JSONL with an object on each line, whose objects inside have columns such as ``config.lr``. Of
            a table with a row for each epoch of a run, as our own CSV, the last epoch of each run is taken.
        by: the settings or columns; none for a single group.
        where: settings or columns that must have a value, as text.

    Raises:
        OSError: there is no such file.
        ValueError: a setting or column does not exist, nothing is left, or the file is not what its name says.
    """
    where = where or {}
    kind = source.name.removesuffix(".gz")
    if not source.is_dir() and kind.endswith((".csv", ".jsonl")):
        if not source.exists():
            raise FileNotFoundError(f"there is no '{source}'")
        rows = _read_csv(source) if kind.endswith(".csv") else _read_jsonl(source)
        if rows is not None:
            return _group_rows(_last_epochs(rows), source, by, where)
    records = read_records(source).records
    _check_names(
        [*by, *where], list(records[0].config.settings()) if records else [], f"setting of the runs in {source}"
    )
    chosen = Records(
        record
        for record in records
        if all(_matches(str(record.config.settings()[key]), value) for key, value in where.items())
    )
    _check_some(chosen, source, where)
    return chosen.groups(by)


def _group_rows(
    rows: Sequence[Mapping[str, Any]], source: Path, by: Sequence[str], where: Mapping[str, str]
) -> dict[str, Table]:
    columns = tuple(dict.fromkeys(key for row in rows for key in row))
    _check_names([*by, *where], columns, f"column of {source}")
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if all(_matches(str(row.get(key)), value) for key, value in where.items()):
            groups.setdefault(_name({key: str(row.get(key)) for key in by}), []).append(row)
    _check_some(groups, source, where)
    return {name: Table(columns, tuple(members), str(source)) for name, members in groups.items()}


def _read_csv(path: Path) -> list[dict[str, Any]]:
    try:
        with _open(path) as file:
            reader = csv.DictReader(file, restkey="", strict=True)
            rows = list(reader)
    except (csv.Error, UnicodeDecodeError, gzip.BadGzipFile, EOFError) as error:
        raise ValueError(f"{path} is not a CSV table ({error})") from None
    for number, row in enumerate(rows, start=2):
        if "" in row or None in row.values():
            raise ValueError(
                f"{path}: row {number} has {'more' if '' in row else 'fewer'} values than there are headings"
            )
    return rows


def _read_jsonl(path: Path) -> list[dict[str, Any]] | None:
    """Return the objects of a file; None if its lines are records of ours."""
    rows = []
    try:
        with _open(path) as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        raise ValueError(f"{path}: line {number} is not a JSON object")
                    if row.keys() >= _OURS:
                        return None
                    rows.append(_flatten(row))
    except (json.JSONDecodeError, UnicodeDecodeError, gzip.BadGzipFile, EOFError) as error:
        raise ValueError(f"{path} is not JSONL ({error})") from None
    return rows


def _open(path: Path) -> Any:
    return gzip.open(path, "rt", encoding="utf-8", newline="") if path.name.endswith(".gz") else path.open(newline="")


def _flatten(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in row.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _last_epochs(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    if not rows or not {"run", "epoch"} <= rows[0].keys():
        return rows
    last: dict[Any, Mapping[str, Any]] = {}
    for row in rows:
        if row["run"] not in last or float(row["epoch"]) >= float(last[row["run"]]["epoch"]):
            last[row["run"]] = row
    return list(last.values())


def _check_names(names: Sequence[str], known: Sequence[str], what: str) -> None:
    allowed = f"choose one of {', '.join(known)}" if known else "there is nothing in it"
    for name in names:
        if name not in known:
            raise ValueError(f"{name!r} is no {what}: {allowed}")


def _check_some(groups: Sized, source: Path, where: Mapping[str, str]) -> None:
    if not groups:
        chosen = f" with {', '.join(f'{key}={value}' for key, value in where.items())}" if where else ""
        raise ValueError(f"there are no runs{chosen} in {source}")


def _matches(text: str, wanted: str) -> bool:
    """Whether a value is the wanted one, as text or as a number."""
    try:
        return text == wanted or float(text) == float(wanted)
    except ValueError:
        return False


def _name(values: Mapping[str, str]) -> str:
    """The name of a group: words stand for themselves, numbers have the name of their setting before them."""
    return ", ".join(value if value[:1].isalpha() else f"{key} {value}" for key, value in values.items()) or "all runs"


def _seed(value: Any) -> Any:
    try:
        return int(value)
    except (TypeError, ValueError):
        return value
