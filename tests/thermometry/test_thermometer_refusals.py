"""What a thermometer refuses, what it warns of, and what it must not mistake for either."""

import copy
import math
import random
import tempfile

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.functional import cross_entropy, mse_loss

from heatbath.thermometry.noise import measure_noise
from heatbath.thermometry.thermometer import Thermometer
from ranks import member
from thermometer_runs import batch, small_network, step

pytestmark = pytest.mark.usefixtures("one_thread")


def train(model, optimizer, thermometer, batches):
    for inputs, targets in batches:
        step(model, optimizer, thermometer, inputs, targets, cross_entropy)


def make(**settings):
    model = small_network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.5)
    return model, optimizer, Thermometer(model, optimizer, **{"interval": 1, **settings})


@pytest.mark.parametrize("sizes", [(1, 8, 1, 1, 8), (8, 1, 8, 1, 8)])
def test_a_batch_of_one_is_a_reading_without_its_noise(sizes):
    model, optimizer, thermometer = make()
    with pytest.warns(RuntimeWarning, match="a batch of 1 has no two halves") as told:
        train(model, optimizer, thermometer, [batch(k, size) for k, size in enumerate(sizes)])
    assert len(told) == 1
    assert ["a batch of 1" in reading.get("reason", "") for reading in thermometer.history] == [s == 1 for s in sizes]
    assert all(reading["kinetic_temperature"] > 0 for reading in thermometer.history)
    assert thermometer.temperature > 0


def test_a_first_batch_of_one_between_two_readings_is_no_reading():
    model, optimizer, thermometer = make(interval=2)
    for k, size in enumerate((1, 8)):
        step(model, optimizer, thermometer, *batch(k, size), cross_entropy)
    assert [reading.get("reason") for reading in thermometer.history] == [None]


@pytest.mark.parametrize("interval", [1, 2])
def test_a_first_batch_whose_halves_the_model_does_not_take(interval):
    """Half of three is one sample, of which batch normalization has no variance."""
    model = small_network(0, nn.BatchNorm1d(6))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    thermometer = Thermometer(model, optimizer, interval=interval)
    with pytest.warns(RuntimeWarning, match="half of this batch: Expected more than 1 value per channel") as told:
        train(model, optimizer, thermometer, [batch(k, size) for k, size in enumerate((3, 3, 3, 8))])
    assert len(told) == 1
    reasons = ["half of this batch" in reading.get("reason", "") for reading in thermometer.history]
    assert reasons == ([True, True, True, False] if interval == 1 else [True, False])
    assert thermometer.trace > 0


def test_swapped_inputs_and_targets_are_told_with_torchs_error():
    model, _, thermometer = make()
    x, y = batch(0)
    for call in (lambda: thermometer.observe(cross_entropy, y, x), lambda: measure_noise(model, cross_entropy, y, x)):
        with pytest.raises(RuntimeError) as caught:
            call()
        assert "int64" in caught.value.__notes__[0]


@pytest.mark.parametrize("interval", [1, 250])
def test_wrong_arguments_are_told_at_the_first_call(interval):
    """Long before the first reading, and nothing has changed."""
    model, _, thermometer = make(interval=interval)
    before = copy.deepcopy([model.state_dict(), torch.get_rng_state(), random.getstate(), str(np.random.get_state())])  # noqa: NPY002
    x, y = batch(0)
    wrong = [
        (TypeError, "observe takes the loss first.*got Tensor", (x, y, cross_entropy)),
        (ValueError, "sums over the batch", (nn.CrossEntropyLoss(reduction="sum"), x, y)),
        (ValueError, "one number", (nn.CrossEntropyLoss(reduction="none"), x, y)),
        (ValueError, "no tensor of samples", (lambda _: torch.zeros(()), ["a"])),
        (ValueError, "no parameter of the optimizer", (lambda part: small_network()(part).mean(), x)),
        (RuntimeError, "shape", (cross_entropy, x[:, :3], y)),
    ]
    for kind, words, arguments in wrong:
        with pytest.raises(kind, match=words):
            thermometer.observe(*arguments)
    after = [model.state_dict(), torch.get_rng_state(), random.getstate(), str(np.random.get_state())]  # noqa: NPY002
    assert torch.equal(before.pop(1), after.pop(1))
    assert str(before) == str(after)
    assert thermometer.history == []
    assert thermometer.step == 0


