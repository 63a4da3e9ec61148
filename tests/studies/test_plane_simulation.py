import json
import math
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from PIL import Image
from scipy.linalg import expm

from heatbath.studies.plane_simulation import DEFAULT_KNOBS, simulate_plane, write_plane_simulation
from heatbath.theory.landscapes import Landscape
from heatbath.theory.quadratic import relaxation_time, stationary_moments
from heatbath.thermostat import Thermostat

FILES = ["density.gif", "density.png", "marginal.png", "summary.json", "trajectories.png"]
CURVATURES = np.array([1.0, 4.0])
KNOBS = Thermostat(lr=0.02, batch_size=4, momentum=0.8, law="uniform:1")
COUNT = 10_000


class Gutter(Landscape):
    """``x^2 / 2``, flat along y: no equilibrium."""

    dimension = 2
    minima = np.zeros((1, 2))
    stiffness = 1.0

    def value(self, x):
        return 0.5 * x[..., 0] ** 2

    def gradient(self, x):
        return x * np.array([1.0, 0.0])


@pytest.fixture(scope="module")
def quadratic():
    """The anisotropic quadratic after ten relaxation times of the second moments."""
    steps = math.ceil(10.0 * relaxation_time(KNOBS, CURVATURES))
    return simulate_plane(
        KNOBS, "anisotropic-quadratic:1:4", diffusion=2.0, steps=steps, frames=3, trajectories=COUNT, seed=5
    )


def test_sgd_has_the_exact_moments_of_the_quadratic_and_not_those_of_leading_order(quadratic):
    exact = stationary_moments(KNOBS, CURVATURES, 2.0)[:, 0, 0]
    leading = KNOBS.temperature(2.0) / CURVATURES
    last = quadratic.sgd[-1]
    assert np.all(np.abs(last.mean(axis=0)) < 4.0 * np.sqrt(exact / COUNT))
    found = np.array(quadratic.summary["position_variance"]["sgd"])
    kurtosis = np.mean(last**4, axis=0) / found**2
    errors = found * np.sqrt((kurtosis - 1.0) / COUNT)
    assert np.all(np.abs(found - exact) < 4.0 * errors)
    assert (found - leading)[1] > 5.0 * errors[1]  # the stiff direction is 10 % hotter


def test_the_equation_and_boltzmann_have_the_thermostats_temperature(quadratic):
    temperature = KNOBS.temperature(2.0)
    summary = quadratic.summary
    assert summary["temperature"] == pytest.approx(temperature, rel=1e-12)
    np.testing.assert_allclose(summary["position_variance"]["boltzmann"], temperature / CURVATURES, rtol=1e-6)
    found = np.array(summary["position_variance"]["langevin"]) * CURVATURES / temperature
    assert np.all(np.abs(found - 1.0) < 4.0 * math.sqrt(2.0 / COUNT))
    assert summary["loss_mean"]["boltzmann"] == pytest.approx(temperature, rel=1e-6)  # T/2 for each direction


def test_distances_are_judged_by_their_sampling_error(quadratic):
    distances = quadratic.summary["histogram_distance"]

    def score(name):
        distance = distances[name]
        return (distance["found"] - distance["expected_from_sampling"]) / distance["standard_deviation"]

    assert abs(score("langevin_to_boltzmann")) < 4.0
    assert score("sgd_to_boltzmann") < 4.0
    assert abs(score("sgd_to_langevin")) < 4.0
    early = simulate_plane(KNOBS, "anisotropic-quadratic", diffusion=2.0, steps=3, trajectories=500).summary
    distances = early["histogram_distance"]
    assert score("sgd_to_boltzmann") > 20.0
    assert 1.0 < distances["sgd_to_boltzmann"]["found"] <= 2.0
    assert distances["sgd_to_boltzmann"]["bars"] < quadratic.summary["histogram_distance"]["sgd_to_boltzmann"]["bars"]


def test_sgd_and_the_equation_are_compared_where_they_are():
    """Both are still far from Boltzmann's weight, and far from each other, by the first order in the rate."""
    found = simulate_plane(KNOBS, "anisotropic-quadratic", diffusion=0.01, start=(3.0, 3.0), steps=10, trajectories=500)
    reach = np.array([found.mesh.x_bounds[1], found.mesh.y_bounds[1]])
    assert np.all((found.sgd[-1] > reach).any(axis=1))
    assert np.all((found.langevin[-1] > reach).any(axis=1))
    distances = found.summary["histogram_distance"]
    assert distances["sgd_to_boltzmann"]["found"] > 1.9
    near = distances["sgd_to_langevin"]
    assert near["found"] > near["expected_from_sampling"] + 5.0 * near["standard_deviation"]


def test_a_handful_of_trajectories_is_not_found_at_no_distance():
    distances = simulate_plane(steps=1, trajectories=6).summary["histogram_distance"]
    assert distances["sgd_to_boltzmann"]["found"] > 1.5
    assert distances["sgd_to_langevin"]["expected_from_sampling"] > 0.1


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.95])
def test_the_equation_drifts_at_its_own_pace_at_any_momentum(momentum):
    """BAOAB with a step of SGD for a step in time would be 8 % too fast without momentum."""
    knobs, start = replace(KNOBS, momentum=momentum, lr=0.01), np.array([2.0, -2.0])
    found = simulate_plane(
        knobs, "anisotropic-quadratic:1:4", diffusion=2.0, start=start, steps=80, frames=2, trajectories=COUNT
    )
    cloud = found.langevin[-1]
    for axis, curvature in enumerate(CURVATURES):
        drift = np.array([[0.0, 1.0], [-curvature / knobs.lr, -(1.0 - momentum) / knobs.lr]])
        expected = (expm(80 * knobs.lr * drift) @ [start[axis], 0.0])[0]
        gap = 0.01 * abs(start[axis]) + 4.0 * cloud[:, axis].std() / math.sqrt(COUNT)
        assert abs(cloud[:, axis].mean() - expected) < gap


