"""``torch.compile`` of the step. The tracing is real; the "eager" backend keeps the C++ compiler out of the tests."""

import copy

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import heatbath as hb
from heatbath.optim.step_hooks import is_rehearsal

RULES = {
    "nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "heavy ball": {"momentum": 0.9},
    "plain": {},
    "update": {"momentum": 0.9, "nesterov": True, "coupling": "update"},
    "log-normal": {"momentum": 0.9, "law": hb.LogNormal(0.4)},
    "constant": {"momentum": 0.9, "nesterov": True, "law": hb.Constant()},
    "capturable": {"momentum": 0.9, "nesterov": True, "capturable": True},
    "fused": {"momentum": 0.9, "nesterov": True, "fused": True},
}


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def make(rule):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    return model, hb.RandomSGD(model.parameters(), 0.05, seed=2, **RULES[rule])


def backward(model, optimizer, k):
    x = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(k))
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rule", RULES)
def test_compiled_step_draws_afresh_without_recompiling(rule):
    model, optimizer = make(rule)
    twin, eager = make(rule)
    compiled = torch.compile(optimizer.step, backend="eager")
    graphs = []
    for k in range(14):
        backward(model, optimizer, k)
        compiled()
        graphs.append(counters["stats"]["unique_graphs"])
        backward(twin, eager, k)
        eager.step()
        assert float(optimizer.param_groups[0]["multiplier"]) == float(eager.param_groups[0]["multiplier"])
    torch.testing.assert_close(weights(model), weights(twin), rtol=1e-13, atol=1e-13)
    # The first step, which has no velocity yet, has a graph of its own, as in torch.optim.SGD.
    assert graphs[0] >= 1
    assert graphs[1:] == [graphs[1]] * 13

    # A step by hand in between changes nothing for the compiled one.
    for k in range(14, 18):
        backward(model, optimizer, k)
        (compiled if k % 2 else optimizer.step)()
        backward(twin, eager, k)
        eager.step()
    torch.testing.assert_close(weights(model), weights(twin), rtol=1e-13, atol=1e-13)


@pytest.mark.filterwarnings("ignore")
def test_compiled_training_step_with_a_scheduler():
    """Forward, backward and step in one compiled function, and a tensor rate that a scheduler changes."""
    model, _ = make("plain")
    lr = torch.tensor(0.05, dtype=torch.float64)
    optimizer = hb.RandomSGD(model.parameters(), lr, momentum=0.9, seed=2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    twin, eager = make("heavy ball")
    eager_scheduler = torch.optim.lr_scheduler.ExponentialLR(eager, 0.9)

    @torch.compile(backend="eager")
    def train_step(x):
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    graphs = []
    for k in range(10):
        x = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(k))
        train_step(x)
        scheduler.step()
        backward(twin, eager, k)
        eager.step()
        eager_scheduler.step()
        graphs.append(counters["stats"]["unique_graphs"])
    torch.testing.assert_close(weights(model), weights(twin), rtol=1e-12, atol=1e-12)
    assert graphs[2:] == [graphs[2]] * 8


@pytest.mark.filterwarnings("ignore")
def test_resume_of_a_compiled_run():
    model, optimizer = make("nesterov")
    compiled = torch.compile(optimizer.step, backend="eager")
    for k in range(6):
        backward(model, optimizer, k)
        compiled()
    resumed_model, resumed = make("nesterov")
    resumed_model.load_state_dict(model.state_dict())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert resumed.state_dict()["param_groups"][0]["step"] == 6
    for k in range(6, 10):
        for m, o in ((model, optimizer), (resumed_model, resumed)):
            backward(m, o, k)
        compiled()
        resumed.step()
    torch.testing.assert_close(weights(model), weights(resumed_model), rtol=1e-13, atol=1e-13)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("rule", "whole"), [("nesterov", False), ("heavy ball", True), ("update", False), ("capturable", False)]
)
def test_several_groups_and_a_layer_that_joins_late(rule, whole):
    """The tracer of "aot_eager", as of the default backend, starts again midway: it must find the state as it was."""

    def build():
        model, _ = make(rule)
        groups = [{"params": model[i].parameters()} for i in (0, 2)]
        return model, hb.RandomSGD(groups, 0.05, seed=2, **RULES[rule])

    def train(model, optimizer, x, joins, step):
        hidden = model[:2](x)
        model[2](hidden if joins else hidden.detach()).pow(2).mean().backward()
        step()
        optimizer.zero_grad()

    (model, optimizer), (twin, eager) = build(), build()
    compiled_train = torch.compile(train, backend="aot_eager") if whole else train
    compiled_step = optimizer.step if whole else torch.compile(optimizer.step, backend="aot_eager")
    graphs = []
    for k in range(7):
        x = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(k))
        compiled_train(model, optimizer, x, k >= 3, compiled_step)
        graphs.append(counters["stats"]["unique_graphs"])
        train(twin, eager, x, k >= 3, eager.step)
        assert len(optimizer.state) == (4 if k >= 3 else 2)
    torch.testing.assert_close(weights(model), weights(twin), rtol=1e-13, atol=1e-13)
    assert graphs[2] == graphs[1]
    assert graphs[4:] == [graphs[4]] * 3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rule", ["nesterov", "plain"])
def test_a_compiled_rehearsal_consumes_no_draw(rule):
    model, optimizer = make(rule)
    compiled = torch.compile(optimizer.step, backend="eager")
    for group, p in ((g, p) for g in optimizer.param_groups for p in g["params"]):
        group["lr"], p.grad = 0.0, torch.zeros_like(p)
    assert is_rehearsal(optimizer)
    before = weights(model)
    compiled()
    assert optimizer.state_dict()["param_groups"][0]["step"] == 0
    assert all(not buffer.any() for state in optimizer.state.values() for buffer in state.values())
    assert torch.equal(weights(model), before)
    optimizer.param_groups[0]["lr"] = 0.05
    twin, eager = make(rule)
    for k in range(3):
        backward(model, optimizer, k)
        compiled()
        backward(twin, eager, k)
        eager.step()
    torch.testing.assert_close(weights(model), weights(twin), rtol=1e-13, atol=1e-13)
