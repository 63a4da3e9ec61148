import math

import numpy as np
import pytest
from scipy.linalg import expm

from heatbath.theory.fokker_planck import FokkerPlanck
from heatbath.theory.landscapes import DoubleWell, Quadratic, Rosenbrock
from heatbath.theory.langevin import LangevinEquation
from heatbath.theory.phase_space import (
    PhaseSpace,
    gaussian_density,
    marginals,
    moments,
    suggest_phase_space,
    total_mass,
)

# Theta = 3, T = 0.12; on the quadratic, friction 2.5 and frequency 7.1: underdamped.
EQUATION = LangevinEquation(lr=0.04, momentum=0.9, diffusion=3.0, batch_size=5.0)
QUADRATIC = Quadratic(curvature=2.0)
WELLS = DoubleWell(barrier=2.0 * EQUATION.temperature, separation=2.0)
FREQUENCY = math.sqrt(QUADRATIC.curvature / EQUATION.lr)


def solver_on(landscape, cells=64, energy=18.5):
    return FokkerPlanck(EQUATION, landscape, suggest_phase_space(EQUATION, landscape, (cells, cells), energy))


def distance(solver, one, other):
    return np.abs(one - other).sum() * solver.grid.cell_area


def exact_gaussian(mean, covariance, duration):
    """Mean and covariance on the quadratic: ``m' = A m`` and ``S' = A S + S A^T + Q``, solved about equilibrium."""
    drift = np.array([[0.0, 1.0], [-QUADRATIC.curvature / EQUATION.lr, -EQUATION.friction]])
    equilibrium = np.diag([EQUATION.temperature / QUADRATIC.curvature, EQUATION.theta])
    flow = expm(duration * drift)
    return flow @ mean, equilibrium + flow @ (covariance - equilibrium) @ flow.T


def displaced_start():
    """A Gaussian away from equilibrium in its mean, its widths and its correlation."""
    width_x, width_v = math.sqrt(EQUATION.temperature / QUADRATIC.curvature), math.sqrt(EQUATION.theta)
    mean = np.array([1.5 * width_x, -0.4 * width_v])
    covariance = np.array([[0.6, 0.2], [0.2, 0.5]]) * np.outer([width_x, width_v], [width_x, width_v])
    return mean, covariance


def in_left_well(solver):
    return gaussian_density(solver.grid, [-0.6, 0.5], [[0.01, 0.0], [0.0, 0.6 * EQUATION.theta]])


def test_it_converges_to_the_exact_gaussian_at_second_order():
    mean, covariance = displaced_start()
    duration = 2.0 / FREQUENCY
    errors = []
    for cells in (32, 64, 128):
        solver = solver_on(QUADRATIC, cells)
        density = solver.evolve(gaussian_density(solver.grid, mean, covariance), duration)
        exact = gaussian_density(solver.grid, *exact_gaussian(mean, covariance, duration))
        errors.append(distance(solver, density, exact))
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert np.all(orders > 1.85), (errors, orders)
    assert errors[-1] < 0.004


def test_the_time_step_is_of_second_order():
    solver = solver_on(QUADRATIC, 32)
    start = gaussian_density(solver.grid, *displaced_start())
    duration = 16 * solver.largest_step
    fine = solver.evolve(start, duration, step=solver.largest_step / 16)
    errors = [distance(solver, solver.evolve(start, duration, step=solver.largest_step / k), fine) for k in (1, 2, 4)]
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert np.all(orders > 1.8), (errors, orders)


def test_moments_follow_the_closed_form():
    solver = solver_on(QUADRATIC, 96)
    mean, covariance = displaced_start()
    scale = np.sqrt([EQUATION.temperature / QUADRATIC.curvature, EQUATION.theta])
    times = np.array([0.5, 1.0, 3.0]) / FREQUENCY
    for time_, density in zip(
        times, solver.snapshots(gaussian_density(solver.grid, mean, covariance), times), strict=True
    ):
        exact_mean, exact_covariance = exact_gaussian(mean, covariance, time_)
        found = moments(density, solver.grid)
        np.testing.assert_allclose(found.mean / scale, exact_mean / scale, atol=0.005)
        np.testing.assert_allclose(
            found.covariance / np.outer(scale, scale), exact_covariance / np.outer(scale, scale), atol=0.005
        )


@pytest.mark.parametrize("landscape", [QUADRATIC, WELLS], ids=["quadratic", "double well"])
def test_mass_stays_and_no_density_is_negative_even_from_a_block(landscape):
    solver = solver_on(landscape, energy=25.0)
    block = np.zeros(solver.grid.shape)
    block[20:26, 30:40] = 1.0
    block /= total_mass(block, solver.grid)
    for density in solver.snapshots(block, np.array([0.01, 0.1, 0.5, 2.0]) / FREQUENCY):
        assert abs(total_mass(density, solver.grid) - 1.0) < 1e-12
        assert density.min() >= 0.0


