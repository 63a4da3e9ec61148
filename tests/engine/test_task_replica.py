"""A task of a user trains as a plain loop would, resumes exactly, and does not depend on what shares its stack."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import heatbath as hb
from heatbath.data.datasets import epoch_order
from heatbath.engine.batched_task import BatchedTask, reason_against_batching
from heatbath.engine.stack import Stack
from heatbath.engine.task_replica import TaskReplica, split_task
from heatbath.tasks.losses import read_outputs
from task_models import NAMES, make_task


def config(task, **changes):
    return hb.RunConfig(**{"task": task, "epochs": 2, "batch_size": 32, "lr": 0.02, "law": "uniform:0.8", **changes})


def states_equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_is_the_plain_loop():
    """Without dropout and augmentation: the model's own seed, order and multipliers, and `RandomSGD`."""
    task = make_task("resnet")
    task.augment = None
    run = config(task, seed=5, weight_decay=1e-3)
    stack = Stack([run], split_task(task, 0))
    measured = [stack.train_epoch()[0] for _ in range(2)]
    model = task.build(5)
    optimizer = hb.RandomSGD(
        model.parameters(), lr=0.02, momentum=0.9, nesterov=True, weight_decay=1e-3, law="uniform:0.8", seed=5
    )
    for epoch in range(2):
        for rows in torch.from_numpy(epoch_order(90, 5, epoch)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(task.train.inputs[rows]), task.train.targets[rows]).backward()
            optimizer.step()
    (state,) = stack.states()
    for name, value in model.state_dict().items():
        kind = "weight" if f"weight.{name}" in state else "buffer"
        torch.testing.assert_close(state[f"{kind}.{name}"], value, rtol=1e-4, atol=1e-6)
    model.eval()
    with torch.no_grad():
        outputs = model(task.test.inputs)
    assert measured[-1].test_loss == pytest.approx(
        float(nn.functional.cross_entropy(outputs, task.test.targets)), rel=1e-4
    )
    assert measured[-1].test_accuracy == pytest.approx(float((outputs.argmax(1) == task.test.targets).double().mean()))


@pytest.mark.parametrize("name", NAMES)
def test_stacks_resume_exactly_and_alone_as_in_company(name):
    task = make_task(name)
    runs = [config(task, seed=seed, lr=0.01 * (seed + 1)) for seed in range(3)]
    splits = split_task(task, 0)
    together = Stack(runs, splits)
    together.train_epoch()
    middle = copy.deepcopy(together.states())
    last = together.train_epoch()
    for row, run in enumerate(runs):
        alone = Stack([run], splits)
        alone.train_epoch()
        assert states_equal(alone.states()[0], middle[row])
        resumed = Stack([run], splits, states=[middle[row]])
        assert resumed.train_epoch() == [last[row]]
        assert states_equal(resumed.states()[0], together.states()[row])
    assert len({epoch.train_loss for epoch in last}) == 3


@pytest.mark.parametrize("name", NAMES)
def test_batched_is_one_by_one(name):
    """With dropout, augmentation, running means, tied and frozen weights: after two epochs, to rounding."""
    task = make_task(name)
    runs = [config(task, seed=seed, protocol=protocol) for seed, protocol in ((3, "random"), (8, "constant"))]
    assert reason_against_batching(runs[0]) is None
    splits = split_task(task, 10)
    batched, alone = BatchedTask(runs, splits, "fp32"), [TaskReplica(run, splits, "fp32") for run in runs]
    for epoch in range(2):
        for group in (batched, *alone):
            group.prepare(epoch)
            for step in range(3):
                group.step(step)
    for row, replica in enumerate(alone):
        (expected,), found = replica.states(), batched.states()[row]
        unit = float(expected.pop("unit"))
        assert found.keys() == {*expected, "unit"}
        for key, value in expected.items():
            scale = unit if key.startswith("velocity") else 1
            torch.testing.assert_close(
                found[key], value * scale, rtol=2e-3, atol=2e-4, msg=lambda text, key=key: f"{key}: {text}"
            )
    one, other = batched.read(batched.evaluate()), [replica.read(replica.evaluate())[0] for replica in alone]
    for found, expected in zip(one, other, strict=True):
        assert found.test_loss == pytest.approx(expected.test_loss, rel=1e-2)
        assert found.rate == expected.rate
    resumed = BatchedTask(runs, splits, "fp32")
    resumed.load(batched.states())
    assert all(states_equal(a, b) for a, b in zip(resumed.states(), batched.states(), strict=True))


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(192, 4)

    def forward(self, x):
        x = x.flatten(1)
        return self.layer(x + 0.1 * torch.randn(x.shape) if self.training else x)


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(192, 4)

    def forward(self, x):
        found = self.layer(x.flatten(1))
        return found if found.sum() > 0 else 2 * found


def test_what_does_not_batch_says_why_and_trains_all_the_same():
    images = make_task("perceptron")
    for model, reason in ((Noisy, "draws random numbers of its own"), (Branching, "RuntimeError: vmap: It looks like")):
        task = hb.Task(model, (images.train.inputs, images.train.targets), (images.test.inputs, images.test.targets))
        assert reason in reason_against_batching(config(task))
        splits = split_task(task, 0)
        first, again = (Stack([config(task, seed=4)], splits) for _ in range(2))
        torch.manual_seed(77)
        before = torch.get_rng_state()
        epochs = first.train_epoch()
        assert torch.equal(before, torch.get_rng_state())
        assert epochs == again.train_epoch()
        assert first.how == "one by one"


def test_held_out_samples_are_the_same_for_all_seeds():
    task = make_task("perceptron")
    splits = split_task(task, 20)
    assert [len(splits[name]) for name in ("train", "test", "validation")] == [70, 40, 20]
    rows = {tuple(row.flatten()[:5].tolist()) for part in ("train", "validation") for row in splits[part].inputs}
    assert rows == {tuple(row.flatten()[:5].tolist()) for row in task.train.inputs}
    epoch = Stack([config(task, validation=20)], splits).train_epoch()[0]
    assert epoch.validation_loss > 0


def test_parameters_that_the_loss_does_not_use_stay():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(192, 4), nn.Linear(3, 3)

        def forward(self, x):
            return self.used(x.flatten(1))

    images = make_task("perceptron")
    task = hb.Task(Unused, (images.train.inputs, images.train.targets), (images.test.inputs, images.test.targets))
    stack = Stack([config(task)], split_task(task, 0))
    stack.train_epoch()
    (state,) = stack.states()
    assert torch.equal(state["weight.unused.weight"], task.build(0).unused.weight)
    assert not torch.equal(state["weight.used.weight"], task.build(0).used.weight)
    assert reason_against_batching(config(task)) is None


def test_half_precision_is_close():
    task = make_task("perceptron")
    full, half = (Stack([config(task, precision=kind)], split_task(task, 0)) for kind in ("fp32", "bf16"))
    found, expected = half.train_epoch()[0], full.train_epoch()[0]
    assert half.precision == "bf16"
    assert found.train_loss != expected.train_loss
    assert found.train_loss == pytest.approx(expected.train_loss, rel=0.05)
    assert np.isfinite(found.test_loss)


def test_a_loop_sees_the_outputs_of_objects():
    with pytest.raises(TypeError, match="the model returns a dict with scores: it must return a tensor"):
        read_outputs({"scores": torch.zeros(3)})
    with pytest.raises(TypeError, match="the model returns a tuple"):
        read_outputs((torch.zeros(3), torch.zeros(3)))
    assert read_outputs({"logits": torch.ones(2)}).tolist() == [1.0, 1.0]
