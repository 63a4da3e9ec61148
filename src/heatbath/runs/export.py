"""Records as files for others: compact lines to commit and to merge, CSV and Parquet for tables."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from heatbath.runs.configs import RunConfig, read_config
from heatbath.runs.records import EPOCH_FIELDS, NOT_A_RECORD, Epoch, Record, check_record
from heatbath.system.whole_files import whole_file

COLUMNS = (
    *("run", "status", "device", "precision_used", "seconds"),
    *(field.name for field in fields(RunConfig)),
    *("epoch", *EPOCH_FIELDS),
)
_DIGITS = 6
_FIELDS = ("run", "config", "status", "device", "versions", "precision", "seconds", "curves")  # of a line
# Of a column of Parquet, where it is not text. They are the same in every file, whatever its values.
_TYPES = {
    **dict.fromkeys(("seconds", "lr", "momentum", "weight_decay", "clip_norm", *EPOCH_FIELDS), "float64"),
    **dict.fromkeys(("batch_size", "epochs", "validation", "warmup", "epoch"), "int64"),
    **{"nesterov": "bool", "seed": "uint64"},
}


def write_lines(records: Iterable[Record], path: str | os.PathLike[str]) -> None:
    """Write one line of JSON per run, sorted by run, its numbers to 6 digits; compressed if the name ends in ``.gz``.

    The same records give the same bytes.
    """
    with _export(Path(path)) as file:
        if str(path).endswith(".gz"):
            with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
                packed.writelines(_line(record) for record in sorted(records, key=lambda record: record.run))
        else:
            file.writelines(_line(record) for record in sorted(records, key=lambda record: record.run))


def read_lines(path: str | os.PathLike[str]) -> list[Record]:
    """Return the records of `write_lines`.

    Raises:
        ValueError: a line is not one of ours; the message names it.
    """
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
            source: Iterable[bytes] = gzip.GzipFile(fileobj=raw) if packed else raw
            for number, line in enumerate(source, start=1):
                try:
                    records.append(_parse(json.loads(line)))
                except NOT_A_RECORD as error:
                    raise ValueError(f"{path}, line {number}: not a record of a run ({error})") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: not a whole gzip file ({error})") from None
    return records


def write_csv(records: Iterable[Record], path: str | os.PathLike[str]) -> None:
    """Write one row per run and epoch (counted from 1), with the config's columns; numbers in full.

    A run without an epoch has no row.
    """
    with _export(Path(path)) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        table = csv.writer(text, lineterminator="\n")
        table.writerow(COLUMNS)
        table.writerows(_rows(records))
        text.detach()


def write_parquet(records: Iterable[Record], path: str | os.PathLike[str]) -> None:
    """Write the table of `write_csv` as Parquet.

    Raises:
        ValueError: pyarrow is not installed.
    """
    try:
        pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        raise ValueError(
            "Parquet files need the package pyarrow: pip install 'heatbath[parquet]'; or write CSV"
        ) from None
    columns = list(zip(*_rows(records), strict=True)) or [()] * len(COLUMNS)
    schema = pyarrow.schema([(name, _TYPES.get(name, "string")) for name in COLUMNS])
    table = pyarrow.table(dict(zip(COLUMNS, map(list, columns), strict=True)), schema=schema)
    with _export(Path(path)) as file:
        parquet.write_table(table, file)


def same_curves(a: Record, b: Record) -> bool:
    """Return whether two records of one run agree to the digits that `write_lines` keeps."""
    return _curves(a) == _curves(b)


def _line(record: Record) -> bytes:
    values = {
        "run": record.run,
        "config": record.config.to_dict(),
        "status": "pending" if record.status == "running" else record.status,
        "device": record.device,
        "versions": dict(sorted(record.versions.items())),
        "precision": record.precision,
        "seconds": _rounded(record.seconds),
        "curves": _curves(record),
    }
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def _curves(record: Record) -> dict[str, list[float | None]]:
    return {name: [_rounded(value) for value in record.curve(name)] for name in EPOCH_FIELDS}


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{_DIGITS}g}")


def _parse(values: Any) -> Record:
    if not isinstance(values, dict):
        raise ValueError(f"it is a JSON {type(values).__name__}, no object")
    if lacking := [name for name in _FIELDS if name not in values]:
        raise ValueError(f"it has no {', '.join(lacking)}")
    config = read_config(values["config"], values["run"])
    curves = values["curves"]
    if set(curves) != set(EPOCH_FIELDS) or len({len(curve) for curve in curves.values()}) != 1:
        raise ValueError("its curves are not those of a run, or differ in length")
    epochs = tuple(
        Epoch(*map(_as_float, point)) for point in zip(*(curves[name] for name in EPOCH_FIELDS), strict=True)
    )
    status = "pending" if values["status"] == "running" else values["status"]
    words = (values["device"], values["versions"], _as_float(values["seconds"]), values["precision"])
    record = Record(config, status, epochs, *words)
    check_record(record)
    return record


def _as_float(value: Any) -> Any:
    """A whole number may be written without a point; whatever else it is stays as it is."""
    return float(value) if type(value) is int else value


def _rows(records: Iterable[Record]) -> Iterator[tuple[Any, ...]]:
    for record in records:
        fixed = (record.run, record.status, record.device, record.precision, record.seconds)
        config = tuple(record.config.settings().values())
        for number, epoch in enumerate(record.epochs, start=1):
            yield (*fixed, *config, number, *(getattr(epoch, name) for name in EPOCH_FIELDS))


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
