"""AdamW, schedules, clipping and sampling: a run is what torch's optimizers, schedulers and clipping make of it."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.optim import lr_scheduler

import heatbath as hb
from heatbath.data.datasets import Dataset, epoch_orders, load_dataset
from heatbath.data.image_sets import IMAGE_SETS
from heatbath.engine import batched_optimizer
from heatbath.engine.batched_optimizer import adamw_coefficients, batched_adamw, clip_rows
from heatbath.engine.batched_task import BatchedTask
from heatbath.engine.network_replicas import CpuReplica, GpuReplicas, Split, initial_state
from heatbath.engine.optimizers import clip_gradients
from heatbath.engine.split_bf16 import join, split
from heatbath.engine.stack import Stack
from heatbath.engine.task_replica import split_task
from heatbath.runs.configs import RunConfig
from heatbath.tasks.models import build_model
from task_models import make_task

SGD = RunConfig(epochs=3, batch_size=300, lr=0.02)  # 4,000 images: thirteen batches of 300 and one of 100
ADAMW = SGD.with_(optimizer="adamw", lr=0.002)
VARIED = [
    ADAMW.with_(seed=1, protocol="constant"),
    ADAMW.with_(seed=2, weight_decay=0.3, beta2=0.97),
    ADAMW.with_(seed=3, coupling="update", law="two-point:0.5", weight_decay=0.3, momentum=0.7),
    ADAMW.with_(seed=4, protocol="cyclic:1.5", schedule="linear", warmup=5, clip_norm=0.5),
    ADAMW.with_(seed=5, momentum=0.0, schedule="cosine", sampling="replacement"),
    SGD.with_(seed=6, schedule="cosine", warmup=9),
    SGD.with_(seed=7, schedule="linear", protocol="constant", weight_decay=0.01, clip_norm=0.8),
    SGD.with_(seed=8, coupling="update", law="lognormal:0.4", nesterov=False, clip_norm=0.3, sampling="replacement"),
    SGD.with_(seed=9, warmup=20, momentum=0.0, lr=0.1),
]
NAMES = [f"{config.optimizer}{config.seed}" for config in VARIED]


@pytest.fixture(scope="module")
def data():
    return load_dataset("mnist5k")


def torch_optimizer(config, params):
    """Torch's optimizer, randomized, and the scheduler of its steps."""
    knobs = {"weight_decay": config.weight_decay}
    if config.optimizer == "adamw":
        optimizer = torch.optim.AdamW(params, config.lr, betas=(config.momentum, config.beta2), **knobs)
        if config.protocol.kind == "random":
            hb.randomize(optimizer, config.law, coupling=config.coupling, seed=config.seed)
    else:
        knobs |= {"momentum": config.momentum, "nesterov": config.nesterov}
        knobs |= {"law": config.law, "coupling": config.coupling, "seed": config.seed}
        optimizer = hb.RandomSGD(params, config.lr, **knobs)
    left = config.steps - config.warmup
    if config.protocol.kind == "cyclic":  # with a schedule on top, for which torch has no scheduler
        assert config.schedule == "linear"

        def factor(k):
            cycle = 1.0 + math.cos(math.pi * (k // config.steps_per_epoch) / config.protocol.period)
            grows = k < config.warmup
            return cycle * ((k + 1) / (config.warmup + 1) if grows else 1.0 - (k - config.warmup) / left)

        return optimizer, lr_scheduler.LambdaLR(optimizer, factor)
    schedules = {
        "constant": lambda: lr_scheduler.ConstantLR(optimizer, 1.0),
        "cosine": lambda: lr_scheduler.CosineAnnealingLR(optimizer, left),
        "linear": lambda: lr_scheduler.LinearLR(optimizer, 1.0, 0.0, left),
    }
    if not config.warmup:
        return optimizer, schedules[config.schedule]()
    grow = lr_scheduler.LinearLR(optimizer, 1.0 / (config.warmup + 1), 1.0, config.warmup)
    return optimizer, lr_scheduler.SequentialLR(optimizer, [grow, schedules[config.schedule]()], [config.warmup])


def plain_loop(config, data, epochs):
    """The same run by hand; returns the network and the rates of its steps."""
    model = build_model(config.model, seed=config.seed)
    optimizer, scheduler = torch_optimizer(config, model.parameters())
    rates = []
    for epoch in range(epochs):
        (order,) = epoch_orders(len(data.train_labels), [config.seed], epoch, sampling=config.sampling)
        for rows in order.split(config.batch_size):
            optimizer.zero_grad()
            logits = model(data.normalize(data.train_images[rows]))
            functional.cross_entropy(logits, data.train_labels[rows]).backward()
            if config.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
    return model, rates


@pytest.mark.filterwarnings("ignore:The epoch parameter")  # torch's own SequentialLR
@pytest.mark.parametrize("config", VARIED, ids=NAMES)
def test_a_run_equals_torchs(config, data):
    stack = Stack([config], data)
    epochs = [stack.train_epoch()[0] for _ in range(2)]
    (model, rates), start = plain_loop(config, data, 2), build_model(config.model, seed=config.seed).state_dict()
    (state,) = stack.states()
    for name, expected in model.state_dict().items():
        moved = (expected - start[name]).norm()
        assert moved > 0
        assert (state[f"weight.{name}"] - expected).norm() < 1e-3 * moved, name
    steps = config.steps_per_epoch
    draws = hb.draw(config.law, config.seed, 0, 2 * steps)
    means = [np.mean((rates * draws)[k : k + steps]) for k in (0, steps)]
    assert [epoch.rate for epoch in epochs] == pytest.approx(means, rel=1e-6)


def step_through(group, epochs):
    for epoch in epochs:
        group.prepare(epoch)
        for step in range(group.configs[0].steps_per_epoch):
            group.step(torch.tensor([step]))


def batched(configs, data):
    """What a GPU does, on the CPU: rows of one tensor, each with its own rates, bound and sampling."""
    splits = {name: Split.of(data, name, True) for name in ("train", "test")}
    group = GpuReplicas(configs, configs[0].network.stacked, splits, "fp32", compiled=False)
    group.load(Stack(configs, data).states())
    return group


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_batched_group_equals_its_replicas(data, optimizer):
    configs = [config for config in VARIED if config.optimizer == optimizer]
    group, alone = batched(configs, data), Stack(configs, data)
    for epoch in range(2):
        step_through(group, [epoch])
        for one, other in zip(group.read(group.evaluate()), alone.train_epoch(), strict=True):
            assert one.rate == other.rate
            assert one.train_loss == pytest.approx(other.train_loss, rel=1e-4)
    for one, other in zip(group.states(), alone.states(), strict=True):
        assert one.keys() | {"epoch"} == other.keys()
        for name, tensor in one.items():
            if name.startswith("weight."):
                assert (tensor - other[name]).norm() < 2e-3 * tensor.norm(), name


def test_resuming_is_bit_exact_in_another_stack(data):
    configs = VARIED[:5]
    through = Stack(configs, data)
    expected = [through.train_epoch() for _ in range(3)]
    stack = Stack(configs, data)
    stack.train_epoch()
    states = stack.states()
    pair = Stack([configs[4], configs[1]], data, states=[states[4], states[1]])
    for epoch in (1, 2):
        assert pair.train_epoch() == [expected[epoch][4], expected[epoch][1]]


def test_resuming_a_batched_group_is_bit_exact(data):
    configs = VARIED[:5]
    whole, first, second = (batched(configs, data) for _ in range(3))
    step_through(whole, [0, 1])
    step_through(first, [0])
    second.load(first.states())
    step_through(second, [1])
    for one, other in zip(second.states(), whole.states(), strict=True):
        assert all(torch.equal(one[name], tensor) for name, tensor in other.items())


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize("clip_norm", [None, 0.05])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_folded_layer_steps_as_the_one_it_stands_for(optimizer, clip_norm, monkeypatch):
    """VGG16's, in double precision: each of its sums has 49 equal weights, whose gradients count in the norm."""
    monkeypatch.setitem(IMAGE_SETS, "cifar10", replace(IMAGE_SETS["cifar10"], training_images=6))
    knobs = {"batch_size": 2, "epochs": 1, "lr": 0.01, "weight_decay": 0.1, "seed": 2, "warmup": 1}
    config = RunConfig(model="vgg16", dataset="cifar10", optimizer=optimizer, clip_norm=clip_norm, **knobs)
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (6, 3, 32, 32), dtype=np.uint8))
    labels = images.flatten(1).long().sum(1) % 10
    data = Dataset("cifar10", images, labels, images, labels, (0.5,) * 3, (0.25,) * 3)
    network, model = config.network.stacked, build_model("vgg16", seed=2).double().eval()  # without dropout
    still = replace(network, logits=lambda params, images, _dropout: network.logits(params, images, None))
    replica = CpuReplica(config, still, {"train": Split.of(data, "train", False)}, "fp64")
    with torch.no_grad():  # of a block of 49 columns all are alike, as a folded layer takes them to be
        folded = model.classifier[0].weight.unflatten(1, (-1, 49))
        folded.copy_(folded.mean(2, keepdim=True).expand_as(folded))
    replica.load([initial_state(network, model, optimizer)])
    before = dict(zip(network.names, [tensor.clone() for tensor in network.pack(model)], strict=True))
    replica.prepare(0)
    for step in range(3):
        replica.step(step)
    chosen, scheduler = torch_optimizer(config, model.parameters())
    (order,) = epoch_orders(6, [2], 0)
    norms = []
    for rows in order.split(2):
        chosen.zero_grad()
        functional.cross_entropy(model(data.normalize(images[rows], torch.float64)), labels[rows]).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm or math.inf).item())
        chosen.step()
        scheduler.step()
    assert clip_norm is None or min(norms) > clip_norm
    (state,) = replica.states()
    for name, expected in zip(network.names, network.pack(model), strict=True):
        moved = (expected - before[name]).norm()
        assert moved > 0
        assert (state[f"weight.{name}"] - expected).norm() < 1e-6 * moved, name


