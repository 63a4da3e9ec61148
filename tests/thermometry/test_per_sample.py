"""Gradients as rows, of models with any containers, complex weights and half precision, and where there are none."""

import copy
from collections import UserDict, namedtuple
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from heatbath.thermometry.noise import measure_noise
from noise_problems import EXACT, Named, Phase, check, linear_problem, sample_rows

pytestmark = pytest.mark.usefixtures("one_thread")


class Pair(NamedTuple):
    scores: torch.Tensor
    first: torch.Tensor


CONTAINERS = {
    "named tuple": (lambda s: Pair(s, s[:, 0]), lambda o: o.scores),
    "dict with attributes": (lambda s: Named(scores=s), lambda o: o.scores),
    "flat": (lambda s: s.flatten(0, 1), lambda o: o),
    "with another length": (lambda s: (s, s.new_ones(7)), lambda o: o[0]),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_outputs_keep_their_type(kind):
    """With two rows of scores a sample, which some models put one below the other."""
    wrap, unwrap = CONTAINERS[kind]

    class Wrapped(nn.Linear):
        def forward(self, x):
            return wrap(super().forward(x))

    def mean(outputs, targets):
        return F.cross_entropy(unwrap(outputs).reshape(-1, 4), targets.flatten())

    def total(outputs, targets):
        return F.cross_entropy(unwrap(outputs).reshape(-1, 4), targets.flatten(), reduction="sum")

    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 2, 5, generator=generator), torch.randint(4, (30, 2), generator=generator)
    torch.manual_seed(1)
    model = Wrapped(5, 4).double()
    noise = measure_noise(model, mean, x.double(), y)
    assert noise.method == "exact"
    check(noise, sample_rows(model, mean, x.double(), y), **EXACT)
    with pytest.raises(ValueError, match="sums over the samples"):
        measure_noise(model, total, x.double(), y)


@pytest.mark.parametrize("wrap", [lambda y: Named(y=y), namedtuple("Target", "y")], ids=["dict", "named tuple"])
@pytest.mark.parametrize("kind", [Named, UserDict])
def test_targets_keep_their_type(wrap, kind):
    model, x, y = linear_problem(2)
    noise = measure_noise(model, lambda outputs, targets: F.mse_loss(outputs, targets.y), kind(input=x), wrap(y))
    assert noise.method == "exact"
    assert noise.trace == measure_noise(model, F.mse_loss, x, y).trace


def test_outputs_that_cannot_be_repeated_are_not_checked():
    class Transposed(nn.Linear):
        def forward(self, x):
            return super().forward(x).T

    model, (_, x, y) = Transposed(3, 1).double(), linear_problem(2)
    noise = measure_noise(model, lambda outputs, targets: F.mse_loss(outputs.T, targets), x, y)
    check(noise, sample_rows(model, lambda outputs, targets: F.mse_loss(outputs.T, targets), x, y), **EXACT)


