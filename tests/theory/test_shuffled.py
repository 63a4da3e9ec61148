"""Batches of a shuffled epoch cancel in part: what relaxes more slowly than an epoch lasts stays colder."""

import math

import numpy as np
import pytest

from heatbath import draw
from heatbath.theory import quadratic, shuffled
from heatbath.thermostat import Thermostat

FORMS = [(coupling, nesterov) for coupling in ("gradient", "update") for nesterov in (False, True)]


def step(knobs, x, v, gradient, alpha):
    """The algorithm as the paper and PyTorch write it, on any number of chains, in the paper's sign of ``v``."""
    alpha = alpha.reshape(len(alpha), *[1] * (x.ndim - 1))
    in_gradient = knobs.coupling == "gradient"
    gradient = alpha * gradient if in_gradient else gradient
    v = knobs.momentum * v - gradient
    direction = knobs.momentum * v - gradient if knobs.nesterov else v
    return x + knobs.lr * (1.0 if in_gradient else alpha) * direction, v


def simulate(knobs, curvature, noise_of_epoch, chains, epochs, width=()):
    """The states of all chains before each step of the last epoch: positions and velocities on the second axis."""
    rng = np.random.default_rng(11)
    x, v = np.zeros((2, chains, *width))
    k, states = 0, []
    for epoch in range(epochs):
        for noise in noise_of_epoch(rng):
            if epoch == epochs - 1:
                states.append(np.stack([x, v]))
            alpha = draw(knobs.law, 5, k * chains, chains)
            x, v = step(knobs, x, v, (x @ curvature if width else curvature * x) + noise, alpha)
            k += 1
    return np.array(states)


def gaussian_epochs(chains, steps, root):
    """Noises of any two batches with covariance ``-1/(n - 1)`` of their variance."""

    def epoch(rng):
        noise = rng.standard_normal((steps, chains, len(root))) @ root.T
        return math.sqrt(steps / (steps - 1)) * (noise - noise.mean(axis=0))

    return epoch


def z_scores(products, expected):
    """Of the means over chains, which are the last axis."""
    return (products.mean(axis=-1) - expected) / (products.std(axis=-1) / math.sqrt(products.shape[-1]))


@pytest.mark.parametrize(("coupling", "nesterov"), FORMS)
@pytest.mark.parametrize(("momentum", "law"), [(0.8, "uniform:1"), (0.35, "lognormal:0.5")])
def test_moments_at_each_step_against_simulation(coupling, nesterov, momentum, law):
    knobs = Thermostat(0.04, 3, momentum, nesterov, law, coupling)
    chains, steps, curvature, diffusion = 6000, 7, 1.3, 2.1
    epoch = gaussian_epochs(chains, steps, np.array([[math.sqrt(diffusion / 3)]]))
    states = simulate(knobs, np.array([[curvature]]), epoch, chains, 60, (1,))[..., 0]
    expected = shuffled.moments_by_step(knobs, curvature, diffusion, steps)
    z = z_scores(np.einsum("kpc,kqc->kpqc", states, states), expected)
    assert np.abs(z).max() < 4.5
    assert abs(z.mean()) < 2.5
    # The test can tell: independent batches are far from it.
    independent = quadratic.stationary_moments(knobs, curvature, diffusion)
    assert np.abs(z_scores(np.einsum("kpc,kqc->kpqc", states, states), independent)).max() > 15
    average = shuffled.stationary_moments(knobs, curvature, diffusion, steps)
    np.testing.assert_allclose(average, expected.mean(axis=0), rtol=1e-12)


