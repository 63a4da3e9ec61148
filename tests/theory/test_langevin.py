import math

import numpy as np
import pytest
from scipy import integrate, linalg, stats

from heatbath.laws import Constant, TwoPoint, Uniform
from heatbath.theory.discrete import DiscreteSGD, simulate_sgd
from heatbath.theory.landscapes import AnisotropicQuadratic, DoubleWell, Quadratic, Rosenbrock
from heatbath.theory.langevin import (
    BAOAB,
    EulerMaruyama,
    LangevinEquation,
    random_rate_diffusion,
    simulate_langevin,
)
from heatbath.theory.trajectories import State, start

INTEGRATORS = [EulerMaruyama(), BAOAB()]
START = np.array([1.7, 0.4, 0.3])  # <x x>, <x v>, <v v> to start from


def fitted_order(steps, errors):
    return np.polyfit(np.log(steps), np.log(errors), 1)[0]


def moment_map(step):
    """Matrix and vector of the exact map of (<x x>, <x v>, <v v>) under one step that is linear in noise of variance 1.

    Noise of +1 or -1 has the mean and variance of a normal, so the average over both is exact; the result is a
    quadratic form in (x, v), known from its values at four points.
    """
    points = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    values = np.zeros((4, 3))
    for sign in (-1.0, 1.0):
        x, v = step(points[:, 0], points[:, 1], np.full(4, sign))
        values += 0.5 * np.stack([x * x, x * v, v * v], axis=1)
    offset, xx, both, vv = values
    return np.stack([xx - offset, both - xx - vv + offset, vv - offset], axis=1), offset


def integrator_map(integrator, equation, curvature, time_step):
    landscape = Quadratic(curvature)

    def step(x, v, noise):
        state = integrator.step(equation, landscape, start(landscape, x, v), time_step, noise)
        return state.position, state.velocity

    return moment_map(step)


def sgd_moment_map(sgd, curvature):
    """The same for SGD: affine in alpha, so a multiplier of 1 +- the standard deviation has the law's average."""
    landscape, spread = Quadratic(curvature), math.sqrt(sgd.law.variance)
    maps = []
    for alpha in (1.0 - spread, 1.0 + spread):

        def step(x, v, noise, alpha=alpha):
            state = sgd.step(landscape, start(landscape, x, v), np.full_like(x, alpha), noise)
            return state.position, state.velocity

        maps.append(moment_map(step))
    return 0.5 * (maps[0][0] + maps[1][0]), 0.5 * (maps[0][1] + maps[1][1])


def iterate(matrix, offset, moments, count):
    fixed = np.linalg.solve(np.eye(3) - matrix, offset)
    return fixed + np.linalg.matrix_power(matrix, count) @ (moments - fixed)


def equation_generator(lr, momentum, curvature, constant, square, batch_size):
    """d/dt of (<x x>, <x v>, <v v>) on a quadratic with noise D(X) = constant + square X^2: exact, by Ito's rule."""
    friction = (1.0 - momentum) / lr
    pull = curvature / lr
    matrix = np.array(
        [[0.0, 2.0, 0.0], [-pull, -friction, 1.0], [square / (batch_size * lr), -2.0 * pull, -2.0 * friction]]
    )
    return matrix, np.array([0.0, 0.0, constant / (batch_size * lr)])


def exact_moments(generator, moments, time):
    matrix, source = generator
    fixed = np.linalg.solve(matrix, -source)
    return fixed + linalg.expm(time * matrix) @ (moments - fixed)


@pytest.mark.parametrize("square", [0.0, 0.9], ids=["additive", "multiplicative"])
@pytest.mark.parametrize("integrator", INTEGRATORS, ids=str)
def test_weak_order(integrator, square):
    lr, momentum, curvature, constant, batch_size = 0.5, 0.3, 1.9, 2.2, 3.0
    diffusion = constant if square == 0.0 else lambda x: constant + square * x**2
    equation = LangevinEquation(lr, momentum, diffusion, batch_size)
    exact = exact_moments(equation_generator(lr, momentum, curvature, constant, square, batch_size), START, 1.0)
    counts = np.array([40, 80, 160, 320])
    errors = [
        np.abs(iterate(*integrator_map(integrator, equation, curvature, 1.0 / count), START, count) - exact).max()
        for count in counts
    ]
    assert fitted_order(1.0 / counts, errors) == pytest.approx(integrator.weak_order, abs=0.08)


