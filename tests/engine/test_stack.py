"""A stack trains what a plain loop with `RandomSGD` trains, and no replica depends on its neighbours."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

import heatbath as hb
from heatbath.data.datasets import Dataset, epoch_order, epoch_orders, load_dataset
from heatbath.data.image_sets import IMAGE_SETS
from heatbath.data.vgg16_features import find_vgg16_features, load_vgg16_features
from heatbath.draws import orbits
from heatbath.engine.network_replicas import CpuReplica, GpuReplicas, Split
from heatbath.engine.stack import Stack, WrongStateError
from heatbath.runs.configs import RunConfig
from heatbath.tasks.models import build_model
from heatbath.tasks.registry import networks
from heatbath.tasks.stacked_networks import Dropout, drop_out

BASE = RunConfig(epochs=2, batch_size=300, lr=0.02)  # 4,000 images: thirteen batches of 300 and one of 100
VARIED = [
    BASE.with_(seed=3),
    BASE.with_(seed=4, protocol="constant", weight_decay=0.01),
    BASE.with_(seed=5, protocol="cyclic:1.5", nesterov=False),
    BASE.with_(seed=6, coupling="update", law="two-point:0.5", momentum=0.5),
    BASE.with_(seed=7, coupling="update", law="lognormal:0.4", nesterov=False, weight_decay=0.02),
    BASE.with_(seed=8, momentum=0.0, lr=0.1),
]


@pytest.fixture(scope="module")
def data():
    return load_dataset("mnist5k")


def plain_loop(config, data, epochs):
    """The same run by hand: a network of `models`, torch's autograd and `RandomSGD` or a scheduler."""
    model = build_model(config.model, seed=config.seed)
    knobs = {"momentum": config.momentum, "nesterov": config.nesterov, "weight_decay": config.weight_decay}
    if config.protocol.kind == "random":
        knobs |= {"law": config.law, "coupling": config.coupling, "seed": config.seed}
        optimizer = hb.RandomSGD(model.parameters(), config.lr, **knobs)
    else:
        optimizer = torch.optim.SGD(model.parameters(), config.lr, **knobs)
    cycle = hb.CosineCycleLR(optimizer, config.protocol.period) if config.protocol.kind == "cyclic" else None
    for epoch in range(epochs):
        order = torch.from_numpy(epoch_order(len(data.train_labels), config.seed, epoch))
        for rows in order.split(config.batch_size):
            optimizer.zero_grad()
            logits = model(data.normalize(data.train_images[rows]))
            functional.cross_entropy(logits, data.train_labels[rows]).backward()
            optimizer.step()
        if cycle is not None:
            cycle.step()
    return model


@pytest.mark.parametrize("config", VARIED, ids=lambda config: f"seed{config.seed}")
def test_a_run_equals_a_plain_loop(config, data):
    stack = Stack([config], data)
    epochs = [stack.train_epoch() for _ in range(2)]
    model, start = plain_loop(config, data, 2), build_model(config.model, seed=config.seed).state_dict()
    (state,) = stack.states()
    for name, expected in model.state_dict().items():
        moved = (expected - start[name]).norm()
        assert moved > 0
        assert (state[f"weight.{name}"] - expected).norm() < 2e-4 * moved, name
    with torch.no_grad():
        logits = model(data.normalize(data.test_images))
    accuracy = (logits.argmax(1) == data.test_labels).double().mean().item()
    assert epochs[-1][0].test_accuracy == pytest.approx(accuracy, abs=2e-3)
    assert epochs[-1][0].test_loss == pytest.approx(functional.cross_entropy(logits, data.test_labels).item(), rel=1e-4)


def test_a_replica_does_not_see_its_neighbours(data):
    together, alone = Stack(VARIED, data), [Stack([config], data) for config in VARIED]
    for _ in range(2):
        assert together.train_epoch() == [stack.train_epoch()[0] for stack in alone]
    for state, stack in zip(together.states(), alone, strict=True):
        assert all(torch.equal(state[name], tensor) for name, tensor in stack.states()[0].items())


