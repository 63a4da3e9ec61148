"""What the estimators of the noise promise where data or model are random: no bias, and honest errors."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from heatbath.thermometry.noise import measure_noise
from noise_problems import conv_problem, known_answer, linear_problem, sample_rows

pytestmark = pytest.mark.usefixtures("one_thread")


def gaussian_problem(seed, n, delta, sigma):
    """Linear regression with the law of its gradient known, ``S1 = 4 (|delta|^2 + sigma^2) I + 4 delta delta^T``.

    Inputs are standard normal, targets ``w* . x + sigma e`` and the weights ``w* + delta``, so that ``g = 2 delta``.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, len(delta), generator=generator, dtype=torch.float64)
    y = x.sum(dim=1, keepdim=True) + sigma * torch.randn(n, 1, generator=generator, dtype=torch.float64)
    model = nn.Linear(len(delta), 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(1.0 + torch.tensor([delta], dtype=torch.float64))
    covariance = 4 * (np.dot(delta, delta) + sigma**2) * np.eye(len(delta)) + 4 * np.outer(delta, delta)
    return model, x, y, covariance


@pytest.mark.parametrize(("method", "n", "settings"), [("exact", 60, {}), ("two-batch", 90, {"batch_size": 3})])
def test_estimates_are_unbiased_and_their_errors_honest(method, n, settings):
    delta, sigma, repeats = [0.15, -0.1, 0.25], 0.7, 200
    found = []
    for seed in range(repeats):
        model, x, y, covariance = gaussian_problem(seed, n, delta, sigma)
        directions = {"first": torch.tensor([2.0, 0.0, 0.0])}
        noise = measure_noise(model, F.mse_loss, x, y, method=method, directions=directions, **settings)
        found.append([noise.gradient_norm_squared, noise.trace, noise.along("first"), noise.trace_error])
    found = np.array(found)
    truth = [4 * np.dot(delta, delta), np.trace(covariance), covariance[0, 0]]
    z = (found[:, :3].mean(axis=0) - truth) / (found[:, :3].std(axis=0, ddof=1) / math.sqrt(repeats))
    assert np.all(np.abs(z) < 3.5), z
    # Without the corrections the squared gradient would be off by far more than that.
    biased = (found[:, 0] + found[:, 1] / n).mean() - truth[0]
    assert biased > 4 * found[:, 0].std() / math.sqrt(repeats)
    scatter, claimed = found[:, 1].std(ddof=1), math.sqrt(np.mean(found[:, 3] ** 2))
    assert 0.85 < claimed / scatter < 1.3
    assert np.mean(np.abs(found[:, 1] - truth[1]) < 2 * found[:, 3]) > 0.85


@pytest.mark.parametrize("method", ["exact", "two-batch"])
def test_effective_rank_is_not_bounded_by_the_number_of_rows(method):
    delta = [0.05] * 150
    ranks, naive = [], []
    for seed in range(40):
        model, x, y, covariance = gaussian_problem(seed, 24 if method == "exact" else 96, delta, 1.0)
        noise = measure_noise(model, F.mse_loss, x, y, method=method, batch_size=4)
        assert noise.spectrum_rows == 24
        ranks.append(1.0 / noise.effective_rank)
        naive.append(noise.trace**2 / np.sum(noise.spectrum**2))
    truth = np.trace(covariance) ** 2 / np.sum(covariance**2)
    assert truth > 75
    assert max(naive) < 24
    error = np.std(ranks, ddof=1) / math.sqrt(len(ranks))
    assert abs(np.mean(ranks) - 1.0 / truth) < 4 * error
    assert error * truth < 0.1


def test_exact_and_batches_agree_on_a_network():
    model, x, labels = conv_problem(n=600)
    model.eval()
    exact = measure_noise(model, F.cross_entropy, x, labels)
    batches = measure_noise(model, F.cross_entropy, x, labels, method="two-batch", batch_size=6)
    assert (batches.method, batches.samples, batches.spectrum_rows) == ("two-batch", 600, 100)
    assert abs(batches.trace - exact.trace) < 4 * batches.trace_error < 0.5 * exact.trace
    assert batches.gradient_norm_squared == pytest.approx(exact.gradient_norm_squared, rel=0.05)
    assert batches.effective_rank == pytest.approx(exact.effective_rank, rel=0.3)
    assert batches.spectrum.sum() == pytest.approx(batches.trace, rel=1e-12)
    assert exact.spectrum_rows == 512


def test_batches_are_drawn_from_sorted_data_at_random():
    model, x, y = linear_problem(3, n=2500)
    order = y[:, 0].argsort()
    exact = measure_noise(model, F.mse_loss, x, y)
    batches = measure_noise(model, F.mse_loss, x[order], y[order], method="two-batch", batch_size=40)
    assert abs(batches.trace - exact.trace) < 4 * batches.trace_error
    sums = [
        measure_noise(model, F.mse_loss, x[order], y[order], spectrum_samples=250, seed=seed).spectrum.sum()
        for seed in range(6)
    ]
    # Five errors of the trace are four of this mean; the first 250 of the sorted samples are 18 away.
    assert abs(np.mean(sums) - exact.trace) < 5 * exact.trace_error
    assert known_answer(sample_rows(model, F.mse_loss, x[order[:250]], y[order[:250]]))["trace"] > 1.5 * exact.trace


def test_dropout_is_part_of_the_noise():
    """With loss = mean output and inputs of ones a sample's gradient is its mask: variance p / (1 - p) a component."""
    model = nn.Sequential(nn.Dropout(0.4), nn.Linear(20, 1, bias=False)).double()
    x, y = torch.ones(3000, 20, dtype=torch.float64), torch.zeros(3000)
    noise = measure_noise(model, lambda outputs, _: outputs.mean(), x, y, batch_size=15)
    assert noise.method == "two-batch"
    assert "random" in noise.reason or "deterministic" in noise.reason
    assert abs(noise.trace - 20 * 0.4 / 0.6) < 4 * noise.trace_error < 2.0
    assert measure_noise(model.eval(), lambda outputs, _: outputs.mean(), x, y).trace == pytest.approx(0.0, abs=1e-20)
    with pytest.raises(ValueError, match=r"dropout in training mode.*use method='two-batch'"):
        measure_noise(model.train(), lambda outputs, _: outputs.mean(), x, y, method="exact")


def test_batch_norm_in_training_mode():
    model, x, labels = conv_problem(n=48)
    model.body[4].p = 0.0
    with pytest.raises(ValueError, match=r"'body.1' is a BatchNorm.*no per-sample gradient; use method='two-batch'"):
        measure_noise(model, F.cross_entropy, x, labels, method="exact")
    noise = measure_noise(model, F.cross_entropy, x, labels, batch_size=8)
    assert noise.method == "two-batch"
    order = torch.randperm(48, generator=torch.Generator().manual_seed(0))
    rows = []
    for batch in order.split(8):
        grads = torch.autograd.grad(F.cross_entropy(model(x[batch]), labels[batch]), list(model.parameters()))
        rows.append(torch.cat([g.flatten() for g in grads]).numpy())
    answer = known_answer(np.array(rows))
    np.testing.assert_allclose([noise.trace, noise.trace_error], 8 * np.array([answer["trace"], answer["trace_error"]]))
    np.testing.assert_allclose(noise.gradient_norm_squared, answer["gradient_norm_squared"])
    np.testing.assert_allclose(noise.spectrum, 8 * answer["spectrum"][:5])
    np.testing.assert_allclose(noise.along(), 8 * answer["along the gradient"])


@pytest.mark.parametrize("order", ["drawn", "sorted", "periodic"])
@pytest.mark.parametrize("loss", ["weighted", "masked"])
def test_a_loss_that_weighs_samples_by_their_batch(order, loss):
    """Whatever the order of the classes: no per-sample gradient, as the weights are divided by those of the batch."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (300,), generator=generator)
    labels = {"drawn": labels, "sorted": labels.sort().values, "periodic": torch.arange(300) % 3}[order]
    x = torch.randn(300, 4, generator=generator, dtype=torch.float64)
    weight = torch.tensor([1.0, 5.0, 0.2], dtype=torch.float64)

    def loss_fn(outputs, targets):
        if loss == "weighted":
            return F.cross_entropy(outputs, targets, weight=weight)
        return F.cross_entropy(outputs, targets, ignore_index=2)

    model = nn.Linear(4, 3).double()
    with pytest.raises(ValueError, match="not the mean of the losses of its samples"):
        measure_noise(model, loss_fn, x, labels, method="exact")
    noise = measure_noise(model, loss_fn, x, labels, batch_size=10)
    assert (noise.method, noise.reason != "") == ("two-batch", True)
    assert measure_noise(model, F.cross_entropy, x, labels).method == "exact"


@pytest.mark.parametrize("chunk_size", [None, 50])
def test_a_rare_class_that_its_batch_weighs(chunk_size):
    """Ten samples of a thousand: most of the time none is among the few that the loss is tried on beforehand."""
    x = torch.randn(1000, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.zeros(1000, dtype=torch.long)
    labels[100:110] = 1
    model, weight = nn.Linear(4, 2).double(), torch.tensor([1.0, 50.0], dtype=torch.float64)

    def loss_fn(outputs, targets):
        return F.cross_entropy(outputs, targets, weight=weight)

    with pytest.raises(ValueError, match=r"not the mean of the losses .* use method='two-batch'"):
        measure_noise(model, loss_fn, x, labels, method="exact", chunk_size=chunk_size)
    noise = measure_noise(model, loss_fn, x, labels, batch_size=50, chunk_size=chunk_size)
    assert noise.reason.startswith("the loss of a batch")
    asked = measure_noise(model, loss_fn, x, labels, method="two-batch", batch_size=50)
    assert (noise.trace, noise.method, noise.samples) == (asked.trace, "two-batch", 1000)
    assert measure_noise(model, F.cross_entropy, x, labels, chunk_size=chunk_size).method == "exact"


def test_a_coupling_that_no_layer_type_tells():
    class Centred(nn.Linear):
        def forward(self, x):
            return super().forward(x - x.mean(dim=0))

    model, (_, x, y) = Centred(3, 1).double(), linear_problem(0)
    with pytest.raises(ValueError, match="not the mean of the losses of its samples"):
        measure_noise(model, F.mse_loss, x, y, method="exact")
    assert measure_noise(model, F.mse_loss, x, y).method == "two-batch"
