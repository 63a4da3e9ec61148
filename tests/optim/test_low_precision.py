"""`RandomSGD` in formats of few bits: errors stay at rounding, and the moving unit of its buffers in range."""

import numpy as np
import pytest
import torch
from torch import nn

import heatbath as hb
from optimizer_walks import IMPLEMENTATIONS, make_gradients, make_parameters, walk
from oracles import random_sgd_path


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("implementation", ["for-loop", "foreach", "fused", "capturable", "capturable fused"])
def test_low_precision_stays_close_to_the_reference(implementation, dtype):
    parameters = make_parameters(dtype=dtype)
    gradients = make_gradients(parameters, 20)
    start = parameters[0].detach().double().numpy().copy()
    optimizer = hb.RandomSGD(
        parameters, 0.01, momentum=0.9, nesterov=True, seed=4, weight_decay=0.01, **IMPLEMENTATIONS[implementation]
    )
    walk(optimizer, parameters, gradients)
    assert all(optimizer.velocity(p).dtype is dtype for p in parameters)
    positions, _ = random_sgd_path(
        start,
        lambda k, x: gradients[k][0].double().numpy(),
        hb.draw(hb.Uniform(1.0), 4, 0, 20),
        **{"lr": 0.01, "coupling": "gradient", "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    )
    tolerance = 40 * torch.finfo(dtype).eps
    np.testing.assert_allclose(parameters[0].detach().double().numpy(), positions[-1], rtol=tolerance, atol=tolerance)


def test_many_draws_near_zero_do_not_disturb_the_moving_unit():
    """The law with the most zeros, momentum close to 1, and single precision: errors stay at rounding."""
    for law in (hb.TwoPoint(1.0), hb.Arcsine(1.0), hb.LogNormal(2.0)):
        parameters = make_parameters(((50,),), dtype=torch.float32)
        gradients = make_gradients(parameters, 400)
        start = parameters[0].detach().double().numpy().copy()
        optimizer = hb.RandomSGD(parameters, 1e-2, law=law, momentum=0.99, nesterov=True, seed=2, fused=True)
        walk(optimizer, parameters, gradients)
        path, _ = random_sgd_path(
            start,
            lambda k, x, gradients=gradients: gradients[k][0].double().numpy(),
            hb.draw(law, 2, 0, 400),
            **{"lr": 1e-2, "coupling": "gradient", "momentum": 0.99, "nesterov": True},
        )
        error = np.abs(parameters[0].detach().double().numpy() - path[-1]).max() / np.abs(path).max()
        assert error < 1e-5


def test_half_precision_buffers_do_not_overflow_in_the_moving_unit():
    parameter = nn.Parameter(torch.zeros(64, dtype=torch.float16))
    optimizer = hb.RandomSGD([parameter], 1e-6, law=hb.LogNormal(2.0), momentum=0.9, nesterov=True, seed=1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        parameter.grad = (50 * torch.randn(64, generator=generator)).half()
        optimizer.step()
    assert torch.isfinite(optimizer.state[parameter]["momentum_buffer"]).all()
    assert torch.isfinite(parameter).all()


@pytest.mark.parametrize("half_first", [False, True])
def test_half_precision_among_others_keeps_the_range_of_its_buffers(half_first):
    """The velocities stay below the largest float16 number, 65504; in a moving unit the buffers would not."""
    half, single = nn.Parameter(torch.zeros(4, dtype=torch.float16)), nn.Parameter(torch.zeros(4))
    group = [half, single] if half_first else [single, half]
    optimizer = hb.RandomSGD(group, 1e-6, law=hb.LogNormal(1.5), momentum=0.9, nesterov=True, seed=1)
    largest = 0.0
    for _ in range(40):
        half.grad, single.grad = torch.full((4,), 1500.0).half(), torch.full((4,), 1500.0)
        optimizer.step()
        largest = max(largest, optimizer.velocity(single).max().item())
        torch.testing.assert_close(optimizer.velocity(half).float(), optimizer.velocity(single), rtol=5e-3, atol=0.0)
    assert 65504 / 4 < largest < 65504
    torch.testing.assert_close(half.detach().float(), single.detach(), rtol=0.02, atol=0.0)
