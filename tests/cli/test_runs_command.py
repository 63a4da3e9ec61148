import csv
import gzip
import io
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest

from heatbath.cli import runs, screens
from heatbath.runs.configs import RunConfig, sweep
from heatbath.runs.store import Store, Update
from heatbath.system.locks import Owner
from measured import ORIGIN, an_epoch

CONFIGS = [
    *sweep(RunConfig(epochs=3, lr=0.02), protocol=("constant", "random", "cyclic:6"), seed=(0, 1)),
    RunConfig(model="cnn", dataset="mnist", epochs=3, lr=5.0, validation=100),
]
DIVERGED, PENDING = CONFIGS[-1], CONFIGS[-2]


def fill(folder, configs=CONFIGS, shift=0.0):
    """A store: all finished, except one that diverged and one that was stopped after an epoch."""
    with Store(folder) as store:
        store.add(configs)
        owner = Owner(store.owners)
        store.claim([config.run for config in configs], owner)
        for config in configs:
            held = (0.5, 0.8) if config.validation else ()
            values = [0.5 + 0.1 * k + 0.01 * config.seed + shift for k in range(3)]
            numbers = [(1.0 - value, value, 1.1 - value, value - 0.05, *held) for value in values]
            epochs = [an_epoch(config.lr, *each, origin=ORIGIN) for each in numbers]
            status = "diverged" if config == DIVERGED else "finished"
            words = {"seconds": 1.25, "origin": ORIGIN}
            if config == PENDING:
                store.save(owner, [Update(config.run, 0, epochs[:1], "running", **words)])
            else:
                store.save(owner, [Update(config.run, 0, epochs, status, **words)])
        store.release(owner)
        owner.close()


@pytest.fixture
def filled(heatbath, tmp_path):
    fill(tmp_path / "runs")
    return heatbath


def test_help_names_the_commands(heatbath):
    status, out, err = heatbath("runs")
    assert (status, err) == (0, "")
    assert all(name in out for name in ("list", "show", "resume", "merge", "export"))
    assert "--json" in heatbath("runs", "list", "--help")[1]


def test_list(filled):
    status, out, err = filled("runs", "list")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "law uniform:1, batch size 256, Nesterov momentum 0.9, 3 epochs"
    expected = {"run": CONFIGS[1].run[:8], "model": "mlp", "dataset": "mnist5k", "protocol": "constant", "lr": "0.02"}
    expected |= {"seed": "1", "validation": "0", "status": "finished", "epochs": "3/3"}
    expected |= {"test": "0.6600", "best": "0.6600"}
    assert dict(zip(lines[1].split(), lines[4].split(), strict=True)) == expected
    assert lines[8].split()[7:] == ["pending", "1/3", "0.4600", "0.4600"]
    assert lines[-1] == "7 of 7 runs in runs: 1 pending, 5 finished, 1 diverged"


@pytest.mark.parametrize(
    ("filters", "indices"),
    [
        (["--protocol", "cyclic"], [4, 5]),
        (["--protocol", "cyclic:6.0"], [4, 5]),
        (["--protocol", "random"], [2, 3, 6]),
        (["--model", "cnn"], [6]),
        (["--dataset", "mnist5k", "--status", "pending"], [5]),
        (["--model", "vgg16"], []),
    ],
)
def test_filters(filled, filters, indices):
    runs = json.loads(filled("runs", "list", *filters, "--json")[1])
    assert [run["run"] for run in runs] == [CONFIGS[k].run for k in indices]
    out = filled("runs", "list", *filters)[1]
    assert (f"{len(indices)} of 7 runs" if indices else "no such run among the 7 in runs") in out


def test_names_are_cut_where_they_still_differ():
    assert runs._unique_digits(["0123456789", "fedcba9876"]) == 8
    assert runs._unique_digits(["0123456789", "0123456799"]) == 9


def test_show(filled):
    status, out, err = filled("runs", "show", CONFIGS[1].run[:6].upper())
    assert (status, err) == (0, "")
    facts = dict(line.split(None, 1) for line in out.split("\n\n")[0].splitlines())
    assert facts["run"] == CONFIGS[1].run
    assert facts["status"] == "finished, 3 of 3 epochs"
    assert facts["precision"] == "fp32 (auto)"
    assert facts["seconds"] == "1.2"
    assert (facts["device"], facts["versions"]) == (
        "CPU (a)",
        "heatbath 0.1.0+g0123456789ab, torch 2.13.0, python 3.12",
    )
    assert "checkpoint" not in facts
    table = {line[:7].strip(): line[7:].split() for line in out.split("\n\n")[1].splitlines()}
    assert table["3"] == ["0.02", "0.29", "0.71", "0.39", "0.66"]
    assert table["final"] == ["0.29", "0.71", "0.39", "0.66"]
    assert "last 20" not in table