@pytest.mark.parametrize("later", ["sum", "raises", "no function", "nan"])
def test_a_loss_that_goes_wrong_later_stops_no_training(later):
    model, optimizer, thermometer = make(interval=2)
    plain = small_network()
    reference = torch.optim.SGD(plain.parameters(), 0.1, momentum=0.5)

    def broken(outputs, targets):
        raise KeyError("labels")

    losses = {"raises": broken, "no function": batch(0)[0], "sum": lambda o, t: cross_entropy(o, t).exp().repeat(2)}
    words = {"raises": "KeyError: 'labels'", "no function": "observe takes the loss first", "sum": "one number"}

    def loop():
        for k in range(8):
            x, y = batch(k)
            x = x * math.nan if later == "nan" and k > 3 else x
            thermometer.observe(cross_entropy if k < 3 else losses.get(later, cross_entropy), x, y)
            for net, opt in ((model, optimizer), (plain, reference)):
                opt.zero_grad()
                cross_entropy(net(x), y).backward()
                opt.step()

    with pytest.warns(RuntimeWarning) as told:
        loop()
    expected = words.get(later, "not finite")
    assert [expected in str(warning.message) for warning in told] == [True]
    first = 2 if later == "nan" else 1
    assert ["reason" in reading for reading in thermometer.history] == [k >= first for k in range(4)]
    assert all(expected in reading["reason"] for reading in thermometer.history[first:])
    if later != "nan":
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), plain.parameters(), strict=True))


def test_a_callback_that_fails_is_told_once_and_stops_nothing():
    seen = []

    def log(reading):
        raise OSError(f"the disk is full at step {reading['step']}")

    model, optimizer, thermometer = make(callback=[log, seen.append])
    with pytest.warns(RuntimeWarning, match="the callback .*log failed at step 1: OSError: the disk is full") as told:
        train(model, optimizer, thermometer, [batch(k) for k in range(3)])
    assert len(told) == 1
    assert seen == thermometer.history
    assert len(seen) == 3


def test_what_fails_in_a_reading_is_its_reason():
    model, optimizer, thermometer = make()
    step(model, optimizer, thermometer, *batch(0), cross_entropy)
    optimizer.register_step_post_hook(lambda *_: None)
    optimizer.param_groups[0]["momentum"] = "a lot"  # between the step and the reading
    with pytest.warns(RuntimeWarning, match="there is no reading at step 2"):
        thermometer._after_step(optimizer, (), {})
    assert set(thermometer.history[-1]) == {"step", "reason"}


@pytest.mark.parametrize("model", [small_network(), small_network(0, nn.BatchNorm1d(6), nn.Dropout(0.5))])
def test_loss_that_sums(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    thermometer = Thermometer(model, optimizer, interval=1)
    with pytest.raises(ValueError, match="sums over the batch"):
        thermometer.observe(nn.CrossEntropyLoss(reduction="sum"), *batch(0))
    with pytest.raises(ValueError, match="one number"):
        thermometer.observe(nn.CrossEntropyLoss(reduction="none"), *batch(0))


@pytest.mark.parametrize("shift", [0.0, -1000.0])
def test_a_negative_loss_that_sums(shift):
    model, _, thermometer = make()
    with pytest.raises(ValueError, match="sums over the batch"):
        thermometer.observe(lambda b: (shift - cross_entropy(model(b[0]), b[1], reduction="none")).sum(), batch(0))
    thermometer.observe(lambda b: shift - cross_entropy(model(b[0]), b[1]), batch(0))  # a mean is taken


def test_loss_that_weighs_the_halves_is_no_sum():
    """If one half has all of the weight and of the loss, the loss of the batch is the sum of those of both."""
    model = small_network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    thermometer = Thermometer(model, optimizer, interval=1)
    with torch.no_grad():
        model[-1].bias.copy_(torch.tensor([20.0, 0.0, 0.0]))
    targets = torch.tensor([0, 0, 0, 1, 0, 0, 0, 0])
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1e-3, 1.0, 1.0]).double())
    step(model, optimizer, thermometer, batch(0)[0], targets, weighted)
    assert thermometer.trace > 0.0


