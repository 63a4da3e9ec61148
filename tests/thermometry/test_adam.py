"""The thermometers of Adam and AdamW: exact answers with a frozen preconditioner, and the weights with a living one."""

import numpy as np
import pytest
import torch
from scipy.linalg import solve_discrete_lyapunov
from torch.nn.functional import cross_entropy

import heatbath as hb
from heatbath.thermometry.thermometer import Thermometer
from thermometer_runs import Bowl, assert_alike, batch, small_network, step, z_score

pytestmark = pytest.mark.usefixtures("one_thread")
DIRECTIONS, SIZE = 40, 6


def frozen(optimizer, squares):
    """An optimizer whose ``v`` has been collected for ever: neither a step nor its bias correction changes it."""
    for parameter in optimizer.param_groups[0]["params"]:
        state = {"step": torch.tensor(1e18), "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": squares.clone()}
        optimizer.state[parameter] = state
    return optimizer


def stationary(lr, beta, decay, curvature, metric, noise):
    """The moments of ``(x, m)`` of one direction, from the recursion itself."""
    step_matrix = np.array(
        [[1 - lr * decay - lr * metric * (1 - beta) * curvature, -lr * metric * beta], [(1 - beta) * curvature, beta]]
    )
    kick = np.array([[-lr * metric * (1 - beta)], [1 - beta]])
    return solve_discrete_lyapunov(step_matrix, noise * kick @ kick.T)