@pytest.mark.parametrize("diffusion", [0.8, lambda x: 0.5 + 0.4 * np.cos(x) ** 2], ids=["additive", "multiplicative"])
@pytest.mark.parametrize("integrator", INTEGRATORS, ids=str)
def test_strong_order(integrator, diffusion):
    """Both rules against one fine path: they need two integrals of the same noise, dW and exp(-friction (h - s)) dW."""
    equation, landscape = LangevinEquation(0.4, 0.3, diffusion, 2.0), DoubleWell(0.6, 2.2)
    fine_count, paths, total = 1024, 600, 1.0
    fine, friction = total / fine_count, equation.friction
    generator = np.random.default_rng(11)
    brownian = math.sqrt(fine) * generator.standard_normal((fine_count, paths))
    covariance, variance = -math.expm1(-friction * fine) / friction, -math.expm1(-2 * friction * fine) / (2 * friction)
    filtered = (covariance / fine) * brownian
    filtered += math.sqrt(variance - covariance**2 / fine) * generator.standard_normal(brownian.shape)

    def end(rule, count):
        size = fine_count // count
        step = total / count
        if isinstance(rule, EulerMaruyama):
            noise = brownian.reshape(count, size, paths).sum(axis=1) / math.sqrt(step)
        else:
            decay = np.exp(-friction * fine * np.arange(size)[::-1])
            noise = np.einsum("cjp,j->cp", filtered.reshape(count, size, paths), decay)
            noise /= math.sqrt(-math.expm1(-2 * friction * step) / (2 * friction))
        state = start(landscape, np.full(paths, -0.5))
        for one in noise:
            state = rule.step(equation, landscape, state, step, one)
        return state

    reference = end(BAOAB(), fine_count)
    counts = np.array([8, 16, 32, 64])
    errors = []
    for count in counts:
        state = end(integrator, count)
        errors.append(np.mean(np.hypot(state.position - reference.position, state.velocity - reference.velocity)))
    assert fitted_order(1.0 / counts, errors) == pytest.approx(integrator.strong_order, abs=0.15)
    assert errors[-1] < 0.03


def test_baoab_positions_on_a_quadratic_are_exact_at_any_stable_step():
    equation, curvature = LangevinEquation(0.05, 0.7, 1.4, 6.0), 3.0
    bound = BAOAB().largest_step(equation, curvature)
    matrix, offset = integrator_map(BAOAB(), equation, curvature, 0.9 * bound)
    variance, _, velocity = np.linalg.solve(np.eye(3) - matrix, offset)
    assert variance == pytest.approx(equation.temperature / curvature, rel=1e-12)
    assert velocity < 0.5 * equation.theta  # the velocities pay for it


@pytest.mark.parametrize("momentum", [0.2, 0.9])
@pytest.mark.parametrize("integrator", INTEGRATORS, ids=str)
def test_the_largest_step_is_where_the_means_cease_to_decay(integrator, momentum):
    equation, landscape = LangevinEquation(0.05, momentum, 1.4, 6.0), Quadratic(3.0)

    def radius(time_step):
        state = integrator.step(equation, landscape, start(landscape, [1.0, 0.0], [0.0, 1.0]), time_step, np.zeros(2))
        return np.abs(np.linalg.eigvals(np.stack([state.position, state.velocity]))).max()

    bound = integrator.largest_step(equation, 3.0)
    assert radius(0.999 * bound) < 1.0 < radius(1.001 * bound)


