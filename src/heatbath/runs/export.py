"""Records as files for others: compact lines to commit and to merge, CSV and Parquet for tables."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from heatbath.runs.configs import RunConfig, read_config
from heatbath.runs.records import (
    METRICS,
    NOT_A_RECORD,
    Epoch,
    Origin,
    Record,
    check_record,
    each_origin,
    old_origin,
    read_origins,
)
from heatbath.system.whole_files import whole_file

FORMAT = 2  # of a line; those of heatbath 0.1.0 do not name theirs
_DIGITS = 6
_LONGEST = 1 << 26  # bytes in a line: a million epochs have fewer
_UNPACKED, _RATIO = 1 << 26, 200  # bytes of a file, however it is packed, and for each byte that it has
_FIELDS = {
    1: ("run", "config", "status", "device", "versions", "precision", "seconds", "curves"),
    2: ("run", "config", "status", "origins", "seconds", "curves", "digest"),
}
# The columns of a table, and their types in Parquet, which are the same in every file: metrics follow, as numbers.
_ORIGIN = ("device", "driver", "heatbath", "torch", "python")
_TYPES = {
    **{"run": "string", "status": "string", "seconds": "float64", "precision_used": "string"},
    **dict.fromkeys(_ORIGIN, "string"),
    **{field.name: "string" for field in fields(RunConfig)},
    **dict.fromkeys(("lr", "momentum", "weight_decay", "clip_norm", "beta2"), "float64"),
    **dict.fromkeys(("batch_size", "epochs", "validation", "warmup", "epoch"), "int64"),
    **{"nesterov": "bool", "seed": "uint64", "rate": "float64"},
}


def write_lines(records: Iterable[Record], path: str | os.PathLike[str]) -> None:
    """Write one line of JSON per run, sorted by run, its numbers to 6 digits; compressed if the name ends in ``.gz``.

    The same records give the same bytes.
    """
    lines = (_line(record) for record in sorted(records, key=lambda record: record.run))
    with _export(Path(path)) as file:
        if str(path).endswith(".gz"):
            with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
                packed.writelines(lines)
        else:
            file.writelines(lines)


def read_lines(path: str | os.PathLike[str]) -> list[Record]:
    """Return the records of `write_lines`; a line that is not one of ours is named."""
    path = Path(path)
    if path.suffix in (".csv", ".parquet"):
        raise ValueError(f"{path}: tables are not read back; export the runs as .jsonl or .jsonl.gz")
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ValueError(f"{path} is a pipe or a device, which cannot be read twice: save it to a file first")
    records = []
    try:
        with open(path, "rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            source = gzip.GzipFile(fileobj=raw) if packed else raw
            most, total = _UNPACKED + _RATIO * os.fstat(raw.fileno()).st_size, 0
            for number, line in enumerate(iter(lambda: source.readline(_LONGEST), b""), start=1):
                total += len(line)
                if len(line) == _LONGEST or total > most:
                    raise ValueError(f"{path}, line {number}: too long for a record of a run, or the file for its size")
                try:
                    records.append(_parse(json.loads(line)))
                except NOT_A_RECORD as error:
                    raise ValueError(f"{path}, line {number}: not a record of a run ({error})") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: not a whole gzip file ({error})") from None
    return records


def write_csv(records: Iterable[Record], path: str | os.PathLike[str]) -> None:
    """Write one row per run and epoch (counted from 1), with what made it and the config's columns; numbers in full.

    A run without an epoch has no row.
    """
    found = list(records)
    columns = _columns(found)
    with _export(Path(path)) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        table = csv.writer(text, lineterminator="\n")
        table.writerow(columns)
        table.writerows([_plain_text(row.get(name)) for name in columns] for row in _rows(found))
        text.detach()


def write_parquet(records: Iterable[Record], path: str | os.PathLike[str]) -> None:
    """Write the table of `write_csv` as Parquet."""
    try:
        pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        needs = "Parquet files need the package pyarrow: pip install 'heatbath[parquet]'; or write CSV"
        raise ValueError(needs) from None
    found = list(records)
    schema = pyarrow.schema([(name, _TYPES.get(name, "float64")) for name in _columns(found)])
    table = pyarrow.Table.from_pylist(list(_rows(found)), schema=schema)
    with _export(Path(path)) as file:
        parquet.write_table(table, file)


def rounded_curves(record: Record) -> dict[str, list[float]]:
    """Return the curves of a record to the digits that `write_lines` keeps."""
    return {name: [_rounded(value) for value in record.curve(name)] for name in record.curves}


def _line(record: Record) -> bytes:
    values = {
        "format": FORMAT,
        "run": record.run,
        "config": record.config.to_dict(),
        "status": "pending" if record.status == "running" else record.status,
        "origins": record.origins,
        "seconds": _rounded(record.seconds),
        "curves": rounded_curves(record),
    }
    return json.dumps({**values, "digest": digest(values)}, separators=(",", ":")).encode() + b"\n"


def digest(values: Mapping[str, Any]) -> str:
    """Return what vouches for all else in a line."""
    return blake2b(json.dumps(values, separators=(",", ":")).encode(), digest_size=16).hexdigest()


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _parse(values: Any) -> Record:
    if not isinstance(values, dict):
        raise ValueError(f"it is a JSON {type(values).__name__}, no object")
    form = values.get("format", 1)
    if form not in _FIELDS:
        raise ValueError(f"it is of format {form!r}, not {FORMAT}: update heatbath")
    if lacking := [name for name in _FIELDS[form] if name not in values]:
        raise ValueError(f"it has no {', '.join(lacking)}")
    config = read_config(values["config"], values["run"])
    if form == 1:  # a run had one origin, of all its epochs
        made = old_origin(values["versions"], values["device"], values["precision"])
        values["origins"] = [(config.epochs, made)]
    elif digest({name: value for name, value in values.items() if name != "digest"}) != values["digest"]:
        raise ValueError("its digest does not fit: a value was changed")
    origins = read_origins(json.dumps(values["origins"]))
    status = "pending" if values["status"] == "running" else values["status"]
    epochs, last = tuple(_epochs(values["curves"], origins)), origins[-1][1] if origins else {}
    record = Record(config, status, epochs, _as_float(values["seconds"]), last, verified=form > 1)
    check_record(record)
    return record


def _epochs(curves: Any, origins: Iterable[tuple[int, Origin]]) -> Iterator[Epoch]:
    if "rate" not in curves or len({len(curve) for curve in curves.values()}) != 1:
        raise ValueError("its curves are not those of a run, or differ in length")
    made = each_origin(origins)
    for values in zip(*curves.values(), strict=True):
        point = dict(zip(curves, map(_as_float, values), strict=True))
        rate = point.pop("rate")
        # Lines of heatbath 0.1.0 have nulls where nothing is held out.
        yield Epoch(rate, {name: value for name, value in point.items() if value is not None}, next(made, {}))


def _as_float(value: Any) -> Any:
    """A whole number may be written without a point; whatever else it is stays as it is."""
    return float(value) if type(value) is int else value


def _plain_text(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula gets a quote before it."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value


def _columns(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys((*_TYPES, *METRICS, *(name for record in records for name in record.curves))))


def _rows(records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    for record in records:
        fixed = {"run": record.run, "status": record.status, "seconds": record.seconds, **record.config.settings()}
        for number, epoch in enumerate(record.epochs, start=1):
            origin = {name: epoch.origin.get(name, "") for name in _ORIGIN}
            used = epoch.origin.get("precision", "")
            yield {**fixed, **origin, "precision_used": used, "epoch": number, "rate": epoch.rate, **epoch.metrics}


@contextmanager
def _export(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to be written whole; an error says which."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file")
    try:
        with whole_file(path) as file:
            yield file
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror or error}") from None