@pytest.mark.parametrize(("coupling", "nesterov"), [("gradient", True), ("update", False)])
def test_a_matrix_of_curvatures_against_simulation(coupling, nesterov):
    """Correlated noise and curvatures in another basis: directions share the batches and the multiplier."""
    knobs = Thermostat(0.05, 2, 0.7, nesterov, "twopoint:0.9", coupling)
    curvature, root = np.array([[1.9, 0.6], [0.6, 0.7]]), np.array([[1.1, 0.0], [-0.8, 0.9]])
    chains, steps = 20_000, 5
    states = simulate(knobs, curvature, gaussian_epochs(chains, steps, root / math.sqrt(2)), chains, 50, (2,))
    flat = states.transpose(0, 1, 3, 2).reshape(steps, 4, chains)
    products = np.einsum("kpc,kqc->kpqc", flat, flat)
    expected = shuffled.moments_by_step(knobs, curvature, root @ root.T, steps)
    assert np.abs(z_scores(products, expected)).max() < 4.5
    average = shuffled.stationary_moments(knobs, curvature, root @ root.T, steps)
    np.testing.assert_allclose(average, expected.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(average, average.T)


@pytest.mark.parametrize(("samples", "steps"), [(24, 8), (26, 8)], ids=["all used", "two sit out"])
def test_real_permutations_of_finite_data(samples, steps):
    knobs, chains, curvature = Thermostat(0.03, 3, 0.6, False, "uniform:0.7", dataset_size=samples), 6000, 0.9
    values = np.random.default_rng(2).exponential(size=samples)
    values -= values.mean()

    def epoch(rng):
        order = rng.permuted(np.broadcast_to(values, (chains, samples)), axis=1)[:, : 3 * steps]
        return order.reshape(chains, steps, 3).mean(axis=2).T

    states = simulate(knobs, curvature, epoch, chains, 60)
    expected = shuffled.moments_by_step(knobs, curvature, values.var(), steps)
    z = z_scores(np.einsum("kpc,kqc->kpqc", states, states), expected)
    assert np.abs(z).max() < 4.5


TABLE = [  # rate, steps; <x x> of a constant rate over the formula's, and random over constant, by coupling
    (0.0013, 20, 0.033, 11.26, 1.30),
    (0.01, 60, 0.681, 1.530, 1.049),
    (0.01, 20, 0.229, 2.562, 1.095),
    (0.0001, 235, 0.067, 6.01, 1.25),
]


@pytest.mark.parametrize(("rate", "steps", "eps", "gradient", "update"), TABLE)
def test_the_table_of_heavy_ball_at_momentum_nine_tenths(rate, steps, eps, gradient, update):
    constant = Thermostat(rate, 1, 0.9)
    of_constant = shuffled.stationary_moments(constant, 1.0, 1.0, steps)[0, 0]
    assert of_constant / constant.temperature() == pytest.approx(eps, abs=6e-4)
    for coupling, expected in (("gradient", gradient), ("update", update)):
        random = Thermostat(rate, 1, 0.9, law="uniform:1", coupling=coupling)
        of_random = shuffled.stationary_moments(random, 1.0, 1.0, steps)[0, 0]
        assert of_random / of_constant == pytest.approx(expected, rel=4e-3)


@pytest.mark.parametrize(
    ("rate", "steps", "relaxation", "weights", "velocities"),
    [(0.1 / 75, 20, 64, 0.034, 0.49), (0.01, 60, 19, 0.68, 0.97)],
    ids=["slower than an epoch", "faster than an epoch"],
)
def test_weights_and_velocities_of_shuffled_epochs(rate, steps, relaxation, weights, velocities):
    """Relative to the formula, which has ``<v^2> = 2 T / (l (1 + mu))`` at leading order."""
    knobs = Thermostat(rate, 5, 0.9, dataset_size=5 * steps)
    assert round(quadratic.relaxation_time(knobs, 1.0, "mean")) == relaxation
    moments = shuffled.stationary_moments(knobs, 1.0, 2.0, steps) / knobs.temperature(2.0)
    assert moments[0, 0] == pytest.approx(weights, rel=0.02)
    assert 0.5 * rate * 1.9 * moments[1, 1] == pytest.approx(velocities, rel=0.02)


@pytest.mark.parametrize(("coupling", "nesterov"), FORMS)
def test_long_epochs_are_independent_batches_at_first_order_in_one_over_their_length(coupling, nesterov):
    knobs = Thermostat(0.05, 2, 0.8, nesterov, "uniform:1", coupling)
    curvature, diffusion = np.array([0.8, 2.0]), np.array([1.0, 0.3])
    limit = quadratic.stationary_moments(knobs, curvature, diffusion)
    errors = [shuffled.stationary_moments(knobs, curvature, diffusion, n) - limit for n in (400, 800, 1600)]
    np.testing.assert_allclose(errors[0] / errors[1], 2.0, rtol=0.07)
    np.testing.assert_allclose(errors[1] / errors[2], 2.0, rtol=0.035)


def test_a_slow_direction_keeps_the_bridge_of_a_constant_rate_and_the_noise_of_a_random_one():
    """Without momentum: ``(n + 1)/6`` of a kick's variance, however small the rate, and ``s2`` of the formula's."""
    n, lr = 7, 1e-9
    constant = shuffled.stationary_moments(Thermostat(lr, 4), 0.5, 3.0, n)[0, 0]
    assert constant / (lr**2 * 3.0 / 4) == pytest.approx((n + 1) / 6, rel=1e-7)
    assert shuffled.cooling(Thermostat(lr, 4), 0.5, n) == pytest.approx(lr * 0.5 * (n + 1) / 3, rel=1e-6)
    random = shuffled.cooling(Thermostat(lr, 4, law="uniform:0.6"), 0.5, n)
    assert random == pytest.approx(0.12 / 1.12, rel=1e-6)


def test_the_cooling_of_a_random_rate_follows_from_that_of_a_constant_one():
    curvatures = np.geomspace(1e-3, 3.0, 12)
    constant = Thermostat(2e-4, 1, 0.9)
    eps = shuffled.cooling(constant, curvatures, 600)
    assert (np.diff(eps) > 0.0).all()
    assert eps[0] < 1e-3 < 0.3 < eps[-1] < 1.0
    random = shuffled.cooling(Thermostat(2e-4, 1, 0.9, law="uniform:1"), curvatures, 600)
    np.testing.assert_allclose(random, (eps + 1 / 3) / (4 / 3), rtol=5e-3)
    assert shuffled.cooling(constant, float(curvatures[3]), 600) == pytest.approx(eps[3], rel=1e-12)


def test_shapes_follow_the_arguments():
    knobs = Thermostat(0.01, 2, 0.5)
    assert shuffled.stationary_moments(knobs, 1.0, [1.0, 2.0], 4).shape == (2, 2, 2)
    assert shuffled.moments_by_step(knobs, [1.0, 2.0, 3.0], 1.0, 4).shape == (4, 3, 2, 2)
    diagonal = shuffled.stationary_moments(knobs, np.diag([1.0, 2.0]), 1.5, 4)
    apart = shuffled.stationary_moments(knobs, [1.0, 2.0], 1.5, 4)
    np.testing.assert_allclose(diagonal[::2, ::2], apart[0], rtol=1e-10)
    np.testing.assert_allclose(diagonal[1::2, 1::2], apart[1], rtol=1e-10)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"steps_per_epoch": 1}, ValueError, "steps_per_epoch must be"),
        ({"steps_per_epoch": 2.5}, TypeError, "steps_per_epoch must be"),
        ({"steps_per_epoch": True}, ValueError, "steps_per_epoch must be"),
        ({"thermostat": Thermostat(0.1, 6, dataset_size=20)}, ValueError, r"at most dataset_size / batch_size = 3\.33"),
        ({"thermostat": Thermostat(3.0, 6)}, ValueError, "is unstable"),
        ({"curvature": -1.0}, ValueError, "curvature must be positive"),
        ({"diffusion": [[1.0, 2.0], [0.0, 1.0]]}, ValueError, "symmetric matrix"),
    ],
)
def test_bad_requests_are_refused(change, error, words):
    asked = {"thermostat": Thermostat(0.1, 6), "curvature": 1.0, "diffusion": 1.0, "steps_per_epoch": 4, **change}
    with pytest.raises(error, match=words):
        shuffled.stationary_moments(**asked)


def test_cooling_is_that_of_directions():
    with pytest.raises(ValueError, match=r"array of curvatures, got shape \(2, 2\)"):
        shuffled.cooling(Thermostat(0.1, 6), np.eye(2), 4)
