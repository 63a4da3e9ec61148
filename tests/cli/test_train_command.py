import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from functools import partial

import pytest

import heatbath as hb
from heatbath.cli import summaries
from heatbath.engine import planning, progress_bar
from heatbath.engine import run as engine
from heatbath.engine.executors.local import Local
from heatbath.runs.records import Record
from heatbath.runs.store import Store
from heatbath.system import machine
from measured import an_epoch

SHORT = ("train", "--epochs", 2, "--device", "cpu")
PROGRAM = [sys.executable, "-m", "heatbath"]


def test_a_table_then_the_same_from_the_store(heatbath, tmp_path, monkeypatch):
    arguments = (*SHORT, "--protocol", "constant", "--protocol", "cyclic:3", "--seeds", 2)
    status, out, err = heatbath(*arguments)
    assert (status, err) == (0, "")
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line}
    assert rows["constant"][1] == rows["cyclic:3"][1] == "2"
    records = hb.load(tmp_path / "runs")
    accuracies = [record.final("test_accuracy") for record in records if str(record.config.protocol) == "constant"]
    assert rows["constant"][2:5] == summaries.mean_and_interval(accuracies).split()
    assert float(rows["constant"][2]) == pytest.approx(sum(accuracies) / 2, abs=1e-4)
    assert "lr 0.005, batch size 256, Nesterov momentum 0.9, 2 epochs" in out
    monkeypatch.setattr(Local, "__init__", lambda *_: pytest.fail("trained again"))
    assert heatbath(*arguments) == (0, out, "")


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ((0.01,), []),
        ((50,), ["the run ends"]),
        ((0.01, 50), ["1 of 2 runs ends"]),
        ((50, 60), ["2 of 2 runs end"]),
    ],
)
def test_a_run_that_ends_worse_than_it_began_is_told(heatbath, rates, words):
    status, out, _ = heatbath(*SHORT, *(part for rate in rates for part in ("--lr", rate)))
    assert status == 0
    assert re.findall("Warning: (.*) with a train loss above 2.303, that of guessing", out) == words


def test_a_run_that_diverges_is_an_exit_status(heatbath):
    status, out, _ = heatbath(*SHORT, "--lr", 3000, "--lr", 0.01)
    assert status == 3
    assert "1 diverged" in out
    assert heatbath(*SHORT, "--lr", 3000, "--json")[0] == 3
    assert heatbath(*SHORT, "--lr", 0.01)[0] == 0


def test_json_has_every_run_in_the_order_asked(heatbath):
    arguments = (*SHORT, "--lr", 0.02, "--lr", 0.01, "--seed-list", "5,1", "--store", "elsewhere", "--json")
    status, first, err = heatbath(*arguments)
    assert (status, err) == (0, "")
    runs = json.loads(first)
    assert [(run["config"]["lr"], run["seed"]) for run in runs] == [(0.02, 5), (0.02, 1), (0.01, 5), (0.01, 1)]
    for run in runs:
        assert (run["status"], run["epochs"]) == ("finished", 2)
        assert 0.3 < run["final_test_accuracy"] <= run["best_test_accuracy"] <= 1.0
        assert 0.0 < run["tail_test_accuracy"] <= run["best_test_accuracy"]
        assert 0.3 < run["final_train_accuracy"] <= 1.0
        assert run["final_train_loss"] > 0.0
        assert hb.RunConfig(**run["config"]).run == run["run"]
    assert heatbath(*arguments)[1] == first


def test_every_field_reaches_the_config(heatbath):
    options = {
        "--protocol": "random",
        "--law": "twopoint:0.5",
        "--coupling": "update",
        "--lr": "0.03",
        "--batch-size": "500",
        "--momentum": "0.5",
        "--weight-decay": "0.001",
        "--epochs": "1",
        "--precision": "fp32",
        "--validation": "1000",
        "--seed-list": "7",
        "--schedule": "cosine",
        "--warmup": "2",
        "--clip-norm": "1.5",
        "--sampling": "replacement",
    }
    chosen = [text for pair in options.items() for text in pair]
    (run,) = json.loads(heatbath("train", *chosen, "--no-nesterov", "--device", "cpu", "--stack", 1, "--json")[1])
    expected = hb.RunConfig(
        protocol="random",
        law=hb.TwoPoint(0.5),
        coupling="update",
        lr=0.03,
        batch_size=500,
        momentum=0.5,
        nesterov=False,
        weight_decay=0.001,
        epochs=1,
        precision="fp32",
        validation=1000,
        seed=7,
        schedule="cosine",
        warmup=2,
        clip_norm=1.5,
        sampling="replacement",
    )
    assert run["run"] == expected.run
    assert run["chosen_test_accuracy"] is not None