@pytest.mark.parametrize("law", [Constant(), Uniform(0.8)], ids=str)
@pytest.mark.parametrize("time", [0.2, 0.9, math.inf])
def test_moments_of_sgd_approach_those_of_the_equation_at_first_order(law, time):
    """At fixed momentum the positions converge; <x^2> itself is of order l at late times, so errors are relative.

    The start is far from the minimum, where the term s2 g g^T is as large as the rest of the noise: without it the
    spread of the positions does not converge. It is compared apart from the mean, which would hide it.
    """
    momentum, curvature, diffusion, batch_size = 0.6, 1.7, 2.3, 5.0
    rates = np.array([0.0025, 0.00125, 0.000625, 0.0003125])
    errors, errors_without = [], []
    for lr in rates:
        sgd = DiscreteSGD(lr, momentum, diffusion, batch_size, law)
        bare, extra = law.second_moment * diffusion, law.variance * batch_size * curvature**2
        full = equation_generator(lr, momentum, curvature, bare, extra, batch_size)
        without = equation_generator(lr, momentum, curvature, bare, 0.0, batch_size)
        quiet = equation_generator(lr, momentum, curvature, 0.0, 0.0, batch_size)
        matrix, offset = sgd_moment_map(sgd, curvature)
        if time == math.inf:
            discrete = np.linalg.solve(np.eye(3) - matrix, offset)[0]
            spread, spread_without = (np.linalg.solve(m, -s)[0] for m, s in (full, without))
        else:
            initial, count = np.array([1.5**2, 0.0, 0.0]), round(time / lr)
            silent = sgd_moment_map(DiscreteSGD(lr, momentum, 1e-300, batch_size), curvature)[0]
            mean_square = (np.linalg.matrix_power(silent, count) @ initial)[0]
            discrete = iterate(matrix, offset, initial, count)[0] - mean_square
            mean_square = exact_moments(quiet, initial, time)[0]
            spread, spread_without = (exact_moments(g, initial, time)[0] - mean_square for g in (full, without))
        errors.append(abs(discrete / spread - 1.0))
        errors_without.append(abs(discrete / spread_without - 1.0))
    assert fitted_order(rates, errors) == pytest.approx(1.0, abs=0.1)
    assert errors[-1] < 0.002
    if law.variance and time == 0.2:
        assert min(errors_without) > 0.15


def test_velocities_converge_only_if_the_friction_is_held_fixed():
    """At fixed mu a step does not resolve the friction, l (1 - mu) / l: <v^2> tends to 2 Theta / (1 + mu).

    With 1 - mu, the loss and the noise proportional to l (friction, pull and noise of the equation fixed), SGD is a
    semi-implicit Euler scheme of step l, and all moments converge at first order.
    """
    ratios, errors = [], []
    rates = np.array([0.04, 0.02, 0.01, 0.005])
    for lr in rates:
        momentum, diffusion, batch_size = 0.6, 2.3, 5.0
        matrix, offset = sgd_moment_map(DiscreteSGD(lr, momentum, diffusion, batch_size), 1.7)
        theta = LangevinEquation(lr, momentum, diffusion, batch_size).theta
        ratios.append(np.linalg.solve(np.eye(3) - matrix, offset)[2] / theta)

        momentum, curvature, diffusion = 1.0 - 1.3 * lr, 2.1 * lr, 3.4 * lr
        matrix, offset = sgd_moment_map(DiscreteSGD(lr, momentum, diffusion, batch_size), curvature)
        exact = exact_moments(equation_generator(lr, momentum, curvature, diffusion, 0.0, batch_size), START, 1.0)
        errors.append(np.abs(iterate(matrix, offset, START, round(1.0 / lr)) - exact).max())
    assert ratios[-1] == pytest.approx(2.0 / 1.6, rel=0.005)
    assert fitted_order(rates, errors) == pytest.approx(1.0, abs=0.1)


def test_the_printed_noise_misses_the_temperature_by_a_factor_of_the_rate():
    """sqrt(D / C) dW as printed is our noise with D l in place of D: the temperature is l^2 D / (2 C (1 - mu))."""
    momentum, curvature, diffusion, batch_size = 0.6, 1.7, 2.3, 5.0
    for lr in (0.02, 0.005, 0.00125):
        printed = LangevinEquation(lr, momentum, diffusion * lr, batch_size)
        assert printed.noise_strength(np.zeros(1)) == pytest.approx(math.sqrt(diffusion / batch_size))
        assert printed.temperature == pytest.approx(lr**2 * diffusion / (2 * batch_size * (1 - momentum)))
        matrix, offset = sgd_moment_map(DiscreteSGD(lr, momentum, diffusion, batch_size), curvature)
        measured = curvature * np.linalg.solve(np.eye(3) - matrix, offset)[0]
        assert measured / printed.temperature == pytest.approx(1.0 / lr, rel=0.03)
        right = LangevinEquation(lr, momentum, diffusion, batch_size).temperature
        assert measured == pytest.approx(right, rel=0.03)


