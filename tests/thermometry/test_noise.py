"""The gradient noise of models whose answer is known, and what `measure_noise` takes, refuses and leaves alone."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from heatbath.laws import Constant, TwoPoint, Uniform
from heatbath.thermometry.noise import measure_noise
from noise_problems import EXACT, check, conv_problem, linear_problem, sample_rows

pytestmark = pytest.mark.usefixtures("one_thread")


def square_trace(rows):
    """The mean of ``[(y_i - y_j) . (y_k - y_l)]^2 / 4`` over distinct rows: unbiased for ``tr S^2``, term by term."""
    gram = rows @ rows.T
    i, j, k, m = np.array(list(itertools.permutations(range(len(rows)), 4))).T
    return np.mean((gram[i, k] - gram[i, m] - gram[j, k] + gram[j, m]) ** 2) / 4


@pytest.mark.parametrize("n", [3, 12])
def test_linear_regression_in_closed_form(n):
    model, x, y = linear_problem(0, n=n)
    noise = measure_noise(model, F.mse_loss, x, y, directions={"slope": torch.tensor([3.0, 0.0, 4.0, 0.0])})
    extended = np.hstack([x.numpy(), np.ones((n, 1))])
    weights = np.append(model.weight.detach().numpy(), model.bias.detach().numpy())
    rows = 2.0 * (extended @ weights - y.numpy()[:, 0])[:, None] * extended
    answer = check(noise, rows, **EXACT)
    unit = np.array([0.6, 0.0, 0.8, 0.0])
    np.testing.assert_allclose(noise.along("slope"), unit @ answer["covariance"] @ unit, **EXACT)
    layers = np.diag(answer["covariance"])
    np.testing.assert_allclose(list(noise.layer_traces.values()), [layers[:3].sum(), layers[3]], **EXACT)
    assert list(noise.layer_traces) == ["weight", "bias"]
    assert (noise.method, noise.samples, noise.batch_size, noise.dimension) == ("exact", n, 1, 4)
    if n > 3:
        rank = (answer["trace"] ** 2 - answer["trace_error"] ** 2) / square_trace(rows)
        np.testing.assert_allclose(noise.effective_rank, max(1.0, rank), **EXACT)
    else:
        assert math.isnan(noise.effective_rank)


def test_softmax_regression_in_closed_form():
    generator = torch.Generator().manual_seed(1)
    model = nn.Linear(5, 4).double()
    x = torch.randn(30, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(4, (30,), generator=generator)
    noise = measure_noise(model, F.cross_entropy, x, labels, method="exact")
    scores = x.numpy() @ model.weight.detach().numpy().T + model.bias.detach().numpy()
    residual = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True) - np.eye(4)[labels.numpy()]
    rows = np.hstack([np.einsum("nk,nd->nkd", residual, x.numpy()).reshape(30, -1), residual])
    answer = check(noise, rows, rtol=1e-10, atol=1e-14)
    layers = np.diag(answer["covariance"])
    np.testing.assert_allclose(list(noise.layer_traces.values()), [layers[:20].sum(), layers[20:].sum()], **EXACT)
    rank = (answer["trace"] ** 2 - answer["trace_error"] ** 2) / square_trace(rows[:30])
    np.testing.assert_allclose(noise.effective_rank, rank, **EXACT)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_conv_net_against_a_loop_over_samples(dtype):
    model, x, labels = conv_problem(dtype=dtype)
    model.eval()
    noise = measure_noise(model, F.cross_entropy, x, labels)
    rows = sample_rows(model, F.cross_entropy, x, labels)
    assert noise.method == "exact"
    check(noise, rows, **(EXACT if dtype == torch.float64 else {"rtol": 2e-5, "atol": 1e-6}))


@pytest.mark.parametrize(
    "settings",
    [{"chunk_size": 1}, {"chunk_size": 5}, {"chunk_size": 1000}, {"memory_budget": 16000}, {"memory_budget": 60000}],
)
def test_chunks_and_memory_do_not_change_the_result(settings):
    model, x, labels = conv_problem(n=40)
    model.eval()
    full = measure_noise(model, F.cross_entropy, x, labels, spectrum_samples=23)
    noise = measure_noise(model, F.cross_entropy, x, labels, spectrum_samples=23, **settings)
    assert noise.method == "exact"
    assert noise.chunk_size == min(settings.get("chunk_size", noise.chunk_size), 40)
    assert full.chunk_size == 40
    if "memory_budget" in settings:
        assert noise.chunk_size < 20
    for name in ("gradient_norm_squared", "trace", "trace_error", "effective_rank", "spectrum"):
        np.testing.assert_allclose(getattr(noise, name), getattr(full, name), rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(noise.along(), full.along(), **EXACT)


def test_memory_does_not_change_the_result_of_batches():
    model, x, labels = conv_problem(n=40)
    kept = measure_noise(model, F.cross_entropy, x, labels, method="two-batch", batch_size=5)
    again = measure_noise(model, F.cross_entropy, x, labels, method="two-batch", batch_size=5, memory_budget=1)
    assert kept.spectrum_rows == 8
    assert kept.trace == pytest.approx(again.trace, rel=1e-12)  # the same dropout masks, drawn again
    np.testing.assert_allclose(kept.spectrum, again.spectrum, rtol=1e-10)


@pytest.mark.parametrize("method", ["exact", "two-batch"])
def test_nothing_is_left_behind(method):
    model, x, labels = conv_problem(n=16, dtype=torch.float32)
    if method == "exact":
        model.eval()
    model.head.bias.requires_grad_(False)
    model.head.weight.grad = torch.ones_like(model.head.weight)
    state, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    random, legacy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    noise = measure_noise(model, F.cross_entropy, x, labels, method=method)
    assert torch.equal(random, torch.get_rng_state())
    assert np.array_equal(legacy, np.random.get_state()[1])  # noqa: NPY002
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert modes == [m.training for m in model.modules()]
    assert torch.equal(model.head.weight.grad, torch.ones_like(model.head.weight))
    assert all(p.grad is None for name, p in model.named_parameters() if name != "head.weight")
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == ["head.bias"]
    assert "head.bias" not in noise.layer_traces
    assert noise.trace == measure_noise(model, F.cross_entropy, x, labels, method=method).trace
    with torch.no_grad():
        assert noise.trace == measure_noise(model, F.cross_entropy, x, labels, method=method).trace


def test_tied_parameters_count_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(torch.tanh(self.first(x)))

    model = Tied().double()
    x = torch.randn(20, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    noise = measure_noise(model, F.mse_loss, x, x.flip(1))
    assert (noise.method, list(noise.layer_traces)) == ("exact", ["first.weight", "first.bias"])
    check(noise, sample_rows(model, F.mse_loss, x, x.flip(1)), **EXACT)


def test_inputs_and_targets_in_any_container():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.unused = nn.Linear(3, 1), nn.Linear(2, 2)

        def forward(self, one, other):
            return self.layer(one + other), one

    def loss_fn(outputs, targets):
        target = targets["y"] if isinstance(targets, dict) else targets[0]
        return F.mse_loss(outputs[0], target)

    model = Sum().double()
    _, x, y = linear_problem(2)
    plain = measure_noise(model.layer, F.mse_loss, x, y)
    for inputs in ((x / 2, x / 2), [x / 2, x / 2], {"other": x, "one": 0 * x}):
        for targets in ({"y": y}, (y,)):
            noise = measure_noise(model, loss_fn, inputs, targets)
            assert noise.trace == pytest.approx(plain.trace, rel=1e-12)
            assert noise.layer_traces["unused.weight"] == 0.0


def test_a_penalty_on_the_weights_moves_the_gradient_alone():
    model, x, y = linear_problem(5)
    plain = measure_noise(model, F.mse_loss, x, y)
    rows = sample_rows(model, F.mse_loss, x, y)
    decayed = measure_noise(model, lambda out, t: F.mse_loss(out, t) + 0.5 * model.weight.square().sum(), x, y)
    mean = rows.mean(axis=0) + np.append(model.weight.detach().numpy(), 0.0)
    np.testing.assert_allclose(decayed.gradient_norm_squared, mean @ mean - plain.trace / 40, **EXACT)
    np.testing.assert_allclose(decayed.trace, plain.trace, **EXACT)


def test_directions_in_every_form():
    model, x, labels = conv_problem(n=20)
    model.eval()
    parameters = dict(model.named_parameters())
    parts = {name: torch.arange(1.0, p.numel() + 1).reshape(p.shape) for name, p in parameters.items()}
    directions = {
        "flat": torch.cat([part.flatten() for part in parts.values()]),
        "list": list(parts.values()),
        "dict": parts,
        "head": {"head.weight": parts["head.weight"]},
    }
    noise = measure_noise(model, F.cross_entropy, x, labels, directions=directions)
    rows = sample_rows(model, F.cross_entropy, x, labels)
    flat = directions["flat"].double().numpy()
    expected = np.var(rows @ flat, ddof=1) / (flat @ flat)
    np.testing.assert_allclose([noise.along(name) for name in ("flat", "list", "dict")], expected, **EXACT)
    head = np.concatenate([p.flatten().numpy() * (name == "head.weight") for name, p in parts.items()])
    np.testing.assert_allclose(noise.along("head"), np.var(rows @ head, ddof=1) / (head @ head), **EXACT)
    with pytest.raises(ValueError, match="no direction 'sharpest' was measured"):
        noise.along("sharpest")
    with pytest.raises(ValueError, match="'gradient' is always measured"):
        measure_noise(model, F.cross_entropy, x, labels, directions={"gradient": directions["flat"]})
    turned = {"head.weight": torch.ones(27, 4)}
    for bad in (torch.ones(3), [torch.ones(3)], {"nose": torch.ones(3)}, {"head.bias": torch.zeros(4)}, turned):
        with pytest.raises(ValueError, match="direction 'bad' "):
            measure_noise(model, F.cross_entropy, x, labels, directions={"bad": bad})
    with pytest.raises(TypeError, match="direction 'bad' must be made of tensors, got ndarray"):
        measure_noise(model, F.cross_entropy, x, labels, directions={"bad": flat})
    with pytest.raises(TypeError, match="directions must be a dict of vectors by name, got Tensor"):
        measure_noise(model, F.cross_entropy, x, labels, directions=directions["flat"])


@pytest.mark.parametrize("size", [1, 3, 7])
def test_covariance_with_a_random_rate_against_all_mini_batches(size):
    """SGD without replacement on 7 samples and a two-point law: every outcome is enumerated."""
    model, x, y = linear_problem(6, n=7)
    law = TwoPoint(0.6)
    rows = sample_rows(model, F.mse_loss, x, y)
    mean = rows.mean(axis=0)
    outcomes = np.array(
        [
            mean - alpha * rows[list(batch)].mean(axis=0)
            for batch in itertools.combinations(range(7), size)
            for alpha in (1 - 0.6, 1 + 0.6)
        ]
    )
    found = measure_noise(model, F.mse_loss, x, y).covariance_trace(law, size, dataset_size=7)
    np.testing.assert_allclose(found.total, np.mean(np.sum(outcomes**2, axis=1)), **EXACT)
    np.testing.assert_allclose(found.multiplier, 0.36 * mean @ mean, **EXACT)
    np.testing.assert_allclose(found.dropped, (1 - 1 / size) * 0.36 * mean @ mean, **EXACT)
    assert found.dropped_fraction == found.dropped / found.total


def test_covariance_of_an_endless_stream():
    model, x, y = linear_problem(6)
    noise = measure_noise(model, F.mse_loss, x, y)
    found = noise.covariance_trace("uniform:0.5", 16)
    assert found == noise.covariance_trace(Uniform(0.5), 16)
    s2 = 0.25 / 3
    assert found.sampling == pytest.approx((1 + s2) * noise.trace / 16)
    assert found.multiplier == pytest.approx(s2 * noise.gradient_norm_squared)
    assert noise.covariance_trace(Constant(), 16) == (pytest.approx(noise.trace / 16), 0.0, 0.0)
    for bad in ({"batch_size": 0}, {"batch_size": 16, "dataset_size": 15}):
        with pytest.raises(ValueError, match="must be an integer with"):
            noise.covariance_trace("uniform:0.5", **bad)


@pytest.mark.parametrize("method", ["auto", "exact", "two-batch"])
def test_a_loss_that_sums_is_refused(method):
    model, x, y = linear_problem(0)
    with pytest.raises(ValueError, match=r"sums over the samples.*reduction='mean'"):
        measure_noise(model, nn.MSELoss(reduction="sum"), x, y, method=method)
    with pytest.raises(ValueError, match=r"sums over the samples.*reduction='mean'"):  # whatever else is in it
        measure_noise(model, lambda out, t: (out - t).square().sum() + 9.0 * model.weight.norm(), x, y, method=method)
    with pytest.raises(ValueError, match=r"one number.*got a tensor of shape \(4, 1\)"):
        measure_noise(model, nn.MSELoss(reduction="none"), x, y, method=method)


@pytest.mark.parametrize("method", ["exact", "two-batch"])
def test_gradients_that_are_not_finite_are_refused(method):
    model, x, y = linear_problem(0)
    x[17, 1] = math.nan
    with pytest.raises(ValueError, match=r"not finite .* in weight"):
        measure_noise(model, F.mse_loss, x, y, method=method)
    x[0, 0] = math.inf
    with pytest.raises(ValueError, match="the loss is inf"):
        measure_noise(model, F.mse_loss, x, y, method=method)


def test_bad_input_says_what_to_do():
    model, x, y = linear_problem(0)
    frozen = nn.Linear(3, 1).double().requires_grad_(False)
    cases = [
        (ValueError, "at least 2 samples, got 1", (model, x[:1], y[:1]), {}),
        (ValueError, "inputs has 40, targets has 39", (model, x, y[:39]), {}),
        (ValueError, "no trainable parameters", (frozen, x, y), {}),
        (ValueError, "method must be", (model, x, y), {"method": "fast"}),
        (ValueError, "less than 2 batches", (model, x, y), {"method": "two-batch", "batch_size": 21}),
        (ValueError, "batch_size must be", (model, x, y), {"batch_size": 0}),
        (ValueError, "chunk_size must be", (model, x, y), {"chunk_size": 0}),
        (TypeError, "memory_budget must be", (model, x, y), {"memory_budget": 1.5}),
        (TypeError, "inputs must be a tensor", (model, x.numpy(), y), {}),
        (ValueError, "memory_budget of at least", (model, x, y), {"memory_budget": 10, "method": "exact"}),
    ]
    for error, message, (module, inputs, targets), settings in cases:
        with pytest.raises(error, match=message):
            measure_noise(module, F.mse_loss, inputs, targets, **settings)
    small = measure_noise(model, F.mse_loss, x, y, memory_budget=10)
    assert small.method == "two-batch"
    assert "memory_budget" in small.reason


def test_a_minimum_and_two_samples():
    """No gradient: no direction of it, and an endless noise scale. Two samples: a trace, but no error of it."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    noise = measure_noise(model, F.mse_loss, torch.ones(2, 1).double(), torch.tensor([[1.0], [-1.0]]).double())
    assert noise.trace == 8.0
    assert noise.gradient_norm_squared == -4.0
    assert math.isinf(noise.noise_scale)
    assert all(math.isnan(value) for value in (noise.trace_error, noise.effective_rank, noise.along()))
    assert noise.spectrum.tolist() == [8.0]


