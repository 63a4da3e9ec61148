"""The linear form of a step is the step of `RandomSGD`, for one network and for a row of them."""

import itertools

import pytest
import torch

import heatbath as hb
from heatbath.kernels import linear_coefficients, linear_sgd

CASES = list(itertools.product(("gradient", "update"), ((0.0, False), (0.7, False), (0.7, True)), (0.0, 0.3)))


def gradients(steps, shape):
    generator = torch.Generator().manual_seed(1)
    return torch.randn((steps, *shape), generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("coupling", "form", "decay"), CASES, ids=lambda value: str(value))
def test_linear_steps_are_those_of_the_optimizer(coupling, form, decay):
    momentum, nesterov = form
    start, kicks = gradients(1, (4, 3))[0], gradients(8, (4, 3)) + 0.5
    ours = torch.nn.Parameter(start.clone())
    optimizer = hb.RandomSGD(
        [ours], 0.1, momentum=momentum, nesterov=nesterov, weight_decay=decay, coupling=coupling, seed=9
    )
    param, velocity, half = start.clone(), torch.zeros_like(start), start.bfloat16()
    for kick, rate in zip(kicks, hb.draw(hb.Uniform(1.0), 9, 0, 8), strict=True):
        ours.grad = kick.clone()
        optimizer.step()
        coefficients = linear_coefficients(float(rate), 0.1, momentum, nesterov, coupling)
        numbers = [torch.full((4,), number, dtype=torch.float64) for number in (*coefficients, momentum, decay)]
        linear_sgd([param], [kick], [velocity], numbers[:3], *numbers[3:], gains=(1.0,), copies=[half])
        assert torch.equal(half, param.bfloat16())
    torch.testing.assert_close(param, ours.detach(), rtol=1e-12, atol=1e-12)
    assert (param - start).norm() > 0.1


@pytest.mark.parametrize("coupling", ["gradient", "update"])
def test_rows_have_their_own_knobs(coupling):
    start, kicks = gradients(1, (3, 5))[0], gradients(6, (3, 5))
    lrs, momenta, decays = (0.1, 0.03, 0.2), (0.9, 0.0, 0.5), (0.0, 0.1, 0.01)
    param, velocity = start.clone(), torch.zeros_like(start)
    rates = [hb.draw(hb.Uniform(1.0), seed, 0, 6) for seed in range(3)]
    for step, kick in enumerate(kicks):
        rows = [linear_coefficients(rates[i][step], lrs[i], momenta[i], i == 0, coupling) for i in range(3)]
        numbers = torch.tensor(rows, dtype=torch.float64).T.unbind()
        knobs = (torch.tensor(values, dtype=torch.float64) for values in (momenta, decays))
        linear_sgd([param], [kick.clone()], [velocity], numbers, *knobs, gains=(1.0,))
    for i in range(3):
        one, at_rest = start[i : i + 1].clone(), torch.zeros(1, 5, dtype=torch.float64)
        for step, kick in enumerate(kicks):
            row = linear_coefficients(float(rates[i][step]), lrs[i], momenta[i], i == 0, coupling)
            numbers = [torch.tensor([number], dtype=torch.float64) for number in (*row, momenta[i], decays[i])]
            linear_sgd([one], [kick[i : i + 1]], [at_rest], numbers[:3], *numbers[3:], gains=(1.0,))
        torch.testing.assert_close(param[i : i + 1], one, rtol=1e-12, atol=1e-12)


def test_a_gain_trains_a_sum_of_equal_blocks():
    """The sum of 49 blocks that always have the same gradient is one block whose gradient has the gain 49."""
    blocks = gradients(49, (2, 3))
    ours = torch.nn.Parameter(blocks.clone())
    optimizer = hb.RandomSGD([ours], 0.01, momentum=0.9, nesterov=True, weight_decay=0.2, seed=4)
    total, velocity = blocks.sum(0), torch.zeros(2, 3, dtype=torch.float64)
    for kick, rate in zip(gradients(5, (2, 3)), hb.draw(hb.Uniform(1.0), 4, 0, 5), strict=True):
        ours.grad = kick.expand(49, 2, 3).clone()
        optimizer.step()
        row = (*linear_coefficients(float(rate), 0.01, 0.9, True, "gradient"), 0.9, 0.2)
        numbers = [torch.full((2,), number, dtype=torch.float64) for number in row]
        linear_sgd([total], [kick.clone()], [velocity], numbers[:3], *numbers[3:], gains=(49.0,))
    torch.testing.assert_close(total, ours.detach().sum(0), rtol=1e-12, atol=1e-12)