@pytest.fixture(params=["float64", "bfloat16", "meta"])
def other_defaults(request):
    """What a caller may have told torch to make tensors of."""
    dtype = torch.get_default_dtype()
    if request.param == "meta":  # stands for a GPU: whatever does not name its device ends up without numbers
        torch.set_default_device("meta")
    else:
        torch.set_default_dtype(getattr(torch, request.param))
    yield
    torch.set_default_dtype(dtype)
    torch.set_default_device(None)


def train_batched(configs, data):
    splits = {name: Split.of(data, name, True) for name in ("train", "test")}
    group = GpuReplicas(configs, networks()["mlp"].stacked, splits, "fp32", compiled=False)
    group.load(Stack(configs, data).states())
    group.prepare(0)
    for step in range(configs[0].steps_per_epoch):
        group.step(torch.tensor([step], device="cpu"))
    return group.read(group.evaluate())


@pytest.fixture(scope="module")
def with_usual_defaults(data):
    return Stack(VARIED, data).train_epoch(), train_batched(VARIED, data)


def test_the_numbers_do_not_depend_on_the_callers_defaults(with_usual_defaults, other_defaults):
    data = load_dataset("mnist5k")
    assert (Stack(VARIED, data).train_epoch(), train_batched(VARIED, data)) == with_usual_defaults


def test_the_numbers_do_not_depend_on_the_callers_precision(with_usual_defaults, data):
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert Stack(VARIED, data).train_epoch() == with_usual_defaults[0]
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_batched_group_equals_its_replicas(data):
    """What a GPU does with the perceptron, on the CPU: one product for all, and coefficients in tensors."""
    network, splits = networks()["mlp"].stacked, {name: Split.of(data, name, True) for name in ("train", "test")}
    group = GpuReplicas(VARIED, network, splits, "fp32", compiled=False)
    alone = Stack(VARIED, data)
    group.load(alone.states())
    for epoch in range(2):
        group.prepare(epoch)
        for step in range(BASE.steps_per_epoch):
            group.step(torch.tensor([step]))
        found, expected = group.read(group.evaluate()), alone.train_epoch()
        for one, other in zip(found, expected, strict=True):
            assert one.rate == other.rate
            assert one.train_loss == pytest.approx(other.train_loss, rel=1e-5)
            assert one.test_accuracy == pytest.approx(other.test_accuracy, abs=2e-3)
    for config, one, other in zip(VARIED, group.states(), alone.states(), strict=True):
        for name, tensor in one.items():
            if name.startswith("weight") or (name.startswith("velocity") and config.momentum > 0.0):
                unit = other["unit"].float() if name.startswith("velocity") else 1.0
                assert (tensor - other[name] * unit).norm() < 1e-3 * tensor.norm(), name


def test_resuming_is_bit_exact_in_another_stack(data):
    through = Stack(VARIED[:3], data)
    expected = [through.train_epoch() for _ in range(3)]
    stack = Stack(VARIED[:3], data)
    stack.train_epoch()
    states = stack.states()
    pair = Stack([VARIED[2], VARIED[0]], data, states=[states[2], states[0]])
    assert pair.epoch == 1
    for epoch in (1, 2):
        assert pair.train_epoch() == [expected[epoch][2], expected[epoch][0]]
    with pytest.raises(ValueError, match="same epoch"):
        Stack(VARIED[:2], data, states=[states[0], pair.states()[0]])


def test_a_diverged_replica_leaves_its_neighbours_alone(data):
    wild = BASE.with_(lr=1e4, seed=1)
    stack, alone = Stack([VARIED[0], wild, VARIED[1]], data), Stack(VARIED[:2], data)
    found, expected = stack.train_epoch(), alone.train_epoch()
    assert not found[1].is_finite
    assert [found[0], found[2]] == expected


def test_diverged_rows_of_a_batch_stay_in_their_row(data):
    splits = {name: Split.of(data, name, True) for name in ("train", "test")}
    configs = [VARIED[0], BASE.with_(lr=1e4, seed=1), VARIED[1]]
    group = GpuReplicas(configs, networks()["mlp"].stacked, splits, "fp32", compiled=False)
    group.load(Stack(configs, data).states())
    group.prepare(0)
    for step in range(BASE.steps_per_epoch):
        group.step(torch.tensor([step]))
    assert [epoch.is_finite for epoch in group.read(group.evaluate())] == [True, False, True]


