"""Records as files for others: compact lines to commit and to merge, CSV and Parquet for tables."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from heatbath.configs import RunConfig
from heatbath.records import EPOCH_FIELDS, STATUSES, Epoch, Record

COLUMNS = (
    *("run", "status", "device", "precision_used", "seconds"),
    *(field.name for field in fields(RunConfig)),
    *("epoch", *EPOCH_FIELDS),
)
_DIGITS = 6


def write_lines(records: Iterable[Record], path: str | os.PathLike[str]) -> None:
    """Write one line of JSON per run, sorted by run, its numbers to 6 digits; compressed if the name ends in ``.gz``.

    The same records give the same bytes.
    """
    with _whole_file(Path(path)) as file:
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
    records = []
    try:
        with open(path, "rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            source: Iterable[bytes] = gzip.GzipFile(fileobj=raw) if packed else raw
            for number, line in enumerate(source, start=1):
                try:
                    records.append(_parse(json.loads(line)))
                except (ValueError, TypeError, KeyError, AttributeError) as error:
                    raise ValueError(f"{path}, line {number}: not a record of a run ({error})") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: not a whole gzip file ({error})") from None
    return records


def write_csv(records: Iterable[Record], path: str | os.PathLike[str]) -> None:
    """Write one row per run and epoch (counted from 1), with the config's columns; numbers in full."""
    with _whole_file(Path(path)) as file:
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
    table = pyarrow.table(dict(zip(COLUMNS, map(list, columns), strict=True)))
    with _whole_file(Path(path)) as file:
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


def _parse(values: dict[str, Any]) -> Record:
    config = RunConfig.from_dict(values["config"])
    if config.run != values["run"]:
        raise ValueError(f"it is named {values['run']}, but its config is {config.run}")
    if values["status"] not in STATUSES:
        raise ValueError(f"unknown status {values['status']!r}")
    curves = values["curves"]
    if set(curves) != set(EPOCH_FIELDS) or len({len(curve) for curve in curves.values()}) != 1:
        raise ValueError("its curves are not those of a run, or differ in length")
    for name, curve in curves.items():
        if not all(_is_number(x) or (x is None and name.startswith("validation")) for x in curve):
            raise ValueError(f"its {name} is not all numbers")
    epochs = tuple(Epoch(**dict(zip(curves, point, strict=True))) for point in zip(*curves.values(), strict=True))
    if len(epochs) > config.epochs or (values["status"] == "finished" and len(epochs) != config.epochs):
        raise ValueError(f"it has {len(epochs)} epochs, its config {config.epochs}")
    versions = {str(name): str(version) for name, version in values["versions"].items()}
    words = (str(values["device"]), versions, float(values["seconds"]), str(values["precision"]))
    return Record(config, "pending" if values["status"] == "running" else values["status"], epochs, *words)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def _rows(records: Iterable[Record]) -> Iterator[tuple[Any, ...]]:
    for record in records:
        fixed = (record.run, record.status, record.device, record.precision, record.seconds)
        config = tuple(record.config.to_dict().values())
        for number, epoch in enumerate(record.epochs, start=1):
            yield (*fixed, *config, number, *(getattr(epoch, name) for name in EPOCH_FIELDS))


@contextmanager
def _whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name when it is whole."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file")
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
        try:
            yield file
            file.flush()
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