def test_multiplicative_noise_on_a_quadratic_has_the_known_variance():
    lr, momentum, curvature, constant, square, batch_size = 0.1, 0.5, 2.0, 1.5, 3.0, 4.0
    equation = LangevinEquation(lr, momentum, lambda x: constant + square * x**2, batch_size)
    run = simulate_langevin(
        equation, Quadratic(curvature), np.zeros(20_000), times=[5.0], time_step=0.05, seed=4
    ).positions[-1]
    expected = lr * constant / (2 * batch_size * (1 - momentum) * curvature - lr * square)
    assert abs(np.mean(run**2) - expected) < 3.5 * np.std(run**2) / math.sqrt(run.size)
    with pytest.raises(ValueError, match="no single temperature"):
        _ = equation.temperature


def test_random_rate_diffusion_is_the_variance_of_the_real_noise():
    landscape, law, diffusion, batch_size = DoubleWell(1.2, 2.0), Uniform(0.8), 2.0, 5.0
    local = random_rate_diffusion(landscape, diffusion, batch_size, law.variance)
    generator = np.random.default_rng(2)
    for position in (0.3, -1.4):
        gradient = landscape.gradient(np.array(position))
        alpha = law.quantile(generator.random(200_000))
        noise = gradient - alpha * (gradient + math.sqrt(diffusion / batch_size) * generator.normal(size=alpha.size))
        error = np.std((noise - noise.mean()) ** 2) / math.sqrt(alpha.size)
        assert abs(np.var(noise) - local(np.array(position)) / batch_size) < 3.5 * error


def test_every_direction_has_the_same_temperature():
    landscape = AnisotropicQuadratic((0.8, 5.0))
    equation = LangevinEquation(0.05, 0.8, 1.2, 4.0)
    x = simulate_langevin(equation, landscape, np.zeros((8000, 2)), times=[3.0], time_step=0.05, seed=1).positions[-1]
    energies = np.array(landscape.curvatures) * x**2
    z = (energies.mean(axis=0) - equation.temperature) / (energies.std(axis=0) / math.sqrt(len(x)))
    assert np.abs(z).max() < 3.5


def test_the_valley_of_rosenbrock():
    equation, landscape = LangevinEquation(0.02, 0.7, 12.0, 2.0), Rosenbrock(4.0)
    x = simulate_langevin(equation, landscape, np.ones((6000, 2)), times=[4.0], time_step=0.01, seed=6).positions[-1]
    distance = stats.kstest(x[:, 0], stats.norm(1.0, math.sqrt(equation.temperature / 2)).cdf)
    assert distance.pvalue > 1e-3


def boltzmann_distance(landscape, temperature, sample):
    """The Kolmogorov-Smirnov distance, and its 1 % point for a sample of independent positions of this size."""
    grid = np.linspace(-4.0, 4.0, 4001)
    below = integrate.cumulative_simpson(np.exp(-landscape.value(grid) / temperature), x=grid, initial=0.0)
    distance = stats.kstest(sample, lambda x: np.interp(x, grid, below / below[-1])).statistic
    return distance, stats.kstwobign.isf(0.01) / math.sqrt(sample.size)


@pytest.mark.parametrize("kind", ["equation", "constant", "twopoint"])
def test_the_positions_in_a_double_well_follow_boltzmann(kind):
    """All start in the left well and must cross. Distance below 0.0115, the sampling error of 20,000 positions at 1 %.

    A temperature wrong by a fifth would show.
    """
    landscape, lr, momentum, batch_size, temperature = DoubleWell(1.0, 2.4), 0.004, 0.7, 8.0, 0.6
    diffusion = 2 * batch_size * (1 - momentum) * temperature / lr
    positions = np.full(20_000, landscape.minima[0])
    if kind == "equation":
        equation = LangevinEquation(lr, momentum, diffusion, batch_size)
        assert equation.temperature == pytest.approx(temperature)
        run = simulate_langevin(equation, landscape, positions, times=[6.0], time_step=0.015, seed=8)
    else:
        law = Constant() if kind == "constant" else TwoPoint(0.5)
        sgd = DiscreteSGD(lr, momentum, diffusion / law.second_moment, batch_size, law)
        run = simulate_sgd(sgd, landscape, positions, steps=[1500], seed=8)
    distance, allowed = boltzmann_distance(landscape, temperature, run.positions[-1])
    assert allowed < 0.0116
    assert distance < allowed
    assert boltzmann_distance(landscape, 1.2 * temperature, run.positions[-1])[0] > 1.5 * allowed


