"""Both sides of the fluctuation-dissipation relation against the vectors themselves, step by step."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import heatbath as hb
from heatbath.thermometry.balance import Balance
from heatbath.thermometry.step_rules import Knobs
from heatbath.thermometry.step_statistics import describe_motion
from heatbath.thermometry.thermometer import Thermometer
from thermometer_runs import Bowl, batch, small_network, step

pytestmark = pytest.mark.usefixtures("one_thread")


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
def test_telescoped_dissipation_is_the_mean_over_all_steps(coupling, law, settings, interval):
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
        push = g * optimizer.param_groups[0]["multiplier"] * (1 - tau if v is not None else 1)
        v = push if v is None else mu * v + push
        direction = (x - after) / lr
        dissipations.append((x @ push).item() / (1 - tau))
        fluctuations.append(lr * (0.5 * (1 - mu) * direction @ direction + w * direction @ v).item() / (1 - tau))
    d, first = len(x), interval  # the first reading has nothing to compare with
    ends = list(range(2 * interval, 22, interval))
    sides = np.array(thermometer.state_dict()["sides"]) * d
    assert len(sides) == len(ends)
    np.testing.assert_allclose(sides[:, 1], [fluctuations[end - 1] for end in ends], rtol=1e-9)
    gaps = np.array(dissipations) - fluctuations
    expected = [gaps[end - interval : end].mean() for end in ends]
    np.testing.assert_allclose(sides[:, 0] - sides[:, 1], expected, rtol=1e-6, atol=1e-12 * first)


def test_update_coupling_averages_the_multiplier_over_its_law():
    law, lr, mu = hb.LogNormal(0.6), 0.02, 0.7
    model = small_network()
    optimizer = hb.RandomSGD(model.parameters(), lr, law=law, coupling="update", momentum=mu)
    thermometer = Thermometer(model, optimizer, interval=1)
    for k in range(3):
        step(model, optimizer, thermometer, *batch(k), cross_entropy)
    squared = sum(optimizer.velocity(p).square().sum().item() for p in model.parameters())
    expected = 0.5 * lr * (1 + mu + law.variance * (1 - mu)) * squared
    count = sum(p.numel() for p in model.parameters())
    assert thermometer.state_dict()["sides"][-1][1] * count == pytest.approx(expected, rel=1e-9)


def test_far_from_equilibrium():
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


@pytest.mark.parametrize(("curvature", "truth", "highest"), [(0.0, 0.0, 0.98), (0.005, 1.0, 0.99), (2.0, 1.0, 1.0)])
def test_the_interval_holds_the_truth_as_often_as_it_says(curvature, truth, highest):
    """Runs that wander in the flat, and stationary ones that relax slowly or fast; in the last it is too long."""
    runs, lr, mu, interval, rng = 400, 0.02, 0.8, 10, np.random.default_rng(0)
    knobs = Knobs(lr, mu, False, hb.Constant(), "update", 1.0, 0.0, 0.0, 1.0, False)
    spread = 0.0 if curvature == 0.0 else np.sqrt(lr / (2.0 * curvature * (1.0 - mu)))  # of x when it is stationary
    x, b = spread * rng.normal(size=(runs, 6)), np.zeros((runs, 6))
    balances = [Balance(1, 50) for _ in range(runs)]
    for step_ in range(1, 31 * interval + 1):
        b = mu * b + curvature * x + rng.normal(size=x.shape)
        x = x - lr * b
        if step_ % interval == 0 and step_ > 100:
            squares = (x * x).sum(1), (x * b).sum(1), (b * b).sum(1)
            for balance, xx, xb, bb in zip(balances, *squares, strict=True):
                motion = describe_motion(knobs, (xx, 0.0, xb, 0.0, 0.0, bb))
                balance.follow(step_, [6], [motion], [knobs])
    held = np.mean([balance.ratio(0.95).contains(truth) for balance in balances])
    assert 0.92 <= held <= highest


class OnASphere(nn.Module):
    """A loss that knows directions alone, whose minimum is the first axis: gradients are at right angles to ``x``."""

    def __init__(self, start):
        super().__init__()
        self.x = nn.Parameter(start)

    def forward(self, xi):
        return (xi @ self.x - self.x[0]) / self.x.norm()


@pytest.mark.parametrize("knows_loss", [True, False])
def test_a_ratio_of_one_is_no_proof(knows_loss):
    """Weight decay and noise hold |x| where it is, so that the ratio is 1 while the loss falls: it needs a witness."""
    dimension, lr, decay, size, sigma = 200, 0.1, 0.02, 4, 3.0
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(dimension, dtype=torch.float64, generator=generator)
    start[0] = 0.0
    radius = (lr * sigma**2 * (dimension - 1) / (2 * size * decay)) ** 0.25  # where it is stationary
    model = OnASphere(start / start.norm() * radius)
    optimizer = torch.optim.SGD(model.parameters(), lr, weight_decay=decay)
    thermometer = Thermometer(model, optimizer, interval=20)
    for _ in range(1200):
        optimizer.zero_grad()
        xi = sigma * torch.randn(size, dimension, dtype=torch.float64, generator=generator)
        model(xi).mean().backward()
        if knows_loss:
            thermometer.note_loss(-model.x[0] / model.x.norm())
        optimizer.step()
    ratio = thermometer.equilibrium_ratio
    assert ratio.contains(1.0)
    assert ratio.high - ratio.low < 0.05
    if knows_loss:
        assert thermometer.history[-1]["loss"] < thermometer.history[0]["loss"] - 0.5
        assert thermometer.loss_drift.high < 0.0
        assert thermometer.at_equilibrium is False
    else:
        assert thermometer.at_equilibrium is None
