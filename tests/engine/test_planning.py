"""Which runs share a stack, and how many processes a machine gets."""

import pytest
import torch

from heatbath.engine import planning
from heatbath.engine.planning import (
    cpu_workers,
    pays_to_compile,
    plan_stacks,
    replica_bytes,
    resolve_precision,
    stack_key,
)
from heatbath.runs.configs import RunConfig
from heatbath.tasks.registry import networks
from task_models import make_task

BASE = RunConfig()


def run_of(model):
    return RunConfig(model=model, dataset=networks()[model].dataset)


@pytest.mark.parametrize(
    "change",
    [
        *({"seed": 5}, {"lr": 0.1}, {"momentum": 0.0}, {"weight_decay": 0.1}, {"protocol": "cyclic:3"}),
        *({"law": "exponential"}, {"coupling": "update"}, {"nesterov": False}),
    ],
    ids=str,
)
def test_numbers_may_differ_in_a_stack(change):
    assert stack_key(BASE.with_(**change)) == stack_key(BASE)


@pytest.mark.parametrize(
    "change",
    [
        {"batch_size": 10},
        {"model": "cnn"},
        {"dataset": "mnist"},
        {"precision": "bf16"},
        {"validation": 9},
        {"epochs": 1},
    ],
    ids=str,
)
def test_shapes_may_not(change):
    assert stack_key(BASE.with_(**change)) != stack_key(BASE)


def test_weights_from_imagenet_and_from_scratch_may_not_either():
    vgg16 = RunConfig(model="vgg16", dataset="cifar10")
    assert stack_key(vgg16.with_(weights="imagenet")) != stack_key(vgg16)


def test_automatic_precision():
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    vgg16 = RunConfig(model="vgg16", dataset="cifar10")
    assert [resolve_precision(config, gpu) for config in (BASE, BASE.with_(model="cnn"), vgg16)] == [
        "tf32",
        "bf16",
        "bf16",
    ]
    assert resolve_precision(vgg16, cpu) == resolve_precision(BASE.with_(precision="tf32"), cpu) == "fp32"
    assert resolve_precision(BASE.with_(precision="bf16"), cpu) == "bf16"


def test_a_stack_is_sized_to_the_memory():
    configs = [BASE.with_(seed=seed, dataset="mnist") for seed in range(3000)]
    sizes = [plan_stacks(configs, "cuda", free_bytes=gigabytes * 2**30) for gigabytes in (1, 6, 8, 140)]
    assert sizes[0] == 1
    assert 1 < sizes[1] < sizes[2] <= sizes[3] <= 1024
    assert sizes[2] * replica_bytes(configs[0]) < 8 * 2**30
    assert plan_stacks(configs[:3], "cuda", free_bytes=2**37) == 3
    assert plan_stacks(configs, "cpu") == 1


def test_the_weights_counted_are_those_trained():
    for name, network in networks().items():
        with torch.device("meta"):
            count = sum(tensor.numel() for tensor in network.stacked.pack(network.layers()))
        assert network.cost.weights == count
        config = RunConfig(model=name, dataset="cifar10" if name == "vgg16" else "mnist")
        assert replica_bytes(config) > 4 * 3 * count
        assert replica_bytes(config) - replica_bytes(config.with_(batch_size=1)) > 0
        assert replica_bytes(config) < 4 * 4 * count + 4 * 2**30


def test_compiling_pays_for_long_runs_on_a_gpu():
    long = BASE.with_(dataset="mnist", epochs=180)
    assert pays_to_compile([long], "cuda")
    assert not pays_to_compile([long], "cpu")
    assert not pays_to_compile([long.with_(epochs=1)], "cuda")


@pytest.mark.parametrize("cores", [1, 2, 8])
@pytest.mark.parametrize("model", ["mlp", "cnn", "vgg16"])
def test_workers_fill_the_cores_and_no_more(model, cores):
    processes, threads = cpu_workers(run_of(model), cores)
    assert processes * threads == cores


def test_workers_fit_into_the_memory(monkeypatch):
    monkeypatch.setattr(planning, "available_memory", lambda: 3 * 2**30)
    assert cpu_workers(run_of("cnn"), 64) == (2, 1)
    assert cpu_workers(run_of("mlp"), 64) == (6, 1)
    monkeypatch.setattr(planning, "available_memory", lambda: 0)
    assert cpu_workers(run_of("mlp"), 64) == (1, 1)


def test_a_process_of_a_task_has_memory_for_its_own_batches(monkeypatch):
    small = RunConfig(task=make_task("transformer"), batch_size=8)
    cost = small.cost
    monkeypatch.setattr(planning, "available_memory", lambda: 2 * (cost.process_bytes + 8 * cost.activation_bytes))
    assert cpu_workers(small, 64) == (2, 1)
    assert cpu_workers(small.with_(batch_size=16), 64) == (1, 1)