def test_snapshots_and_seeds():
    equation, landscape = LangevinEquation(0.05, 0.8, 1.2, 4.0), Quadratic(2.0)
    first, again, other = (
        simulate_langevin(equation, landscape, np.ones(5), times=[0.0, 0.1, 0.3], time_step=0.05, seed=seed)
        for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(first.positions, again.positions)
    np.testing.assert_array_equal(first.positions[0], np.ones(5))
    assert not np.array_equal(first.positions[-1], other.positions[-1])
    assert first.positions.shape == first.velocities.shape == (3, 5)
    np.testing.assert_allclose(first.times, [0.0, 0.1, 0.3])


@pytest.mark.parametrize("coupling", ["gradient", "update"])
@pytest.mark.parametrize("nesterov", [False, True])
def test_simulated_sgd_in_several_dimensions_shares_one_multiplier_per_trajectory(coupling, nesterov):
    """Started on the diagonal of an isotropic bowl, without noise a trajectory stays on it only if alpha is shared."""
    sgd = DiscreteSGD(0.1, 0.6, 1e-300, 3.0, Uniform(0.9), coupling, nesterov)
    landscape = AnisotropicQuadratic((2.0, 2.0))
    run = simulate_sgd(sgd, landscape, np.ones((4, 2)), steps=[1, 7], seed=5)
    np.testing.assert_allclose(run.positions[..., 0], run.positions[..., 1], rtol=1e-12)
    assert np.unique(run.positions[-1, :, 0]).size == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": 0.0}, "lr must be a finite number with lr > 0"),
        ({"momentum": 1.0}, "0 <= momentum < 1"),
        ({"diffusion": -1.0}, "diffusion must be a finite number with diffusion > 0, got -1.0"),
        ({"batch_size": 0}, "batch_size must be a finite number with batch_size > 0"),
    ],
)
@pytest.mark.parametrize("make", [LangevinEquation, DiscreteSGD])
def test_bad_knobs_are_refused(make, change, message):
    with pytest.raises(ValueError, match=message):
        make(**{"lr": 0.1, "momentum": 0.5, "diffusion": 1.0, "batch_size": 2, **change})


@pytest.mark.parametrize(
    ("time_step", "times", "message"),
    [
        (0.0, [1.0], "time_step > 0"),
        (1.0, [1.0], r"the time step 1 is 2.74 times the largest stable one, 0.365148, of BAOAB at curvature 3"),
        (0.1, [0.25], "not a multiple of the step"),
        (0.1, [0.2, 0.1], "increasing"),
    ],
)
def test_bad_steps_are_refused(time_step, times, message):
    equation = LangevinEquation(0.1, 0.5, 1.0, 2)
    with pytest.raises(ValueError, match=message):
        simulate_langevin(equation, Quadratic(3.0), np.zeros(3), times=times, time_step=time_step)


def test_bad_runs_are_refused():
    sgd = DiscreteSGD(0.9, 0.5, 1.0, 2, Uniform(0.9))
    with pytest.raises(ValueError, match=r"lr = 0.9 is 1.09 times the largest stable rate, 0.828729, at curvature 2"):
        simulate_sgd(sgd, Quadratic(2.0), np.zeros(3), steps=[1])
    with pytest.raises(ValueError, match="ran off to infinity"):
        simulate_sgd(DiscreteSGD(0.05, 0.5, 1.0, 2), DoubleWell(), np.full(3, 9.0), steps=[200])
    with pytest.raises(ValueError, match="2 coordinates"):
        simulate_sgd(DiscreteSGD(0.05, 0.5, 1.0, 2), AnisotropicQuadratic(), np.zeros(3), steps=[1])
    with pytest.raises(ValueError, match="coupling"):
        DiscreteSGD(0.05, 0.5, 1.0, coupling="both")
    negative = LangevinEquation(0.1, 0.5, lambda x: x, 2)
    with pytest.raises(ValueError, match="negative anywhere, got -1"):
        BAOAB().step(negative, Quadratic(), State(-np.ones(1), np.zeros(1), np.zeros(1)), 0.1, np.zeros(1))
