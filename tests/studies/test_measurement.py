import json
import math

import pytest
import torch

import heatbath as hb
from heatbath import cli
from heatbath.report.plots import measurements
from heatbath.studies import measurement

KNOBS = hb.Thermostat(lr=0.02, batch_size=50, momentum=0.9, law="uniform:0.8")


@pytest.fixture(scope="module")
def small():
    return measurement.measure_training(KNOBS, epochs=2, samples=60, readings=10, seed=1)


def test_it_measures_where_it_was_asked_and_learns(small):
    assert list(small.noises) == [0, 1, 2]
    assert len(small.accuracies) == 3
    assert small.accuracies[0] < 0.3
    assert small.accuracies[-1] > 0.8
    assert small.noises[2].trace < small.noises[0].trace
    assert all(noise.samples == 60 for noise in small.noises.values())
    assert len(small.history) == 10
    assert small.history[-1]["step"] == 160
    assert 0 < small.history[-1]["temperature"] < small.history[0]["kinetic_temperature"]


def test_the_temperature_is_the_thermostat_s_at_the_measured_noise():
    """The thermometer's half-batches and the per-sample gradients are two ways to one number, if the weights rest."""
    knobs = hb.Thermostat(lr=1e-7, batch_size=50, momentum=0.9, law="uniform:0.8")
    found = measurement.measure_training(knobs, epochs=1, at_epochs=[1], samples=600, readings=40)
    noise = found.noises[1]
    assert noise.method == "exact"
    predicted = knobs.temperature(noise.trace / noise.dimension) * (1 - 50 / 4000)
    assert found.history[-1]["temperature"] == pytest.approx(predicted, rel=0.1)


def test_batches_are_drawn_without_replacement():
    """All images in one batch make no noise."""
    knobs = hb.Thermostat(lr=1e-3, batch_size=4000, momentum=0.9, law="constant")
    found = measurement.measure_training(knobs, epochs=2, at_epochs=[2], samples=50)
    assert found.history[-1]["temperature"] == 0.0 < found.history[-1]["trace"]
    assert found.noises[2].covariance_trace("uniform:1", 4000, found.settings["dataset_size"]).sampling == 0.0


def test_a_run_is_a_function_of_its_seed_and_touches_no_global_state(small):
    state = torch.get_rng_state()
    again = measurement.measure_training(KNOBS, epochs=2, samples=60, readings=10, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert again.accuracies == small.accuracies
    assert again.history == small.history
    other = measurement.measure_training(KNOBS, epochs=1, at_epochs=[1], samples=60, readings=10, seed=2)
    assert other.accuracies[0] != small.accuracies[0]
    assert list(other.noises) == [1]


def test_it_writes_a_picture_and_the_numbers(small, tmp_path):
    files = measurement.write_measurement(small, tmp_path / "new" / "folder")
    assert [file.name for file in files] == ["measure.json", "measure.png"]
    assert files[1].read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in files[0].parent.iterdir()) == ["measure.json", "measure.png"]
    numbers = json.loads(files[0].read_text())
    assert numbers["settings"]["law"] == "uniform:0.8"
    assert numbers["noise"]["2"]["trace"] == small.noises[2].trace
    assert numbers["readings"][-1] == small.history[-1]


def test_the_last_interval_of_the_equilibrium_ratio_is_seen_whole():
    reach = [50.0] * 4 + [2.0] * 10 + [4.0]
    rows = [
        {"step": k, "equilibrium_ratio": -3.0, "equilibrium_low": -3.0 - r, "equilibrium_high": -3.0 + r}
        for k, r in enumerate(reach)
    ]
    bottom, top = measurements.plot_equilibrium_ratio(rows).get_ylim()
    assert -10.0 < bottom < -7.0
    assert 1.0 < top < 5.0


def test_the_title_names_every_knob_that_matters(small):
    usual = small.settings
    assert measurement.title(usual) == "mlp on mnist5k: lr 0.02, batch 50, momentum 0.9, uniform:0.8"
    other = {**usual, "nesterov": True, "coupling": "update", "weight_decay": 1e-3}
    assert measurement.title(other).endswith("9, Nesterov, uniform:0.8, coupling update, weight decay 0.001")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epochs": 0}, ["epochs", "0"]),
        ({"samples": 0}, ["samples", "0"]),
        ({"samples": 4001}, ["samples = 4001", "more than the 4000 training images"]),
        ({"epochs": 10**23}, ["epochs", "2**20"]),
        ({"at_epochs": [3], "epochs": 2}, ["at_epochs", "3", "2"]),
        ({"model": "vgg16"}, ["vgg16", "mnist5k", "cifar10"]),
        ({"model": "resnet"}, ["resnet", "mlp"]),
        ({"dataset": "imagenet"}, ["imagenet", "mnist5k"]),
        ({"knobs": hb.Thermostat(0.1, 5000)}, ["batch_size", "5000", "4000"]),
    ],
)
def test_bad_requests(change, words):
    settings = {"knobs": KNOBS, "epochs": 1, **change}
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the words are checked below)
        measurement.measure_training(settings.pop("knobs"), **settings)
    assert all(word in str(caught.value) for word in words)


def test_a_rate_that_explodes_is_told():
    with pytest.raises(FloatingPointError, match="lr = 1e"):
        measurement.measure_training(hb.Thermostat(1e6, 50, 0.9), epochs=1, at_epochs=[1])


def test_the_commands(tmp_path, capsys):
    options = ["--epochs", "1", "--samples", "50", "--batch-size", "100", "--at-epoch", "1", "--out", str(tmp_path)]
    assert cli.main(["measure", *options]) == 0
    text = capsys.readouterr().out
    assert "noise scale" in text
    assert "equilibrium ratio" in text
    assert (tmp_path / "measure.png").exists()
    assert cli.main(["measure", *options, "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert math.isfinite(numbers["noise"]["1"]["trace"])
    assert cli.main(["measure", "--model", "vgg"]) == 2
    assert capsys.readouterr().err.count("\n") == 1

    assert cli.main(["data", "--data-dir", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "mnist5k" in text
    assert "verified" in text
    assert "cifar10" in text
