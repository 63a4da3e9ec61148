from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from heatbath.laws import parse_law
from heatbath.optim.random_sgd import RandomSGD
from heatbath.theory import quadratic
from heatbath.thermostat import Thermostat

FORMS = [(coupling, nesterov) for coupling in ("gradient", "update") for nesterov in (False, True)]
LAWS = ["constant", "uniform:0.5", "twopoint:0.8", "lognormal:0.4", "exponential"]
A = np.array([[1.0, 0.4, -0.1], [0.4, 0.7, 0.2], [-0.1, 0.2, 1.3]])
S = np.array([[2.0, -0.3, 0.5], [-0.3, 1.0, 0.1], [0.5, 0.1, 0.6]])


def simulate(thermostat, curvature, diffusion, *, seed, chains=2000, burn=100, steps=300):
    """The algorithm as it is written, in matrices, on many chains; the time averages of each chain's moments."""
    rng = np.random.default_rng(seed)
    A_, S_ = np.atleast_2d(curvature), np.atleast_2d(diffusion)
    root = np.linalg.cholesky(S_ * thermostat.batch_variance)
    mu, l = thermostat.momentum, thermostat.lr  # noqa: E741
    x, v = np.zeros((2, chains, len(A_)))
    sums = np.zeros((chains, 2 * len(A_), 2 * len(A_)))
    for step in range(burn + steps):
        g = x @ A_ + rng.standard_normal(x.shape) @ root.T
        alpha = thermostat.law.quantile(rng.random((chains, 1)))
        if thermostat.coupling == "gradient":
            v = mu * v - alpha * g
            x = x + l * (mu * v - alpha * g if thermostat.nesterov else v)
        else:
            v = mu * v - g
            x = x + l * alpha * (mu * v - g if thermostat.nesterov else v)
        if step >= burn:
            z = np.concatenate([x, v], axis=1)
            sums += z[:, :, None] * z[:, None, :]
    return sums / steps


def z_scores(samples, expected):
    """How far the mean over chains is off, in its standard errors; also those errors relative to the diagonal."""
    error = samples.std(axis=0) / math.sqrt(len(samples))
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    return (samples.mean(axis=0) - expected) / error, error / scale


def dense_moments(thermostat, curvature, diffusion):
    """A slow oracle: the moments as the fixed point of one dense linear map, alpha averaged at its two-point twin."""
    n, l, mu = len(curvature), thermostat.lr, thermostat.momentum  # noqa: E741
    eye, zero = np.eye(n), np.zeros((n, n))
    spread = math.sqrt(thermostat.law.variance)
    total, noise = np.zeros((4 * n * n, 4 * n * n)), np.zeros((2 * n, 2 * n))
    for alpha in (1 - spread, 1 + spread):
        into_v, of_step = (alpha, 1.0) if thermostat.coupling == "gradient" else (1.0, alpha)
        v_row = [-into_v * curvature, mu * eye, -into_v * eye]
        x_row = [eye + l * of_step * v_row[0], l * of_step * v_row[1], l * of_step * v_row[2]]
        if thermostat.nesterov:
            force = [into_v * curvature, zero, into_v * eye]
            x_row = [l * of_step * (mu * v - f) for v, f in zip(v_row, force, strict=True)]
            x_row[0] = x_row[0] + eye
        F, b = np.block([x_row[:2], v_row[:2]]), np.block([[x_row[2]], [v_row[2]]])
        total += 0.5 * np.kron(F, F)
        noise += 0.5 * b @ diffusion @ b.T * thermostat.batch_variance
    return np.linalg.solve(np.eye(len(total)) - total, noise.ravel()).reshape(2 * n, 2 * n), total


@pytest.mark.parametrize(("coupling", "nesterov"), FORMS)
@pytest.mark.parametrize("law", LAWS[1:])
def test_moments_against_simulation(coupling, nesterov, law):
    thermostat = Thermostat(0.15, 5, 0.6, nesterov, law, coupling)
    expected = quadratic.stationary_moments(thermostat, 0.9, 2.3)
    scores, errors = z_scores(simulate(thermostat, 0.9, 2.3, seed=LAWS.index(law)), expected)
    assert errors.max() < 0.01
    assert np.abs(scores).max() < 4.5, scores