@pytest.mark.parametrize("method", ["exact", "two-batch"])
def test_a_layer_of_two_names_is_left_as_it_was(method):
    """torch's own functional_call leaves its replacements in such a layer, which the optimizer then trains no more."""

    class Repeated(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
            self.layers, self.head = nn.ModuleList([layer, layer]), nn.Linear(4, 4)
            self.head.weight = layer[0].weight

        def forward(self, x):
            for layer in self.layers:
                x = torch.tanh(layer(x))
            return self.head(x)

    torch.manual_seed(0)
    model = Repeated().double().train(method == "two-batch")
    x = torch.randn(20, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    tensors = [*model.parameters(), *model.buffers()]
    state = copy.deepcopy(model.state_dict())
    noise = measure_noise(model, F.mse_loss, x, x.flip(1), method=method)
    assert all(now is then for now, then in zip([*model.parameters(), *model.buffers()], tensors, strict=True))
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert list(noise.layer_traces) == [f"layers.0.{i}.{key}" for i in (0, 1) for key in ("weight", "bias")] + [
        "head.bias"
    ]
    if method == "exact":
        check(noise, sample_rows(model, F.mse_loss, x, x.flip(1)), **EXACT)


def test_statistics_of_a_checkpointed_layer_are_left_as_they_were():
    """Its second run, which keeps statistics too, is in the backward pass."""

    class Saving(nn.Sequential):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False)

    model, x, y = linear_problem(0)
    model = nn.Sequential(Saving(nn.Linear(3, 3), nn.BatchNorm1d(3)), model).double()
    buffers, state = [*model.buffers()], copy.deepcopy(model.state_dict())
    noise = measure_noise(model, F.mse_loss, x, y)
    assert all(now is then for now, then in zip(model.buffers(), buffers, strict=True))
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    plain = nn.Sequential(nn.Sequential(*model[0]), model[1])
    assert noise.trace == pytest.approx(measure_noise(plain, F.mse_loss, x, y).trace, rel=1e-12)


def test_complex_parameters_count_as_their_two_parts():
    (_, x, y), real = linear_problem(1), Phase(3, 2, is_complex=False)
    y = y.repeat(1, 2)
    answer = sample_rows(real, F.mse_loss, x, y)
    direction = torch.randn(3, 2, dtype=torch.complex128, generator=torch.Generator().manual_seed(1))
    for method in ("exact", "two-batch"):
        settings = {"method": method, "batch_size": 4}
        model = Phase(3, 2, is_complex=True)
        noise = measure_noise(model, F.mse_loss, x, y, directions={"d": {"weight": direction}}, **settings)
        both = {"d": {"weight": torch.view_as_real(direction)}}
        other = measure_noise(real, F.mse_loss, x, y, directions=both, **settings)
        assert noise.dimension == other.dimension == 14
        for name in ("gradient_norm_squared", "trace", "trace_error", "effective_rank", "layer_traces"):
            assert getattr(noise, name) == pytest.approx(getattr(other, name), rel=1e-10)
        assert noise.along("d") == pytest.approx(other.along("d"), rel=1e-10)
        if method == "exact":
            check(noise, answer, **EXACT)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", ["exact", "two-batch"])
def test_small_gradients_in_half_precision(dtype, method):
    """Gradients of 1e-4 have squares that float16 does not have; they are those of the same weights in double."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3).to(dtype)
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(64, 6, generator=generator).to(dtype), torch.randint(3, (64,), generator=generator)

    def loss_fn(outputs, targets):
        return 1e-4 * F.cross_entropy(outputs.to(torch.promote_types(outputs.dtype, torch.float32)), targets)

    settings = {"method": method, "batch_size": 4, "chunk_size": 4}
    flat = torch.linspace(-1.0, 1.0, 21)
    half = measure_noise(model, loss_fn, x, y, directions={"flat": flat}, **settings)
    full = measure_noise(copy.deepcopy(model).double(), loss_fn, x.double(), y, directions={"flat": flat}, **settings)
    tolerance = {"rel": 0.01 if dtype == torch.float16 else 0.05}
    for name in ("gradient_norm_squared", "trace", "trace_error", "effective_rank"):
        assert getattr(half, name) == pytest.approx(getattr(full, name), **tolerance), name
    assert half.along("flat") == pytest.approx(full.along("flat"), **tolerance)
    assert half.along() == pytest.approx(full.along(), **tolerance)


def test_wrappers_are_taken_off():
    model, x, y = linear_problem(0)
    plain = measure_noise(model, F.mse_loss, x, y)
    for wrapped in (nn.DataParallel(model), torch.compile(model, backend="eager")):
        noise = measure_noise(wrapped, F.mse_loss, x, y)
        assert (noise.method, noise.layer_traces) == ("exact", plain.layer_traces)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_sum_in_half_precision_is_refused(dtype):
    model, x, y = linear_problem(0, dtype=dtype)
    with pytest.raises(ValueError, match="sums over the samples"):
        measure_noise(model, lambda out, t: (out - t).square().sum(), x, y)
    assert measure_noise(model, F.mse_loss, x, y).trace > 0.0


def test_in_inference_mode():
    model, x, y = linear_problem(0)
    for method in ("exact", "two-batch"):
        plain = measure_noise(model, F.mse_loss, x, y, method=method)
        with torch.inference_mode():
            noise = measure_noise(model, F.mse_loss, x + 0.0, y, method=method)
            assert torch.is_inference_mode_enabled()
        assert noise.trace == plain.trace


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # torch's own
def test_reason_is_short():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 3))
    noise = measure_noise(model, F.cross_entropy, torch.arange(60) % 10, torch.arange(60) % 3)
    assert noise.method == "two-batch"
    assert "torch.func cannot take per-sample gradients" in noise.reason
    assert len(noise.reason) < 250
