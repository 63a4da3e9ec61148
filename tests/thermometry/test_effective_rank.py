"""The effective rank of gradient noise against its definition and on laws of known rank, and its standard error."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from heatbath.thermometry.moments import participation_ratio
from heatbath.thermometry.noise import measure_noise

pytestmark = pytest.mark.usefixtures("one_thread")

FALLING = 1.0 / np.arange(1.0, 61.0)  # a spectrum with an effective rank of 13.5


def measure_rows(rows, **settings):
    """The noise of a model whose gradient is its input: the mean of ``w . x`` has the gradient ``x``."""
    x = torch.as_tensor(rows, dtype=torch.float64)
    model = nn.Linear(x.shape[1], 1, bias=False).double()
    return measure_noise(model, lambda outputs, _: outputs.mean(), x, torch.zeros(len(x)), **settings)


def draw_rows(seed, n, eigenvalues, scale=0.0):
    """Gaussian rows of a given spectrum, about a mean, each times a log-normal number: the rank stays the same."""
    generator = np.random.default_rng(seed)
    rows = generator.standard_normal((n, len(eigenvalues))) * np.sqrt(eigenvalues)
    return 0.3 + rows * np.exp(scale * generator.standard_normal((n, 1)))


def known_rank(eigenvalues):
    return eigenvalues.sum() ** 2 / np.sum(eigenvalues**2)


def rank_by_definition(rows):
    """``[T^2 - jackknife variance of T] / B``, with ``B`` the mean over all choices of four distinct rows."""
    n, gram = len(rows), rows @ rows.T
    i, j, k, m = np.array(list(itertools.permutations(range(n), 4))).T
    square = np.mean((gram[i, k] - gram[i, m] - gram[j, k] + gram[j, m]) ** 2) / 4
    trace, *without = (np.trace(np.cov(part.T)) for part in (rows, *(np.delete(rows, k, axis=0) for k in range(n))))
    return (trace**2 - (n - 1) * np.var(without)) / square


def error_by_definition(rows):
    without = [rank_by_definition(np.delete(rows, k, axis=0)) for k in range(len(rows))]
    return math.sqrt((len(rows) - 1) * np.var(without))


@pytest.mark.parametrize(("n", "scale"), [(5, 0.0), (6, 0.0), (9, 0.0), (9, 1.0)])
def test_estimate_and_error_by_their_definition(n, scale):
    rows = draw_rows(n, n, FALLING[:12], scale)
    noise = measure_rows(rows)
    assert noise.effective_rank == pytest.approx(rank_by_definition(rows), rel=1e-9)
    assert noise.effective_rank_error == pytest.approx(error_by_definition(rows), rel=1e-8)
    assert noise.effective_rank_error > 0.05 * noise.effective_rank


def test_both_traces_come_from_the_same_rows():
    rows = draw_rows(1, 30, FALLING[:12], scale=1.0)
    noise = measure_rows(rows, spectrum_samples=8, seed=5)
    drawn = rows[torch.randperm(30, generator=torch.Generator().manual_seed(5))[:8].numpy()]
    assert noise.effective_rank == pytest.approx(rank_by_definition(drawn), rel=1e-9)
    assert noise.effective_rank_error == pytest.approx(error_by_definition(drawn), rel=1e-8)


def test_batches_have_the_rank_of_their_means():
    rows = draw_rows(2, 24, FALLING[:12])
    noise = measure_rows(rows, method="two-batch", batch_size=3)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0)).numpy()
    means = rows[order].reshape(8, 3, -1).mean(axis=1)
    assert noise.effective_rank == pytest.approx(rank_by_definition(means), rel=1e-9)
    assert noise.effective_rank_error == pytest.approx(error_by_definition(means), rel=1e-8)


@pytest.mark.parametrize(
    ("n", "scale", "settings"),
    [(100, 0.0, {}), (200, 0.5, {}), (200, 0.0, {"method": "two-batch", "batch_size": 2})],
    ids=["gaussian", "heavy", "batches"],
)
def test_rank_of_a_known_spectrum(n, scale, settings):
    """The mean over seeds is the rank within its error, which the plug-in rank of the spectrum misses by far."""
    truth, repeats = known_rank(FALLING), 120
    found = np.empty((repeats, 3))
    for seed in range(repeats):
        noise = measure_rows(draw_rows(seed, n, FALLING, scale), **settings)
        plug_in = noise.spectrum.sum() ** 2 / np.sum(noise.spectrum**2)
        found[seed] = noise.effective_rank, noise.effective_rank_error, plug_in
    ranks, errors, plug_ins = found.T
    scatter = ranks.std(ddof=1)
    # A ratio keeps a bias of the order of its relative variance, here about one error of this mean.
    assert abs(ranks.mean() - truth) < 3.5 * scatter / math.sqrt(repeats)
    assert plug_ins.mean() - truth < -8 * scatter / math.sqrt(repeats)
    claimed = math.sqrt(np.mean(errors**2))
    assert 0.85 < claimed / scatter < 1.3
    z = (ranks - truth) / errors
    assert np.mean(np.abs(z) < 2) > 0.88
    assert np.mean(np.abs(z) < 1) < 0.85  # an error that is too large is not honest either


def test_heavy_tails_make_the_error_large_not_false():
    """Rows with log-normal lengths, a few of which carry both traces: the rank is the same, and hard to know."""
    truth, repeats = known_rank(FALLING), 150
    heavy = np.array([participation_ratio(centred_gram(draw_rows(s, 150, FALLING, 1.2))) for s in range(repeats)])
    light = np.array([participation_ratio(centred_gram(draw_rows(s, 150, FALLING))) for s in range(repeats)])
    assert np.median(heavy[:, 1]) > 2.5 * np.median(light[:, 1])
    assert np.mean(np.abs(heavy[:, 0] - truth) < 2 * heavy[:, 1]) > 0.85


def test_a_trace_of_other_rows_would_scatter_more():
    """Why the trace of all rows does not enter: the lengths of the rows cancel in a ratio of the same ones."""
    same, mixed = [], []
    for seed in range(60):
        noise = measure_rows(draw_rows(seed, 600, FALLING, scale=0.7), spectrum_samples=60)
        same.append(math.log(noise.effective_rank))
        mixed.append(math.log(noise.effective_rank * (noise.trace / noise.spectrum.sum()) ** 2))
    assert np.std(same) < 0.75 * np.std(mixed)


def test_error_falls_with_the_number_of_rows():
    rows = draw_rows(0, 1600, FALLING)
    few, many = (measure_rows(rows, spectrum_samples=n).effective_rank_error for n in (100, 1600))
    assert 2.5 < few / many < 6.0


def test_few_rows_have_no_error():
    rows = draw_rows(3, 5, FALLING)
    three, four, five = (measure_rows(rows[:n]) for n in (3, 4, 5))
    assert math.isnan(three.effective_rank)
    assert math.isnan(three.effective_rank_error)
    assert four.effective_rank == pytest.approx(rank_by_definition(rows[:4]), rel=1e-9)
    assert math.isnan(four.effective_rank_error)
    assert five.effective_rank_error > 0.0


def test_one_row_alone_has_no_rank():
    """If one row differs from the others, which do not differ, nothing tells how often its direction comes."""
    rows = np.zeros((8, 3))
    assert all(math.isnan(value) for value in participation_ratio(centred_gram(rows)))
    rows[2] = 1.0, 2.0, 0.0
    rank, error = participation_ratio(centred_gram(rows))
    assert math.isinf(rank)
    assert math.isnan(error)


def test_rows_without_overlap_have_no_rank():
    rank, error = participation_ratio(centred_gram(np.diag([1.0, 2.0, 1.0, 3.0, 1.0, 1.0])))
    assert math.isinf(rank)
    assert math.isnan(error)


def test_the_error_sees_a_row_that_outweighs_all_others():
    rows = draw_rows(0, 40, FALLING)
    rows[7] *= 30.0
    rank, error = participation_ratio(centred_gram(rows))
    assert error > 0.5 * rank
    assert error > 5 * participation_ratio(centred_gram(np.delete(rows, 7, axis=0)))[1]


def test_noise_in_one_direction():
    rows = np.outer(draw_rows(0, 200, np.ones(1))[:, 0], [3.0, 0.0, -4.0])
    noise = measure_rows(rows)
    assert noise.effective_rank == pytest.approx(1.0, abs=1e-3)
    assert noise.effective_rank_error < 0.01


@pytest.mark.parametrize("unit", [1e-60, 1e60])
def test_unit_of_the_gradient_does_not_matter(unit):
    rows = draw_rows(4, 20, FALLING)
    plain, scaled = participation_ratio(centred_gram(rows)), participation_ratio(centred_gram(unit * rows))
    np.testing.assert_allclose(scaled, plain, rtol=1e-9)


def centred_gram(rows):
    rows = rows - rows.mean(axis=0)
    return rows @ rows.T