@pytest.mark.parametrize(("coupling", "nesterov"), FORMS)
def test_moments_against_the_optimizer(coupling, nesterov):
    """`RandomSGD` itself. Its elements share each draw, so the error is that of blocks of time."""
    thermostat = Thermostat(0.2, 5, 0.6, nesterov, "uniform:0.8", coupling)
    weights = torch.zeros(500, dtype=torch.float64, requires_grad=True)
    knobs = {"law": thermostat.law, "coupling": coupling, "momentum": 0.6, "nesterov": nesterov}
    optimizer = RandomSGD([weights], lr=0.2, seed=2, **knobs)
    generator = torch.Generator().manual_seed(4)
    history = []
    for step in range(2600):
        noise = torch.randn(500, dtype=torch.float64, generator=generator)
        weights.grad = 0.9 * weights.detach() + math.sqrt(2.3 / 5) * noise
        optimizer.step()
        if step >= 100:
            z = np.stack([weights.detach().numpy(), -optimizer.velocity(weights).numpy()])
            history.append(z @ z.T / 500)
    blocks = np.array(history).reshape(25, 100, 2, 2).mean(axis=1)
    scores, errors = z_scores(blocks, quadratic.stationary_moments(thermostat, 0.9, 2.3))
    assert errors.max() < 0.02
    assert np.abs(scores).max() < 4.0, scores


@pytest.mark.parametrize(("coupling", "nesterov"), FORMS)
def test_matrix_moments_against_simulation(coupling, nesterov):
    """One multiplier for all directions, and noise that does not commute with the curvature."""
    thermostat = Thermostat(0.12, 7, 0.5, nesterov, "uniform:0.9", coupling, dataset_size=40)
    expected = quadratic.stationary_moments(thermostat, A, S)
    scores, errors = z_scores(simulate(thermostat, A, S, seed=3, chains=1500), expected)
    assert errors.max() < 0.01
    assert np.abs(scores).max() < 4.5, scores


def test_simulation_rejects_the_papers_second_moment():
    """``<alpha^2>`` printed as ``1 + D/3`` would have variance D/3: at D = 0.5 the simulation tells them apart."""
    samples = simulate(Thermostat(0.15, 5, 0.6, False, "uniform:0.5"), 0.9, 2.3, seed=11)
    printed = Thermostat(0.15, 5, 0.6, False, f"twopoint:{math.sqrt(0.5 / 3)}")
    scores, _ = z_scores(samples, quadratic.stationary_moments(printed, 0.9, 2.3))
    assert scores[0, 0] < -8
    assert scores[1, 1] < -8


@pytest.mark.parametrize(("coupling", "nesterov"), FORMS)
@pytest.mark.parametrize("law", LAWS)
def test_matrix_moments_against_the_dense_oracle(coupling, nesterov, law):
    thermostat = Thermostat(0.1, 3, 0.7, nesterov, law, coupling)
    expected, total = dense_moments(thermostat, A, S)
    np.testing.assert_allclose(quadratic.stationary_moments(thermostat, A, S), expected, rtol=1e-10, atol=1e-13)
    radius = np.abs(np.linalg.eigvals(total)).max()
    assert quadratic.spectral_radius(thermostat, A) == pytest.approx(radius, rel=1e-10)


@pytest.mark.parametrize(("coupling", "nesterov"), FORMS)
def test_numbers_arrays_and_matrices_agree(coupling, nesterov):
    thermostat = Thermostat(0.1, 3, 0.7, nesterov, "uniform:1", coupling)
    curvature, diffusion = np.array([0.5, 1.0, 1.5]), np.array([2.0, 0.7, 0.1])
    rows = quadratic.stationary_moments(thermostat, curvature, diffusion)
    assert rows.shape == (3, 2, 2)
    for row, a, s in zip(rows, curvature, diffusion, strict=True):
        number = quadratic.stationary_moments(thermostat, a, s)
        assert number.shape == (2, 2)
        np.testing.assert_allclose(row, number, rtol=1e-13)
    full = quadratic.stationary_moments(thermostat, np.diag(curvature), diffusion).reshape(2, 3, 2, 3)
    np.testing.assert_allclose(np.einsum("piqi->ipq", full), rows, rtol=1e-12)
    assert np.abs(full[:, 0, :, 1]).max() < 1e-15
    per_direction = quadratic.exact_temperature(thermostat, curvature, diffusion)
    mean = quadratic.exact_temperature(thermostat, np.diag(curvature), diffusion)
    assert mean == pytest.approx(per_direction.mean(), rel=1e-12)


def test_matrix_of_a_rotated_diagonal():
    basis = np.linalg.eigh(A)[1]
    thermostat = Thermostat(0.1, 3, 0.7, True, "uniform:1", "update")
    plain = quadratic.stationary_moments(thermostat, np.diag([0.5, 1.0, 1.5]), S)
    turned = quadratic.stationary_moments(thermostat, basis @ np.diag([0.5, 1.0, 1.5]) @ basis.T, basis @ S @ basis.T)
    turn = np.kron(np.eye(2), basis)
    np.testing.assert_allclose(turned, turn @ plain @ turn.T, atol=1e-14)


