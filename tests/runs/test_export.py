import csv
import gzip
import json
import math
import os
import sys
from contextlib import suppress
from dataclasses import replace

import pytest

from heatbath.runs import export
from heatbath.runs.configs import RunConfig
from heatbath.runs.records import Epoch, Record
from measured import ORIGIN, VERSIONS, an_epoch, signed_line

BASE = RunConfig(epochs=3, validation=100)


def epochs(seed, count, *, last=ORIGIN):
    origins = [*[ORIGIN] * (count - 1), last]
    scales = (0.01, 1.0, 0.1, 1e-4, 0.1, 100.0, 0.1)
    return tuple(
        an_epoch(*(scale * (1.2345678 + seed + number / 7) for scale in scales), origin=origins[number])
        for number in range(count)
    )


GPU = {**VERSIONS, "driver": "NVIDIA 1.2, CUDA 3", "device": "H200", "precision": "bf16"}
RECORDS = [
    Record(BASE.with_(seed=1), "finished", epochs(1, 3, last=GPU), 12.3456789, GPU),
    Record(BASE.with_(seed=2), "diverged", epochs(2, 1), 1.5, ORIGIN),
    Record(BASE.with_(seed=3), "running", epochs(3, 2), 0.0, ORIGIN),
    Record(BASE.with_(seed=4), "pending"),
    Record(BASE.with_(seed=5), "diverged", (), 0.5, ORIGIN),
]


@pytest.mark.parametrize("name", ["runs.jsonl", "runs.jsonl.gz"])
def test_lines_keep_everything_to_six_digits(tmp_path, name):
    path = tmp_path / name
    export.write_lines(RECORDS, path)
    back = {record.run: record for record in export.read_lines(path)}
    assert list(back) == sorted(record.run for record in RECORDS)
    for record in RECORDS:
        other = back[record.run]
        assert other.config == record.config
        assert other.status == record.status.replace("running", "pending")
        assert other.origins == record.origins
        assert other.verified
        assert other.seconds == pytest.approx(record.seconds, rel=1e-5)
        for curve in ("rate", "train_loss", "validation_accuracy"):
            assert other.curve(curve) == pytest.approx(record.curve(curve), rel=1e-5)
        assert other.curves == record.curves


def test_the_same_records_give_the_same_bytes(tmp_path):
    for name in ("a.gz", "b.gz"):
        export.write_lines(RECORDS if name == "a.gz" else RECORDS[::-1], tmp_path / name)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()).count(b"\n") == len(RECORDS)


def test_a_difference_in_the_sixth_digit_is_seen():
    record, (first, *rest) = RECORDS[0], RECORDS[0].epochs
    for change, same in ((1e-4, False), (1e-9, True)):
        other = replace(first, metrics={**first.metrics, "test_loss": first.test_loss * (1 + change)})
        other = Record(record.config, "finished", (other, *rest))
        assert (export.rounded_curves(record) == export.rounded_curves(other)) is same


def spoil(**changes):
    return lambda line: {**line, **changes}


def bend(**changes):
    return lambda line: {**line, "curves": {**line["curves"], **changes}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (spoil(run="0" * 16), "its config is"),
        (spoil(status="best"), "unknown status"),
        (spoil(config={}), "not the fields"),
        (spoil(curves={}), "its curves"),
        (spoil(curves={"rate": [0.1] * 3, "train_loss": [0.1] * 2}), "its curves .* differ in length"),
        (bend(test_loss=["x"] * 3), "its test_loss is not all numbers"),
        (spoil(curves={name: [0.5] for name in RECORDS[0].curves}), "it has 1 epochs, its config 3"),
        (lambda line: {"run": line["run"], "format": 2}, "it has no config, status, origins"),
        (lambda line: {"run": line["run"], "curves": {}}, "it has no config, status, device"),
        (bend(test_loss=[1.0, 10**400, 1.0]), "int too large"),
        (bend(train_loss=[1.0, math.inf, 1.0]), "its train_loss is not all numbers"),
        (bend(train_loss=[1.0, -3.0, 1.0]), "its train_loss is -3 somewhere, which is out of range"),
        (bend(test_accuracy=[0.5, 5.0, 0.5]), "its test_accuracy is 5 somewhere"),
        (bend(validation_loss=[None, 1.0, 1.0]), "its epochs have different metrics"),
        (spoil(seconds="nan"), "its seconds are 'nan'"),
        (spoil(origins=[[3, []]]), "its origins are not"),
        (spoil(origins={}), "its origins are not"),
        (spoil(format=3), "it is of format 3, not 2: update heatbath"),
    ],
)
def test_a_line_that_is_not_ours_is_named(tmp_path, change, message):
    path = tmp_path / "runs.jsonl"
    export.write_lines(RECORDS[:1], path)
    line = json.loads(path.read_text())
    path.write_text(path.read_text() + signed_line(change(line)))
    with pytest.raises(ValueError, match=rf"runs.jsonl, line 2: .*{message}"):
        export.read_lines(path)