@pytest.mark.parametrize("landscape", [QUADRATIC, WELLS], ids=["quadratic", "double well"])
def test_equilibrium_is_exp_minus_h_over_theta(landscape):
    """Within 1 % in the L1 norm, against a quadrature of the formula that owes nothing to the solver's."""
    solver = solver_on(landscape)
    x, v = np.meshgrid(solver.grid.x, solver.grid.v, indexing="ij")
    theta = 3.0 / (2 * 5.0 * (1 - 0.9))
    boltzmann = np.exp(-(v**2 / 2 + landscape.value(x) / 0.04) / theta)
    boltzmann /= boltzmann.sum() * solver.grid.cell_area
    start = gaussian_density(solver.grid, [-0.5, 0.5], [[0.01, 0.0], [0.0, 1.0]])
    density, elapsed = solver.relax(start, tolerance=0.003)
    assert elapsed > 0.0
    assert density.min() >= 0.0
    assert abs(total_mass(density, solver.grid) - 1.0) < 1e-10
    assert distance(solver, density, boltzmann) < 0.01


def test_equilibrium_does_not_drift():
    solver = solver_on(WELLS)
    assert distance(solver, solver.evolve(solver.equilibrium, 1.0 / FREQUENCY), solver.equilibrium) < 1e-13


def test_equilibrium_from_one_well_at_128_by_128():
    """About 3 s on two idle cores."""
    solver = solver_on(WELLS, 128)
    density, _ = solver.relax(in_left_well(solver), tolerance=0.01)
    assert distance(solver, density, solver.equilibrium) <= 0.01


def test_long_and_implicit_evolution_are_one_evolution():
    solver = solver_on(WELLS, 32, energy=14.5)
    start = in_left_well(solver)
    relaxed, elapsed = solver.relax(start, tolerance=0.3)
    assert distance(solver, start, solver.equilibrium) > 0.8
    assert distance(solver, relaxed, solver.evolve(start, elapsed)) < 0.01
    stopped, until = solver.relax(start, tolerance=1e-6, longest=0.7)
    assert until == pytest.approx(0.7)
    assert distance(solver, stopped, solver.evolve(start, 0.7)) < 0.01


def test_a_high_barrier_costs_no_mass_and_hides_no_tolerance():
    """A million steps of SGD are 5e7 steps of the mesh: what is rounded in each of them must not add up."""
    equation = LangevinEquation(lr=0.1, momentum=0.0, diffusion=2.0, batch_size=4.0)
    wells = DoubleWell(barrier=8.0 * equation.temperature)
    solver = FokkerPlanck(equation, wells, suggest_phase_space(equation, wells, (64, 64)))
    start = gaussian_density(solver.grid, [-1.0, 0.0], np.diag([0.002, equation.theta]))
    density, elapsed = solver.relax(start)
    assert elapsed > 5e4
    assert abs(total_mass(density, solver.grid) - 1.0) < 1e-12
    density, elapsed = solver.relax(density, tolerance=1e-10, longest=3e5)
    assert elapsed < 3e5
    assert density.min() >= 0.0
    assert distance(solver, density, solver.equilibrium) <= 1e-10


@pytest.mark.parametrize("tolerance", [0.0, -1.0, 1e-13, math.nan])
def test_a_tolerance_that_is_never_met_is_refused(tolerance):
    solver = solver_on(WELLS, 32, energy=14.5)
    with pytest.raises(ValueError, match="tolerance must be at least 1e-10"):
        solver.relax(in_left_well(solver), tolerance)
    assert solver.relax(in_left_well(solver), tolerance, longest=0.01)[1] == 0.01


def test_long_evolution_ends_at_the_one_null_vector_of_the_generator():
    solver = solver_on(WELLS, 32, energy=14.5)
    generator = solver.generator().toarray()
    smallest = np.linalg.svd(generator)
    assert smallest.S[-1] < 1e-12 * smallest.S[0] < 1e-3 * smallest.S[-2]
    null = smallest.Vh[-1].reshape(solver.grid.shape)
    null /= total_mass(null, solver.grid)
    assert distance(solver, null, solver.equilibrium) < 1e-9
    evolved, _ = solver.relax(in_left_well(solver), tolerance=1e-5)
    assert distance(solver, evolved, null) < 2e-5