@pytest.mark.parametrize(("coupling", "nesterov"), FORMS)
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("momentum", [0.3, 0.9])
def test_leading_order_is_the_limit_at_first_order(coupling, nesterov, law, momentum):
    def error(lr):
        thermostat = Thermostat(lr, 12, momentum, nesterov, law, coupling, dataset_size=50)
        return quadratic.exact_temperature(thermostat, 1.4, 0.8) / thermostat.temperature(0.8) - 1

    errors = np.abs([error(2e-4), error(1e-4), error(5e-5)])
    orders = np.log2(errors[:-1] / errors[1:])
    np.testing.assert_allclose(orders, 1.0, atol=0.01)
    assert abs(error(1e-11)) < 1e-9  # and small rates keep their digits


@pytest.mark.parametrize(("coupling", "nesterov"), FORMS)
@pytest.mark.parametrize("law", LAWS)
def test_fluctuation_dissipation_is_exact(coupling, nesterov, law):
    for curvature, diffusion in [(0.8, 1.7), ([0.4, 1.1], [3.0, 0.2]), (A, S)]:
        thermostat = Thermostat(0.13, 6, 0.65, nesterov, law, coupling)
        sides = quadratic.fluctuation_dissipation(thermostat, curvature, diffusion)
        assert sides.fluctuation == pytest.approx(sides.dissipation, rel=1e-12)
        assert sides.dissipation > 0.01


@pytest.mark.parametrize("law", LAWS)
def test_fluctuation_dissipation_of_heavy_ball_written_out(law):
    variance, mu, lr, curvature = parse_law(law).variance, 0.65, 0.13, 0.8
    for coupling, factor in [("gradient", 1 + mu), ("update", 1 + mu + variance * (1 - mu))]:
        moments = quadratic.stationary_moments(Thermostat(lr, 6, mu, False, law, coupling), curvature, 1.7)
        assert curvature * moments[0, 0] == pytest.approx(lr / 2 * factor * moments[1, 1], rel=1e-12)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("momentum", [0.0, 0.4, 0.95])
@pytest.mark.parametrize(("coupling", "nesterov"), FORMS)
def test_largest_stable_rate_is_where_the_radius_is_one(coupling, nesterov, law, momentum):
    thermostat = Thermostat(1.0, 4, momentum, nesterov, law, coupling)
    for moment in ("mean", "mean-square"):
        bound = quadratic.largest_stable_rate(thermostat, [0.5, 2.0], moment)
        for factor in (0.01, 0.1, 0.3, 0.6, 0.9, 0.999, 1.001, 1.2):
            trial = Thermostat(bound * factor, 4, momentum, nesterov, law, coupling)
            assert (quadratic.spectral_radius(trial, [0.5, 2.0], moment) < 1) == (factor < 1)
            assert quadratic.is_stable(trial, [0.5, 2.0], moment) == (factor < 1)
    mean = quadratic.largest_stable_rate(thermostat, 2.0, "mean")
    square = quadratic.largest_stable_rate(thermostat, 2.0)
    assert square == pytest.approx(mean) if law == "constant" else square < 0.96 * mean


def test_a_random_rate_with_momentum_loses_most_of_the_stable_range():
    thermostat = Thermostat(1e-3, 4, 0.9, law="uniform:1")
    assert quadratic.largest_stable_rate(thermostat, 1.0, "mean") == pytest.approx(3.8)
    assert quadratic.largest_stable_rate(thermostat, 1.0) == pytest.approx(0.38 / (0.1 + 1.9 / 3), rel=1e-13)


@pytest.mark.parametrize(("coupling", "nesterov"), FORMS)
def test_relaxation_time(coupling, nesterov):
    thermostat = Thermostat(1e-4, 4, 0.7, nesterov, "uniform:1", coupling)
    mean = quadratic.relaxation_time(thermostat, [1.0, 3.0], "mean")
    assert mean == pytest.approx(0.3 / 1e-4, rel=1e-3)  # the slowest direction, 1 / (l a / (1 - mu))
    assert quadratic.relaxation_time(thermostat, [1.0, 3.0]) == pytest.approx(mean / 2, rel=1e-3)


def test_relaxation_time_of_a_decaying_mean():
    thermostat = Thermostat(0.02, 4, 0.5, True, "uniform:1", "update")
    x, v = 1.0, 0.0
    heights = []
    for _ in range(400):
        v = 0.5 * v - 1.3 * x
        x, before = x + 0.02 * (0.5 * v - 1.3 * x), x
        heights.append(x / before)
    assert quadratic.relaxation_time(thermostat, 1.3, "mean") == pytest.approx(-1 / math.log(heights[-1]), rel=1e-9)