@pytest.mark.filterwarnings("ignore")
def test_opacus_finds_the_same_variance():
    """An independent implementation of per-sample gradients: hooks on the layers, no ``torch.func``."""
    from opacus import GradSampleModule

    _, x, labels = conv_problem(n=32)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 4)).double()
    noise = measure_noise(model, F.cross_entropy, x, labels, method="exact")
    wrapped = GradSampleModule(copy.deepcopy(model), loss_reduction="mean")
    F.cross_entropy(wrapped(x), labels).backward()
    rows = torch.cat([p.grad_sample.flatten(1) for p in wrapped.parameters()], dim=1)
    for (name, _), p in zip(model.named_parameters(), wrapped.parameters(), strict=True):
        assert noise.layer_traces[name] == pytest.approx(p.grad_sample.var(dim=0).sum().item(), rel=1e-10)
    eigenvalues = torch.linalg.eigvalsh(torch.cov(rows.T)).flip(0)
    np.testing.assert_allclose(noise.spectrum[:31], eigenvalues[:31], rtol=1e-9, atol=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-3)])
def test_cpu_and_gpu_agree(dtype, tolerance):
    model, x, labels = conv_problem(n=64, dtype=dtype)
    model.eval()
    other = copy.deepcopy(model).cuda()
    random = torch.cuda.get_rng_state()
    for settings in ({}, {"method": "two-batch"}):
        cpu = measure_noise(model, F.cross_entropy, x, labels, **settings)
        for data in ((x, labels), (x.cuda(), labels.cuda())):
            gpu = measure_noise(other, F.cross_entropy, *data, **settings)
            for name in ("gradient_norm_squared", "trace", "trace_error", "noise_scale", "effective_rank"):
                assert getattr(gpu, name) == pytest.approx(getattr(cpu, name), rel=tolerance), name
            np.testing.assert_allclose(gpu.spectrum[:10], cpu.spectrum[:10], rtol=tolerance)
    noise = measure_noise(other.train(), F.cross_entropy, x, labels)
    assert noise.method == "two-batch"
    assert noise.trace == pytest.approx(measure_noise(other, F.cross_entropy, x, labels).trace, rel=1e-5)
    assert torch.equal(random, torch.cuda.get_rng_state())


def test_attention_gives_no_warnings():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.layer(x, x, x, need_weights=False)[0].mean(dim=1))

    torch.manual_seed(0)
    model, targets = Attention(), torch.randint(3, (16,))
    inputs = torch.randn(16, 5, 4)
    noise = measure_noise(model, F.cross_entropy, inputs, targets)  # pytest makes errors of warnings
    assert noise.method == "exact"
    each = []
    for x, y in zip(inputs.split(1), targets.split(1), strict=True):
        grads = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
        each.append(torch.cat([g.flatten() for g in grads]))
    assert noise.trace == pytest.approx(torch.stack(each).var(dim=0).sum().item(), rel=1e-4)


@pytest.mark.parametrize("training", [True, False])
def test_an_encoder_gives_no_warnings(training):
    """In evaluation mode torch has a fast path, which vmap does not know."""
    model = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).train(training)
    noise = measure_noise(model, F.mse_loss, torch.randn(16, 5, 4), torch.randn(16, 5, 4))
    assert noise.method == "exact"
    assert torch.backends.mha.get_fastpath_enabled()