def test_a_law_stays_with_the_random_protocol(heatbath):
    arguments = (*SHORT, "--protocol", "constant", "--protocol", "random", "--law", "uniform:0.5", "--law", "uniform:1")
    runs = json.loads(heatbath(*arguments, "--json")[1])
    kinds = [(run["config"]["protocol"], run["config"]["law"]) for run in runs]
    assert kinds == [("constant", "constant"), ("random", "uniform:0.5"), ("random", "uniform:1.0")]
    out = heatbath(*arguments)[1]
    assert "uniform:0.5" in out
    assert "3 runs in runs" in out


def test_vgg16_goes_with_cifar10(refused, monkeypatch):
    _cut_the_network(monkeypatch)
    assert "cifar-10" in refused("train", "--model", "vgg16", "--data-dir", ".")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "mpl"], "unknown model 'mpl': choose one of mlp, cnn, vgg16"),
        (["--lr", "-1"], "lr must be a finite number with lr > 0"),
        (["--lr", "fast"], "--lr"),
        (["--batch-size", 4001], "batch_size 4001: mnist5k has 4,000 images"),
        (["--protocol", "cyclic:0"], "period must be a finite number with period > 0"),
        (["--protocol", "constant", "--protocol", "randm"], "unknown protocol 'randm'"),
        (["--protocol", "constant", "--law", "uniform:1"], "--law: only for --protocol random"),
        (["--protocol", "random", "--law", "constant"], "--law constant makes every rate the mean one"),
        (["--seed-list", "1,2,1"], "--seed-list has 1 twice"),
        (["--law", "uniform:3"], "delta"),
        (["--momentum", 1], "momentum must be a number with 0 <= momentum < 1"),
        (["--epochs", 0], "epochs"),
        (["--optimizer", "adam"], "unknown optimizer 'adam': choose one of sgd, adamw"),
        (["--schedule", "step"], "unknown schedule 'step': choose one of constant, cosine, linear"),
        (["--sampling", "none"], "unknown sampling 'none': choose one of shuffled, replacement"),
        (["--warmup", 320], "warmup 320 is as long as the run, which has 320 steps"),
        (["--clip-norm", 0], "clip_norm must be a finite number with clip_norm > 0"),
        (["--precision", "fp8"], "unknown precision 'fp8'"),
        (["--weights", "imagenet"], "weights imagenet are for vgg16"),
        (["--model", "vgg16", "--dataset", "mnist"], "vgg16 takes images of 3 x 32 x 32"),
        (["--seeds", 0], "--seeds must be from 1"),
        (["--seeds", 2, "--seed-list", "1,2"], "give one of them"),
        (["--seed-list", "1,x"], "--seed-list must be integers"),
        (["--device", "gpu"], "device must be auto, cpu, cuda or cuda:N"),
        (["--device", "cuda:99"], "device cuda:99: torch sees"),
        (["--workers", 0], "--workers"),
        (["--stack", 0], "--stack"),
        (["--checkpoint-seconds", -1], "--checkpoint-seconds"),
        (["--data-dir", "nowhere"], "--data-dir nowhere is not a folder"),
        (["extra"], "extra"),
    ],
)
def test_bad_input_writes_nothing(refused, arguments, words):
    assert words in refused("train", *arguments)


def test_a_store_that_is_none_is_left_alone(refused, tmp_path):
    (tmp_path / "file").write_text("mine")
    assert "is a file; name a folder" in refused("train", "--store", "file")
    assert "is a file; name a folder" in refused("train", "--store", "file/deeper")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / Store.FILE).write_text("mine")
    assert "is not a store of heatbath" in refused("train", "--store", "foreign")


def test_missing_data_is_told_before_the_store_is_made(heatbath, tmp_path, monkeypatch):
    _cut_the_network(monkeypatch)
    (tmp_path / "data").mkdir()
    status, out, err = heatbath("train", "--dataset", "mnist", "--data-dir", "data")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "get it from https://" in err
    assert not (tmp_path / "runs").exists()
    assert not [path for path in (tmp_path / "data").rglob("*") if path.is_file()]