def test_clipping_is_torchs():
    generator = torch.Generator().manual_seed(0)
    grads = [torch.randn(shape, generator=generator) for shape in ((3, 5, 2), (3, 7))]
    norms = [math.sqrt(sum(grad[k].square().sum() for grad in grads)) for k in range(3)]
    bounds = [0.5 * norms[0], 2.0 * norms[1], math.inf]
    found = clip_rows(grads, (1.0, 1.0), torch.tensor(bounds))
    for k, bound in enumerate(bounds):
        params = [torch.nn.Parameter(torch.zeros_like(grad[k])) for grad in grads]
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad[k].clone()
        torch.nn.utils.clip_grad_norm_(params, bound)
        ours = [grad[k].clone() for grad in grads]
        clip_gradients(ours, (1.0, 1.0), bound)
        for row, one, param in zip(found, ours, params, strict=True):
            assert torch.equal(one, param.grad)
            torch.testing.assert_close(row[k], param.grad)
    assert torch.equal(found[0][1:], grads[0][1:]), "what is short enough stays as it is"


def test_batched_adamw_keeps_halves():
    """With weights in two halves it is the step of whole ones, bit for bit."""
    generator = torch.Generator().manual_seed(1)
    shapes = (2, 4, 3), (2, 5)
    whole, grads = ([torch.randn(shape, generator=generator) for shape in shapes] for _ in range(2))
    high, low = (list(part) for part in zip(*map(split, whole), strict=True))
    states = [[[torch.zeros(shape) for shape in shapes] for _ in range(2)] for _ in range(2)]
    betas, gains = (torch.tensor([0.9, 0.5]), torch.tensor([0.01, 0.1])), (1.0, 49.0)
    for number in range(3):
        rows = [
            adamw_coefficients(1.5, 0.01, number, beta=first, beta2=second, weight_decay=0.2, coupling=coupling)
            for first, second, coupling in ((0.9, 0.99, "gradient"), (0.5, 0.9, "update"))
        ]
        coefficients = [torch.tensor(column, dtype=torch.float32) for column in np.array(rows).T]
        batched_adamw(whole, grads, *states[0], coefficients, *betas, gains)
        batched_adamw(high, grads, *states[1], coefficients, *betas, gains, low)
    for one, upper, lower in zip(whole, high, low, strict=True):
        assert torch.equal(join(upper, lower), one)
    pairs = zip(itertools.chain(*states[0]), itertools.chain(*states[1]), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_step_without_a_bound_computes_no_norm(data, monkeypatch):
    monkeypatch.setattr(batched_optimizer, "clip_rows", lambda *_: pytest.fail("clipped"))
    group = batched([SGD], data)
    group.prepare(0)
    group.step(torch.tensor([0]))


@pytest.mark.filterwarnings("ignore:The epoch parameter in:UserWarning")  # torch 2.8 warns of itself
def test_a_task_trains_with_all_of_it_alone_and_batched():
    task = make_task("resnet")
    task.augment = None
    base = {"task": task, "epochs": 2, "batch_size": 32, "lr": 0.003, "optimizer": "adamw", "weight_decay": 0.1}
    configs = [
        RunConfig(**base, seed=1, schedule="cosine", warmup=2, clip_norm=0.5),
        RunConfig(**base, seed=2, coupling="update", law="uniform:0.5", sampling="replacement"),
    ]
    splits = split_task(task, 0)
    group, stack = BatchedTask(configs, splits, "fp32"), Stack(configs, splits)
    for epoch in range(2):
        group.prepare(epoch)
        for step in range(configs[0].steps_per_epoch):
            group.step(step)
        stack.train_epoch()
    for config, state, row in zip(configs, stack.states(), group.states(), strict=True):
        model = task.build(config.seed)
        start = {name: value.clone() for name, value in model.state_dict().items()}
        optimizer, scheduler = torch_optimizer(config, model.parameters())
        for epoch in range(2):
            (order,) = epoch_orders(len(task.train), [config.seed], epoch, sampling=config.sampling)
            for rows in order.split(32):
                optimizer.zero_grad()
                functional.cross_entropy(model(task.train.inputs[rows]), task.train.targets[rows]).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm or math.inf)
                optimizer.step()
                scheduler.step()
        for name, expected in model.named_parameters():
            moved = (expected - start[name]).norm()
            assert (state[f"weight.{name}"] - expected).norm() < 2e-3 * moved, name
            assert (row[f"weight.{name}"] - expected).norm() < 2e-2 * moved, name