def test_a_small_loss_keeps_its_digits(heatbath, tmp_path):
    fill(tmp_path / "runs", CONFIGS[:1], shift=0.29994)
    out = heatbath("runs", "show", CONFIGS[0].run)[1]
    table = {line[:7].strip(): line[7:].split() for line in out.split("\n\n")[1].splitlines()}
    assert table["final"][0] == table["best"][0] == "6e-05"


def test_show_as_json_has_the_curves(filled):
    run = json.loads(filled("runs", "show", DIVERGED.run, "--json")[1])
    assert run["status"] == "diverged"
    assert run["device"] == "CPU (a)"
    assert run["curves"]["test_accuracy"] == pytest.approx([0.45, 0.55, 0.65])
    assert run["curves"]["validation_accuracy"] == [0.8, 0.8, 0.8]
    assert "validation split" in filled("runs", "show", DIVERGED.run)[1]


def test_show_tells_which_epochs_were_made_where(heatbath, tmp_path):
    other = {**ORIGIN, "torch": "2.14.0", "precision": "bf16"}
    made = [an_epoch(0.02, 0.5, 0.7, 0.6, 0.7, origin=origin) for origin in (ORIGIN, ORIGIN, other)]
    with Store(tmp_path / "runs") as store:
        store.add(CONFIGS[:1])
        owner = Owner(store.owners)
        store.claim([CONFIGS[0].run], owner)
        store.save(owner, [Update(CONFIGS[0].run, 0, made, "finished", 1.0, other)])
        owner.close()
    out = heatbath("runs", "show", CONFIGS[0].run)[1]
    told = "epochs 1 to 2: torch 2.13.0, precision fp32; epochs 3 to 3: torch 2.14.0, precision bf16"
    assert re.search(rf"^origins +{told}$", out, re.MULTILINE)
    assert json.loads(heatbath("runs", "show", CONFIGS[0].run, "--json")[1])["origins"] == [[2, ORIGIN], [1, other]]


def test_runs_of_the_first_version_are_shown_as_not_verified(heatbath, tmp_path):
    old = Path(__file__).parents[1] / "runs" / "heatbath-0.1.0"
    (tmp_path / "runs").mkdir()
    with sqlite3.connect(tmp_path / "runs" / Store.FILE) as connection:
        connection.executescript((old / "store.sql").read_text())
    connection.close()
    words = r"^verified:? +no, heatbath 0\.1\.0 stored no digests$"
    assert re.search(words, heatbath("runs", "list")[1], re.MULTILINE)
    assert re.search(words, heatbath("runs", "show", "bd91e207")[1], re.MULTILINE)
    assert json.loads(heatbath("runs", "list", "--json")[1])[0]["verified"] is False
    status, out, _ = heatbath("runs", "merge", str(old / "export.jsonl"))
    assert (status, out.count("5 known already")) == (0, 1)
    assert "verified" not in heatbath("runs", "list")[1], "the merge has written the store anew"


def test_show_tells_when_a_run_came_and_where_its_state_is(heatbath, monkeypatch, tmp_path):
    now = 1_700_000_000.0
    monkeypatch.setattr("heatbath.runs.store.time.time", lambda: now)
    with Store(tmp_path / "runs") as store:
        store.add([PENDING])
        owner = Owner(store.owners)
        now += 100
        store.claim([PENDING.run], owner)
        store.save(owner, [Update(PENDING.run, 0, [an_epoch(0.02, 0.5, 0.7, 0.6, 0.7)], checkpoint="0123.checkpoint")])
        store.release(owner)
        owner.close()
    (tmp_path / "runs" / "checkpoints").mkdir(exist_ok=True)
    (tmp_path / "runs" / "checkpoints" / "0123.checkpoint").touch()
    out = heatbath("runs", "show", PENDING.run)[1]
    facts = dict(line.split(None, 1) for line in out.split("\n\n")[0].splitlines())
    known = json.loads(heatbath("runs", "show", PENDING.run, "--json")[1])
    for told in (facts, known):
        times = [datetime.fromisoformat(told[name]).timestamp() for name in ("added", "updated")]
        assert times == [1_700_000_000, 1_700_000_100]
        assert told["checkpoint"] == "0123.checkpoint"
    assert re.fullmatch(r"2023-11-1\d \d\d:\d\d:20[+-]\d\d:\d\d", facts["added"])


