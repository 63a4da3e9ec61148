"""Recipes that are moved have the same temperature, or the same half-lives; what has no rule is refused."""

import json
import math

import pytest

from heatbath.laws import Uniform
from heatbath.runs.configs import RunConfig
from heatbath.runs.records import Record
from heatbath.studies.transfer import Recipe, prove, transfer
from heatbath.theory.quadratic import exact_temperature
from measured import an_epoch
from samples import normals

SGD = Recipe("sgd", lr=0.02, batch_size=64, momentum=0.5, weight_decay=1e-4, nesterov=True, law=Uniform(0.5))
ADAM = Recipe("adamw", lr=1e-3, batch_size=64, momentum=0.9, beta2=0.95, weight_decay=0.1)


@pytest.mark.parametrize(
    "target", [{"batch_size": 256}, {"momentum": 0.9}, {"law": "constant"}, {"batch_size": 16, "momentum": 0.0}]
)
def test_sgd_keeps_its_temperature(target):
    found = transfer(SGD, **target)
    before, after = found.original.thermostat(), found.moved.thermostat()
    assert after.temperature() == pytest.approx(before.temperature(), rel=1e-12)
    assert exact_temperature(after, 1e-3, 1.0) == pytest.approx(exact_temperature(before, 1e-3, 1.0), rel=1e-3)
    for name, value in target.items():
        assert str(getattr(found.moved, name)) == str(value)
    assert (found.moved.nesterov, found.moved.weight_decay) == (True, 1e-4)
    assert found.moved.lr != SGD.lr


def test_sgd_without_replacement():
    found = transfer(SGD, batch_size=512, dataset_size=1000)
    before, after = found.original.thermostat(1000), found.moved.thermostat(1000)
    assert after.temperature() == pytest.approx(before.temperature())
    assert found.moved.lr > 8.0 * SGD.lr * 1.5  # half of the data has half the noise


@pytest.mark.parametrize("batch_size", [16, 100, 1024])
def test_adamw_keeps_half_lives_in_samples(batch_size):
    moved = transfer(ADAM, batch_size=batch_size).moved
    for before, after in ((ADAM.momentum, moved.momentum), (ADAM.beta2, moved.beta2)):
        assert math.log(0.5) / math.log(after) * batch_size == pytest.approx(math.log(0.5) / math.log(before) * 64)
    assert moved.lr**2 / batch_size == pytest.approx(ADAM.lr**2 / 64)
    assert moved.lr * moved.weight_decay / batch_size == pytest.approx(ADAM.lr * ADAM.weight_decay / 64)


def test_what_was_moved_goes_to_json():
    report = json.loads(json.dumps(transfer(SGD, batch_size=128).to_dict()))
    assert report["moved"]["batch_size"] == 128
    assert report["original"]["law"] == "uniform:0.5"
    assert report["assumed"]


@pytest.mark.parametrize(("shift", "verdict"), [(0.0, "equal"), (0.1, "better")])
def test_a_proof_is_a_race(shift, verdict):
    def train(configs):
        return [
            Record(config, "finished", (an_epoch(config.lr, 1.0, 0.5, 1.0, accuracy(config)),)) for config in configs
        ]

    def accuracy(config):
        moved = config.batch_size == 128
        return float(0.8 + shift * moved + normals(2 * config.seed + moved, sd=0.005))

    found = prove(transfer(SGD, batch_size=128), RunConfig(epochs=1), 0.01, train=train)
    (one,) = found.comparisons
    assert (one.a.name, one.b.name, one.verdict) == ("moved", "original", verdict)


def test_a_recipe_as_a_run():
    config = SGD.config(RunConfig(epochs=3))
    assert (config.lr, config.batch_size, config.momentum, config.weight_decay) == (0.02, 64, 0.5, 1e-4)
    assert (str(config.protocol), str(config.law), config.epochs) == ("random", "uniform:0.5", 3)
    assert str(Recipe("sgd", 0.1, 32).config(RunConfig()).protocol) == "constant"
    assert Recipe("adamw", 0.001, 32, 0.9).config(RunConfig()).optimizer == "adamw"
    moved = transfer(ADAM, batch_size=256).moved.config(RunConfig())
    assert (moved.optimizer, moved.lr, moved.weight_decay) == ("adamw", 2e-3, 0.2)
    assert (moved.momentum, moved.beta2) == (pytest.approx(0.9**4), pytest.approx(0.95**4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: transfer(SGD), "nothing to transfer to: give another batch size, momentum or law"),
        (lambda: transfer(ADAM, momentum=0.8), "a rule for AdamW's batch size alone"),
        (lambda: transfer(SGD, batch_size=0), "batch_size must be an integer with 1 <= batch_size"),
        (lambda: transfer(SGD, momentum=1.0), "momentum must be a number with 0 <= momentum < 1"),
        (lambda: Recipe("lion", 0.1, 32), "optimizer must be sgd or adamw, got 'lion'"),
        (lambda: Recipe("adamw", 0.1, 32, 0.9, 1.0), "beta2 must be a number with 0 < beta2 < 1, got 1.0"),
        (lambda: Recipe("sgd", -0.1, 32), "lr must be a finite number with lr > 0"),
        (
            lambda: Recipe("sgd", 0.1, 32, weight_decay=-1.0),
            "weight_decay must be a finite number with weight_decay >= 0, got -1.0",
        ),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()
