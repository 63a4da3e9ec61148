"""A config is complete, canonical and refused as a whole; its hash is its name."""

import dataclasses
import json
import pickle

import numpy as np
import pytest
import torch

import heatbath as hb
from heatbath.data.datasets import load_dataset
from heatbath.data.image_sets import DATASETS, IMAGE_SETS
from heatbath.runs.configs import RunConfig, read_config, sweep
from heatbath.runs.protocols import Protocol
from heatbath.tasks.facts import TaskFacts

PARTS = {part: part for part in ("model", "train", "test", "loss", "metrics", "augment")}
FACTS = TaskFacts("gpt", 5000, 100, ("loss", "accuracy"), PARTS)
OTHER = {
    "model": ("cnn", {}),
    "dataset": ("mnist", {}),
    "protocol": ("cyclic:6", {}),
    "law": ("uniform:0.5", {}),
    "coupling": ("update", {}),
    "lr": (0.1, {}),
    "batch_size": (64, {}),
    "momentum": (0.5, {}),
    "nesterov": (False, {}),
    "weight_decay": (0.1, {}),
    "epochs": (3, {}),
    "precision": ("fp32", {}),
    "weights": ("imagenet", {"model": "vgg16", "dataset": "cifar10"}),
    "seed": (1, {}),
    "validation": (100, {}),
    "task": (FACTS, {}),
    "optimizer": ("adamw", {}),
    "schedule": ("cosine", {}),
    "warmup": (5, {}),
    "clip_norm": (1.0, {}),
    "sampling": ("replacement", {}),
    "beta2": (0.95, {"optimizer": "adamw"}),
}


def test_every_field_is_in_the_hash():
    assert set(OTHER) == {field.name for field in dataclasses.fields(RunConfig)}
    for name, (value, needed) in OTHER.items():
        base = RunConfig(**needed)
        assert RunConfig.from_dict(json.loads(json.dumps(base.with_(**{name: value}).to_dict()))).run != base.run
        assert base.with_(**{name: value}).run != base.run, name


def test_the_hash_is_pinned():
    """Stored runs are found by it: changing this line orphans everybody's stores."""
    assert RunConfig(dataset="mnist").run == "d5b1fa50e187dfee"
    assert RunConfig(model="vgg16", dataset="cifar10", weights="imagenet").run == "5d2372f70dff7957"
    assert RunConfig().run == "f126c87ae67ca5a1"
    assert RunConfig(dataset="mnist5k-old").run == "c8f4c900ec34e47a"
    assert len({config.run for config in sweep(RunConfig(), seed=range(50), lr=(0.1, 0.2))}) == 100


def test_runs_of_the_first_split_of_mnist5k_are_read_as_such():
    """They have the name that mnist5k gave them then, and are never taken for runs of today's split."""
    stored = RunConfig(seed=3).to_dict()
    old = read_config(stored, RunConfig(seed=3, dataset="mnist5k-old").run)
    assert old == RunConfig(seed=3, dataset="mnist5k-old")
    assert read_config(old.to_dict(), old.run) == old
    assert read_config(stored, RunConfig(seed=3).run) == RunConfig(seed=3)
    with pytest.raises(ValueError, match="it is named 0123456789abcdef, but its config is"):
        read_config(stored, "0123456789abcdef")
    assert "mnist5k-old" not in DATASETS


def test_a_config_of_a_task_has_its_name_and_hash():
    config = RunConfig(task=FACTS, seed=3)
    assert (config.model, config.dataset, config.training_images) == ("gpt", FACTS.data, 5000)
    assert (
        config.with_(lr=0.1).with_(lr=0.005) == config == RunConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    )
    assert hash(config) == hash(RunConfig.from_dict(config.to_dict()))
    other = dataclasses.replace(FACTS, parts={**PARTS, "model": "edited"})
    assert config.with_(task=other).run != config.run
    longer = dataclasses.replace(FACTS, name="lstm", parts={**PARTS, "train": "edited"})
    assert config.with_(task=longer) == RunConfig(task=longer, seed=3)
    assert config.with_(task=None) == RunConfig(seed=3)
    assert FACTS.changes(other) == ["model"]
    for wrong in ({}, {**FACTS.to_dict(), "samples": "5000"}, {**FACTS.to_dict(), "parts": {}}, None, 3):
        with pytest.raises(ValueError, match="not the facts of a task"):
            TaskFacts.from_dict(wrong)