def test_the_generator_is_the_derivative_of_the_evolution():
    solver = solver_on(WELLS, 32, energy=14.5)
    density = solver.evolve(in_left_well(solver), 1.0 / FREQUENCY)
    generator = solver.generator()
    assert np.abs(generator.sum(axis=0)).max() < 1e-10 * np.abs(generator).max()
    step = 0.01 * solver.largest_step
    rate = (solver.evolve(density, step) - density) / step
    expected = (generator @ density.ravel()).reshape(density.shape)
    assert distance(solver, rate, expected) < 0.01 * np.abs(expected).sum() * solver.grid.cell_area


@pytest.mark.parametrize("landscape", [QUADRATIC, WELLS], ids=["quadratic", "double well"])
def test_relative_entropy_falls(landscape):
    solver = solver_on(landscape)
    start = gaussian_density(solver.grid, [-0.5, 0.5], [[0.01, 0.0], [0.0, 1.0]])
    frames = solver.snapshots(start, np.arange(25) * 0.2 / FREQUENCY)
    entropy = np.array([solver.relative_entropy(density) for density in frames])
    assert entropy[0] > 0.5
    assert np.all(np.diff(entropy) < 0.0)
    assert entropy[-1] > 0.0
    assert solver.relative_entropy(solver.equilibrium) == pytest.approx(0.0, abs=1e-14)


def test_marginals_of_equilibrium():
    solver = solver_on(WELLS, 128)
    in_x, in_v = marginals(solver.equilibrium, solver.grid)
    boltzmann = np.exp(-WELLS.value(solver.grid.x) / EQUATION.temperature)
    np.testing.assert_allclose(in_x, boltzmann / boltzmann.sum() / solver.grid.dx, atol=2e-3)
    maxwell = np.exp(-(solver.grid.v**2) / (2 * EQUATION.theta)) / math.sqrt(2 * math.pi * EQUATION.theta)
    np.testing.assert_allclose(in_v, maxwell, atol=2e-4)
    assert moments(solver.equilibrium, solver.grid).covariance[1, 1] == pytest.approx(EQUATION.theta, rel=1e-6)


def test_the_histogram_of_sgd_is_the_density():
    """SGD with a random rate, 1e5 trajectories over 320 steps in a double well, against the density at ``t = l steps``.

    The L1 distance of a perfect histogram is a sum of half-normals: mean ``sum sqrt(2 p (1 - p)/(pi N))`` and variance
    ``sum (1 - 2/pi) p (1 - p)/N``, 0.019 +- 0.002 here; 0.021 is found. The bias of the finite rate, of relative order
    ``(1 - mu)/2`` in the variances, is below it. Without the law's factor in ``D`` the distance is 0.076: 30 sigmas.
    """
    lr, momentum, diffusion, batch, delta, count, steps = 1e-4, 0.99, 8.0, 4.0, 0.6, 100_000, 320
    landscape = DoubleWell(barrier=0.02, separation=0.5)
    generator = np.random.default_rng(3)
    x = generator.normal(-0.15, 0.04, count)
    v = generator.normal(2.0, 6.0, count)
    for _ in range(steps):
        gradient = landscape.gradient(x) + math.sqrt(diffusion / batch) * generator.standard_normal(count)
        v = momentum * v - generator.uniform(1 - delta, 1 + delta, count) * gradient
        x = x + lr * v

    def sigmas_apart(effective_diffusion):
        equation = LangevinEquation(lr, momentum, effective_diffusion, batch)
        grid = suggest_phase_space(equation, landscape, (96, 96))
        start = gaussian_density(grid, [-0.15, 2.0], [[0.04**2, 0.0], [0.0, 36.0]])
        density = FokkerPlanck(equation, landscape, grid).evolve(start, lr * steps)
        bins = [grid.x_edges[::6], grid.v_edges[::6]]
        found = np.histogram2d(x, v, bins=bins)[0] / count
        expected = density.reshape(16, 6, 16, 6).sum(axis=(1, 3)) * grid.cell_area
        variance = expected * (1.0 - expected) / count
        sampling, spread = np.sqrt(2.0 / math.pi * variance).sum(), math.sqrt((1.0 - 2.0 / math.pi) * variance.sum())
        assert 0.05 < expected[8:].sum() < 0.4  # the barrier has been crossed, and it is not equilibrium yet
        return (np.abs(found - expected).sum() - sampling) / spread

    assert abs(sigmas_apart(diffusion * (1.0 + delta**2 / 3.0))) < 4.0
    assert sigmas_apart(diffusion) > 15.0


def test_a_hot_mesh_that_reaches_far_keeps_its_equilibrium():
    """Cells 9 thermal widths out hold 1e-19 of the mass: nothing to see, but not nothing."""
    equation = LangevinEquation(0.005, 0.95, 24.0, 1.0)
    landscape = DoubleWell(0.2, 2.0)
    grid = suggest_phase_space(equation, landscape, (96, 128), energy=45.0)
    solver = FokkerPlanck(equation, landscape, grid)
    assert solver.equilibrium.min() > 0.0
    assert np.isfinite(solver.largest_step)
    density = solver.evolve(solver.equilibrium, 20 * solver.largest_step)
    assert np.abs(density - solver.equilibrium).sum() * grid.cell_area < 1e-12


