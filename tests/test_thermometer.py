"""The thermometers against exact answers, and a reading that leaves the training as it is."""

import copy
import csv
import json
import math
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel

import heatbath as hb
from heatbath.averages import Estimate, ExponentialAverage, ratio_of_means
from heatbath.dynamics import Knobs
from heatbath.readings import CSVLog, TensorBoardLog
from heatbath.theory.quadratic import fluctuation_dissipation, stationary_moments
from heatbath.thermometer import Thermometer

CASES = [  # coupling, nesterov, law, momentum
    ("gradient", False, hb.Uniform(0.8), 0.8),
    ("gradient", True, hb.TwoPoint(0.7), 0.6),
    ("update", False, hb.LogNormal(0.5), 0.7),
    ("update", True, hb.Uniform(1.0), 0.8),
]


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """The tensors are small: threads would only wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Bowl(nn.Module):
    """A quadratic loss with additive noise: a sample ``xi`` has the gradient ``a x + xi``."""

    def __init__(self, curvature, start=0.0):
        super().__init__()
        self.x = nn.Parameter(torch.full((len(curvature),), start, dtype=torch.float64))
        self.curvature = torch.as_tensor(curvature)

    def forward(self, xi):
        return 0.5 * (self.curvature * self.x * self.x).sum() + xi @ self.x


def mean(outputs, targets):
    return outputs.mean()


def step(model, optimizer, thermometer, inputs, targets=None, loss_fn=mean):
    optimizer.zero_grad()
    loss_fn(model(inputs), targets).backward()
    thermometer.observe(loss_fn, inputs, targets)
    optimizer.step()


def small_network(seed=0, *extra):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 6), *extra, nn.Tanh(), nn.Linear(6, 3)).double()


def batch(k, size=8):
    generator = torch.Generator().manual_seed(1000 + k)
    inputs = torch.randn(size, 5, dtype=torch.float64, generator=generator)
    return inputs, torch.randint(3, (size,), generator=generator)


def gradient(model, inputs, targets):
    grads = torch.autograd.grad(cross_entropy(model(inputs), targets), list(model.parameters()))
    return torch.cat([g.flatten() for g in grads])


def z_score(values, exact, batches=10):
    """By batch means, as neighbouring values are correlated."""
    values = np.asarray(values, dtype=float)
    means = values[len(values) % batches :].reshape(batches, -1).mean(axis=1)
    return abs(means.mean() - exact) / (means.std(ddof=1) / math.sqrt(batches))


class TestExactAnswers:
    @pytest.mark.parametrize(("coupling", "nesterov", "law", "momentum"), CASES)
    def test_quadratic(self, coupling, nesterov, law, momentum):
        curvature, diffusion, size, lr = np.linspace(0.5, 2.0, 30), np.linspace(3.0, 0.5, 30), 6, 0.03
        model = Bowl(curvature)
        settings = {"law": law, "coupling": coupling, "momentum": momentum, "nesterov": nesterov}
        optimizer = hb.RandomSGD(model.parameters(), lr, seed=5, **settings)
        thermometer = Thermometer(model, optimizer, interval=4, decay=0.0, window=1000)
        generator = torch.Generator().manual_seed(1)
        noise = torch.randn(1800, size, 30, dtype=torch.float64, generator=generator) * torch.tensor(diffusion).sqrt()
        for k, xi in enumerate(noise):
            step(model, optimizer, thermometer, xi)
            if k == 199:
                thermometer._sides.clear()
        readings = thermometer.history[50:]
        thermostat = hb.Thermostat(lr, size, momentum, nesterov, law, coupling)
        moments = stationary_moments(thermostat, curvature, diffusion)

        assert z_score([r["trace"] for r in readings], diffusion.sum()) < 4
        assert z_score([r["temperature"] for r in readings], thermostat.temperature(diffusion.mean())) < 4
        factor = thermostat.law_factor if coupling == "update" else 1.0
        kinetic = 0.5 * lr * (1 + momentum) * factor * moments[:, 1, 1].mean()
        assert z_score([r["kinetic_temperature"] for r in readings], kinetic) < 4
        squared = (curvature**2 * moments[:, 0, 0]).sum()
        assert z_score([r["gradient_norm_squared"] for r in readings], squared) < 4

        dissipation, fluctuation = np.array(thermometer._sides).T
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

    @pytest.mark.parametrize(("coupling", "nesterov", "law", "momentum"), CASES)
    def test_kinetic_temperature_is_right_at_leading_order(self, coupling, nesterov, law, momentum):
        errors = []
        for lr in (1e-2, 1e-3):
            thermostat = hb.Thermostat(lr, 3, momentum, nesterov, law, coupling)
            knobs = Knobs(lr, momentum, nesterov, law, coupling, 1.0, 0.0, 0.0, 1.0, False)
            velocity = stationary_moments(thermostat, 0.7, 2.0)[1, 1]
            errors.append(knobs.kinetic_temperature(velocity) / thermostat.temperature(2.0) - 1)
            assert knobs.temperature(2.0 / 3) == pytest.approx(thermostat.temperature(2.0), rel=1e-12)
        assert abs(errors[0]) < 0.1
        assert errors[0] / errors[1] == pytest.approx(10.0, rel=0.2)

    def test_far_from_equilibrium(self):
        """A start far up the bowl: the loss takes out much more than the noise puts in."""
        model = Bowl(np.linspace(0.5, 2.0, 10), start=5.0)
        optimizer = hb.RandomSGD(model.parameters(), 0.003, momentum=0.7)
        thermometer = Thermometer(model, optimizer, interval=2)
        torch.manual_seed(0)
        for _ in range(60):
            step(model, optimizer, thermometer, torch.randn(8, 10, dtype=torch.float64))
        ratio = thermometer.equilibrium_ratio
        assert ratio > 3.0
        assert ratio.low > 1.5
        assert thermometer.at_equilibrium is False
        assert thermometer.kinetic_temperature > 3 * thermometer.temperature


class TestRelation:
    """Both sides against the vectors themselves, step by step."""

    @pytest.mark.parametrize(
        ("coupling", "law", "settings"),
        [
            ("gradient", hb.Uniform(0.9), {"momentum": 0.7, "weight_decay": 0.1}),
            ("gradient", hb.Uniform(0.9), {"momentum": 0.7, "nesterov": True, "weight_decay": 0.1}),
            ("update", hb.Constant(), {"momentum": 0.7, "weight_decay": 0.1}),
            ("update", hb.Constant(), {"momentum": 0.7, "nesterov": True, "weight_decay": 0.1}),
            ("gradient", hb.Constant(), {"weight_decay": 0.2}),
            ("gradient", hb.TwoPoint(0.5), {"momentum": 0.7, "dampening": 0.4, "maximize": True}),
        ],
    )
    @pytest.mark.parametrize("interval", [1, 5])
    def test_telescoped_dissipation_is_the_mean_over_all_steps(self, coupling, law, settings, interval):
        model, lr = small_network(), 0.02
        optimizer = hb.RandomSGD(model.parameters(), lr, law=law, coupling=coupling, **settings)
        thermometer = Thermometer(model, optimizer, interval=interval, batch_size=8)
        mu, tau = settings.get("momentum", 0.0), settings.get("dampening", 0.0)
        w = mu**2 if settings.get("nesterov") else mu
        dissipations, fluctuations, v = [], [], None
        for k in range(21):
            x = nn.utils.parameters_to_vector(model.parameters()).detach()
            optimizer.zero_grad()
            cross_entropy(model(batch(k)[0]), batch(k)[1]).backward()
            g = torch.cat([p.grad.flatten() for p in model.parameters()])
            g = (-g if settings.get("maximize") else g) + settings.get("weight_decay", 0.0) * x
            optimizer.step()
            after = nn.utils.parameters_to_vector(model.parameters()).detach()
            push = g * optimizer.param_groups[0]["rate"] * (1 - tau if v is not None else 1)
            v = push if v is None else mu * v + push
            direction = (x - after) / lr
            dissipations.append((x @ push).item() / (1 - tau))
            fluctuations.append(lr * (0.5 * (1 - mu) * direction @ direction + w * direction @ v).item() / (1 - tau))
        d, first = len(x), interval  # the first reading has nothing to compare with
        ends = list(range(2 * interval, 22, interval))
        sides = np.array(thermometer._sides) * d
        assert len(sides) == len(ends)
        np.testing.assert_allclose(sides[:, 1], [fluctuations[end - 1] for end in ends], rtol=1e-9)
        gaps = np.array(dissipations) - fluctuations
        expected = [gaps[end - interval : end].mean() for end in ends]
        np.testing.assert_allclose(sides[:, 0] - sides[:, 1], expected, rtol=1e-6, atol=1e-12 * first)

    def test_update_coupling_averages_the_multiplier_over_its_law(self):
        law, lr, mu = hb.LogNormal(0.6), 0.02, 0.7
        model = small_network()
        optimizer = hb.RandomSGD(model.parameters(), lr, law=law, coupling="update", momentum=mu)
        thermometer = Thermometer(model, optimizer, interval=1)
        for k in range(3):
            step(model, optimizer, thermometer, *batch(k), cross_entropy)
        squared = sum(optimizer.velocity(p).square().sum().item() for p in model.parameters())
        expected = 0.5 * lr * (1 + mu + law.variance * (1 - mu)) * squared
        count = sum(p.numel() for p in model.parameters())
        assert thermometer._sides[-1][1] * count == pytest.approx(expected, rel=1e-9)


class TestNoise:
    def test_halves(self):
        model = small_network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        thermometer = Thermometer(model, optimizer, interval=1)
        inputs, targets = batch(0, 9)  # the ninth is left out
        one, two = gradient(model, inputs[:4], targets[:4]), gradient(model, inputs[4:8], targets[4:8])
        step(model, optimizer, thermometer, inputs, targets, cross_entropy)
        (reading,) = thermometer.history
        assert reading["trace"] == pytest.approx(2 * (one - two).square().sum().item(), rel=1e-10)
        assert reading["gradient_norm_squared"] == pytest.approx((one @ two).item(), rel=1e-10)
        assert reading["temperature"] == pytest.approx(0.1 * reading["trace"] / (2 * 9 * len(one)), rel=1e-10)

    @pytest.mark.parametrize("divides", [True, False])
    @pytest.mark.parametrize("scaled", [None, False, True], ids=["plain", "scaler", "fused scaler"])
    def test_micro_batches_need_no_extra_pass(self, divides, scaled):
        model = small_network()
        optimizer = hb.RandomSGD(model.parameters(), 0.1, momentum=0.5, fused=bool(scaled))
        scaler = None if scaled is None else torch.amp.GradScaler("cpu", init_scale=64.0)
        thermometer = Thermometer(model, optimizer, interval=2, batch_size=12, decay=0.0, scaler=scaler)
        passes, scale = [], 1.0 if divides else 3.0
        model.register_forward_hook(lambda *_: passes.append(1))
        for k in range(4):
            optimizer.zero_grad()
            inputs, targets = batch(k, 12)
            parts = torch.stack([scale * gradient(model, inputs[i : i + 4], targets[i : i + 4]) for i in (0, 4, 8)])
            passes.clear()
            for i in (0, 4, 8):
                loss = cross_entropy(model(inputs[i : i + 4]), targets[i : i + 4]) * scale / 3
                (loss if scaler is None else scaler.scale(loss)).backward()
                thermometer.observe(cross_entropy, inputs[i : i + 4], targets[i : i + 4]) if k == 3 else None
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            assert len(passes) == 3
        small, whole = parts.square().sum(dim=1).mean().item(), parts.mean(dim=0).square().sum().item()
        reading = thermometer.history[-1]
        assert len(thermometer.history) == 2
        assert reading["trace"] == pytest.approx(12 * (small - whole) / 2, rel=1e-9)
        assert reading["gradient_norm_squared"] == pytest.approx((3 * whole - small) / 2, rel=1e-9)

    def test_without_a_batch_size_there_is_a_temperature_but_no_trace(self):
        temperatures = []
        for size in (None, 8):
            model = small_network()
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            thermometer = Thermometer(model, optimizer, interval=1, batch_size=size)
            for part in zip(batch(0)[0].chunk(2), batch(0)[1].chunk(2), strict=True):
                (cross_entropy(model(part[0]), part[1]) / 2).backward()
            optimizer.step()
            temperatures.append(thermometer.temperature)
            assert (thermometer.history[0]["trace"] is None) == (size is None)
        assert temperatures[0] == pytest.approx(temperatures[1], rel=1e-12)
        assert temperatures[0] > 0

    def test_clipping(self):
        """observe() without arguments, before the clipping, sees the gradients as they came."""
        traces = []
        for clips in (False, True):
            model = small_network()
            optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
            thermometer = Thermometer(model, optimizer, interval=1, batch_size=8)
            for part in zip(batch(0)[0].chunk(2), batch(0)[1].chunk(2), strict=True):
                (cross_entropy(model(part[0]), part[1]) / 2).backward()
            thermometer.observe()
            if clips:
                nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            optimizer.step()
            traces.append(thermometer.history[0]["trace"])
            velocity = thermometer.kinetic_temperature
        assert traces[0] == traces[1] > 0
        assert velocity < 1e-6  # which sees the clipping

    def test_unbiased(self):
        """At fixed weights, over many batches, from halves: both numbers have the mean they should."""
        model, (inputs, targets) = small_network(), batch(0, 200)
        each = torch.stack([gradient(model, inputs[i : i + 1], targets[i : i + 1]) for i in range(200)])
        exact = each.var(dim=0, correction=0).sum().item(), each.mean(dim=0).square().sum().item()
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        thermometer = Thermometer(model, optimizer, interval=1, decay=0.0)
        generator = torch.Generator().manual_seed(3)
        for index in torch.randint(200, (600, 10), generator=generator):
            step(model, optimizer, thermometer, inputs[index], targets[index], cross_entropy)
        for key, value in zip(("trace", "gradient_norm_squared"), exact, strict=True):
            values = np.array([reading[key] for reading in thermometer.history])
            assert abs(values.mean() - value) < 4 * values.std() / math.sqrt(len(values))
            assert values.std() / math.sqrt(len(values)) < 0.1 * value
        assert thermometer.temperature == 0.0

    def test_sampling_without_replacement(self):
        temperatures = []
        for size in (None, 40):
            model = small_network()
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            thermometer = Thermometer(model, optimizer, interval=1, dataset_size=size)
            step(model, optimizer, thermometer, *batch(0), cross_entropy)
            temperatures.append(thermometer.temperature)
        assert temperatures[1] == pytest.approx(temperatures[0] * (1 - 8 / 40), rel=1e-12)


class TestAverages:
    def test_no_bias_from_the_first_value_on(self):
        average = ExponentialAverage(0.9)
        assert math.isnan(average[0])
        weights = {1: [1.0], 2: [0.9, 1.0], 3: [0.81, 0.9, 1.0]}
        for k, value in enumerate([3.0, -1.0, 5.0], start=1):
            average.update([value, 7.0])
            assert average[0] == pytest.approx(np.average([3.0, -1.0, 5.0][:k], weights=weights[k]), rel=1e-14)
            assert average[1] == pytest.approx(7.0, rel=1e-14)

    def test_thermometer_averages_its_readings(self):
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

    def test_estimate_is_a_float(self):
        estimate = Estimate(2.0, 1.5, 2.5)
        assert estimate / 2 == 1.0
        assert estimate.contains(1.5)
        assert not estimate.contains(3.0)
        again = pickle.loads(pickle.dumps(copy.deepcopy(estimate)))
        assert (again, again.low, again.high) == (2.0, 1.5, 2.5)
        assert json.dumps(estimate) == "2.0"

    def test_interval_covers_correlated_data(self):
        """An interval that took the values for independent would cover about 40 % here."""
        generator = np.random.default_rng(0)
        covered, naive = 0, 0
        for _ in range(300):
            noise = generator.normal(size=1000)
            for k in range(1, 1000):
                noise[k] += 0.9 * noise[k - 1]
            below = 10.0 + generator.normal(size=1000)
            above = 2.0 * below + noise
            ratio = ratio_of_means(above, below)
            covered += ratio.contains(2.0)
            naive += abs(ratio - 2.0) < 1.96 * (above - ratio * below).std() / math.sqrt(1000) / below.mean()
        assert 0.9 < covered / 300 < 0.99
        assert naive / 300 < 0.6

    def test_few_values_bound_nothing(self):
        assert math.isnan(ratio_of_means([], []))
        ratio = ratio_of_means([1.0, 2.0, 3.0], [1.0, 1.0, 1.0])
        assert (ratio, ratio.low, ratio.high) == (2.0, -math.inf, math.inf)
        assert math.isfinite(ratio_of_means([1.0, 2.0, 3.0, 3.0], [1.0] * 4).high)


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
        assert counts == [1, 1, 1, 3, 1, 1, 1, 3, 1]
        assert [reading["step"] for reading in thermometer.history] == [4, 8]
        thermometer.remove()
        passes.clear()
        for k in range(8):
            step(model, optimizer, thermometer, *batch(k), cross_entropy)
        assert len(passes) == 8
        assert len(thermometer.history) == 2


class TestOptimizers:
    def run(self, make, steps=40, law=None, later=False):
        model = small_network()
        optimizer, after = make(model)
        thermometer = Thermometer(model, optimizer, interval=3, law=law)
        if later:
            hooks = optimizer._optimizer_step_post_hooks
            hooks.move_to_end(thermometer._hook.id, last=False)
        for k in range(steps):
            step(model, optimizer, thermometer, *batch(k), cross_entropy)
            after()
        return thermometer.history

    @pytest.mark.parametrize("nesterov", [False, True])
    @pytest.mark.parametrize("coupling", ["gradient", "update"])
    @pytest.mark.parametrize("later", [False, True])
    def test_randomize_reads_as_random_sgd(self, nesterov, coupling, later):
        """The hooks of the two may come in either order."""
        law, settings = hb.Uniform(0.8), {"momentum": 0.8, "nesterov": nesterov}

        def randomized(model):
            optimizer = torch.optim.SGD(model.parameters(), 0.05, **settings)
            handle = hb.randomize(optimizer, law, coupling=coupling, seed=4)
            return optimizer, lambda: handle

        def ours(model):
            return hb.RandomSGD(model.parameters(), 0.05, law=law, coupling=coupling, seed=4, **settings), lambda: None

        assert_alike(self.run(randomized, later=later), self.run(ours))

    @pytest.mark.parametrize("momentum", [0.0, 0.8])
    def test_random_lr_reads_as_random_sgd(self, momentum):
        law = hb.TwoPoint(0.5)

        def scheduled(model):
            optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=momentum, weight_decay=0.1)
            scheduler = hb.RandomLR(optimizer, law, seed=4)
            return optimizer, scheduler.step

        def ours(model):
            settings = {"law": law, "coupling": "update", "seed": 4, "momentum": momentum, "weight_decay": 0.1}
            return hb.RandomSGD(model.parameters(), 0.05, **settings), lambda: None

        assert_alike(self.run(scheduled, law=law), self.run(ours))

    def test_groups(self):
        model = small_network()
        rates = (0.1, 0.02)
        groups = [{"params": model[i].parameters(), "lr": lr} for i, lr in zip((0, 2), rates, strict=True)]
        optimizer = hb.RandomSGD(groups, momentum=0.5)
        thermometer = Thermometer(model, optimizer, interval=1)
        inputs, targets = batch(0)
        one, two = gradient(model, inputs[:4], targets[:4]), gradient(model, inputs[4:], targets[4:])
        step(model, optimizer, thermometer, inputs, targets, cross_entropy)
        sizes = [sum(p.numel() for p in model[i].parameters()) for i in (0, 2)]
        temperatures = [
            hb.Thermostat(lr, 8, 0.5, law=hb.Uniform(1.0)).temperature(2 * difference.square().sum().item() / size)
            for lr, difference, size in zip(rates, (one - two).split(sizes), sizes, strict=True)
        ]
        (reading,) = thermometer.history
        assert [reading["temperature/0"], reading["temperature/1"]] == pytest.approx(temperatures, rel=1e-9)
        assert reading["temperature"] == pytest.approx(np.average(temperatures, weights=sizes), rel=1e-9)

    def test_group_that_comes_later(self):
        model = small_network()
        optimizer = hb.RandomSGD(model[0].parameters(), 0.05, momentum=0.8)
        thermometer = Thermometer(model, optimizer, interval=1)
        for k in range(12):
            if k == 6:
                optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.1})
            step(model, optimizer, thermometer, *batch(k), cross_entropy)
        assert "temperature/1" not in thermometer.history[5]
        assert thermometer.history[-1]["temperature/1"] > 0
        assert len(thermometer._sides) == 5

    def test_rate_and_momentum_are_those_of_the_moment(self):
        model = small_network()
        optimizer = torch.optim.SGD(model.parameters(), torch.tensor(0.1), momentum=0.5)
        thermometer = Thermometer(model, optimizer, interval=1, decay=0.5)
        step(model, optimizer, thermometer, *batch(0), cross_entropy)
        optimizer.param_groups[0].update(lr=torch.tensor(0.01), momentum=0.8)
        step(model, optimizer, thermometer, *batch(0), cross_entropy)
        one, two = thermometer.history
        assert two["lr"] == pytest.approx(0.01)
        ratio = (two["temperature"] / two["trace"]) / (one["temperature"] / one["trace"])
        assert ratio == pytest.approx(0.1 * 0.5 / 0.2, rel=1e-6)

    @pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # torch's own
    @pytest.mark.parametrize("what", ["model", "step"])
    def test_compiled(self, what):
        def make(compiles):
            model = small_network()
            optimizer = hb.RandomSGD(model.parameters(), 0.05, momentum=0.8, foreach=False)
            thermometer = Thermometer(model, optimizer, interval=3)
            call, move = model, optimizer.step
            if compiles and what == "model":
                call = torch.compile(model, backend="aot_eager")
                thermometer._model = call
            elif compiles:
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


def assert_alike(one, other):
    assert len(one) == len(other) > 0
    for ours, theirs in zip(one, other, strict=True):
        assert {k for k, v in ours.items() if v is None} == {k for k, v in theirs.items() if v is None}
        both = [[reading[k] for k, v in ours.items() if v is not None] for reading in (ours, theirs)]
        np.testing.assert_allclose(*both, rtol=1e-6)


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

    def test_state_of_other_groups(self):
        model = small_network()
        one = Thermometer(model, torch.optim.SGD(model.parameters(), 0.1))
        groups = [{"params": model[i].parameters()} for i in (0, 2)]
        two = Thermometer(model, torch.optim.SGD(groups, 0.1))
        with pytest.raises(ValueError, match="parameter groups"):
            one.load_state_dict(two.state_dict())


class TestLogs:
    def test_csv_and_tensorboard_and_callbacks(self, tmp_path):
        class Writer(list):
            def add_scalar(self, *scalar):
                self.append(scalar)

        path, writer, seen = tmp_path / "logs" / "run.csv", Writer(), []
        model = small_network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        thermometer = Thermometer(
            model, optimizer, interval=2, callback=[CSVLog(path), TensorBoardLog(writer), seen.append]
        )
        for k in range(4):
            step(model, optimizer, thermometer, *batch(k), cross_entropy)
        assert seen == thermometer.history
        with path.open("a") as file:
            file.write("6,0.1,")  # killed in the middle of a row
        log = CSVLog(path)
        log(seen[0])
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["step"] for row in rows] == ["2", "4", "2"]
        assert float(rows[1]["temperature"]) == seen[1]["temperature"]
        assert rows[0]["equilibrium_ratio"] == ""
        assert ("heatbath/temperature", seen[1]["temperature"], 4) in writer
        assert not any(name == "heatbath/equilibrium_ratio" for name, _, k in writer if k == 2)
        with pytest.raises(ValueError, match="columns"):
            log({"step": 1, "other": 2.0})


class TestBadInput:
    def make(self, **settings):
        model = small_network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.5)
        return model, optimizer, Thermometer(model, optimizer, **{"interval": 1, **settings})

    @pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.RMSprop, torch.optim.ASGD])
    def test_other_optimizers(self, kind):
        model = small_network()
        with pytest.raises(
            TypeError, match=rf"got {kind.__name__}; allowed are heatbath.RandomSGD and torch.optim.SGD"
        ):
            Thermometer(model, kind(model.parameters(), 0.1))

    def test_batch_of_one(self):
        _, _, thermometer = self.make()
        with pytest.raises(ValueError, match="a batch of 1 has no two halves"):
            thermometer.observe(cross_entropy, *batch(0, 1))

    def test_a_batch_of_one_in_the_middle_only_warns(self):
        model, optimizer, thermometer = self.make()
        for k, size in enumerate((8, 1, 8)):
            x, y = batch(k, size)
            optimizer.zero_grad()
            if size == 1:
                with pytest.warns(RuntimeWarning, match="batch of one"):
                    thermometer.observe(cross_entropy, x, y)
            else:
                thermometer.observe(cross_entropy, x, y)
            cross_entropy(model(x), y).backward()
            optimizer.step()
        assert len(thermometer.history) == 3
        assert thermometer.temperature > 0

    @pytest.mark.parametrize("model", [small_network(), small_network(0, nn.BatchNorm1d(6), nn.Dropout(0.5))])
    def test_loss_that_sums(self, model):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        thermometer = Thermometer(model, optimizer, interval=1)
        with pytest.raises(ValueError, match="sums over the batch"):
            thermometer.observe(nn.CrossEntropyLoss(reduction="sum"), *batch(0))
        with pytest.raises(ValueError, match="one number"):
            thermometer.observe(nn.CrossEntropyLoss(reduction="none"), *batch(0))
        thermometer.observe(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]).double()), *batch(0))

    def test_gradients_that_are_not_finite(self):
        model, optimizer, thermometer = self.make()
        step(model, optimizer, thermometer, *batch(0), cross_entropy)
        saved = copy.deepcopy([model.state_dict(), optimizer.state_dict(), thermometer.history])
        inputs, targets = batch(1)
        with pytest.warns(RuntimeWarning, match="not finite at step 2"):
            step(model, optimizer, thermometer, inputs * math.nan, targets, cross_entropy)
        assert thermometer.history == saved[2]
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        step(model, optimizer, thermometer, inputs, targets, cross_entropy)
        assert all(math.isfinite(v) for v in thermometer.history[-1].values() if v is not None)
        assert thermometer.temperature > 0

    def test_settings(self):
        for settings in ({"interval": 0}, {"window": 2}, {"batch_size": 1}, {"decay": 1.0}, {"confidence": 95}):
            (name,) = settings
            with pytest.raises(ValueError, match=f"{name} must be"):
                self.make(**settings)

    def test_model_of_another(self):
        with pytest.raises(ValueError, match="none of the model's parameters"):
            Thermometer(small_network(), torch.optim.SGD(small_network().parameters(), 0.1))

    def test_law_of_random_lr_is_needed(self):
        model, optimizer, thermometer = self.make()
        hb.RandomLR(optimizer)
        with pytest.raises(ValueError, match="RandomLR: tell its law"):
            step(model, optimizer, thermometer, *batch(0), cross_entropy)

    def test_without_noise_the_other_thermometers_work(self):
        model, optimizer, thermometer = self.make()
        for k in range(6):
            optimizer.zero_grad()
            mse_loss(model(batch(k)[0]), torch.zeros(8, 3).double()).backward()
            optimizer.step()
        assert math.isnan(thermometer.temperature)
        assert thermometer.kinetic_temperature > 0
        assert math.isfinite(thermometer.equilibrium_ratio.high)


def train_on_rank(rank, size, folder, accumulates):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    try:
        torch.set_num_threads(1)
        model = small_network()
        passes = []
        model.register_forward_hook(lambda *_: passes.append(1))
        parallel = DistributedDataParallel(model)
        optimizer = hb.RandomSGD(parallel.parameters(), 0.05, momentum=0.8)
        thermometer = Thermometer(parallel, optimizer, interval=2, batch_size=16, decay=0.0)
        expected, taken = [], 0
        for k in range(6):
            inputs, targets = batch(k, 16)
            pieces = 2 * size if accumulates else size
            rows = zip(inputs.chunk(pieces), targets.chunk(pieces), strict=True)
            parts = torch.stack([gradient(model, *row) for row in rows])
            small, whole = parts.square().sum(dim=1).mean().item(), parts.mean(dim=0).square().sum().item()
            trace = 16 * (small - whole) / (pieces - 1)
            expected.append([trace, (pieces * whole - small) / (pieces - 1)])
            passes.clear()
            optimizer.zero_grad()
            mine = [data.chunk(size)[rank].chunk(pieces // size) for data in (inputs, targets)]
            mine = list(zip(*mine, strict=True))
            for i, row in enumerate(mine):
                if i < len(mine) - 1:
                    with parallel.no_sync():
                        (cross_entropy(parallel(row[0]), row[1]) / len(mine)).backward()
                else:
                    (cross_entropy(parallel(row[0]), row[1]) / len(mine)).backward()
            thermometer.observe(cross_entropy, inputs.chunk(size)[rank], targets.chunk(size)[rank])
            optimizer.step()
            taken += len(passes) - len(mine)
        result = {"history": thermometer.history, "expected": expected[1::2], "extra": taken}
        Path(f"{folder}/rank{rank}.json").write_text(json.dumps(result))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("accumulates", [False, True])
def test_ranks_give_the_noise_without_an_extra_pass(accumulates):
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train_on_rank, args=(2, folder, accumulates), nprocs=2)
        one, two = (json.loads((Path(folder) / f"rank{rank}.json").read_text()) for rank in range(2))
    assert one["history"] == two["history"]
    assert one["extra"] == two["extra"] == 0
    readings = [[reading["trace"], reading["gradient_norm_squared"]] for reading in one["history"]]
    np.testing.assert_allclose(readings, one["expected"], rtol=1e-9)
    assert min(trace for trace, _ in readings) > 0