def test_a_line_that_is_no_object_is_named(tmp_path):
    (tmp_path / "runs.jsonl").write_text("[1]\n")
    with pytest.raises(ValueError, match=r"line 1: .*it is a JSON list, no object"):
        export.read_lines(tmp_path / "runs.jsonl")


def test_each_changed_character_is_noticed(tmp_path):
    path = tmp_path / "runs.jsonl"
    export.write_lines(RECORDS[:1], path)
    export.write_lines(RECORDS[:1], tmp_path / "sound.jsonl")
    sound = path.read_bytes()
    silent = []
    for at in range(len(sound) - 1):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ (1 << at % 7)]) + sound[at + 1 :])
        with suppress(ValueError):
            (read,) = export.read_lines(path)
            silent += [at] if read != export.read_lines(tmp_path / "sound.jsonl")[0] else []
    assert not silent


def test_a_line_without_end_is_named(tmp_path):
    (tmp_path / "runs.jsonl").write_text("[" * 100_000 + "\n")
    with pytest.raises(ValueError, match=r"runs\.jsonl, line 1: not a record of a run"):
        export.read_lines(tmp_path / "runs.jsonl")


def test_whole_numbers_need_no_point(tmp_path):
    path = tmp_path / "runs.jsonl"
    export.write_lines(RECORDS[:1], path)
    path.write_text(signed_line(bend(test_loss=[1, 2**70, 3])(json.loads(path.read_text()))))
    values = export.read_lines(path)[0].curve("test_loss")
    assert list(map(repr, values)) == ["1.0", repr(2.0**70), "3.0"]


def test_a_pipe_is_told_from_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match=r"pipe is a pipe or a device, .*: save it to a file first"):
        export.read_lines(tmp_path / "pipe")


@pytest.mark.parametrize("name", ["runs.csv", "runs.parquet"])
def test_a_table_is_not_read_back(tmp_path, name):
    (tmp_path / name).write_text("run,status\n")
    with pytest.raises(ValueError, match=rf"{name}: tables are not read back; export the runs as \.jsonl"):
        export.read_lines(tmp_path / name)


def test_a_truncated_gzip_file_is_told(tmp_path):
    path = tmp_path / "runs.gz"
    export.write_lines(RECORDS, path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="not a whole gzip file"):
        export.read_lines(path)


def test_csv_has_a_row_per_run_and_epoch(tmp_path):
    path = tmp_path / "runs.csv"
    export.write_csv(RECORDS, path)
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["seed"], row["epoch"]) for row in rows] == [
        *(("1", "1"), ("1", "2"), ("1", "3")),
        *(("2", "1"), ("3", "1"), ("3", "2")),
    ]
    assert float(rows[1]["test_loss"]) == RECORDS[0].epochs[1].test_loss
    assert rows[0]["protocol"] == "random"
    assert rows[0]["law"] == str(BASE.law)
    assert rows[0]["precision"] == "auto"
    assert rows[0]["precision_used"] == "fp32"