def test_the_two_kinds_share_no_random_numbers(quadratic):
    for step in (0, -1):
        sgd, langevin = quadratic.sgd[step], quadratic.langevin[step]
        for axis in (0, 1):
            correlation = np.corrcoef(sgd[:, axis], langevin[:, axis])[0, 1]
            assert abs(correlation) < 4.0 / math.sqrt(COUNT)


def test_rosenbrock_leaves_its_start_and_falls_into_the_valley():
    found = simulate_plane(steps=400, frames=4, trajectories=600)
    summary = found.summary
    assert summary["temperature"] == pytest.approx(0.2)
    assert summary["start"] == [-1.0, 1.0]
    temperature = summary["temperature"]
    np.testing.assert_allclose(summary["position_mean"]["boltzmann"], [1.0, 1.0 + 0.5 * temperature], rtol=1e-6)
    first = found.sgd[0].mean(axis=0) - [-1.0, 1.0]
    assert np.all(np.abs(first) < 4.0 * 0.5 * math.sqrt(temperature / found.landscape.stiffness / 600))
    for kind in ("sgd", "langevin"):
        assert summary["loss_mean"][kind] < 0.1 * found.landscape.value(np.array([-1.0, 1.0]))
        assert summary["position_mean"][kind][0] > 0.4
    assert found.sgd.shape == found.langevin.shape == (4, 600, 2)
    assert found.paths.shape == (401, 3, 2)


def test_the_defaults_are_far_from_the_edge_of_stability():
    found = simulate_plane(steps=1, trajectories=6)
    assert DEFAULT_KNOBS.lr < 0.1 * 0.2786 / found.landscape.stiffness  # y of largest_stable_rate


def test_a_seed_says_it_all():
    size = {"landscape": "anisotropic-quadratic", "steps": 5, "trajectories": 20}
    assert simulate_plane(**size).summary == simulate_plane(**size).summary
    assert simulate_plane(**size).summary["position_mean"] != simulate_plane(**size, seed=1).summary["position_mean"]


def test_it_writes_pictures_and_numbers(tmp_path):
    found = simulate_plane(steps=30, frames=5, trajectories=200)
    seen = []
    files = write_plane_simulation(found, tmp_path / "out", lambda fraction, what: seen.append((fraction, what)))
    assert [path.name for path in files] == FILES
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == FILES
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == found.summary
    with Image.open(tmp_path / "out" / "density.gif") as movie:
        assert movie.n_frames == 5
    fractions = [fraction for fraction, _ in seen]
    assert fractions == sorted(fractions)
    assert fractions[-1] == pytest.approx(1.0)


def test_without_equilibrium_there_is_the_equation_alone(tmp_path):
    found = simulate_plane(KNOBS, Gutter(), diffusion=2.0, start=(0.5, 0.0), steps=20, frames=3, trajectories=300)
    assert found.mesh is None
    assert found.summary["histogram_distance"]["sgd_to_boltzmann"] is None
    assert found.summary["position_mean"]["boltzmann"] is None
    distance = found.summary["histogram_distance"]["sgd_to_langevin"]
    assert 0.0 < distance["found"] < distance["expected_from_sampling"] + 4.0 * distance["standard_deviation"]
    assert len(write_plane_simulation(found, tmp_path)) == 5


def test_progress_runs_to_the_end():
    seen = []
    simulate_plane(steps=10, trajectories=10, progress=lambda fraction, what: seen.append((fraction, what)))
    assert seen[-1] == (1.0, "trajectories of the equation")
    assert [fraction for fraction, _ in seen] == sorted(fraction for fraction, _ in seen)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"landscape": "quadratic"}, "need a landscape of two dimensions.*Quadratic.* has 1"),
        ({"landscape": "anisotropic-quadratic:1:2:3"}, "two dimensions.* has 3"),
        ({"landscape": "rosenbrock:1000"}, "times the largest stable rate"),
        ({"start": (1.0, math.nan)}, "start must be two finite numbers or None"),
        ({"start": 1.0}, "start must be two finite numbers or None, got 1.0"),
        ({"steps": 0}, "steps must be an integer with 1 <= steps"),
        ({"diffusion": 0.0}, "diffusion must be a finite number with diffusion > 0, got 0.0"),
        ({"start": (20.0, 0.0), "steps": 100}, "ran off to infinity"),
        ({"diffusion": 1e7}, "it spans 7535 thermal widths"),
        ({"knobs": replace(DEFAULT_KNOBS, dataset_size=16)}, "is the whole data set, which has no noise"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments, message):
    with pytest.raises(ValueError, match=message) as caught:
        simulate_plane(**{"trajectories": 10, "steps": 10, **arguments})
    assert "\n" not in str(caught.value)
