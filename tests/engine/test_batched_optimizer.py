"""The linear form of a step is the step of `RandomSGD`, for one network and for a row of them."""

import itertools

import pytest
import torch
from torch._inductor.utils import run_and_get_code

import heatbath as hb
from heatbath.engine.batched_optimizer import linear_coefficients, linear_sgd
from heatbath.engine.split_bf16 import join, split

NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
CASES = list(itertools.product(("gradient", "update"), ((0.0, False), (0.7, False), (0.7, True)), (0.0, 0.3)))


def gradients(steps, shape):
    generator = torch.Generator().manual_seed(1)
    return torch.randn((steps, *shape), generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("coupling", "form", "decay"), CASES, ids=lambda value: str(value))
def test_batched_sgds_are_those_of_the_optimizer(coupling, form, decay):
    momentum, nesterov = form
    start, kicks = gradients(1, (4, 3))[0], gradients(8, (4, 3)) + 0.5
    ours = torch.nn.Parameter(start.clone())
    optimizer = hb.RandomSGD(
        [ours], 0.1, momentum=momentum, nesterov=nesterov, weight_decay=decay, coupling=coupling, seed=9
    )
    param, velocity = start.clone(), torch.zeros_like(start)
    for kick, rate in zip(kicks, hb.draw(hb.Uniform(1.0), 9, 0, 8), strict=True):
        ours.grad = kick.clone()
        optimizer.step()
        coefficients = linear_coefficients(float(rate), 0.1, momentum, nesterov, coupling)
        numbers = [torch.full((4,), number, dtype=torch.float64) for number in (*coefficients, momentum, decay)]
        linear_sgd([param], [kick], [velocity], numbers[:3], *numbers[3:], gains=(1.0,))
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


def bits(tensor):
    return tensor.view(torch.int32).tolist()


@pytest.mark.parametrize(("coupling", "form", "decay"), CASES, ids=lambda value: str(value))
def test_a_step_of_halves_is_a_step_of_the_whole(coupling, form, decay):
    """Bit for bit, of parameters and velocities; two parameters of three networks, the first with a gain."""
    momentum, nesterov = form
    shapes, gains = ((3, 2, 4), (3, 5)), (49.0, 1.0)
    whole = [gradients(1, shape)[0].float() for shape in shapes]
    halves = [split(param) for param in whole]
    highs, lows = [high for high, _ in halves], [low for _, low in halves]
    velocities, others = ([torch.zeros(shape) for shape in shapes] for _ in range(2))
    starts = [param.clone() for param in whole]
    for step, rate in enumerate(hb.draw(hb.Uniform(1.0), 9, 0, 20)):
        grads = [gradients(20, shape)[step].bfloat16() for shape in shapes]
        row = (*linear_coefficients(float(rate), 0.01, momentum, nesterov, coupling), momentum, decay)
        numbers = [torch.tensor([number, 0.5 * number, 2.0 * number]) for number in row]
        linear_sgd(whole, grads, velocities, numbers[:3], *numbers[3:], gains)
        linear_sgd(highs, grads, others, numbers[:3], *numbers[3:], gains, lows)
        for high, low, param in zip(highs, lows, whole, strict=True):
            assert bits(join(high, low)) == bits(param)
        assert [bits(one) for one in others] == [bits(one) for one in velocities]
    assert all((param - start).norm() > 0.05 for param, start in zip(whole, starts, strict=True))


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize(
    ("device", "rows"),
    [("cpu", 1), pytest.param("cuda", 1, marks=NEEDS_CUDA), pytest.param("cuda", 3, marks=NEEDS_CUDA)],
)
def test_a_compiled_step_of_halves_goes_over_memory_once(device, rows):
    """It is a compiled step of the whole, to how a compiler rounds, and puts nothing down in between.

    For a CPU, which never does it, the compiler makes two passes of it if there are several rows.
    """
    shapes, gains = ((rows, 300, 70), (rows, 60)), (49.0, 1.0)
    whole = [gradients(1, shape)[0].float().to(device) for shape in shapes]
    grads = [(gradients(2, shape)[1] + 0.5).bfloat16().to(device) for shape in shapes]
    highs, lows = (list(halves) for halves in zip(*map(split, whole), strict=True))
    velocities, others = ([torch.zeros_like(param) for param in whole] for _ in range(2))
    row = torch.tensor([0.7, 0.02, 0.03, 0.9, 0.01], device=device)
    numbers = (row[:, None] / torch.arange(1, rows + 1, device=device)).unbind()
    step = torch.compile(linear_sgd, dynamic=False)
    for _ in range(3):
        step(whole, grads, velocities, numbers[:3], *numbers[3:], gains)
    arguments = highs, grads, others, numbers[:3], *numbers[3:], gains, lows
    _, (code,) = run_and_get_code(step, *arguments)
    for _ in range(2):
        step(*arguments)
    found = [*map(join, highs, lows), *others]
    torch.testing.assert_close(found, [*whole, *velocities], rtol=1e-6, atol=1e-6)
    assert f"empty_strided_{device}(" not in code


def test_halves_of_a_diverged_network_diverge_too():
    high, low = split(torch.tensor([[1.0], [2.0], [3.0]]))
    grad, velocity = torch.tensor([[float("nan")], [float("inf")], [0.5]]).bfloat16(), torch.zeros(3, 1)
    one, zero = torch.ones(3), torch.zeros(3)
    linear_sgd([high], [grad], [velocity], (one, one, one), zero, zero, (1.0,), [low])
    for found in (high.float(), join(high, low)):
        assert found[0].isnan()
        assert found[1:].flatten().tolist() == [-float("inf"), 2.0]