def test_later_fields_are_left_out_where_they_have_their_default():
    """So that the names of runs stored before there were such fields stay."""
    assert not {"task", "optimizer", "schedule", "warmup", "clip_norm", "sampling"} & RunConfig().to_dict().keys()
    config = RunConfig(optimizer="adamw", schedule="cosine", warmup=3, clip_norm=1, sampling="replacement")
    assert RunConfig.from_dict(config.to_dict()) == config
    assert RunConfig(optimizer="adamw", nesterov=True).run == RunConfig(optimizer="adamw", nesterov=False).run
    assert RunConfig(optimizer="adamw", coupling="update").run != RunConfig(optimizer="adamw").run


@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear"])
def test_the_schedule_grows_then_falls(schedule):
    """As torch's own schedulers do after the warmup."""
    config = RunConfig(schedule=schedule, warmup=20, epochs=3, batch_size=100)
    factors = np.concatenate([config.schedule_factors(epoch) for epoch in range(3)])
    assert len(factors) == config.steps == 120
    np.testing.assert_allclose(factors[:20], np.arange(1, 21) / 21)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scheduler = {
        "constant": lambda: torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0),
        "cosine": lambda: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100),
        "linear": lambda: torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, 100),
    }[schedule]()
    expected = []
    for _ in range(100):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    np.testing.assert_allclose(factors[20:], expected, atol=1e-12)


def test_configs_go_through_json_and_pickle():
    config = RunConfig(protocol="random", law=hb.TwoPoint(0.3), coupling="update", lr=1, seed=2**63)
    assert RunConfig.from_dict(config.to_dict()) == config
    assert RunConfig.from_dict(config.to_dict()).run == config.run
    assert pickle.loads(pickle.dumps(config)) == config
    assert hash(config) == hash(RunConfig.from_dict(config.to_dict()))
    with pytest.raises(ValueError, match="seed"):
        RunConfig.from_dict({name: value for name, value in config.to_dict().items() if name != "seed"})
    with pytest.raises(ValueError, match="colour"):
        RunConfig.from_dict({**config.to_dict(), "colour": "red"})