def test_a_file_that_could_not_be_written_leaves_nothing(tmp_path):
    def broken():
        yield RECORDS[0]
        raise RuntimeError("stop")

    (tmp_path / "runs.csv").write_text("before")
    with pytest.raises(RuntimeError, match="stop"):
        export.write_csv(broken(), tmp_path / "runs.csv")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["before"]
    with pytest.raises(IsADirectoryError, match="is a folder; name a file"):
        export.write_csv(RECORDS, tmp_path)


@pytest.mark.parametrize("write", [export.write_lines, export.write_csv])
def test_a_file_that_cannot_be_written_is_named(tmp_path, monkeypatch, write):
    with pytest.raises(OSError, match=r"/nowhere/a\.csv cannot be written: No such file or directory$"):
        write([], tmp_path / "nowhere" / "a.csv")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match=r"/a\.csv cannot be written: No space left on device$"):
        write([], tmp_path / "a.csv")
    assert list(tmp_path.iterdir()) == []


def test_parquet_without_pyarrow_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match="heatbath\\[parquet\\]"):
        export.write_parquet(RECORDS, tmp_path / "runs.parquet")
    assert list(tmp_path.iterdir()) == []


def test_parquet_holds_the_table_of_csv(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    export.write_parquet(RECORDS, tmp_path / "runs.parquet")
    table = parquet.read_table(tmp_path / "runs.parquet").to_pydict()
    assert table["seed"] == [1, 1, 1, 2, 3, 3]
    assert table["test_loss"][0] == RECORDS[0].epochs[0].test_loss


def test_parquet_has_the_same_columns_whatever_they_hold(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    config, start = BASE.with_(seed=2**64 - 1), RunConfig(model="vgg16", dataset="cifar10", weights="imagenet")
    files = {"large": [Record(config, "pending", epochs(1, 1))], "empty": [], "start": [Record(start, "pending")]}
    for name, records in files.items():
        export.write_parquet(records, tmp_path / name)
    tables = {name: parquet.read_table(tmp_path / name) for name in files}
    assert tables["large"]["seed"].to_pylist() == [2**64 - 1]
    assert len({table.schema for table in tables.values()}) == 1
    assert "null" not in map(str, tables["empty"].schema.types)


def test_a_table_has_a_column_for_each_metric(tmp_path):
    own = Epoch(0.1, {"train_loss": 2.0, "test_perplexity": 9.5}, ORIGIN)
    export.write_csv([*RECORDS, Record(RunConfig(epochs=1), "finished", (own,))], tmp_path / "runs.csv")
    with open(tmp_path / "runs.csv", newline="") as file:
        names, *rows = csv.reader(file)
    assert len(set(names)) == len(names)
    last = dict(zip(names, rows[-1], strict=True))
    assert (last["test_perplexity"], last["train_loss"], last["test_loss"]) == ("9.5", "2.0", "")
    assert (rows[0][names.index("test_perplexity")], last["heatbath"]) == ("", ORIGIN["heatbath"])
    used = [(row[names.index("device")], row[names.index("precision_used")]) for row in rows[:3]]
    assert used == [("CPU (a)", "fp32"), ("CPU (a)", "fp32"), ("H200", "bf16")]


def test_a_packed_file_does_not_fill_the_memory(tmp_path):
    path = tmp_path / "bomb.jsonl.gz"
    with gzip.open(path, "wb") as file:
        for _ in range(40):
            file.write(b" " * (1 << 22))
    assert path.stat().st_size < 200_000
    with pytest.raises(ValueError, match=r"line 1: too long for a record of a run, or the file for its size"):
        export.read_lines(path)


def test_a_text_that_looks_like_a_formula_is_quoted(tmp_path):
    origin = {**ORIGIN, "device": "=HYPERLINK(1)", "torch": "@SUM(1)"}
    epoch = an_epoch(0.1, 1.0, 0.5, 1.0, 0.5, origin=origin)
    export.write_csv([Record(RunConfig(epochs=1), "finished", (epoch,), 1.0, origin)], tmp_path / "runs.csv")
    with open(tmp_path / "runs.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["device"], row["torch"], row["rate"]) == ("'=HYPERLINK(1)", "'@SUM(1)", "0.1")