def test_resume_trains_what_is_left(filled, tmp_path):
    status, out, err = filled("runs", "resume", "--device", "cpu", "--mix-origins")
    assert status == 0
    assert "1 run without a checkpoint of the last epoch start over" in err
    assert "1 run completed in runs" in out
    with Store(tmp_path / "runs", read_only=True) as store:
        assert len(store.find(PENDING.run).epochs) == 3
    assert filled("runs", "resume") == (0, "nothing to go on with in runs: 6 finished, 1 diverged\n", "")


def test_merge_a_store_and_a_file(filled, tmp_path):
    new = [CONFIGS[0].with_(seed=8), CONFIGS[0].with_(seed=9)]
    fill(tmp_path / "other", [*CONFIGS[:1], new[0]])
    fill(tmp_path / "third", [*CONFIGS[1:2], new[1]], shift=0.1)
    assert filled("runs", "export", "third.jsonl.gz", "--store", "third")[0] == 0
    status, out, err = filled("runs", "merge", "other", "third.jsonl.gz")
    assert (status, err) == (1, "")
    assert out.splitlines() == [
        "other: 1 added, 0 improved, 1 known already",
        "third.jsonl.gz: 1 added, 0 improved, 0 known already",
        f"  1 with other numbers here and there; ours were kept: {CONFIGS[1].run[:8]}",
    ]
    status, out, _ = filled("runs", "merge", "other")
    assert (status, out) == (0, "other: 0 added, 0 improved, 2 known already\n")
    assert filled("runs", "merge", "other", "--store", "fresh", "--create")[0] == 0
    assert "2 of 2 runs in fresh" in filled("runs", "list", "--store", "fresh")[1]


def test_merge_a_folder_of_exports_with_its_calculations(filled, tmp_path):
    (tmp_path / "exports" / "calculations").mkdir(parents=True)
    whole = '{"settings": {"x": 1}, "result": {"y": 0.1}}'
    (tmp_path / "exports" / "calculations" / "0123.json").write_text(whole)
    assert filled("runs", "export", "exports/all.jsonl.gz")[0] == 0
    status, out, err = filled("runs", "merge", "exports", "--store", "copy", "--create")
    assert (status, err) == (0, "")
    assert out.startswith("exports/all.jsonl.gz: ")
    copy = tmp_path / "copy" / "calculations" / "0123.json"
    assert json.loads(copy.read_text()).items() >= json.loads(whole).items()
    assert filled("runs", "list", "--store", "copy", "--json")[1].count('"run"') == len(CONFIGS)
    copy.write_text(whole[:20])
    assert "exports/calculations: 1 added" in filled("runs", "merge", "exports", "--store", "copy")[1]
    assert json.loads(copy.read_text()).items() >= json.loads(whole).items()


@pytest.mark.parametrize("damage", [b"", b"\xff", b'{"settings": '])
def test_a_damaged_calculation_is_told_and_left_out(filled, tmp_path, damage):
    (tmp_path / "exports" / "calculations").mkdir(parents=True)
    (tmp_path / "exports" / "calculations" / "0123.json").write_bytes(damage)
    assert filled("runs", "export", "exports/all.jsonl.gz")[0] == 0
    status, out, err = filled("runs", "merge", "exports", "--store", "copy", "--create")
    assert (status, err) == (0, "")
    assert out.endswith("Warning: exports/calculations/0123.json is damaged, and was left out\n")
    assert not (tmp_path / "copy" / "calculations").exists()


def test_a_merge_that_fails_takes_nothing_over(refused, filled, tmp_path):
    fill(tmp_path / "other", [CONFIGS[0].with_(seed=9)])
    (tmp_path / "damaged.jsonl").write_text("{}\n")
    assert "damaged.jsonl, line 1: not a record of a run" in refused("runs", "merge", "other", "damaged.jsonl")
    assert "there is no 'nowhere' to merge" in refused("runs", "merge", "other", "nowhere")
    assert "--create" in refused("runs", "merge", "other", "--store", "nowhere")


def test_export(filled, tmp_path):
    assert filled("runs", "export", "a.csv") == (0, "wrote 7 runs to a.csv\n", "")
    assert filled("runs", "export", "one.jsonl", "--status", "pending")[1] == "wrote 1 run to one.jsonl\n"
    assert filled("runs", "export", "all.jsonl.gz")[0] == 0
    rows = list(csv.DictReader(io.StringIO((tmp_path / "a.csv").read_text())))
    assert len(rows) == 6 * 3 + 1
    assert json.loads((tmp_path / "one.jsonl").read_text())["run"] == PENDING.run
    assert len(gzip.decompress((tmp_path / "all.jsonl.gz").read_bytes()).splitlines()) == 7
    assert filled("runs", "export", "-") == (0, (tmp_path / "a.csv").read_text(), "")


