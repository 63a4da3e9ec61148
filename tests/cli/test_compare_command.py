"""`heatbath compare` and `heatbath gate`."""

import json

import pytest

from heatbath.runs.configs import RunConfig
from heatbath.runs.export import write_lines
from heatbath.runs.records import Record
from heatbath.runs.store import Store
from measured import an_epoch
from samples import normals

ROWS = [
    (name, seed, accuracy)
    for name, values in (("sgd", normals(1, 8, mean=0.90, sd=0.004)), ("adam", normals(2, 8, mean=0.93, sd=0.004)))
    for seed, accuracy in enumerate(values)
]


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("opt,seed,acc\n" + "".join(f"{name},{seed},{value}\n" for name, seed, value in ROWS))
    return path


def make_store(folder, seeds):
    records = [
        Record(RunConfig(epochs=1, seed=seed, lr=lr), "finished", (an_epoch(lr, 1.0, 0.5, 1.1, float(value)),))
        for lr, stream in ((0.005, 3), (0.01, 4))
        for seed, value in enumerate(normals(stream, 40, mean=0.9, sd=0.01)[:seeds])
    ]
    write_lines(records, folder / "runs.jsonl")
    with Store(folder / "store") as store:
        store.merge(folder / "runs.jsonl")
    return folder / "store"


def test_a_table(heatbath, table):
    status, out, err = heatbath("compare", table, "--by", "opt", "--metric", "acc", "--margin", "0.01")
    assert (status, err) == (0, "")
    assert out.startswith("adam is better by 0.0")
    assert "8 seeds, paired" in out
    report = json.loads(heatbath("compare", table, "--by", "opt", "--metric", "acc", "--json")[1])
    (one,) = report["comparisons"]
    assert (one["verdict"], one["a"], one["b"]) == ("worse", "sgd", "adam")
    assert [(group["name"], group["seeds"]) for group in report["groups"]] == [
        ("sgd", list(range(8))),
        ("adam", list(range(8))),
    ]
    status, out, _ = heatbath("compare", table, "--by", "opt", "--metric", "acc", "--against", "best")
    assert out.startswith("adam is the best of 2")


def test_many_comparisons_are_a_table(heatbath, tmp_path):
    lines = [f"{name},{seed},{0.1 * k + 0.01 * seed}" for k, name in enumerate("abcdef") for seed in range(4)]
    (tmp_path / "many.csv").write_text("\n".join(["opt,seed,acc", *lines]))
    status, out, err = heatbath("compare", "many.csv", "--by", "opt", "--metric", "acc", "--margin", "0.01")
    assert (status, err) == (0, "")
    assert out.startswith("15 comparisons: ")
    assert len(out.partition("\n\n")[2].splitlines()) == 2 + 15


def test_looks_at_a_store_are_kept(heatbath, tmp_path):
    arguments = ("compare", make_store(tmp_path, 5), "--by", "lr", "--margin", "0.002")
    status, first, err = heatbath(*arguments)
    assert (status, err) == (0, "")
    assert heatbath(*arguments)[1] == first
    make_store(tmp_path, 12)
    later = heatbath(*arguments)[1]
    assert "Looked at before, with 5 seeds" in later
    assert "(97.5 %: " in later
    (entry,) = json.loads((tmp_path / "store" / "looks.json").read_text())["comparisons"].values()
    assert [design["seeds"] for design in entry["designs"]] == [5, 12]
    planned = heatbath(*arguments, "--looks", "10,20")[1]
    assert "look 1 of 2, at 10 of at most 20 seeds" in planned


@pytest.mark.parametrize(
    ("new", "options", "status", "words"),
    [
        ("adam", (), 3, "without a spread between seeds there is no test"),
        ("sgd", (), 1, "Worse: "),
        ("sgd", ("--margin", "0.2"), 0, "Not worse: "),
        ("sgd", ("--against", "sgd", "--margin", "5%"), 3, "margin 5 %"),
        ("adam", ("--against", "sgd"), 0, "Not worse: "),
    ],
)
def test_gate(heatbath, tmp_path, table, new, options, status, words):
    verdict = tmp_path / "verdict.json"
    made = ("compare", table, "--by", "opt", "--metric", "acc", "--margin", "0.01", "--export", verdict)
    assert heatbath(*made)[0] == 0
    found, out, err = heatbath("gate", verdict, table, "--where", f"opt={new}", *options)
    assert (found, err) == (status, "")
    assert words in out
    found, out, _ = heatbath("gate", verdict, table, "--where", f"opt={new}", *options, "--json")
    assert found == status == json.loads(out)["status"]


def test_new_runs_that_all_diverged_do_not_pass_a_gate(heatbath, tmp_path, table):
    made = ("compare", table, "--by", "opt", "--metric", "acc", "--margin", "0.5", "--export", "verdict.json")
    assert heatbath(*made)[0] == 0
    (tmp_path / "new.csv").write_text("seed,acc\n" + "".join(f"{seed},\n" for seed in range(8)))
    status, out, err = heatbath("gate", "verdict.json", "new.csv")
    assert (status, err) == (3, "")
    assert out.startswith("Undecided: no number in 8 of 16 values")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("compare", "{table}", "--by", "optimizer", "--metric", "acc"), "'optimizer' is not a column of"),
        (("compare", "{table}", "--by", "opt"), "say which metric of group sgd: its columns are opt, seed, acc"),
        (("compare", "{table}", "--by", "opt", "--metric", "f1"), "no column 'f1': choose one of opt, seed, acc"),
        (("compare", "{table}", "--by", "opt", "--metric", "acc", "--margin", "0"), "margin must be a positive finite"),
        (
            ("compare", "{table}", "--by", "opt", "--metric", "acc", "--looks", "5;9"),
            "--looks must be numbers of seeds",
        ),
        (("compare", "{table}", "--by", "opt", "--metric", "acc", "--where", "opt"), "--where must be KEY=VALUE"),
        (("compare", "{table}", "--by", "opt", "--where", "opt=sgd"), "has one group only, sgd: choose another --by"),
        (("compare", "nowhere", "--by", "lr"), "there is no 'nowhere'; name a store"),
        (("compare", "{table}", "--by", "opt", "--metric", "acc", "--export", "no/v.json"), "no/v.json: no such file"),
        (("gate", "{table}", "{table}"), "is not a verdict of 'heatbath compare --export'"),
        (("gate", "nowhere.json", "{table}"), "nowhere.json: no such file"),
    ],
)
def test_errors_are_one_line(refused, table, arguments, words):
    assert words in refused(*(argument.format(table=table) for argument in arguments))