def test_relaxation_time_of_a_rate_that_vanishes_beside_one():
    assert quadratic.relaxation_time(Thermostat(1e-12, 4), 3.0) == pytest.approx(1 / 6e-12, rel=1e-9)
    assert quadratic.relaxation_time(Thermostat(1e-17, 4), 3.0, "mean") == pytest.approx(1 / 3e-17, rel=1e-9)
    assert quadratic.relaxation_time(Thermostat(1e-12, 4, 0.9), 3.0) == pytest.approx(0.1 / 6e-12, rel=1e-6)
    assert quadratic.relaxation_time(Thermostat(0.1, 4, 0.9), [1e-30, 1.0]) == math.inf
    assert quadratic.relaxation_time(Thermostat(1.0, 4), 1.0) == 0.0  # at rest after one step


@pytest.mark.parametrize(("coupling", "nesterov"), FORMS)
@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_the_moments_of_the_tiniest_rates_are_those_of_leading_order(coupling, nesterov, momentum):
    tiny, small = (Thermostat(lr, 3, momentum, nesterov, "uniform:1", coupling) for lr in (1e-300, 1e-12))
    found = quadratic.stationary_moments(tiny, 2.5, 1.1)
    assert found[0, 0] == pytest.approx(tiny.temperature(1.1) / 2.5, rel=1e-9)
    assert found[1, 1] == pytest.approx(quadratic.stationary_moments(small, 2.5, 1.1)[1, 1], rel=1e-9)


@pytest.mark.parametrize(("coupling", "nesterov"), FORMS)
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("momentum", [0.2, 0.6, 0.9])
def test_small_rate_limit_is_where_the_leading_order_is_off_by_a_tenth(coupling, nesterov, law, momentum):
    def off(y):
        thermostat = Thermostat(y / 2.5, 3, momentum, nesterov, law, coupling)
        return abs(quadratic.exact_temperature(thermostat, 2.5, 1.1) / thermostat.temperature(1.1) - 1)

    limit = quadratic.small_rate_limit(Thermostat(1e-3, 3, momentum, nesterov, law, coupling))
    assert off(limit) == pytest.approx(0.1, rel=1e-6)
    assert all(off(limit * fraction) < 0.1 for fraction in np.linspace(0.02, 0.98, 25))


def test_unstable_rate_says_which_bound_and_by_how_much():
    thermostat = Thermostat(3.0, 3, 0.5, law="uniform:1")
    with pytest.raises(ValueError, match=r"lr=3 is unstable.*lr=0\.75.*curvature 2.*4-fold.*mean alone.*1\.5"):
        quadratic.stationary_moments(thermostat, [1.0, 2.0], 1.0)
    for function in (quadratic.exact_temperature, quadratic.fluctuation_dissipation):
        with pytest.raises(ValueError, match="unstable"):
            function(thermostat, 2.0, 1.0)
    with pytest.raises(ValueError, match="the means grow"):
        quadratic.relaxation_time(thermostat, 2.0, "mean")


@pytest.mark.parametrize(
    ("curvature", "diffusion", "words"),
    [
        (0.0, 1.0, "curvature must be positive.* 0"),
        ([1.0, -2.0], 1.0, "curvature must be positive.*-2"),
        (1.0, -1.0, "diffusion must not be negative.*-1"),
        (np.eye(2), [[1.0, 2.0], [2.0, 1.0]], "diffusion must not be negative.*-1"),
        ([[1.0, 0.5], [0.0, 1.0]], 1.0, "curvature must be a symmetric"),
        (np.eye(2), [[1e-9, 5e-10], [0.0, 1e-9]], "diffusion must be a symmetric"),
        (math.nan, 1.0, "curvature must be a finite"),
        ([1.0, 2.0], [1.0, 2.0, 3.0], "agree in size"),
        (np.eye(1), [1.0, 2.0], "agree in size"),
        (np.ones((2, 2, 2)), 1.0, "number, array or matrix"),
    ],
)
def test_bad_input(curvature, diffusion, words):
    with pytest.raises(ValueError, match=words):
        quadratic.stationary_moments(Thermostat(0.1, 2, 0.5), curvature, diffusion)


def test_bad_names_and_tolerances():
    thermostat = Thermostat(0.1, 2, 0.5)
    with pytest.raises(ValueError, match="moment must be 'mean' or 'mean-square', got 'median'"):
        quadratic.spectral_radius(thermostat, 1.0, "median")
    with pytest.raises(ValueError, match="tolerance"):
        quadratic.small_rate_limit(thermostat, 0.0)