@pytest.mark.parametrize(
    ("kind", "decay", "beta", "coupling"),
    [
        (torch.optim.AdamW, 0.0, 0.8, None),
        (torch.optim.AdamW, 0.3, 0.9, None),
        (torch.optim.Adam, 0.0, 0.0, None),
        (torch.optim.AdamW, 0.1, 0.7, "gradient"),
        (torch.optim.AdamW, 0.1, 0.7, "update"),
    ],
)
def test_quadratic_with_a_frozen_preconditioner(kind, decay, beta, coupling):
    curvature, diffusion = np.linspace(0.5, 2.0, DIRECTIONS), np.linspace(3.0, 0.5, DIRECTIONS)
    squares, eps, lr, law = torch.linspace(0.2, 5.0, DIRECTIONS, dtype=torch.float64), 0.1, 0.02, hb.TwoPoint(0.8)
    metric = 1.0 / (squares.sqrt().numpy() + eps)
    model = Bowl(curvature)
    settings = {"betas": (beta, float(np.nextafter(1.0, 0.0))), "eps": eps, "weight_decay": decay}
    optimizer = frozen(kind(model.parameters(), lr, **settings), squares)
    if coupling:
        hb.randomize(optimizer, law, coupling=coupling, seed=3)
    warm_up = Thermometer(model, optimizer, interval=10**6)
    noise = torch.randn(3400, SIZE, DIRECTIONS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    noise = noise * torch.tensor(diffusion).sqrt()
    for xi in noise[:400]:
        step(model, optimizer, warm_up, xi)
    thermometer = Thermometer(model, optimizer, interval=4, decay=0.0, window=1000)
    for xi in noise[400:]:
        step(model, optimizer, thermometer, xi)
    readings = thermometer.history

    factor = hb.Thermostat(lr, SIZE, beta, law=law, coupling=coupling).law_factor if coupling else 1.0
    temperature = lr * factor * (metric * diffusion).mean() / (2 * SIZE)
    assert z_score([r["trace"] for r in readings], diffusion.sum()) < 4
    assert z_score([r["temperature"] for r in readings], temperature) < 4
    assert thermometer.at_equilibrium
    assert 0 < thermometer.equilibrium_ratio.high - thermometer.equilibrium_ratio.low < 0.1
    kinetic, fluctuation = (np.array([r[key] for r in readings]) for key in ("kinetic_temperature", "fluctuation"))
    # All agree, up to corrections of first order in the rate.
    np.testing.assert_allclose([kinetic.mean(), fluctuation[-1]], temperature, rtol=0.1)
    if coupling:
        return
    rows = zip(curvature, metric, diffusion / SIZE, strict=True)
    moments = np.array([stationary(lr, beta, decay, *row) for row in rows])
    squared = (curvature**2 * moments[:, 0, 0]).sum()
    assert z_score([r["gradient_norm_squared"] for r in readings], squared) < 4
    assert z_score(kinetic, 0.5 * lr * (1 + beta) / (1 - beta) * (metric * moments[:, 1, 1]).mean()) < 4
    direction = np.stack([decay / np.sqrt(metric), np.sqrt(metric)], 1) / (1 - lr * decay)  # D in terms of (x, m)
    velocity = np.stack([0.0 * metric, np.sqrt(metric)], 1)
    square, cross = (np.einsum("di,dij,dj->d", direction, moments, v).mean() for v in (direction, velocity))
    exact = lr / (1 - beta) * (0.5 * (1 - beta) * square + beta * cross)
    assert z_score(np.array(thermometer.state_dict()["sides"])[:, 1], exact) < 4


def test_weights_with_a_living_preconditioner():
    """Equal directions of curvature 1: the variance of the preconditioned weights is the temperature."""
    model = Bowl(np.ones(400))
    optimizer = torch.optim.AdamW(model.parameters(), 0.005, betas=(0.9, 0.99), weight_decay=0.0)
    thermometer, variances = Thermometer(model, optimizer, interval=20, window=1000), []
    for k, xi in enumerate(torch.randn(4000, 4, 400, dtype=torch.float64, generator=torch.Generator().manual_seed(2))):
        step(model, optimizer, thermometer, xi)
        if k >= 1000 and k % 20 == 19:
            variances.append(model.x.detach().square().mean().item())
    temperatures = [r["temperature"] for r in thermometer.history if r["step"] > 1000]
    assert np.mean(temperatures) == pytest.approx(np.mean(variances), rel=0.05)
    assert np.mean(temperatures) == pytest.approx(0.005 * 2.0 / 8, rel=0.05)  # sqrt(v) is that of the noise, 1/2
    assert thermometer.kinetic_temperature == pytest.approx(thermometer.temperature, rel=0.1)
    assert thermometer.equilibrium_ratio.contains(1.0)


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("settings", [{}, {"amsgrad": True}, {"foreach": False}, {"maximize": True}])
@pytest.mark.filterwarnings("ignore:the optimizer got gradients:RuntimeWarning")
def test_noise_from_halves_and_from_micro_batches(pieces, settings, clips):
    """The same two halves, observed or as micro-batches, weighed with the preconditioner of the step."""
    model = small_network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, **settings)
    thermometer = Thermometer(model, optimizer, interval=1, decay=0.0, batch_size=8)
    for k in range(1, 5):
        optimizer.zero_grad()
        inputs, targets = batch(k)
        halves = list(zip(inputs.chunk(2), targets.chunk(2), strict=True))
        grads = [torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters())) for x, y in halves]
        if pieces == 1:
            thermometer.observe(cross_entropy, inputs, targets)
            cross_entropy(model(inputs), targets).backward()
        else:
            for x, y in halves:
                (cross_entropy(model(x), y) / 2).backward()
        length = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1 if clips else np.inf).item()
        optimizer.step()
        total = 0.0
        for p, one, two in zip(model.parameters(), *grads, strict=True):
            size = optimizer.state[p]["max_exp_avg_sq" if settings.get("amsgrad") else "exp_avg_sq"]
            metric = 1 / (1 - 0.9**k) / ((size / (1 - 0.999**k)).sqrt() + 1e-8)
            total += (metric * (one - two).square()).sum().item() / 4
        exact = min(1.0, 0.1 / length if clips else 1.0) * 0.01 * total / (2 * 57)
        assert thermometer.temperature == pytest.approx(exact, rel=2e-3 if clips else 1e-6)


