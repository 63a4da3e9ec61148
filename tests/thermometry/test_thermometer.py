"""The thermometers against exact answers, and a reading that leaves the training as it is."""

import copy
import json
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

import heatbath as hb
from heatbath.theory.quadratic import fluctuation_dissipation, stationary_moments
from heatbath.thermometry.thermometer import Thermometer
from optimizer_walks import Wrapper
from thermometer_runs import CASES, Bowl, assert_alike, batch, small_network, step, z_score

pytestmark = pytest.mark.usefixtures("one_thread")


class TestExactAnswers:
    @pytest.mark.parametrize(("coupling", "nesterov", "law", "momentum"), CASES)
    def test_quadratic(self, coupling, nesterov, law, momentum):
        curvature, diffusion, size, lr = np.linspace(0.5, 2.0, 30), np.linspace(3.0, 0.5, 30), 6, 0.03
        model = Bowl(curvature)
        settings = {"law": law, "coupling": coupling, "momentum": momentum, "nesterov": nesterov}
        optimizer = hb.RandomSGD(model.parameters(), lr, seed=5, **settings)
        generator = torch.Generator().manual_seed(1)
        noise = torch.randn(1800, size, 30, dtype=torch.float64, generator=generator) * torch.tensor(diffusion).sqrt()
        warm_up = Thermometer(model, optimizer, interval=10**6)
        for xi in noise[:200]:
            step(model, optimizer, warm_up, xi)
        thermometer = Thermometer(model, optimizer, interval=4, decay=0.0, window=1000)
        for xi in noise[200:]:
            step(model, optimizer, thermometer, xi)
        readings = thermometer.history
        thermostat = hb.Thermostat(lr, size, momentum, nesterov, law, coupling)
        moments = stationary_moments(thermostat, curvature, diffusion)

        assert z_score([r["trace"] for r in readings], diffusion.sum()) < 4
        assert z_score([r["temperature"] for r in readings], thermostat.temperature(diffusion.mean())) < 4
        factor = thermostat.law_factor if coupling == "update" else 1.0
        kinetic = 0.5 * lr * (1 + momentum) * factor * moments[:, 1, 1].mean()
        assert z_score([r["kinetic_temperature"] for r in readings], kinetic) < 4
        squared = (curvature**2 * moments[:, 0, 0]).sum()
        assert z_score([r["gradient_norm_squared"] for r in readings], squared) < 4

        dissipation, fluctuation = np.array(thermometer.state_dict()["sides"]).T
        exact = fluctuation_dissipation(thermostat, curvature, diffusion)
        assert z_score(fluctuation, exact.fluctuation / 30) < 4
        assert z_score(dissipation, exact.dissipation / 30) < 4
        ratio = thermometer.equilibrium_ratio
        assert ratio.contains(1.0)
        assert thermometer.at_equilibrium
        assert 0 < ratio.high - ratio.low < 0.1
        # All of them agree, up to the corrections of first order in the rate and their errors.
        last = np.mean([[r["temperature"], r["kinetic_temperature"]] for r in readings], axis=0)
        np.testing.assert_allclose([*last, fluctuation.mean(), dissipation.mean()], exact.dissipation / 30, rtol=0.12)

    def test_logistic_regression(self):
        """With replacement from 400 samples, at the minimum; the noise there is known from all the gradients."""
        samples, size, lr, momentum, law = 400, 16, 0.05, 0.8, hb.Uniform(1.0)
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(samples, 12, dtype=torch.float64, generator=generator)
        chance = torch.sigmoid(inputs @ torch.linspace(-1, 1, 12, dtype=torch.float64))
        targets = (torch.rand(samples, dtype=torch.float64, generator=generator) < chance).double()

        def loss_fn(outputs, targets):
            return binary_cross_entropy_with_logits(outputs[:, 0], targets)

        model = nn.Linear(12, 1, bias=False).double()
        newton = torch.optim.LBFGS(
            model.parameters(), max_iter=200, tolerance_grad=1e-10, line_search_fn="strong_wolfe"
        )

        def closure():
            newton.zero_grad()
            loss = loss_fn(model(inputs), targets) + 0.01 * model.weight.square().sum()
            loss.backward()
            return loss

        newton.step(closure)
        residual = torch.sigmoid(model(inputs))[:, 0] - targets
        trace = (residual[:, None] * inputs).detach().var(dim=0, correction=0).sum().item()

        optimizer = hb.RandomSGD(model.parameters(), lr, law=law, momentum=momentum, weight_decay=0.02, seed=2)
        thermometer = Thermometer(model, optimizer, interval=3, decay=0.0, window=1000)
        for index in torch.randint(samples, (3000, size), generator=generator):
            step(model, optimizer, thermometer, inputs[index], targets[index], loss_fn)
        expected = hb.Thermostat(lr, size, momentum, False, law).temperature(trace / 12)
        readings = thermometer.history[100:]
        for key in ("temperature", "kinetic_temperature"):
            assert np.mean([r[key] for r in readings]) == pytest.approx(expected, rel=0.08)
        assert np.mean([r["trace"] for r in readings]) == pytest.approx(trace, rel=0.05)
        assert readings[-1]["fluctuation"] == pytest.approx(expected, rel=0.08)
        assert thermometer.at_equilibrium
        assert thermometer.equilibrium_ratio.high - thermometer.equilibrium_ratio.low < 0.2


