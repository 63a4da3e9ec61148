"""Groups of runs from stores, exports and other people's tables."""

import gzip
import json

import pytest

from heatbath.runs.configs import RunConfig
from heatbath.runs.export import write_csv, write_lines
from heatbath.runs.records import Record
from heatbath.runs.sources import read_groups
from heatbath.runs.store import Store
from measured import an_epoch

CSV = "opt,lr,seed,acc\nsgd,0.1,0,0.5\nsgd,0.1,1,0.6\nadam,0.01,0,0.7\nadam,0.010,b,\n"


def record(seed, lr, accuracy):
    epochs = tuple(an_epoch(lr, 1.0, 0.5, 1.1, accuracy + 0.5 * k) for k in range(2))
    return Record(RunConfig(epochs=2, seed=seed, lr=lr), "finished", epochs)


RECORDS = [record(seed, lr, 0.1 * seed + lr) for lr in (0.01, 0.005) for seed in range(3)]


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_csv(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(CSV.encode()) if name.endswith("gz") else CSV.encode())
    groups = read_groups(path, ["opt"])
    assert list(groups) == ["sgd", "adam"]
    assert groups["sgd"].columns == ("opt", "lr", "seed", "acc")
    assert groups["sgd"]["acc"] == [0.5, 0.6]
    assert groups["sgd"]["seed"] == [0, 1]
    assert groups["adam"]["acc"] == [0.7, None]
    assert groups["adam"]["seed"] == [0, "b"]
    assert list(read_groups(path, ["lr", "opt"])) == ["lr 0.1, sgd", "lr 0.01, adam", "lr 0.010, adam"]
    (chosen,) = read_groups(path, [], {"lr": "1e-2"}).values()
    assert chosen["acc"] == [0.7, None]
    with pytest.raises(ValueError, match="'sgd' in the column opt is not a number"):
        groups["sgd"]["opt"]


def test_jsonl_of_others(tmp_path):
    path = tmp_path / "t.jsonl"
    lines = [{"config": {"opt": name, "lr": 0.1}, "seed": seed, "acc": 0.5 + seed} for name in "xy" for seed in (1, 0)]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    groups = read_groups(path, ["config.opt"])
    assert {name: (group["seed"], group["acc"]) for name, group in groups.items()} == {
        "x": ([1, 0], [1.5, 0.5]),
        "y": ([1, 0], [1.5, 0.5]),
    }


@pytest.mark.parametrize("kind", ["store", "jsonl", "jsonl.gz"])
def test_our_own(tmp_path, kind):
    path = tmp_path / f"runs.{kind}"
    if kind == "store":
        write_lines(RECORDS, tmp_path / "runs.jsonl")
        with Store(path) as store:
            store.merge(tmp_path / "runs.jsonl")
    else:
        write_lines(RECORDS, path)
    groups = read_groups(path, ["lr"])
    assert {name: sorted(r.config.seed for r in runs) for name, runs in groups.items()} == {
        "lr 0.01": [0, 1, 2],
        "lr 0.005": [0, 1, 2],
    }
    assert list(read_groups(path, [], {"lr": "0.01"})) == ["all runs"]
    with pytest.raises(ValueError, match=r"'rate' is not a setting of the runs in .*: choose one of model, dataset, "):
        read_groups(path, ["rate"])
    with pytest.raises(ValueError, match="there are no runs with lr=7 in "):
        read_groups(path, [], {"lr": "7"})


def test_our_own_csv_has_the_last_epoch_of_each_run(tmp_path):
    write_csv(RECORDS, tmp_path / "runs.csv")
    groups = read_groups(tmp_path / "runs.csv", ["lr"])
    assert groups["lr 0.01"]["test_accuracy"] == pytest.approx([0.51, 0.61, 0.71])


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("t.csv", "a,b\n1,2,3\n", "row 2 has more values than there are headings"),
        ("t.csv", "a,b\n1\n", "row 2 has fewer values than there are headings"),
        ("t.csv", "", "'a' is not a column of .*: there is nothing in it"),
        ("t.csv", "x,y\n", "'a' is not a column of .*: there is nothing in it"),
        ("t.jsonl", "{", "is not JSONL"),
        ("t.jsonl", "[1]\n", "line 1 is not a JSON object"),
        ("t.csv.gz", "not gzip", "is not a CSV table"),
    ],
)
def test_files_that_are_not_what_they_say(tmp_path, name, text, words):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        read_groups(path, ["a"])


def test_no_such_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no '.*no\.csv'"):
        read_groups(tmp_path / "no.csv", ["a"])
