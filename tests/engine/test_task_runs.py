"""Runs of tasks through `heatbath.run`: workers, kills, resumption, stores, and what is said on the way."""

import copy
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import heatbath as hb
from heatbath.runs.store import Store
from task_models import images, make_task, perceptron


def base(task, **changes):
    return hb.RunConfig(**{"task": task, "epochs": 2, "batch_size": 32, "lr": 0.02, **changes})


def said(configs, store, **options):
    messages = []
    records = hb.run(configs, store, "cpu", progress=lambda at: at.message and messages.append(at.message), **options)
    return records, messages


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_workers_have_the_numbers_of_one_process(tmp_path, optimizer):
    """Closures and lambdas too, which go by value; with dropout, augmentation, schedule, clipping and replacement."""
    width = 12

    def model():
        return nn.Sequential(nn.Flatten(), nn.Linear(192, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 4))

    task = hb.Task(model, images(90), images(40, 1), metrics=("accuracy", "top5_accuracy"), augment=lambda x, g: -x)
    knobs = {"schedule": "cosine", "warmup": 2, "clip_norm": 1.0, "sampling": "replacement", "optimizer": optimizer}
    configs = hb.sweep(base(task, **knobs, validation=10), seed=range(3), coupling=("gradient", "update"))
    here, messages = said(configs, tmp_path / "here", workers=1)
    there, _ = said(configs, None, workers=2)
    assert [one.epochs for one in here] == [one.epochs for one in there]
    assert {one.status for one in here} == {"finished"}
    assert len({one.final("train_loss") for one in here}) == 6
    assert here[0].curves == (
        "rate",
        *(
            f"{split}_{name}"
            for split in ("train", "test", "validation")
            for name in ("loss", "accuracy", "top5_accuracy")
        ),
    )
    assert here[0].config.task is task, "it can be run again"
    assert any("task model: 90 + 40 samples in 0.1 MB; " in message for message in messages)
    loaded = hb.load(tmp_path / "here")
    assert loaded == here
    assert loaded[0].origin["computed"] == "one by one"
    again, messages = said(configs, tmp_path / "here")
    assert (again, messages) == (here, []), "nothing is trained again"
    with pytest.raises(ValueError, match="a store keeps no code of the task model: train it with"):
        hb.run([loaded[0].config.with_(seed=9)], tmp_path / "here", "cpu")


def test_a_changed_task_is_another_and_told(tmp_path):
    first, then = make_task("perceptron"), hb.Task(perceptron, images(80), images(40, 1))
    hb.run([base(first), base(first, seed=1)], tmp_path, "cpu")
    records, messages = said([base(then)], tmp_path)
    assert len(hb.load(tmp_path)) == 3
    assert records[0].run not in {base(first).run, base(first, seed=1).run}
    (told,) = [message for message in messages if "has changed" in message]
    assert told == (
        "the task perceptron has changed since 2 runs in the store (train, metrics, augment), which stay as they are"
    )
    trained = perceptron()
    same = hb.Task(lambda: copy.deepcopy(trained), images(80), images(40, 1), name="same")
    _, messages = said([base(same)], None)
    assert "task same: all seeds start from the same weights, those that its function returns" in messages


def test_a_task_that_cannot_be_trained_leaves_no_store(tmp_path):
    wrong = hb.Task(perceptron, (images(40)[0], images(40)[1] + 3), images(8))
    with pytest.raises(ValueError, match="train labels of task perceptron go up to 6: its model has 4 classes"):
        hb.run([base(wrong)], tmp_path / "store", "cpu")
    assert not (tmp_path / "store").exists()


def test_a_batch_of_one_is_refused_where_it_cannot_be_normalised(tmp_path):
    resnet = make_task("resnet")  # of 90 samples
    with pytest.raises(ValueError, match="batch_size 89: the last of 90 samples would be alone in its batch"):
        hb.run([base(resnet), base(resnet, batch_size=89)], tmp_path / "store", "cpu")
    assert not (tmp_path / "store").exists()
    assert hb.run([base(resnet, batch_size=88, epochs=1)], None, "cpu")[0].status == "finished"
    assert hb.run([base(make_task("group_resnet"), batch_size=89, epochs=1)], None, "cpu")[0].status == "finished"


def test_a_negative_loss_is_a_loss(tmp_path):
    task = hb.Task(
        perceptron, images(40), images(8), loss=lambda outputs, targets: -outputs.square().mean(), metrics=()
    )
    records = hb.run([base(task, lr=1e-3)], tmp_path, "cpu")
    assert records[0].final("train_loss") < 0
    assert hb.load(tmp_path) == records


def test_a_run_that_diverges_is_recorded_and_a_metric_without_a_number_told(tmp_path):
    task = hb.Task(perceptron, images(40), images(8))
    (record,) = hb.run([base(task, lr=1e30, epochs=3)], tmp_path, "cpu")
    assert record.status == "diverged"

    def vanishing(outputs, targets):
        return torch.tensor(float("nan")) if len(outputs) == 40 else outputs.mean()

    task = hb.Task(perceptron, images(40), images(8), metrics=vanishing)
    with pytest.raises(ValueError, match="train_vanishing of task perceptron is nan, where its loss is a number still"):
        hb.run([base(task)], tmp_path, "cpu")


