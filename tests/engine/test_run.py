"""`run` with a model of the engine that is quick and can be stopped; the real one is in test_kills."""

import math
import os
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import torch
from torch import nn

from fake_engine import CONFIGS, alone, curves
from heatbath.engine import trainer
from heatbath.engine.executors.local import Local
from heatbath.engine.options import Options
from heatbath.engine.run import complete, load, run
from heatbath.runs.configs import RunConfig, sweep
from heatbath.runs.store import Store
from heatbath.tasks.task import Task
from own_task import network, points


def test_records_come_in_the_order_of_the_configs(engine, tmp_path):
    expected = alone(CONFIGS)
    asked = [CONFIGS[3], CONFIGS[0], CONFIGS[3], CONFIGS[5]]
    records = run(asked, tmp_path, "cpu")
    assert [record.config for record in records] == asked
    assert all(record.epochs == expected[record.run] for record in records)
    assert all(record.status == "finished" and record.precision == "fp32" for record in records)
    assert len(engine.trained) == 3 * 4, "a repeated one is trained once"
    assert {record.run for record in load(tmp_path)} == {config.run for config in asked}
    assert records[0].versions["torch"] == torch.__version__


def test_what_is_finished_is_not_repeated(engine, tmp_path):
    first = run(CONFIGS[:4], tmp_path, "cpu")
    engine.trained.clear()
    assert run(CONFIGS[:4], tmp_path, "cpu") == first
    assert engine.trained == []
    run(CONFIGS, tmp_path, "cpu")
    assert {run for run, _ in engine.trained} == {config.run for config in CONFIGS[4:]}
    assert os.listdir(tmp_path / "checkpoints") == os.listdir(tmp_path / "owners") == []


def test_what_a_kill_after_the_last_epoch_left_is_removed(engine, tmp_path):
    kept = {}

    def keep(_state):
        kept.update({file: file.read_bytes() for file in (tmp_path / "checkpoints").glob("*.checkpoint")})

    records = run(CONFIGS[:2], tmp_path, "cpu", progress=keep)
    owner, *_ = next(iter(kept)).name.split(".")
    for file, content in kept.items():
        file.write_bytes(content)
    (tmp_path / "checkpoints" / f"{owner}.9.0.partial").write_bytes(b"HEATBAT2")
    (tmp_path / "owners" / f"{owner}.lock").touch()
    trained = len(engine.trained)
    assert run(CONFIGS[:2], tmp_path, "cpu") == records
    assert len(engine.trained) == trained
    assert os.listdir(tmp_path / "checkpoints") == os.listdir(tmp_path / "owners") == []


def test_a_damaged_run_is_trained_again(engine, tmp_path):
    before = run(CONFIGS, tmp_path / "store", "cpu")
    with closing(sqlite3.connect(tmp_path / "store" / Store.FILE)) as connection, connection:
        connection.execute("DELETE FROM epochs WHERE run = ? AND epoch = 1", (CONFIGS[1].run,))
    trained, said = len(engine.trained), []
    again = run(CONFIGS, tmp_path / "store", "cpu", progress=lambda state: said.append(state.message))
    assert curves(again) == curves(before)
    assert {run for run, _ in engine.trained[trained:]} == {CONFIGS[1].run}
    assert f"run {CONFIGS[1].run} was damaged in the store (its epoch 1 is missing) and is trained again" in said


def test_a_call_does_each_thing_once(engine, tmp_path, monkeypatch):
    """The store is opened once, the device resolved once and the data loaded once, all of it before a store is made."""
    done = Counter()

    class CountingStore(Store):
        def __init__(self, path):
            done["store"] += 1
            super().__init__(path)

    class CountingLocal(Local):
        def resolve(self, device):
            done["device"] += 1
            return super().resolve(device)

        def prepare(self, configs, progress=None):
            assert not (tmp_path / "store").exists()
            super().prepare(configs, progress)

    def load_dataset(*_, **__):
        done["data"] += 1

    monkeypatch.setattr(trainer, "load_dataset", load_dataset)
    doubles = {"open_store": CountingStore, "executor": CountingLocal}
    options = Options(device="cpu")
    first = complete(CONFIGS, tmp_path / "store", options, **doubles)
    assert done == {"store": 1, "device": 1, "data": 1}
    assert complete(CONFIGS, tmp_path / "store", options, **doubles) == first
    assert done == {"store": 2, "device": 1, "data": 1}, "where all is finished, only the store is read"


def test_without_a_store_nothing_is_left(engine, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    records = run(CONFIGS[:2], device="cpu")
    assert curves(records) == alone(CONFIGS[:2])
    assert list(tmp_path.iterdir()) == []
    assert run([], device="cpu") == []


def test_calls_in_several_threads_take_turns(tmp_path):
    """They share torch's generator, which dropout draws from."""
    task = Task(lambda: nn.Sequential(nn.Dropout(0.5), network()), points(0), points(1))
    configs = sweep(RunConfig(task=task, epochs=10, batch_size=20, lr=0.1), seed=range(4))
    expected = [curves(run([config], device="cpu", workers=1)) for config in configs]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda config: curves(run([config], device="cpu", workers=1)), configs))
    assert found == expected


