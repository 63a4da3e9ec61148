"""What a worker elsewhere sends back, how much of it at a time, and what it leaves on its disk."""

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

import fake_engine
from fake_engine import CONFIGS, alone
from heatbath.engine.executors import parcels
from heatbath.engine.executors.parcels import pack, train_parcel
from heatbath.engine.jobs import Ended, Job
from heatbath.engine.options import Options


@pytest.mark.parametrize(
    ("seconds", "checkpoint_seconds", "sizes"),
    [(1000.0, 1000.0, [5]), (0.0, 1000.0, [1] * 5), (1000.0, 0.0, [1, 1, 1, 2])],
    ids=["together", "one by one", "with each state"],
)
def test_epochs_of_a_short_time_are_sent_together(engine, seconds, checkpoint_seconds, sizes):
    """The last of them with the end; a state is sent at once."""
    job = Job("0123456789abcdef.1", CONFIGS[:1], (None,))
    expected = alone(CONFIGS[:1])[CONFIGS[0].run]
    letters = list(train_parcel(pack(job, Options(device="cpu", checkpoint_seconds=checkpoint_seconds), pace=seconds)))
    *measured, end = [outcome for letter in letters for outcome, _ in letter]
    assert [len(letter) for letter in letters] == sizes
    assert [one.epochs[0][0].metrics for one in measured] == [epoch.metrics for epoch in expected]
    assert end == Ended()


KILLED = """
import signal, sys
sys.path.insert(0, sys.argv[1])
from fake_engine import CONFIGS, FakeStack
from heatbath.engine import trainer
from heatbath.engine.executors.parcels import pack, train_parcel
from heatbath.engine.jobs import Job
from heatbath.engine.options import Options
trainer.Stack, trainer.load_dataset = FakeStack, lambda *_, **__: None
letters = train_parcel(pack(Job("0123456789abcdef.1", CONFIGS[:1], (None,)), Options(device="cpu")))
next(letters)
print("trains", flush=True)
signal.pause()
"""


@pytest.fixture
def workers(monkeypatch, tmp_path):
    """Two that have begun to train and pause, with their folders in an empty one."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with ExitStack() as stack:
        command = [sys.executable, "-c", KILLED, str(Path(fake_engine.__file__).parent)]
        started = [stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) for _ in range(2)]
        for worker in started:
            stack.callback(worker.kill)
        assert [worker.stdout.readline() for worker in started] == ["trains\n"] * 2
        yield started


def test_folders_of_killed_workers_are_removed_by_later_ones(workers, engine, tmp_path):
    """Those of live ones stay, as do folders so young that their worker may not have locked them yet."""
    packed = pack(Job("fedcba9876543210.1", CONFIGS[1:2], (None,)), Options(device="cpu"))
    folders = set(tmp_path.iterdir())
    workers[0].kill()
    workers[0].wait()
    assert list(train_parcel(packed))
    assert len(folders) == 2
    assert folders <= set(tmp_path.iterdir())
    for folder in folders:
        os.utime(folder, (0.0, time.time() - 2 * parcels._YOUNG))
    assert list(train_parcel(packed))
    (left,) = folders & set(tmp_path.iterdir())
    workers[1].kill()
    workers[1].wait()
    os.utime(left, (0.0, 0.0))
    assert list(train_parcel(packed))
    assert not folders & set(tmp_path.iterdir())