def test_orders_are_pure_functions_of_seed_and_epoch():
    rows = epoch_orders(1000, [5, 2**63 + 7], 12)
    for row, seed in zip(rows, (5, 2**63 + 7), strict=True):
        assert row.tolist() == epoch_order(1000, seed, 12).tolist()
    assert sorted(rows[0].tolist()) == list(range(1000))
    assert rows[0].tolist() != epoch_orders(1000, [5], 13)[0].tolist()


def test_validation_is_held_out_and_measured():
    data = load_dataset("mnist5k", validation=500)
    stack = Stack([BASE.with_(validation=500)], data)
    (epoch,) = stack.train_epoch()
    assert BASE.with_(validation=500).steps_per_epoch == math.ceil(3500 / 300)
    assert epoch.validation_accuracy is not None
    assert 0.3 < epoch.validation_accuracy < 1.0
    assert epoch.validation_loss > 0.0


def small_dataset(name, count=48):
    """Noise of the shape of a data set, with labels that depend on it."""
    shape = (count, 3, 32, 32) if name == "cifar10" else (count, 1, 28, 28)
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))
    labels = images.flatten(1).long().sum(1) % 10
    statistics = ((0.5,) * shape[1], (0.25,) * shape[1])
    return Dataset(name, images, labels, images[:20], labels[:20], *statistics)


def take_steps(model, config, data, count):
    """What the engine makes of a network in double precision, by name, before and after some steps."""
    network = config.network.stacked
    group = CpuReplica(config, network, {"train": Split.of(data, "train", False)}, "fp64")
    before = dict(zip(network.names, network.pack(model), strict=True))
    weights = {f"weight.{name}": tensor for name, tensor in before.items()}
    at_rest = {f"velocity.{name}": torch.zeros_like(tensor) for name, tensor in before.items()}
    group.load([weights | at_rest | {"unit": torch.tensor(1.0, dtype=torch.float64)}])
    before = {name: tensor.clone() for name, tensor in before.items()}
    group.prepare(0)
    for step in range(count):
        group.step(step)
    return before, {name: group.states()[0][f"weight.{name}"] for name in before}


def test_the_gradients_by_hand_are_those_of_autograd(data):
    network, labels = networks()["mlp"].stacked, data.train_labels[:37]
    params = [tensor[None].double().requires_grad_() for tensor in network.pack(build_model("mlp", seed=5))]
    images = data.normalize(data.train_images[:37], torch.float64)
    loss = functional.cross_entropy(network.logits(params, images[None], None)[0], labels)
    expected = torch.autograd.grad(loss, params)
    found = network.gradients([param.detach() for param in params], images, labels)
    for one, other, param in zip(found, expected, params, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-14)
        assert one.shape == param.shape
        assert one.is_contiguous()


def test_the_convolutional_network_trains_as_its_model(monkeypatch):
    monkeypatch.setitem(IMAGE_SETS, "mnist", replace(IMAGE_SETS["mnist"], training_images=48))
    config = RunConfig(model="cnn", dataset="mnist", batch_size=20, epochs=1, lr=0.05, seed=2, weight_decay=0.1)
    data, model = small_dataset("mnist"), build_model("cnn", seed=2).double()
    before, found = take_steps(model, config, data, 3)
    optimizer = hb.RandomSGD(model.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=0.1, seed=2)
    for rows in torch.from_numpy(epoch_order(48, 2, 0)).split(20):
        optimizer.zero_grad()
        logits = model(data.normalize(data.train_images[rows], torch.float64))
        functional.cross_entropy(logits, data.train_labels[rows]).backward()
        optimizer.step()
    for name, expected in zip(before, networks()["cnn"].stacked.pack(model), strict=True):
        moved = (expected - before[name]).norm()
        assert moved > 0
        assert (found[name] - expected).norm() < 1e-6 * moved, name