@pytest.mark.parametrize(
    ("callback", "got"), [("run.csv", "'run.csv'"), (["run.csv"], "'run.csv'"), ([3], "3"), (None, "None")]
)
def test_a_callback_that_is_no_function_is_told_at_once(callback, got):
    with pytest.raises(TypeError, match=f"callback must be a function.*, got {got}$"):
        make(callback=callback)


def test_gradients_that_are_not_finite():
    model, optimizer, thermometer = make()
    step(model, optimizer, thermometer, *batch(0), cross_entropy)
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict(), thermometer.history])
    inputs, targets = batch(1)
    with pytest.warns(RuntimeWarning, match="no reading at step 2: gradients or weights are not finite"):
        step(model, optimizer, thermometer, inputs * math.nan, targets, cross_entropy)
    assert thermometer.history == [*saved[2], {"step": 2, "reason": "gradients or weights are not finite"}]
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    step(model, optimizer, thermometer, inputs, targets, cross_entropy)
    assert all(math.isfinite(v) for v in thermometer.history[-1].values() if v is not None)
    assert thermometer.temperature > 0


def test_step_without_gradients():
    model, optimizer, thermometer = make()
    with pytest.warns(RuntimeWarning, match="no reading at step 1: there are no gradients"):
        optimizer.step()
    assert thermometer.history == [{"step": 1, "reason": "there are no gradients"}]
    for k in range(2):
        step(model, optimizer, thermometer, *batch(k), cross_entropy)
    assert [reading["step"] for reading in thermometer.history] == [1, 2, 3]
    assert thermometer.temperature > 0


def test_settings():
    for settings in ({"interval": 0}, {"window": 2}, {"batch_size": 1}, {"decay": 1.0}, {"confidence": 95}):
        (name,) = settings
        with pytest.raises(ValueError, match=f"{name} must be"):
            make(**settings)
    for settings in ({"decay": "a"}, {"confidence": "high"}, {"scaler": "fp16"}):
        (name,) = settings
        with pytest.raises(TypeError, match=f"{name} must be"):
            make(**settings)
    with pytest.raises(ValueError, match="dataset_size must be an integer with 64 <= dataset_size"):
        make(batch_size=64, dataset_size=32)
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got generator"):
        Thermometer(small_network().parameters(), torch.optim.SGD(small_network().parameters(), 0.1))


@pytest.mark.parametrize("interval", [1, 250])
def test_what_is_no_number_is_told_at_once(interval):
    _, _, thermometer = make(interval=interval)
    with pytest.raises(TypeError, match="loss must be a number or a tensor of one, got None"):
        thermometer.note_loss(None)
    with pytest.raises(TypeError, match="size must be an integer"):
        thermometer.count("8")


def test_model_of_another():
    with pytest.raises(ValueError, match="none of the model's parameters"):
        Thermometer(small_network(), torch.optim.SGD(small_network().parameters(), 0.1))


def test_without_noise_the_other_thermometers_work():
    model, optimizer, thermometer = make()
    for k in range(6):
        optimizer.zero_grad()
        mse_loss(model(batch(k)[0]), torch.zeros(8, 3).double()).backward()
        optimizer.step()
    assert math.isnan(thermometer.temperature)
    assert thermometer.kinetic_temperature > 0
    assert math.isfinite(thermometer.equilibrium_ratio.high)