def test_export_tells_of_runs_without_a_row(filled, tmp_path):
    with Store(tmp_path / "runs") as store:
        store.add([CONFIGS[0].with_(seed=8), CONFIGS[0].with_(seed=9)])
    left = "2 runs without an epoch, and so without a row\n"
    assert filled("runs", "export", "a.csv") == (0, f"wrote 7 runs to a.csv\n{left}", "")
    assert filled("runs", "export", "-") == (0, (tmp_path / "a.csv").read_text(), left)
    assert filled("runs", "export", "a.jsonl") == (0, "wrote 9 runs to a.jsonl\n", "")


@pytest.mark.parametrize("arguments", [("runs", "merge"), ("report",)])
def test_a_pipe_is_refused(refused, filled, tmp_path, arguments):
    os.mkfifo(tmp_path / "pipe")
    assert "pipe is a pipe or a device, which cannot be read twice: save it to a file" in refused(*arguments, "pipe")


def test_a_store_that_is_a_link_to_nowhere(heatbath, tmp_path):
    fill(tmp_path / "other", CONFIGS[:1])
    (tmp_path / "link").symlink_to("nowhere")
    status, out, err = heatbath("runs", "merge", "other", "--store", "link", "--create")
    assert (status, out) == (2, "")
    assert "link is a link to a folder that is not there: make that folder, or remove the link" in err


def change(folder, statement, *values):
    """Do something to the database of a store that no store does."""
    with closing(sqlite3.connect(folder / Store.FILE)) as connection, connection:
        connection.execute(statement, values)


@pytest.mark.parametrize("arguments", [("list",), ("show", CONFIGS[0].run), ("export", "a.jsonl")])
def test_a_damaged_run_is_named(refused, filled, tmp_path, arguments):
    change(tmp_path / "runs", "UPDATE runs SET seconds = 9.0 WHERE run = ?", CONFIGS[0].run)
    words = refused("runs", *arguments)
    reason = "is damaged (its digest does not fit): 'heatbath runs resume' trains it again"
    assert f"run {CONFIGS[0].run} in runs/heatbath.sqlite {reason}" in words