def test_thermometer_averages_its_readings():
    histories = []
    for decay in (0.0, 0.6):
        model = small_network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        thermometer = Thermometer(model, optimizer, interval=1, decay=decay)
        for k in range(3):
            step(model, optimizer, thermometer, *batch(k), cross_entropy)
        histories.append(thermometer.history)
    for key in ("trace", "gradient_norm_squared", "temperature", "kinetic_temperature"):
        single = [reading[key] for reading in histories[0]]
        expected = [single[0], np.average(single[:2], weights=[0.6, 1]), np.average(single, weights=[0.36, 0.6, 1])]
        np.testing.assert_allclose([reading[key] for reading in histories[1]], expected, rtol=1e-12)


def test_schedule_of_the_momentum_does_not_lag_behind():
    """As of `OneCycleLR`: pure noise, of which the velocity keeps the more the higher the momentum."""
    model = Bowl(np.zeros(2000))
    optimizer = hb.RandomSGD(model.parameters(), 1e-3, momentum=0.95, law=hb.Uniform(1.0), coupling="update")
    thermometer = Thermometer(model, optimizer, interval=5, decay=0.95)
    noise = torch.randn(300, 4, 2000, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for k, xi in enumerate(noise):
        optimizer.param_groups[0]["momentum"] = 0.95 if k < 200 else 0.8
        step(model, optimizer, thermometer, xi)
        if k in (199, 299):
            assert thermometer.kinetic_temperature == pytest.approx(thermometer.temperature, rel=0.1)
    assert thermometer.temperature == pytest.approx(1e-3 * (1 + 0.2 / 1.8 / 3) / (2 * 4 * 0.2), rel=0.05)


def test_an_optimizer_inside_a_wrapper_without_hooks():
    histories = []
    for wrap in (partial(Wrapper, "optimizer"), lambda optimizer: optimizer):
        model = Bowl(np.ones(5))
        optimizer = wrap(hb.RandomSGD(model.parameters(), 0.1, momentum=0.5, seed=1))
        thermometer = Thermometer(model, optimizer, interval=1)
        for xi in torch.randn(5, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)):
            step(model, optimizer, thermometer, xi)
        histories.append(thermometer.history)
    assert len(histories[0]) == 5
    assert histories[0] == histories[1]