def test_damaged_data_is_told_before_the_store_is_made(refused, tmp_path):
    from heatbath.data.catalogue import MNIST

    for known in MNIST:
        (tmp_path / known.name).write_bytes(b"no images")
    assert "damaged" in refused("train", "--dataset", "mnist", "--data-dir", ".")


@pytest.mark.parametrize(
    ("arguments", "epochs_done", "words"),
    [
        (["--model", "vgg16", "--epochs", 20], 0, "about 6 hours"),
        (["--model", "vgg16", "--epochs", 20], 15, "about 2 hours"),
        (["--model", "vgg16", "--epochs", 20], 18, ""),
        (["--model", "vgg16", "--epochs", 20, "--quiet"], 0, ""),
        (["--model", "cnn", "--dataset", "mnist", "--epochs", 200], 0, "about 20 hours"),
        (["--model", "cnn", "--dataset", "mnist", "--epochs", 200, "--seeds", 4], 0, "about 30 hours"),
        (["--model", "cnn", "--dataset", "mnist", "--epochs", 200, "--seeds", 4, "--workers", 1], 0, "about 3 days"),
        (["--dataset", "mnist", "--epochs", 180, "--seeds", 4], 0, ""),
    ],
)
def test_long_work_on_a_cpu_is_told_before_it_begins(heatbath, monkeypatch, arguments, epochs_done, words):
    def stop(*_arguments):
        raise ValueError("begun")

    def survey(_store, _runs):
        return [Record(config, "pending", (an_epoch(0.1, 1.0, 0.5, 1.0, 0.5),) * epochs_done) for config in asked], {}

    def complete(configs, *arguments):
        asked.extend(configs)
        return train(configs, *arguments)

    asked, train = [], engine.complete
    monkeypatch.setattr(machine, "choose_device", lambda _device: "cpu")
    monkeypatch.setattr(machine, "available_cores", lambda: 2)
    monkeypatch.setattr(planning, "available_memory", lambda: 2**34)
    monkeypatch.setattr(engine, "complete", complete)
    monkeypatch.setattr(Local, "prepare", lambda *_: None)
    monkeypatch.setattr(Store, "survey", survey)
    monkeypatch.setattr(Store, "add", stop)
    told = f"heatbath: no GPU is seen: on this CPU expect {words}\n" if words else ""
    assert heatbath("train", *arguments)[2] == f"{told}heatbath: begun\n"


def test_an_interrupt_is_told_and_resumed(heatbath, tmp_path, monkeypatch):
    alone = json.loads(heatbath(*SHORT, "--store", "other", "--json")[1])

    def stop_at_first_epoch(_, state):
        if state.epochs_done:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(progress_bar.Display, "follow_training", stop_at_first_epoch)
        status, out, err = heatbath(*SHORT)
    assert (status, out) == (130, "")
    assert err == "heatbath: interrupted; 0 of 1 runs are done: run the same command again to go on\n"
    assert [record.status for record in hb.load(tmp_path / "runs")] == ["pending"]
    assert json.loads(heatbath(*SHORT, "--json")[1]) == alone


