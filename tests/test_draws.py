import copy
import pickle

import numpy as np
import pytest
import torch
from scipy import stats

import heatbath as hb
from heatbath.draws import Multipliers, uniform

MILLION = 10**6


def test_known_bits():
    """The numbers are a contract: a saved run must go on with them in every later release."""
    expected = np.array([0.36191339575451587, 0.2562965151805999, 0.04756849411665265])
    np.testing.assert_array_equal(uniform(2026, 3, np.array([0, 1, 10**12])), expected)


def test_same_bits_in_numpy_and_torch_one_by_one_and_at_once():
    steps = np.concatenate([np.arange(1000), 2**40 + np.arange(1000)])
    at_once = uniform(123456789, 5, steps)
    in_torch = uniform(123456789, 5, torch.from_numpy(steps))
    assert in_torch.dtype == torch.float64
    np.testing.assert_array_equal(in_torch.numpy(), at_once)
    assert [uniform(123456789, 5, int(k)) for k in steps[::97]] == at_once[::97].tolist()
    assert uniform(1, 0, torch.tensor(7)).item() == uniform(1, 0, 7) == uniform(1, 0, torch.tensor(7).int()).item()
    assert uniform(1, 0, steps.reshape(20, 100)).shape == (20, 100)


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_uniformity_and_moments(seed):
    u = uniform(seed, 0, np.arange(MILLION))
    assert 0 < u.min() < 1e-5
    assert 1 - 1e-5 < u.max() < 1
    assert stats.kstest(u, "uniform").pvalue > 1e-3
    for power in range(1, 5):
        values = u**power
        z = (values.mean() - 1 / (power + 1)) / (values.std() / np.sqrt(MILLION))
        assert abs(z) < 4
    cells = np.bincount((u * 1024).astype(int), minlength=1024)
    assert stats.chisquare(cells).pvalue > 1e-3
    # The low bits are as good as the high ones.
    low = (u * 2.0**42) % 1.0
    assert stats.chisquare(np.bincount((low * 256).astype(int), minlength=256)).pvalue > 1e-3


def test_serial_correlation_and_pairs():
    u = uniform(11, 0, np.arange(MILLION + 64))
    centred = u - 0.5
    for lag in (1, 2, 3, 7, 64):
        z = np.mean(centred[:MILLION] * centred[lag : lag + MILLION]) * 12 * np.sqrt(MILLION)
        assert abs(z) < 4, lag
    pairs = (u[:MILLION:2] * 32).astype(int) * 32 + (u[1:MILLION:2] * 32).astype(int)
    assert stats.chisquare(np.bincount(pairs, minlength=1024)).pvalue > 1e-3


def test_neighbouring_seeds_and_streams_are_independent():
    n = 50_000
    rows = [uniform(seed, 0, np.arange(n)) for seed in range(24)]
    rows += [uniform(0, stream, np.arange(n)) for stream in range(1, 24)]
    correlation = np.corrcoef(rows)[np.triu_indices(len(rows), 1)] * np.sqrt(n)
    assert abs(correlation).max() < 5  # 1,081 pairs: 5 sigma is passed by chance once in 1,600 tries
    assert stats.kstest(correlation, "norm").pvalue > 1e-3
    # Across seeds at one step, as a sweep uses them.
    first = np.array([uniform(seed, 0, 0) for seed in range(20_000)])
    assert stats.kstest(first, "uniform").pvalue > 1e-3


def test_no_seed_is_a_shifted_copy_of_another():
    n, shifts = 4096, 512
    rows = [uniform(seed, 0, np.arange(n)) for seed in range(8)]
    for i, one in enumerate(rows):
        for other in rows[i + 1 :]:
            common = np.intersect1d(one, other)
            assert common.size == 0
    padded = np.fft.rfft(np.array(rows) - 0.5, 2 * n)
    for i in range(8):
        for j in range(i + 1, 8):
            crossed = np.fft.irfft(padded[i] * padded[j].conj())
            lags = np.concatenate([crossed[:shifts], crossed[-shifts:]]) * 12 / np.sqrt(n)
            assert abs(lags).max() < 6


@pytest.mark.parametrize("law", [hb.Uniform(0.8), hb.TwoPoint(0.5), hb.Arcsine(1.0), hb.LogNormal(0.5)], ids=str)
def test_draws_follow_the_law(law):
    alpha = hb.draw(law, 5, 0, MILLION)
    assert abs(alpha.mean() - 1) < 4 * np.sqrt(law.variance / MILLION)
    squares = (alpha - 1) ** 2
    assert abs(squares.mean() - law.variance) < 4 * squares.std() / np.sqrt(MILLION) + 1e-12


def test_draw_is_a_pure_function_of_its_arguments():
    whole = hb.draw("uniform:0.5", 9, 0, 2000)
    np.testing.assert_array_equal(hb.draw(hb.Uniform(0.5), 9, 700, 300), whole[700:1000])
    assert hb.draw(hb.Uniform(0.5), 9, 0, 0).shape == (0,)
    assert not np.array_equal(hb.draw(hb.Uniform(0.5), 9, 0, 10, stream=1), whole[:10])
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    torch_state = torch.get_rng_state()
    hb.draw(hb.LogNormal(0.2), 1, 0, 100)
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), torch_state)


def test_multipliers_are_the_same_sequence_in_any_order_and_survive_copies():
    walker = Multipliers(hb.Uniform(1.0), 3)
    expected = hb.draw(hb.Uniform(1.0), 3, 0, 1500).tolist()
    assert [walker.at(k) for k in range(1500)] == expected
    for twin in (copy.deepcopy(walker), pickle.loads(pickle.dumps(walker))):
        assert [twin.at(k) for k in (1400, 3, 700, 701, 0)] == [expected[k] for k in (1400, 3, 700, 701, 0)]
        assert twin == walker
        assert hash(twin) == hash(walker)
    others = [Multipliers(hb.Uniform(0.5), 3), Multipliers(hb.Uniform(1.0), 4), Multipliers(hb.Uniform(1.0), 3, 1)]
    assert walker not in others


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: hb.draw("uniform", -1, 0, 1), ValueError, ["seed", "-1"]),
        (lambda: hb.draw("uniform", 2**64, 0, 1), ValueError, ["seed", "2**64"]),
        (lambda: hb.draw("uniform", 10**5000, 0, 1), ValueError, ["seed", "16610 bits"]),
        (lambda: hb.draw("uniform", 1.5, 0, 1), TypeError, ["seed", "1.5"]),
        (lambda: hb.draw("uniform", True, 0, 1), ValueError, ["seed", "True"]),
        (lambda: hb.draw("uniform", 0, -1, 1), ValueError, ["start", "-1"]),
        (lambda: hb.draw("uniform", 0, 0, -5), ValueError, ["count", "-5"]),
        (lambda: hb.draw("uniform", 0, 0, 1, stream=-2), ValueError, ["stream", "-2"]),
        (lambda: uniform(0, 0, 1.5), TypeError, ["step", "1.5"]),
        (lambda: uniform(0, 0, torch.tensor(1.5)), TypeError, ["step", "float32"]),
        (lambda: uniform(0, 0, np.array([3, -4])), ValueError, ["step", "-4"]),
    ],
)
def test_bad_arguments(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert all(word in str(caught.value) for word in words)