def test_parameters_that_are_set_free_begin_anew():
    """A layer that joins brings most of the noise: an average with the sums before it would be too cold for long."""
    model = small_network()
    model[0].requires_grad_(False)
    model[0].weight.mul_(10.0)
    optimizer = torch.optim.SGD(model.parameters(), 1e-9, momentum=0.9)
    thermometer = Thermometer(model, optimizer, interval=2)
    for k in range(20):
        step(model, optimizer, thermometer, *batch(k), cross_entropy)
    model[0].requires_grad_(True)
    step(model, optimizer, thermometer, *batch(20), cross_entropy)
    fresh = Thermometer(model, optimizer, interval=2)
    fresh.load_state_dict({**fresh.state_dict(), "step": thermometer.step})
    for k in range(21, 30):
        optimizer.zero_grad()
        cross_entropy(model(batch(k)[0]), batch(k)[1]).backward()
        thermometer.observe(cross_entropy, *batch(k))
        fresh.observe(cross_entropy, *batch(k))
        optimizer.step()
    for key in ("trace", "gradient_norm_squared", "temperature", "kinetic_temperature"):
        assert thermometer.history[-1][key] == pytest.approx(fresh.history[-1][key], rel=1e-9)


class TestTrainingIsLeftAlone:
    @pytest.mark.parametrize("before", [True, False], ids=["before backward", "after backward"])
    def test_weights_buffers_and_random_state(self, before):
        """Bit for bit the same run, with dropout and batch normalization, and nothing left behind."""
        results = []
        for interval in (None, 2):
            model = small_network(0, nn.BatchNorm1d(6), nn.Dropout(0.3)).float()
            optimizer = hb.RandomSGD(model.parameters(), 0.1, momentum=0.9, nesterov=True)
            thermometer = Thermometer(model, optimizer, interval=interval) if interval else None
            torch.manual_seed(7)
            for k in range(6):
                inputs, targets = batch(k)
                inputs = inputs.float()
                optimizer.zero_grad()
                for when in (True, False):
                    if thermometer is not None and when is before:
                        grads = [p.grad for p in model.parameters()]
                        thermometer.observe(cross_entropy, inputs, targets)
                        assert all(p.grad is g for p, g in zip(model.parameters(), grads, strict=True))
                    if when:
                        cross_entropy(model(inputs), targets).backward()
                optimizer.step()
            grads = [p.grad for p in model.parameters()]
            results.append([*model.state_dict().values(), *grads, torch.get_rng_state()])
        assert len(thermometer.history) == 3
        assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
        thermometer.remove()
        assert not any(p._backward_hooks for p in model.parameters())
        assert not optimizer._optimizer_step_post_hooks

    def test_passes_only_at_readings(self):
        model = small_network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        thermometer = Thermometer(model, optimizer, interval=4)
        passes, counts = [], []
        model.register_forward_hook(lambda *_: passes.append(1))
        for k in range(9):
            passes.clear()
            step(model, optimizer, thermometer, *batch(k), cross_entropy)
            counts.append(len(passes))
        assert counts == [4, 1, 1, 3, 1, 1, 1, 3, 1]  # the first call tries the loss, also on the whole batch
        assert [reading["step"] for reading in thermometer.history] == [4, 8]
        thermometer.remove()
        passes.clear()
        for k in range(8):
            step(model, optimizer, thermometer, *batch(k), cross_entropy)
        assert len(passes) == 8
        assert len(thermometer.history) == 2


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("what", ["model", "step"])
def test_compiled(what):
    def make(compiles):
        model = small_network()
        optimizer = hb.RandomSGD(model.parameters(), 0.05, momentum=0.8, foreach=False)
        call = torch.compile(model, backend="aot_eager") if compiles and what == "model" else model
        thermometer, move = Thermometer(call, optimizer, interval=3), optimizer.step
        if compiles and what == "step":
            move = torch.compile(optimizer.step, backend="eager")
        for k in range(9):
            optimizer.zero_grad()
            thermometer.observe(cross_entropy, *batch(k))
            cross_entropy(call(batch(k)[0]), batch(k)[1]).backward()
            move()
        return thermometer.history

    torch._dynamo.reset()
    histories = make(True), make(False)
    assert len(histories[0]) == 3
    assert_alike(*histories)