def test_a_coarse_grid_is_refused():
    grid = suggest_phase_space(EQUATION, WELLS, (12, 64))
    with pytest.raises(ValueError, match=r"too coarse in x: 0\.74 cells per thermal width, at least 2 .* use 33 cells"):
        FokkerPlanck(EQUATION, WELLS, grid)
    grid = suggest_phase_space(EQUATION, WELLS, (64, 16))
    with pytest.raises(ValueError, match=r"too coarse in v: 1\.3 cells per thermal width.*use 25 cells or more"):
        FokkerPlanck(EQUATION, WELLS, grid)


def test_a_small_grid_is_refused():
    grid = PhaseSpace((-1.2, 1.2), (-11.0, 11.0), (64, 64))
    with pytest.raises(ValueError, match=r"cuts off .*above 1e-06.*up to 0\.387 Theta"):
        FokkerPlanck(EQUATION, WELLS, grid)


def test_a_large_step_is_refused():
    solver = solver_on(WELLS)
    with pytest.raises(ValueError, match=r"exceeds the largest step .* by a factor 1\.5"):
        solver.evolve(solver.equilibrium, 1.0, step=1.5 * solver.largest_step)


def test_a_density_off_the_mesh_is_refused():
    solver = solver_on(WELLS)
    with pytest.raises(ValueError, match="outside the x bounds"):
        gaussian_density(solver.grid, [-1.5, 0.0], [[0.04, 0.0], [0.0, 1.0]])
    hot = gaussian_density(solver.grid, [1.5, 9.5], [[0.001, 0.0], [0.0, 0.04]])
    with pytest.raises(ValueError, match=r"of its mass above the energy 18\.\d Theta .* more than 1e-06"):
        solver.evolve(hot, 0.1)
    with pytest.raises(ValueError, match="smallest entry is -"):
        solver.evolve(-solver.equilibrium, 0.1)
    with pytest.raises(ValueError, match="density has shape"):
        solver.evolve(np.ones((3, 3)), 0.1)
    with pytest.raises(ValueError, match="times must increase"):
        solver.snapshots(solver.equilibrium, [0.2, 0.1])


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"diffusion": 0.0}, "diffusion > 0"),
        ({"diffusion": -1.0}, "diffusion > 0"),
        ({"momentum": 1.0}, "momentum must be a number with 0 <= momentum < 1"),
        ({"lr": 0.0}, "lr > 0"),
        ({"diffusion": lambda x: 1.0 + x**2}, "no single temperature"),
    ],
)
def test_bad_knobs_are_refused(knobs, message):
    with pytest.raises(ValueError, match=message):
        FokkerPlanck(
            LangevinEquation(**{"lr": 0.04, "momentum": 0.9, "diffusion": 3.0, **knobs}),
            WELLS,
            PhaseSpace((-2.0, 2.0), (-5.0, 5.0)),
        )


def test_landscapes_without_an_equilibrium_are_refused():
    class Slope:
        dimension = 1

        def value(self, x):
            return 2.0 * x

    with pytest.raises(ValueError, match="does not confine"):
        suggest_phase_space(EQUATION, Slope())
    with pytest.raises(ValueError, match="one dimension"):
        FokkerPlanck(EQUATION, Rosenbrock(), PhaseSpace((-1.0, 1.0), (-1.0, 1.0)))


def test_bad_meshes_are_refused():
    with pytest.raises(ValueError, match="x_bounds must be two finite numbers"):
        PhaseSpace((1.0, -1.0), (-1.0, 1.0))
    with pytest.raises(ValueError, match="at least 8"):
        PhaseSpace((-1.0, 1.0), (-1.0, 1.0), (4, 64))
    with pytest.raises(ValueError, match="positive definite"):
        gaussian_density(PhaseSpace((-1.0, 1.0), (-1.0, 1.0)), [0.0, 0.0], [[1.0, 2.0], [2.0, 1.0]])


def test_the_suggested_mesh_finds_far_and_narrow_wells():
    class FarWell:
        dimension = 1

        def value(self, x):
            return 1e4 * (x - 77.0) ** 2

    grid = suggest_phase_space(EQUATION, FarWell(), energy=20.0)
    reach = math.sqrt(20.0 * EQUATION.temperature / 1e4)
    assert grid.x_bounds == pytest.approx((77.0 - reach, 77.0 + reach), abs=0.01 * reach)