def test_control_c_in_a_real_process(tmp_path):
    """A second process that is asked for the same goes on where the first was stopped, and prints what it would."""
    arguments = [*PROGRAM, "train", "--epochs", "100", "--seeds", "2", "--device", "cpu", "--workers", "1", "--json"]
    heard = partial(signal.signal, signal.SIGINT, signal.default_int_handler)  # where the tests run in the background
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(arguments, cwd=tmp_path, preexec_fn=heard, **pipes)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if (tmp_path / "runs" / Store.FILE).exists() and any(r.epochs for r in hb.load(tmp_path / "runs")):
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err.endswith(" of 2 runs are done: run the same command again to go on\n")
    assert "Traceback" not in err
    trained = sum(len(record.epochs) for record in hb.load(tmp_path / "runs"))
    assert 0 < trained < 200
    first = subprocess.run(arguments, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert [run["epochs"] for run in json.loads(first)] == [100, 100]
    again = "import sys; from heatbath.cli import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    program = [sys.executable, "-c", again, *arguments[3:]]
    assert subprocess.run(program, cwd=tmp_path, check=True, capture_output=True, text=True).stdout == first


def test_a_reader_who_has_gone_is_no_error(heatbath, tmp_path):
    heatbath("train", "--epochs", 1, "--seeds", 40, "--device", "cpu")  # more than a pipe's buffer in JSON and CSV
    for arguments in (["runs", "list", "--json"], ["runs", "export", "-"], ["runs", "list"]):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run([*PROGRAM, *arguments], cwd=tmp_path, stdout=write, stderr=subprocess.PIPE)
        os.close(write)
        assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("stream", ["1", "2"])
def test_a_closed_stream_is_no_error(tmp_path, stream):
    script = f'"$@" train --epochs 1 --device cpu -q {stream}>&- && "$@" runs list {stream}>&-'
    done = subprocess.run(["sh", "-c", script, "sh", *PROGRAM], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("1 finished" in done.stdout) == (stream == "2")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([0.9, 0.7], "0.8000 ± 1.2706"),
        ([0.97901, 0.97911, 0.97906], "0.97906 ± 0.00012"),
        ([0.000528, 0.000570, 0.000549], "0.000549 ± 0.000052"),
        ([1.0, 1.0], "1.0000 ± 0.0000"),
        ([0.000528], "0.000528"),
        ([0.0], "0.0000"),
        ([None], "-"),
        ([1.5e28], "1.5e+28"),
    ],
)
def test_an_interval_is_seen_however_small(values, words):
    assert summaries.mean_and_interval(values) == words


def _cut_the_network(monkeypatch):
    def fail(*_arguments, **_options):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", fail)
    monkeypatch.setenv("XDG_CACHE_HOME", os.path.join(os.sep, "nowhere"))
    monkeypatch.delenv("HEATBATH_DATA", raising=False)


TASK = """
import torch
from torch import nn
import heatbath as hb

generator = torch.Generator().manual_seed(0)
X = torch.randn(60, 4, generator=generator)
Y = (X.sum(1) > 0).long()


def model():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


task = hb.Task(model, (X, Y), (X, Y), name="signs")


def make_task():
    return hb.Task(model, (X, Y), (X, Y), name="made")


number = 3
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_task_prints_does_not_reach_the_output(heatbath, tmp_path, workers):
    """Neither where it is imported, nor in this process, nor in workers."""
    loud = TASK.replace("return nn.", 'print("made", flush=True)\n    return nn.') + 'print("imported")\n'
    (tmp_path / "loud_tasks.py").write_text(loud)
    command = [*PROGRAM, "train", "--task", "loud_tasks:task", "--seeds", 2, "--workers", workers, "--epochs", 1]
    command += ["--batch-size", 10, "--device", "cpu", "--json"]
    done = subprocess.run(list(map(str, command)), cwd=tmp_path, capture_output=True, text=True, check=True)
    assert len(json.loads(done.stdout)) == 2
    assert {"imported", "made"} <= set(done.stderr.split())


def test_a_task_of_the_current_folder_is_trained(heatbath, refused, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "my_tasks.py").write_text(TASK)
    knobs = ["--epochs", 3, "--batch-size", 10, "--lr", 0.1, "--device", "cpu", "--store", tmp_path / "store"]
    status, out, _ = heatbath("train", "--task", "my_tasks:task", "--seeds", 3, "--workers", 2, *knobs)
    assert status == 0
    assert "signs on" in out
    records = hb.load(tmp_path / "store")
    assert [record.config.seed for record in records] == [0, 1, 2]
    assert all(record.status == "finished" and record.config.model == "signs" for record in records)
    assert all(record.final("test_accuracy") > 0.7 for record in records)
    out = heatbath("runs", "list", "--store", tmp_path / "store")[1]
    assert "signs" in out
    out = heatbath("train", "--task", "my_tasks:make_task", *knobs, "--json")[1]
    assert json.loads(out)[0]["config"]["task"]["name"] == "made"
    for words, message in (
        (["--task", "my_tasks:number"], "--task my_tasks:number must be a heatbath.Task, got int"),
        (["--task", "my_tasks:none"], "--task 'my_tasks:none': my_tasks has no none"),
        (["--task", "no_tasks:task"], "--task 'no_tasks:task': there is no module no_tasks"),
        (["--task", "my_tasks:task", "--model", "cnn"], "model 'cnn' and a task: give one of them"),
        (["--task", "my_tasks:task", "--dataset", "mnist5k"], "--dataset mnist5k and --task: give one of them"),
    ):
        assert message in refused("train", *words, *knobs)
