"""What only a GPU can show: CUDA graphs, device draws, mixed precision. Skipped, and said so, where there is none."""

import numpy as np
import pytest
import torch
from torch import nn

import heatbath as hb
from heatbath.draws import uniform

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

RULES = {
    "plain": {},
    "heavy ball": {"momentum": 0.9, "weight_decay": 1e-3},
    "nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-3},
    "update": {"momentum": 0.9, "nesterov": True, "coupling": "update"},
    "log-normal": {"momentum": 0.9, "law": hb.LogNormal(0.5)},
    "two points": {"momentum": 0.9, "nesterov": True, "law": hb.TwoPoint(1.0)},
}
FLAGS = [{}, {"fused": True}]


def make(device, dtype=torch.float32, **settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 5)).to(device, dtype)
    return model, hb.RandomSGD(model.parameters(), 0.05, seed=21, **settings)


def batch(k, device, dtype=torch.float32):
    return torch.randn(16, 20, generator=torch.Generator().manual_seed(k)).to(device, dtype)


def train(model, optimizer, steps, device, dtype=torch.float32):
    for k in range(steps):
        optimizer.zero_grad()
        model(batch(k, device, dtype)).pow(2).mean().backward()
        optimizer.step()


def weights(model):
    return torch.cat([p.detach().reshape(-1).double().cpu() for p in model.parameters()])


def test_the_bits_are_those_of_the_host():
    steps = torch.cat([torch.arange(10**6), 2**50 + torch.arange(1000)])
    for seed, stream in ((0, 0), (2**64 - 1, 7)):
        on_device = uniform(seed, stream, steps.cuda())
        assert on_device.is_cuda
        np.testing.assert_array_equal(on_device.cpu().numpy(), uniform(seed, stream, steps.numpy()))


@pytest.mark.parametrize("flags", [{}, {"foreach": False}, {"fused": True}, {"capturable": True}], ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_gpu_and_cpu_walk_the_same_path(rule, flags):
    paths = []
    for device in ("cpu", "cuda"):
        model, optimizer = make(device, torch.float64, **RULES[rule], **flags)
        train(model, optimizer, 20, device, torch.float64)
        paths.append(weights(model))
    torch.testing.assert_close(*paths, rtol=1e-6 if flags.get("fused") else 1e-10, atol=1e-10)


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_a_captured_step_draws_afresh_at_each_replay(rule, flags):
    """Capture forward, backward and step once; each replay must be the step that an uncaptured run would take."""
    model, optimizer = make("cuda", capturable=True, **RULES[rule], **flags)
    twin, eager = make("cuda", **RULES[rule], **flags)
    x = batch(0, "cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for k in range(3):
            x.copy_(batch(k, "cuda"))
            optimizer.zero_grad(set_to_none=False)
            model(x).pow(2).mean().backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for p in model.parameters():
            p.grad.zero_()
        model(x).pow(2).mean().backward()
        optimizer.step()
    rates = []
    for k in range(3, 20):
        x.copy_(batch(k, "cuda"))
        graph.replay()
        rates.append(optimizer.param_groups[0]["multiplier"].item())
    train(twin, eager, 20, "cuda")
    law = RULES[rule].get("law", hb.Uniform(1.0))
    np.testing.assert_allclose(rates, hb.draw(law, 21, 3, 17), rtol=1e-13)
    torch.testing.assert_close(weights(model), weights(twin), rtol=2e-4, atol=1e-5)
    assert optimizer.state_dict()["param_groups"][0]["step"] == 20

    resumed_model, resumed = make("cuda", **RULES[rule], **flags)
    resumed.load_state_dict(optimizer.state_dict())
    train(resumed_model, resumed, 1, "cuda")
    assert float(resumed.param_groups[0]["multiplier"]) == pytest.approx(hb.draw(law, 21, 20, 1)[0], rel=1e-13)


@pytest.mark.parametrize("flags", [{}, {"foreach": False}, {"fused": True}, {"capturable": True}], ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_one_group_on_two_devices(rule, flags):
    starts = torch.arange(6.0, dtype=torch.float64).split(3)
    parameters = [nn.Parameter(starts[0].clone()), nn.Parameter(starts[1].cuda())]
    twins = [nn.Parameter(start.clone()) for start in starts]
    optimizers = [hb.RandomSGD(p, 0.1, seed=2, **RULES[rule], **flags) for p in (parameters, twins)]
    for k in range(8):
        gradients = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(k)).split(3)
        for p, twin, gradient in zip(parameters, twins, gradients, strict=True):
            p.grad, twin.grad = gradient.to(p.device), gradient.clone()
        for optimizer in optimizers:
            optimizer.step()
    for p, twin in zip(parameters, twins, strict=True):
        torch.testing.assert_close(p.cpu(), twin, rtol=1e-7, atol=1e-9)


@pytest.mark.filterwarnings("ignore:.*CUDA Graph is empty")
def test_a_capture_without_a_first_step_is_refused():
    parameter = nn.Parameter(torch.ones(4, device="cuda"))
    parameter.grad = torch.ones_like(parameter)
    optimizer = hb.RandomSGD([parameter], 0.1, momentum=0.9, capturable=True)
    torch.cuda.synchronize()
    with pytest.raises(RuntimeError, match="one step before the capture"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        optimizer.step()


@pytest.mark.parametrize("flags", [{}, {"fused": True}, {"fused": True, "capturable": True}], ids=str)
@pytest.mark.parametrize("rule", ["heavy ball", "nesterov", "update"])
def test_mixed_precision_with_skipped_steps(rule, flags):
    model, optimizer = make("cuda", **RULES[rule], **flags)
    twin, plain = make("cuda", **RULES[rule])
    scaler, twin_scaler = (torch.amp.GradScaler("cuda", init_scale=2.0**10) for _ in range(2))
    moved = 0
    for k in range(12):
        if k == 8:  # what a skipped step leaves behind must be fit for a checkpoint
            optimizer.load_state_dict(optimizer.state_dict())
        for m, o, s in ((model, optimizer, scaler), (twin, plain, twin_scaler)):
            o.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = m(batch(k, "cuda")).pow(2).mean()
            s.scale(loss).backward()
            if k in (0, 4, 5):
                next(m.parameters()).grad.fill_(float("inf"))
            s.step(o)
            s.update()
        moved += k not in (0, 4, 5)
        assert optimizer.state_dict()["param_groups"][0]["step"] == moved
        assert plain.state_dict()["param_groups"][0]["step"] == moved
    torch.testing.assert_close(weights(model), weights(twin), rtol=1e-2, atol=1e-3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rule", ["nesterov", "update", "heavy ball"])
def test_compiled_step_on_the_gpu(rule):
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    model, optimizer = make("cuda", **RULES[rule])
    twin, eager = make("cuda", **RULES[rule])
    compiled = torch.compile(optimizer.step)
    graphs = []
    for k in range(10):
        for m, o, step in ((model, optimizer, compiled), (twin, eager, eager.step)):
            o.zero_grad()
            m(batch(k, "cuda")).pow(2).mean().backward()
            step()
        graphs.append(counters["stats"]["unique_graphs"])
    torch.testing.assert_close(weights(model), weights(twin), rtol=1e-4, atol=1e-5)
    assert float(optimizer.param_groups[0]["multiplier"]) == pytest.approx(
        float(eager.param_groups[0]["multiplier"]), rel=1e-13
    )
    assert graphs[3:] == [graphs[3]] * 7