def shard_and_refuse(rank, folder):
    with member(rank, 1, folder):
        model = small_network()
        fully_shard(model, mesh=DeviceMesh.from_group(dist.group.WORLD, "cpu"))
        with pytest.raises(TypeError, match=r"^Thermometer does not support sharded parameters"):
            Thermometer(model, torch.optim.AdamW(model.parameters(), 0.1))
        with pytest.raises(TypeError, match=r"^measure_noise does not support sharded parameters"):
            measure_noise(model, cross_entropy, *batch(0))
        older = FullyShardedDataParallel(small_network(), device_id=torch.device("cpu"), use_orig_params=True)
        with pytest.raises(TypeError, match=r"^Thermometer does not support sharded parameters"):
            Thermometer(older, torch.optim.AdamW(older.parameters(), 0.1))


def test_sharded_parameters():
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(shard_and_refuse, args=(folder,), nprocs=1)


def test_a_with_statement_detaches_it_after_an_exception():
    model, optimizer, thermometer = make()
    with pytest.raises(ValueError, match="sums over the batch"), thermometer:
        thermometer.observe(nn.CrossEntropyLoss(reduction="sum"), *batch(0))
    cross_entropy(model(batch(0)[0]), batch(0)[1]).backward()
    optimizer.step()
    assert thermometer.history == []
    assert thermometer.step == 0


@pytest.mark.parametrize("settings", [{"momentum": 1.2}, {"momentum": 0.5, "dampening": 1.0}])
def test_knobs_without_a_temperature(settings):
    model = small_network()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, **settings)
    thermometer = Thermometer(model, optimizer, interval=1)
    step(model, optimizer, thermometer, *batch(0), cross_entropy)
    assert thermometer.temperature is None
    assert "0 <= momentum < 1" in thermometer.reason
    assert thermometer.trace > 0


@pytest.mark.parametrize(
    ("loss", "data", "words"),
    [
        (lambda _: 3.0, batch(0), "one number, the mean over the batch, got 3.0"),
        (lambda _: None, batch(0), "got None"),
        (lambda b: b[0].mean(), batch(0), "the loss has no gradient"),
        (lambda _: torch.zeros(()), ["a", "b"], "no tensor of samples"),
    ],
)
def test_what_cannot_be_observed(loss, data, words):
    _, _, thermometer = make()
    with pytest.raises(ValueError, match=words):
        thermometer.observe(loss, data)


@pytest.mark.parametrize("state", [{}, None, {"step": 3}])
def test_a_state_of_something_else(state):
    _, _, thermometer = make()
    with pytest.raises(ValueError, match="not a thermometer's"):
        thermometer.load_state_dict(state)


def test_it_prints_what_it_reads():
    model, optimizer, thermometer = make()
    assert repr(thermometer) == "Thermometer(SGD, step=0, temperature=nan, trace=nan, noise_scale=nan)"
    step(model, optimizer, thermometer, *batch(0), cross_entropy)
    assert repr(thermometer).startswith(f"Thermometer(SGD, step=1, temperature={thermometer.temperature:.4g}, trace=")


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.RMSprop])
def test_it_draws_and_shows_what_it_reads(kind):
    pytest.importorskip("matplotlib")
    model = small_network()
    optimizer = kind(model.parameters(), 0.01)
    thermometer = Thermometer(model, optimizer, interval=1)
    train(model, optimizer, thermometer, [batch(k) for k in range(4)])
    optimizer.zero_grad()
    with pytest.warns(RuntimeWarning, match="there are no gradients"):
        optimizer.step()
    axes = thermometer.plot()
    key = "temperature" if thermometer.reason == "" else "noise_scale"
    expected = [(r["step"], r[key]) for r in thermometer.history if r.get(key)]
    np.testing.assert_allclose(axes.lines[0].get_xydata(), expected)
    assert thermometer.plot(axes) is axes
    shown = thermometer._repr_html_()
    assert f"<tr><th>trace</th><td>{thermometer.trace}</td></tr>" in shown
    assert ("<th>temperature</th>" in shown) == (key == "temperature")
