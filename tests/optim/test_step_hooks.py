"""Which steps belong to no mini-batch."""

import pytest
import torch

import heatbath as hb
from heatbath.optim.step_hooks import is_rehearsal
from heatbath.thermometry.thermometer import Thermometer
from optimizer_walks import make_gradients, make_parameters, walk


class Unreadable(torch.Tensor):
    """A tensor of an accelerator: reading it would make the host wait."""

    is_cpu = False

    def __bool__(self):
        raise AssertionError("read")


@pytest.fixture
def optimizer():
    a, b, frozen = make_parameters(((2,), (3,), (4,)))
    frozen.requires_grad_(False)
    a.grad, b.grad = torch.zeros_like(a), torch.zeros_like(b)
    return torch.optim.SGD([{"params": [a]}, {"params": [b, frozen]}], 0.0)


@pytest.mark.parametrize("rates", [(0.0, 0.0), (torch.tensor(0.0), torch.zeros(1)), (0, torch.tensor(0.0))], ids=str)
def test_all_rates_and_gradients_are_zero(optimizer, rates):
    for group, lr in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = lr
    assert is_rehearsal(optimizer)


@pytest.mark.parametrize("lr", [0.1, 1e-300, torch.tensor(0.1)], ids=str)
@pytest.mark.parametrize("index", [0, 1])
def test_one_rate_is_not_zero(optimizer, lr, index):
    optimizer.param_groups[index]["lr"] = lr
    assert not is_rehearsal(optimizer)


@pytest.mark.parametrize("value", [1e-45, float("nan"), float("inf")])
def test_one_gradient_is_not_zero(optimizer, value):
    optimizer.param_groups[1]["params"][0].grad[1] = value
    assert not is_rehearsal(optimizer)


def test_one_gradient_is_not_there_or_sparse(optimizer):
    parameter = optimizer.param_groups[0]["params"][0]
    parameter.grad = parameter.grad.to_sparse()
    assert not is_rehearsal(optimizer)
    parameter.grad = None
    assert not is_rehearsal(optimizer)


def test_nothing_on_an_accelerator_is_read(optimizer):
    optimizer.param_groups[0]["lr"] = torch.tensor(0.0).as_subclass(Unreadable)
    assert not is_rehearsal(optimizer)


def test_no_gradient_is_read_if_a_rate_is_not_zero(optimizer, monkeypatch):
    def read(*_):
        raise AssertionError("read")

    monkeypatch.setattr(torch, "equal", read)
    optimizer.param_groups[1]["lr"] = 0.1
    assert not is_rehearsal(optimizer)


def test_a_warm_up_step_at_rate_zero_counts():
    parameters = make_parameters()
    optimizer = hb.RandomSGD(parameters, 0.0, momentum=0.9, seed=2)
    walk(optimizer, parameters, make_gradients(parameters, 3))
    assert optimizer.state_dict()["param_groups"][0]["step"] == 3
    assert optimizer.param_groups[0]["multiplier"] == hb.draw(hb.Uniform(1.0), 2, 2, 1)[0]


@pytest.mark.parametrize("kind", ["gradient", "update", "RandomLR"])
def test_a_step_that_calls_its_parents_step_is_one(kind):
    """torch runs the hooks in both, once the class of the parent has been used."""

    class Logging(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            self.rates = [group["lr"] for group in self.param_groups]

    ends, plain = [], torch.optim.SGD(make_parameters(((2,),)), 0.1)
    assert type(plain).step.hooked
    for optimizer_class in (torch.optim.SGD, Logging):
        model = torch.nn.Linear(3, 2, dtype=torch.float64)
        torch.nn.init.ones_(model.weight)
        torch.nn.init.zeros_(model.bias)
        optimizer = optimizer_class(model.parameters(), 0.1, momentum=0.5)
        draws = hb.RandomLR(optimizer, seed=3) if kind == "RandomLR" else hb.randomize(optimizer, coupling=kind, seed=3)
        with Thermometer(model, optimizer, interval=2) as thermometer:
            for k in range(4):
                optimizer.zero_grad()
                shown = optimizer.param_groups[0]["lr"]
                model(torch.full((4, 3), float(k + 1), dtype=torch.float64)).square().mean().backward()
                optimizer.step()
                if kind == "RandomLR":
                    draws.step()
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        assert [reading["step"] for reading in thermometer.history] == [2, 4]
    assert torch.equal(*ends)
    assert optimizer.rates == [0.1 * draws.multiplier if kind == "update" else shown]