def test_the_same_run_has_one_name():
    assert (
        RunConfig(protocol="constant").run == RunConfig(protocol="constant", law="uniform:0.3", coupling="update").run
    )
    assert RunConfig(momentum=0, nesterov=True).run == RunConfig(momentum=0.0, nesterov=False).run
    assert RunConfig(law=None).run == RunConfig(law="uniform").run == RunConfig(law=hb.Uniform(1)).run
    assert RunConfig(lr=1).run == RunConfig(lr=1.0).run


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"model": "resnet"}, ValueError, "unknown model 'resnet': choose one of mlp, cnn, vgg16"),
        ({"dataset": "imagenet"}, ValueError, "unknown dataset"),
        ({"precision": "fp8"}, ValueError, "unknown precision"),
        ({"coupling": "both"}, ValueError, "unknown coupling"),
        ({"protocol": "cyclic:0"}, ValueError, "period must be a finite number with period > 0"),
        ({"law": "gauss"}, ValueError, "unknown law"),
        ({"lr": -0.1}, ValueError, "lr must be a finite number with lr > 0"),
        ({"lr": 0.0}, ValueError, "lr must be a finite number with lr > 0"),
        ({"lr": float("nan")}, ValueError, "lr must be a finite number"),
        ({"lr": "0.1"}, TypeError, "lr must be a finite number"),
        ({"momentum": 1.0}, ValueError, "momentum must be a number with 0 <= momentum < 1"),
        ({"momentum": True}, TypeError, "momentum must be a number"),
        ({"nesterov": "yes"}, TypeError, "nesterov"),
        ({"weight_decay": -1e-3}, ValueError, "weight_decay"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"batch_size": 2.5}, TypeError, "batch_size"),
        ({"batch_size": 4001}, ValueError, "has 4,000 images to train on"),
        ({"batch_size": 4000, "validation": 1}, ValueError, "has 3,999 images"),
        ({"validation": 4000}, ValueError, "has 4,000 training images"),
        ({"epochs": 0}, ValueError, "epochs"),
        ({"seed": -1}, ValueError, "seed"),
        ({"model": "vgg16"}, ValueError, "vgg16 takes images of 3 x 32 x 32"),
        ({"weights": "imagenet"}, ValueError, "are for vgg16"),
        ({"weights": "mine"}, ValueError, "weights must be imagenet"),
        ({"optimizer": "lion"}, ValueError, "unknown optimizer 'lion': choose one of sgd, adamw"),
        ({"schedule": "step"}, ValueError, "unknown schedule 'step': choose one of constant, cosine, linear"),
        ({"sampling": "bootstrap"}, ValueError, "unknown sampling"),
        ({"warmup": -1}, ValueError, "warmup"),
        ({"warmup": 16, "epochs": 1}, ValueError, "warmup 16 is as long as the run, which has 16 steps"),
        ({"clip_norm": 0.0}, ValueError, "clip_norm must be a finite number with clip_norm > 0"),
        ({"optimizer": "adamw", "beta2": 1.0}, ValueError, "beta2 must be a number with 0 <= beta2 < 1, got 1.0"),
        ({"clip_norm": "1"}, TypeError, "clip_norm must be a finite number"),
        ({"task": "mine"}, TypeError, "task must be a heatbath.Task, got 'mine'"),
        ({"task": FACTS, "model": "cnn"}, ValueError, "model 'cnn' and a task: give one of them"),
        ({"task": FACTS, "weights": "imagenet"}, ValueError, "weights 'imagenet' and a task"),
        ({"task": FACTS, "batch_size": 5001}, ValueError, "batch_size 5001: task gpt has 5,000 samples to train on"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_run_is_refused(fields, error, message):
    with pytest.raises(error, match=message):
        RunConfig(**fields)


def test_without_momentum_couplings_are_one_run():
    assert RunConfig(momentum=0, coupling="update").run == RunConfig(momentum=-0.0, coupling="gradient").run
    assert RunConfig(weight_decay=-0.0).run == RunConfig().run
    assert RunConfig(momentum=0).with_(momentum=0.9).run == RunConfig().run
    assert not RunConfig(momentum=0).with_(momentum=0.9, nesterov=False).nesterov


def test_close_periods_are_two_runs():
    one, other = (RunConfig(protocol=f"cyclic:{period}") for period in ("1.2345671", "1.2345674"))
    assert one.run != other.run
    assert RunConfig.from_dict(one.to_dict()) == one
    assert RunConfig(protocol="cyclic:30.0").to_dict()["protocol"] == "cyclic:30"


def test_a_law_of_ones_own_is_refused_as_nobody_could_read_it_back():
    class Mine(hb.Uniform):
        pass

    with pytest.raises(ValueError, match="is not one of heatbath's"):
        RunConfig(law=Mine(0.5))


@pytest.mark.parametrize("protocol", ["cyclic:6", Protocol("cyclic", 6.0)])
@pytest.mark.parametrize("law", [None, "uniform:0.5", hb.Uniform(0.5)])
def test_what_is_given_in_words_is_kept_as_what_they_mean(protocol, law):
    assert RunConfig(protocol=protocol, law=law).protocol == Protocol("cyclic", 6.0)
    assert RunConfig(protocol=protocol, law=law).law == hb.Constant()
    assert RunConfig(law=law).law == hb.Uniform(1.0 if law is None else 0.5)
    assert RunConfig.protocol == RunConfig().protocol == Protocol("random")
    assert RunConfig.law == RunConfig().law
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunConfig().law = law


def test_numbers_of_numpy_and_single_values_are_taken():
    assert RunConfig(lr=np.float64(0.25), seed=np.int64(3)) == RunConfig(lr=0.25, seed=3)
    assert sweep(RunConfig(), protocol="constant", seed=3) == [RunConfig(protocol="constant", seed=3)]
    assert len(sweep(RunConfig(), law=hb.Exponential(), seed=range(4))) == 4


@pytest.mark.parametrize("base", [None, [RunConfig()]], ids=["none", "list"])
def test_a_sweep_starts_from_a_config(base):
    with pytest.raises(TypeError, match="base must be a RunConfig, got"):
        sweep(base, seed=range(2))


def test_a_run_that_becomes_random_has_a_law():
    constant, *others = sweep(RunConfig(protocol="constant"), protocol=("constant", "random", "cyclic:6"))
    assert constant.law == hb.Constant()
    assert others[0] == RunConfig(protocol="random")
    assert others[1].law == hb.Constant()
    assert constant.with_(protocol="random", law="exponential").law == hb.Exponential()
    assert RunConfig(law="uniform:0.5").with_(protocol="random").law == hb.Uniform(0.5)


def test_shapes_and_counts_are_those_of_models_and_data():
    data = load_dataset("mnist5k")
    assert len(data.train_labels) == IMAGE_SETS["mnist5k"].training_images
    assert data.image_shape == IMAGE_SETS["mnist5k"].shape == RunConfig().network.input_shape
    assert RunConfig(model="cnn").network.datasets == ["mnist5k", "mnist"]
    assert RunConfig(batch_size=256).steps_per_epoch == 16  # 15 full batches and one of 160
    assert RunConfig(batch_size=250, validation=500).steps_per_epoch == 14


def test_the_thermostat_has_the_knobs_of_the_run():
    config = RunConfig(lr=0.01, batch_size=100, momentum=0.8, law="uniform:0.5", coupling="update")
    expected = hb.Thermostat(0.01, 100, 0.8, True, hb.Uniform(0.5), "update", 4000)
    assert config.thermostat == expected
    assert config.with_(protocol="constant").thermostat.law_factor == 1.0