@pytest.mark.parametrize("pieces", [1, 2])
def test_rows_that_had_no_gradient_for_long_do_not_boil(pieces):
    """Words of a language model: without the gradient of the step in it, their preconditioner would be 1/eps."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(1000, 4), torch.nn.Flatten(), torch.nn.Linear(12, 3)).double()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    thermometer = Thermometer(model, optimizer, interval=1, decay=0.0, batch_size=8)
    for k in range(30):
        optimizer.zero_grad()
        words = torch.randint(1000, (8, 3), generator=torch.Generator().manual_seed(k))
        if pieces == 1:
            thermometer.observe(cross_entropy, words, batch(k)[1])
        for x, y in zip(words.chunk(pieces), batch(k)[1].chunk(pieces), strict=True):
            (cross_entropy(model(x), y) / pieces).backward()
        optimizer.step()
    temperatures = [reading["temperature"] for reading in thermometer.history]
    assert min(temperatures) > 0
    assert max(temperatures) < 1e-3  # with 1/eps it would be above 1


class Lion(torch.optim.Optimizer):
    """Another step, with settings of its own and without any rate that a group would name."""

    def __init__(self, params):
        super().__init__(params, {"size": 1e-3})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["size"] * p.grad.sign())


@pytest.mark.parametrize("kind", [Lion, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.ASGD, torch.optim.NAdam])
def test_any_optimizer_has_noise_and_says_why_it_has_no_temperature(kind):
    model, twin = small_network(), small_network()
    optimizer = kind(model.parameters())
    thermometer = Thermometer(model, optimizer, interval=1, decay=0.5)
    plain = torch.optim.SGD(twin.parameters(), 0.0)
    reference = Thermometer(twin, plain, interval=1, decay=0.5)
    for k in range(6):
        twin.load_state_dict(model.state_dict())
        step(model, optimizer, thermometer, *batch(k), cross_entropy)
        step(twin, plain, reference, *batch(k), cross_entropy)
    assert thermometer.temperature is thermometer.kinetic_temperature is None
    assert kind.__name__ in thermometer.reason
    assert thermometer.at_equilibrium is None
    assert reference.reason == ""
    assert thermometer.trace == reference.trace > 0
    assert thermometer.trace.low < thermometer.trace < thermometer.trace.high
    assert thermometer.history[-1]["lr"] == optimizer.param_groups[0].get("lr")
    keys = ("step", "trace", "trace_low", "trace_high", "noise_scale", "noise_scale_low", "noise_scale_high")
    assert_alike(*[[{key: r[key] for key in keys} for r in t.history] for t in (thermometer, reference)])


@pytest.mark.parametrize("parent", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, hb.RandomSGD])
def test_a_subclass_with_a_step_of_its_own_is_not_its_parent(parent):
    class Mere(parent):
        pass

    class Other(parent):
        def step(self, closure=None):
            return super().step(closure)

    model = small_network()
    for _ in range(2):  # torch wraps the step of a class when its first optimizer is built
        assert Thermometer(model, Mere(model.parameters(), lr=0.1)).reason == ""
        thermometer = Thermometer(model, Other(model.parameters(), lr=0.1))
        assert thermometer.temperature is None
        assert "the step of Other is not known" in thermometer.reason


def test_settings_like_those_of_sgd_tell_no_step():
    class Signs(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.1, "momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": False})

        def step(self):
            raise NotImplementedError

    model = small_network()
    assert Thermometer(model, Signs(model.parameters())).temperature is None


def test_multiplied_gradients_are_not_clipped_ones():
    """`randomize` multiplies them after the backward pass, also of an optimizer whose step is not known."""
    for kind in (Lion, torch.optim.AdamW):
        model = small_network()
        optimizer = kind(model.parameters())
        hb.randomize(optimizer, hb.Uniform(1.0), seed=2)
        thermometer = Thermometer(model, optimizer, interval=1)
        for k in range(4):
            step(model, optimizer, thermometer, *batch(k), cross_entropy)
        assert [reading["clipping"] for reading in thermometer.history] == [1.0] * 4