SCRIPT = """
import sys
import torch
from torch import nn
from torch.nn import functional
import heatbath as hb

generator = torch.Generator().manual_seed(0)
X = torch.randn(400, 30, generator=generator)
Y = (X.sum(1) > 0).long()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(30, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Dropout(0.2), nn.Linear(20, 2))

    def forward(self, x):
        return self.layers(x)


task = hb.Task(Net, (X, Y), (X[:100], Y[:100]))
configs = hb.sweep(hb.RunConfig(task=task, epochs=40, batch_size=20, optimizer="adamw", lr=1e-3), seed=range(4))
hb.run(configs, sys.argv[1], "cpu", workers=2)
"""


def test_kills_lose_no_number(tmp_path):
    """The main program defines the task; it and its workers are killed in the middle, three times."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script)]
    subprocess.run([*command, str(tmp_path / "undisturbed")], check=True)
    store, kills = tmp_path / "store", 0
    for wanted in (3, 20, 60):
        process = subprocess.Popen([*command, str(store)], start_new_session=True)
        while process.poll() is None and _epochs(store) < wanted:
            time.sleep(0.02)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()
    subprocess.run([*command, str(store)], check=True)
    assert kills == 3
    found, expected = ({one.run: one.epochs for one in hb.load(tmp_path / name)} for name in ("store", "undisturbed"))
    assert found == expected
    assert len(found) == 4


def _epochs(store):
    if not (store / Store.FILE).exists():
        return 0
    try:
        return sum(len(record.epochs) for record in hb.load(store))
    except OSError:  # it is being made
        return 0


MODULE = """
from torch import nn
from torch.nn import functional

WIDTH = 8


def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4))
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module that this process has imported and its workers can import."""
    (tmp_path / "code_of_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    import code_of_mine

    yield code_of_mine
    del sys.modules["code_of_mine"]


def test_workers_that_would_train_another_model_say_so(module, tmp_path):
    """A value set from outside, or code that is edited meanwhile, is not what they import."""
    task = hb.Task(module.make, images(40), images(8))
    configs = hb.sweep(base(task, batch_size=20), seed=range(2))
    expected = hb.run(configs, None, "cpu", workers=2)
    module.WIDTH = 9
    wider = hb.Task(module.make, images(40), images(8))
    assert wider != task
    with pytest.raises(ValueError, match="the model of task make is another one in a worker"):
        hb.run(hb.sweep(base(wider, batch_size=20), seed=range(2)), tmp_path / "store", "cpu", workers=2)
    assert {record.status for record in hb.load(tmp_path / "store")} == {"pending"}
    records = hb.run(hb.sweep(base(wider, batch_size=20), seed=range(2)), tmp_path / "store", "cpu", workers=1)
    assert records[0].final("train_loss") != expected[0].final("train_loss")
    (tmp_path / "code_of_mine.py").unlink()
    with pytest.raises(ValueError, match=r"task make cannot be imported in a worker \(No module named 'code_of"):
        hb.run(hb.sweep(base(task, batch_size=20, lr=0.1), seed=range(2)), None, "cpu", workers=2)


class Tiring(nn.Module):
    """Fails in the third epoch."""

    def __init__(self):
        super().__init__()
        self.layers, self.calls = perceptron(), 0

    def forward(self, x):
        self.calls += self.training
        if self.calls > 5:
            raise RuntimeError("too tired\nto go on")
        return self.layers(x)


@pytest.mark.parametrize("workers", [1, 2])
def test_code_that_fails_later_is_told_in_one_line_and_finished_epochs_stay(tmp_path, workers):
    configs = hb.sweep(base(hb.Task(Tiring, images(48), images(16, 1)), epochs=3), seed=range(2))
    with pytest.raises(ValueError, match=r"^the code of task Tiring fails: RuntimeError: too tired$"):
        hb.run(configs, tmp_path, "cpu", workers=workers)
    assert max(len(one.epochs) for one in hb.load(tmp_path)) == 2


class Drawing(nn.Module):
    """Adds numbers that it draws to the inputs, in training or always."""

    def __init__(self, draw, always):
        super().__init__()
        self.layers, self.draw, self.always = perceptron(), draw, always

    def forward(self, x):
        return self.layers(x + self.draw(x) if self.training or self.always else x)


def noisy_loss(outputs, targets):
    return functional.cross_entropy(outputs + torch.randn_like(outputs), targets)


def noisy_metric(outputs, targets):
    return random.random()


@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize(
    "draw",
    [torch.randn_like, lambda x: random.random(), lambda x: float(np.random.rand())],  # noqa: NPY002
    ids=["torch", "random", "numpy"],
)
def test_what_a_model_draws_depends_on_its_seed_alone(draw, always):
    _check_that_draws_are_the_runs_own(hb.Task(lambda: Drawing(draw, always), images(48), images(16, 1)))


def test_what_a_loss_or_a_metric_draws_depends_on_the_seed_alone():
    _check_that_draws_are_the_runs_own(
        hb.Task(perceptron, images(48), images(16, 1), loss=noisy_loss, metrics=noisy_metric)
    )


def _check_that_draws_are_the_runs_own(task):
    configs = hb.sweep(base(task), seed=range(2))
    first = hb.run(configs, device="cpu", workers=1)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[2]  # noqa: NPY002
    again = hb.run(configs[::-1], device="cpu", workers=1)[::-1]
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[2]  # noqa: NPY002
    assert [one.epochs for one in first] == [one.epochs for one in again]
    assert first[0].epochs != first[1].epochs
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
