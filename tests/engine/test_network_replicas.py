"""A group that keeps its weights in halves is the group that keeps them whole."""

import itertools
from dataclasses import replace

import pytest
import torch

from heatbath.data.datasets import Dataset
from heatbath.data.image_sets import IMAGE_SETS
from heatbath.engine import split_bf16
from heatbath.engine.network_replicas import GpuReplicas, Split, keeps_halves
from heatbath.engine.stack import Stack
from heatbath.runs.configs import RunConfig

COUNT = 48  # images: two batches of 20 and one of 8


@pytest.fixture(params=["mlp", "cnn"])
def configs(request, monkeypatch):
    """Three perceptrons with knobs of their own, or one convolutional network, whose channels are last in memory."""
    monkeypatch.setitem(IMAGE_SETS, "mnist", replace(IMAGE_SETS["mnist"], training_images=COUNT))
    base = RunConfig(model=request.param, dataset="mnist", batch_size=20, epochs=2, lr=0.02, precision="bf16", seed=3)
    others = [base.with_(seed=4, coupling="update", weight_decay=0.01), base.with_(seed=5, nesterov=False)]
    return [base, *others] if base.network.stacked.stacks else [base]


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (COUNT, 1, 28, 28), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 10, (COUNT,), generator=generator)
    return Dataset("mnist", images, labels, images[:20], labels[:20], (0.5,), (0.25,))


def make(configs, data, network=None, *, halved=False):
    network = configs[0].network.stacked if network is None else network
    splits = {name: Split.of(data, name, network.stacks) for name in ("train", "test")}
    return GpuReplicas(configs, network, splits, "bf16", compiled=False, halved=halved)


def train(group, states, epochs=2):
    group.load(states)
    for epoch in range(epochs):
        group.prepare(epoch)
        for step in range(group.configs[0].steps_per_epoch):
            group.step(torch.tensor([step]))
    return group.states(), group.read(group.evaluate())


def rounding_as_halves(network):
    """The network of whole weights that computes with their upper halves, which differ from ``.bfloat16()`` at ties."""

    def logits(params, images, dropout):
        exact = [param + (split_bf16.split(param.detach())[0].float() - param.detach()) for param in params]
        return network.logits(exact, images, dropout)

    return replace(network, logits=logits)


def alike(ones, others):
    """Whether the states are the same bit for bit, in formats and layouts too."""
    return all(
        one.keys() == other.keys()
        and all(layout(one[name]) == layout(other[name]) and torch.equal(one[name], other[name]) for name in one)
        for one, other in zip(ones, others, strict=True)
    )


def layout(tensor):
    steps = [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
    return tensor.dtype, tensor.shape, steps


def test_only_what_is_compiled_for_a_gpu_in_half_precision_keeps_halves():
    cases = itertools.product(("fp32", "tf32", "bf16", "fp64"), ("cpu", "cuda", "mps"), (False, True))
    found = [case for case in cases if keeps_halves(case[0], torch.device(case[1]), case[2])]
    assert found == [("bf16", "cuda", True)]


def test_halves_train_as_whole_weights_do(configs, data):
    """Weights, velocities and what is measured, bit for bit, after two epochs."""
    start = Stack(configs, data).states()
    whole = make(configs, data, rounding_as_halves(configs[0].network.stacked))
    halved = make(configs, data, halved=True)
    assert {param.dtype for param in halved._params} == {torch.bfloat16}
    assert {param.dtype for param in whole._params} == {torch.float32}
    (found, measured), (expected, as_expected) = train(halved, start), train(whole, start)
    assert alike(found, expected)
    assert measured == as_expected
    for one, other in zip(found, start, strict=True):
        assert all((one[name] - other[name]).norm() > 0 for name in one if name.startswith("weight."))


def test_states_of_halves_are_those_of_whole_weights(configs, data):
    """They are what was loaded, bit for bit and as it lies in memory; and one goes on where the other stopped."""
    whole = make(configs, data)
    states, _ = train(whole, Stack(configs, data).states(), epochs=1)
    assert all(tensor.dtype == torch.float32 for name, tensor in states[0].items() if name != "unit")
    halved = make(configs, data, halved=True)
    halved.load(states)
    assert alike(halved.states(), states)
    again = make(configs, data, halved=True)
    again.load(halved.states())
    for one, other in zip(halved._params + halved._rests, again._params + again._rests, strict=True):
        assert torch.equal(one, other)
    whole.load(halved.states())
    assert alike(whole.states(), states)