def test_a_store_that_cannot_be_written_to_is_not_merged_into(refused, filled, tmp_path, monkeypatch):
    fill(tmp_path / "other", CONFIGS[:1])

    def fail(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", fail)
    assert "--store runs: runs cannot be written to (Permission denied)" in refused("runs", "merge", "other")


def test_resume_trains_a_damaged_run_again(filled, tmp_path):
    change(tmp_path / "runs", "DELETE FROM epochs WHERE run = ? AND epoch = 2", CONFIGS[0].run)
    change(tmp_path / "runs", "UPDATE runs SET config = '{}' WHERE run = ?", CONFIGS[1].run)
    status, out, err = filled("runs", "resume", "--device", "cpu", "--mix-origins")
    assert (status, out.splitlines()[-1]) == (2, "2 runs completed in runs")
    assert f"run {CONFIGS[0].run} was damaged in the store (its epoch 2 is missing) and is trained again\n" in err
    unreadable = err.splitlines()[-1]
    assert unreadable.startswith(f"heatbath: run {CONFIGS[1].run} in runs/heatbath.sqlite is damaged (its digest")
    assert "): 'heatbath runs repair' keeps what is sound, 'heatbath runs merge' takes it from a copy" in unreadable
    with Store(tmp_path / "runs") as store:
        assert store.find(CONFIGS[0].run).status == "finished"
        store.add(CONFIGS[1:2])


def test_repair_keeps_what_is_sound(filled, tmp_path):
    assert filled("runs", "repair") == (0, "nothing to repair in runs: 7 runs, all sound\n", "")
    change(tmp_path / "runs", "DELETE FROM epochs WHERE run = ? AND epoch = 2", CONFIGS[0].run)
    change(tmp_path / "runs", "UPDATE runs SET config = '{}' WHERE run = ?", CONFIGS[1].run)
    status, out, err = filled("runs", "repair")
    assert status == 0
    assert out.splitlines()[:2] == [
        "5 runs whole in runs; the damaged database is kept as heatbath.sqlite.damaged",
        f"  {CONFIGS[0].run} was damaged: 1 sound epoch kept",
    ]
    assert f"the configs of 1 run are lost; train them again: {CONFIGS[1].run}" in out + err
    assert filled("runs", "list")[0] == 0
    assert filled("runs", "repair", "--store", "nowhere")[0] == 2


def test_a_repair_that_saves_nothing_is_an_exit_status(filled, tmp_path):
    change(tmp_path / "runs", "UPDATE runs SET config = '{}'")
    status, out, _ = filled("runs", "repair", "--json")
    assert (status, json.loads(out)["whole"]) == (1, 0)


def test_what_files_do_is_told_as_json(filled, tmp_path):
    fill(tmp_path / "other", [CONFIGS[0].with_(seed=9)])
    merged = json.loads(filled("runs", "merge", "other", "--json")[1])["merged"]["other"]
    assert (merged["added"], merged["known"]) == (1, 0)
    assert json.loads(filled("runs", "export", "a.csv", "--json")[1]) == {
        "file": "a.csv",
        "runs": 8,
        "without_a_row": 0,
    }
    assert json.loads(filled("runs", "repair", "--json")[1])["whole"] == 8


def test_a_damaged_store_is_not_merged_after_another(refused, filled, tmp_path):
    fill(tmp_path / "other", [CONFIGS[0].with_(seed=9)])
    fill(tmp_path / "damaged", CONFIGS[1:2])
    change(tmp_path / "damaged", "DELETE FROM epochs WHERE epoch = 2")
    assert "its epoch 2 is missing" in refused("runs", "merge", "other", "damaged")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["list", "--status", "done"], "unknown status 'done': choose one of pending, running, finished, diverged"),
        (["list", "--model", "mpl"], "unknown model 'mpl'"),
        (["list", "--dataset", "cifar"], "unknown dataset 'cifar'"),
        (["list", "--protocol", "cyclic:x"], "'x' is not a number of epochs"),
        (["show", "xyz"], "no run xyz in runs"),
        (["show", ""], "no run '' in runs; 'heatbath runs list' shows their names"),
        (["show", "", "--store", "single"], "no run '' in single"),
        (["export", "mine.csv", "--model", "vgg16"], "no run in runs matches --model vgg16; nothing was written"),
        (["export", "-", "--model", "cnn", "--status", "pending"], "matches --model cnn --status pending; nothing"),
        (["export", "mine.csv", "--store", "empty"], "there are no runs in empty; nothing was written"),
        (["export", "runs.txt"], "must be one of .csv, .parquet, .jsonl, .jsonl.gz; or - to print CSV"),
        (["export", "nowhere/a.csv"], "there is no folder nowhere"),
        (["resume", "--device", "tpu"], "device must be"),
        (["resume", "--data-dir", "nowhere"], "--data-dir nowhere is not a folder"),
        (["burn"], "burn"),
    ],
)
def test_errors_change_nothing(refused, filled, tmp_path, arguments, words):
    fill(tmp_path / "single", CONFIGS[:1])
    fill(tmp_path / "empty", [])
    (tmp_path / "mine.csv").write_text("mine")
    assert words in refused("runs", *arguments)


def test_a_folder_of_exported_files_is_no_store(refused, tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "a.jsonl.gz").write_bytes(b"")
    assert "heatbath runs merge results --create" in refused("runs", "list", "--store", "results")


@pytest.mark.parametrize(
    "arguments", [["list"], ["show", "a"], ["resume"], ["merge", "other"], ["export", "a.csv"], ["export", "-"]]
)
def test_a_store_that_is_not_there_is_not_made(refused, tmp_path, arguments):
    fill(tmp_path / "other", CONFIGS[:1])
    assert "there is no store in runs" in refused("runs", *arguments)
    (tmp_path / "file").write_text("mine")
    assert "there is no store in file" in refused("runs", *arguments, "--store", "file")


def test_a_locale_without_our_signs_is_no_error(filled, tmp_path):
    program = [sys.executable, "-m", "heatbath", "runs", "list"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(program, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert set(done.stdout.splitlines()[2]) == set(b"-")
    assert done.stderr == b""


def test_a_narrow_terminal_gets_row_after_row(filled, monkeypatch):
    monkeypatch.setattr(screens, "terminal_width", lambda: 20)
    heading, *lines = filled("runs", "list", "--protocol", "constant")[1].split("\n\n")[0].splitlines()
    assert " ".join((heading, *lines)).startswith("mlp on mnist5k: constant, lr 0.02, batch size 256")
    assert {"seed    0", "test    0.6500"} <= set(lines)
    assert max(map(len, lines[-6:])) <= 20