def test_finished_runs_need_no_torch(engine, tmp_path):
    run(CONFIGS[:2], tmp_path, "cpu")
    program = f"""
import sys
from heatbath.runs.configs import RunConfig
from heatbath.engine.run import load, run
configs = [record.config for record in load({str(tmp_path)!r})]
assert [record.status for record in run(configs, {str(tmp_path)!r})] == ["finished"] * 2
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("stop", [(0, 1), (0, 3), (4, 2), (5, 4)])
@pytest.mark.parametrize("stacks", [(1, 1), (None, 1), (1, None), (None, 4), (4, None)], ids=str)
def test_a_stopped_run_goes_on_bit_for_bit_in_another_stack(gpu, tmp_path, stop, stacks):
    expected = alone(CONFIGS)
    gpu.stop_at = (CONFIGS[stop[0]].run, stop[1])
    with pytest.raises(
        KeyboardInterrupt, match=r"stopped: \d of 6 runs are done; the same again .* goes on from there"
    ):
        run(CONFIGS, tmp_path, "cuda", stack=stacks[0])
    before = load(tmp_path)
    assert {record.status for record in before} <= {"pending", "finished"}
    trained = set(gpu.trained)
    gpu.trained.clear()
    after = run(CONFIGS, tmp_path, "cuda", stack=stacks[1])
    assert curves(after) == expected
    again = trained & set(gpu.trained)
    assert again <= {(config.run, stop[1]) for config in CONFIGS}, "nothing but the epoch that was stopped"
    assert os.listdir(tmp_path / "checkpoints") == []


@pytest.mark.parametrize("variable", [False, True])
def test_a_change_of_the_working_folder_meanwhile_is_no_matter(gpu, tmp_path, monkeypatch, variable):
    for name in ("here", "here/data", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    sources, checkpoints = set(), set()
    monkeypatch.setattr(trainer, "load_dataset", lambda *_, data_dir, **__: sources.add(data_dir))

    def leave(_):
        checkpoints.update(file.parent for file in tmp_path.rglob("*.checkpoint"))
        os.chdir(tmp_path / "elsewhere")

    if variable:
        monkeypatch.setenv("HEATBATH_DATA", "data")
    records = run(CONFIGS, "store", "cuda", data_dir=None if variable else "data", progress=leave)
    assert curves(records) == alone(CONFIGS)
    assert checkpoints == {tmp_path / "here" / "store" / "checkpoints"}
    assert sources == {tmp_path / "here" / "data"}
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_full_disk_is_one_plain_line(gpu, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trainer.Saver, "save", full)
    with pytest.raises(OSError, match=r"^no space left in .*; what was finished is safe; free space and run again$"):
        run(CONFIGS, tmp_path, "cuda")
    monkeypatch.undo()
    assert {record.status for record in load(tmp_path)} == {"pending"}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"configs": ["mlp"]}, TypeError, "configs must be RunConfigs, got 'mlp'"),
        ({"device": "gpu"}, ValueError, "device must be auto, cpu"),
        ({"workers": 0}, ValueError, "workers must be an integer with 1 <= workers"),
        ({"stack": True}, ValueError, "stack must be an integer with 1 <= stack"),
        (
            {"checkpoint_seconds": -1.0},
            ValueError,
            "checkpoint_seconds must be a finite number with checkpoint_seconds >= 0",
        ),
        (
            {"checkpoint_seconds": math.nan},
            ValueError,
            "checkpoint_seconds must be a finite number with checkpoint_seconds >= 0",
        ),
        ({"checkpoint_seconds": "1"}, TypeError, "checkpoint_seconds must be a finite number"),
    ],
    ids=["configs", "device", "workers", "stack", "negative", "nan", "text"],
)
def test_wrong_arguments_write_nothing(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        run(**{"configs": CONFIGS, "store": tmp_path / "store", **options})
    assert not (tmp_path / "store").exists()


def test_a_single_config_is_no_list_of_them():
    with pytest.raises(TypeError, match="a list of RunConfigs, even of one"):
        run(CONFIGS[0])


def test_a_run_does_not_go_on_elsewhere_unless_asked(gpu, tmp_path, monkeypatch):
    """With another torch, precision or kind of device its numbers would be others; its epochs say which are which."""
    gpu.stop_at = (CONFIGS[0].run, 3)
    with pytest.raises(KeyboardInterrupt):
        run(CONFIGS[:1], tmp_path, "cuda")
    with Store(tmp_path) as store:
        (before,) = store.records()
    here = before.epochs[-1].origin
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    words = rf"1 run was begun with torch {re.escape(here['torch'])}, here 9\.9\.9: go on where they were begun, or"
    with pytest.raises(ValueError, match=words):
        run(CONFIGS[:1], tmp_path, "cuda")
    assert load(tmp_path) == [before]
    said = []
    (record,) = run(CONFIGS[:1], tmp_path, "cuda", mix_origins=True, progress=lambda p: said.append(p.message or ""))
    assert any("their epochs will say which were made where" in message for message in said)
    assert [(count, origin["torch"]) for count, origin in record.origins] == [(2, here["torch"]), (2, "9.9.9")]