def test_the_folded_vgg16_has_the_gradients_of_the_whole_one():
    """With dropout. All 49 blocks of the first classifier layer have the gradient of their sum."""
    data, model, network = small_dataset("cifar10", 6), build_model("vgg16", seed=2), networks()["vgg16"].stacked
    key, gamma = (torch.from_numpy(part)[:, None] for part in orbits([2], 3))
    dropout = Dropout(key, gamma, torch.tensor([17]), 6)
    for place, layer in ((2, 0), (5, 1)):
        model.classifier[place].forward = lambda values, layer=layer: drop_out(values[None], dropout, layer, 2)[0]
    folded = [tensor[None].clone().requires_grad_() for tensor in network.pack(model)]
    images = data.normalize(data.train_images)
    logits, expected = network.logits(folded, images[None], dropout)[0], model(images)
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-5)
    functional.cross_entropy(expected, data.train_labels).backward()
    found = torch.autograd.grad(functional.cross_entropy(logits, data.train_labels), folded)
    for name, parameter, grad in zip(network.names, model.parameters(), found, strict=True):
        blocks = parameter.grad if name != "classifier.0.weight" else parameter.grad.unflatten(1, (-1, 49))[..., 30]
        assert (grad[0] - blocks).norm() <= 1e-3 * blocks.norm(), name
        assert blocks.norm() > 0


def test_a_smaller_last_batch_has_the_masks_of_a_padded_one():
    key, gamma = (torch.from_numpy(part)[:, None] for part in orbits([4], 3))
    dropout = Dropout(key, gamma, torch.tensor([195]), 256)
    padded, short = torch.ones(1, 256, 30), torch.ones(1, 80, 30)
    for layer in range(2):
        assert torch.equal(drop_out(padded, dropout, layer, 2)[:, :80], drop_out(short, dropout, layer, 2))


def test_dropout_masks_are_fair_and_independent():
    key, gamma = (torch.from_numpy(part)[:, None] for part in orbits([0, 1], 3))
    ones = torch.ones(2, 64, 512)
    masks = [
        drop_out(ones, Dropout(key, gamma, torch.tensor([step]), 64), layer, 2) > 0
        for step, layer in ((0, 0), (0, 1), (1, 0))
    ]
    count = ones[0].numel()
    rows = torch.stack([row.flatten() for mask in masks for row in mask]).double() * 2 - 1
    products = rows @ rows.T / count
    assert torch.equal(products.diagonal(), torch.ones(6, dtype=torch.float64))
    off = products[~torch.eye(6, dtype=torch.bool)]
    assert off.abs().max() < 4.5 / math.sqrt(count)
    assert (rows.mean(1).abs() < 4.5 / math.sqrt(count)).all()


@pytest.mark.skipif(find_vgg16_features() is None, reason="VGG16's ImageNet features are not here: set HEATBATH_DATA")
def test_vgg16_starts_from_imagenet():
    """Its convolutions are the features, its classifier is that of the seed."""
    config = RunConfig(model="vgg16", dataset="cifar10", weights="imagenet", seed=3)
    stack = Stack([config], small_dataset("cifar10"))
    (state,), features = stack.states(), load_vgg16_features()
    scratch = dict(
        zip(
            networks()["vgg16"].stacked.names,
            networks()["vgg16"].stacked.pack(build_model("vgg16", seed=3)),
            strict=True,
        )
    )
    for name, tensor in scratch.items():
        assert torch.equal(state[f"weight.{name}"], features.get(name, tensor)), name
    assert not torch.equal(scratch["features.0.weight"], features["features.0.weight"])


@pytest.mark.parametrize("change", ["missing", "shape", "more"])
def test_a_state_of_another_network_is_refused(data, change):
    """A tensor of one number would be copied all over the weights."""
    states = Stack(VARIED[:2], data).states()
    name = next(name for name in states[1] if name.startswith("weight."))
    if change == "missing":
        del states[1][name]
    else:
        states[1][name if change == "shape" else "weight.other"] = torch.zeros(1)
    with pytest.raises(WrongStateError, match="are not those of the network") as caught:
        Stack(VARIED[:2], data, states=states)
    assert caught.value.replica == 1