class TestState:
    def test_resumed_run_goes_on(self):
        def start():
            model = small_network()
            optimizer = hb.RandomSGD(model.parameters(), 0.05, momentum=0.8)
            return model, optimizer, Thermometer(model, optimizer, interval=3, window=4)

        model, optimizer, thermometer = start()
        for k in range(30):
            if k == 17:
                saved = json.dumps(thermometer.state_dict()), optimizer.state_dict(), model.state_dict()
                saved = copy.deepcopy(saved)
            step(model, optimizer, thermometer, *batch(k), cross_entropy)
        resumed, optimizer2, thermometer2 = start()
        thermometer2.load_state_dict(json.loads(saved[0]))
        optimizer2.load_state_dict(saved[1])
        resumed.load_state_dict(saved[2])
        for k in range(17, 30):
            step(resumed, optimizer2, thermometer2, *batch(k), cross_entropy)
        assert json.loads(json.dumps(thermometer.history)) == thermometer2.history
        assert len(thermometer.history) == 10
        assert thermometer.equilibrium_ratio == thermometer2.equilibrium_ratio

    def test_a_state_from_before_there_were_intervals(self):
        histories = []
        for is_old in (False, True):
            model = small_network()
            optimizer = hb.RandomSGD(model.parameters(), 0.05, momentum=0.8)
            thermometer = Thermometer(model, optimizer, interval=1)
            for k in range(6):
                step(model, optimizer, thermometer, *batch(k), cross_entropy)
            state = thermometer.state_dict()
            if is_old:
                del state["losses"]
                kinds = ("trace", "squared_gradient", "drive")
                state["averages"] = [state["averages"][kind] for kind in kinds]
            thermometer.load_state_dict(json.loads(json.dumps(state)))
            step(model, optimizer, thermometer, *batch(6), cross_entropy)
            histories.append(thermometer.history)
        for key in ("temperature", "kinetic_temperature", "equilibrium_ratio", "gradient_norm_squared"):
            assert histories[1][-1][key] == pytest.approx(histories[0][-1][key], rel=1e-12)

    @pytest.mark.parametrize("make", [torch.optim.SGD, hb.RandomSGD])
    @pytest.mark.parametrize("momentum", [0.0, 0.8])
    def test_steps_that_a_checkpoint_takes_are_none(self, make, momentum):
        """torch.distributed.checkpoint takes one, at rate 0, when it finds no state; a reading must not fall on it."""
        model = small_network()
        optimizer = make(model.parameters(), 0.05, momentum=momentum)
        thermometer = Thermometer(model, optimizer, interval=2)
        for k in range(6):
            get_optimizer_state_dict(model, optimizer)
            step(model, optimizer, thermometer, *batch(k), cross_entropy)
            optimizer.zero_grad()
        assert [reading["step"] for reading in thermometer.history] == [2, 4, 6]
        assert all(reading["lr"] == 0.05 and reading["temperature"] > 0 for reading in thermometer.history)
        saved, states = thermometer.state_dict(), get_optimizer_state_dict(model, optimizer)
        fresh = make(model.parameters(), 0.05, momentum=momentum)
        resumed = Thermometer(model, fresh, interval=2)
        resumed.load_state_dict(saved)
        set_optimizer_state_dict(model, fresh, states)
        assert resumed.step == 6
        assert resumed.state_dict() == saved

    def test_state_of_other_groups(self):
        model = small_network()
        one = Thermometer(model, torch.optim.SGD(model.parameters(), 0.1))
        groups = [{"params": model[i].parameters()} for i in (0, 2)]
        two = Thermometer(model, torch.optim.SGD(groups, 0.1))
        with pytest.raises(ValueError, match="parameter groups"):
            one.load_state_dict(two.state_dict())
