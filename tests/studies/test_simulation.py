import json
import math
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from heatbath.laws import Uniform
from heatbath.studies.simulation import simulate, write_simulation
from heatbath.theory.phase_space import moments, total_mass
from heatbath.thermostat import Thermostat

FILES = ["density.gif", "density.png", "marginal.png", "summary.json", "trajectories.png"]
KNOBS = Thermostat(lr=0.005, batch_size=16, momentum=0.95, law=Uniform(0.6))


@pytest.fixture(scope="module")
def small():
    return simulate(KNOBS, "double-well:0.2:2", steps=60, frames=6, trajectories=5000, cells=(64, 64))


def test_density_and_trajectories_tell_the_same_story(small):
    grid, summary = small.grid, small.summary
    assert small.densities.shape == (6, 64, 64)
    assert small.positions.shape == (6, 5000)
    assert small.paths.shape == (61, 6)
    np.testing.assert_array_equal(small.steps, np.round(60 * np.linspace(0, 1, 6) ** 2))
    for density, positions in zip(small.densities, small.positions, strict=True):
        assert total_mass(density, grid) == pytest.approx(1.0, abs=1e-10)
        assert density.min() >= 0.0
        found = moments(density, grid)
        spread = math.sqrt(found.covariance[0, 0])
        # In n steps the mean falls as n (n + 1)/2, half a step ahead of n^2/2; the spread likewise. It shows at first.
        assert abs(positions.mean() - found.mean[0]) < 0.3 * spread
        assert positions.std() == pytest.approx(spread, rel=0.1)
    assert positions.std() == pytest.approx(spread, rel=0.04)  # sampling error 1 %
    distance = summary["histogram_distance"]
    assert distance["found"] < distance["expected_from_sampling"] + 5 * distance["standard_deviation"]


def test_the_summary_is_plain_and_right(small):
    summary = json.loads(json.dumps(small.summary))
    assert summary["temperature"] == pytest.approx(KNOBS.temperature(24.0), rel=1e-12)
    assert summary["law_factor"] == pytest.approx(1.12)
    assert summary["mass_error"] < 1e-10
    assert summary["smallest_density"] >= 0.0
    entropies = list(summary["relative_entropy"].values())
    assert all(later < earlier for earlier, later in pairwise(entropies))
    assert summary["knobs"]["law"] == "uniform:0.6"


def test_what_leaves_the_mesh_counts_in_the_distance():
    """Near the largest stable rate SGD is far hotter than leading order says, and than the mesh is wide."""
    knobs = Thermostat(lr=0.26, batch_size=16, momentum=0.95, law="uniform:1")
    result = simulate(knobs, "quadratic:1", diffusion=1.0, steps=100, frames=2, trajectories=2000, cells=(32, 32))
    low, high = result.grid.x_bounds
    inside = (result.positions[-1] > low) & (result.positions[-1] < high)
    outside = 1.0 - inside.mean()
    assert outside > 0.01
    shares = np.histogram(result.positions[-1], result.grid.x_edges[::2])[0] / 2000
    cells = result.densities[-1].sum(axis=1) * result.grid.cell_area
    expected = np.abs(shares - cells.reshape(-1, 2).sum(axis=1)).sum() + outside
    assert result.summary["histogram_distance"]["found"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("coupling", "nesterov"), [("gradient", False), ("update", True)])
def test_trajectories_end_at_the_thermostats_temperature(coupling, nesterov):
    knobs = Thermostat(0.002, 10, 0.8, nesterov, "uniform:1", coupling, dataset_size=50)
    result = simulate(
        knobs, "quadratic:2", diffusion=5.0, start=0.02, steps=300, frames=3, trajectories=20_000, cells=(48, 48)
    )
    expected = knobs.temperature(5.0) / 2.0
    variances = result.summary["position_variance"]
    assert variances["boltzmann"] == pytest.approx(expected, rel=1e-3)
    assert variances["fokker_planck"] == pytest.approx(expected, rel=0.01)
    assert variances["sgd"] == pytest.approx(expected, rel=0.05)  # sampling error 1 %; the law's factor is 33 or 11 %


def test_it_writes_pictures_and_numbers(small, tmp_path):
    seen = []
    files = write_simulation(small, tmp_path / "out", lambda fraction, message: seen.append((fraction, message)))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == FILES
    assert [path.name for path in files] == FILES
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == small.summary
    assert (tmp_path / "out" / "density.gif").stat().st_size < 2_000_000
    fractions = [fraction for fraction, _ in seen]
    assert fractions == sorted(fractions)
    assert fractions[-1] == pytest.approx(1.0)
    assert {message for _, message in seen} == {"pictures", "animation"}


def test_an_interrupt_leaves_nothing_half_written(small, tmp_path):
    def interrupt(fraction, message):
        if message == "animation" and fraction > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_simulation(small, tmp_path / "new", interrupt)
    assert not (tmp_path / "new").exists()

    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "summary.json").write_text("before")
    with pytest.raises(KeyboardInterrupt):
        write_simulation(small, tmp_path / "old", interrupt)
    assert [path.name for path in (tmp_path / "old").iterdir()] == ["summary.json"]
    assert (tmp_path / "old" / "summary.json").read_text() == "before"


def test_progress_runs_to_the_end():
    seen = []
    simulate(
        KNOBS,
        steps=10,
        frames=3,
        trajectories=10,
        cells=(48, 48),
        progress=lambda fraction, message: seen.append((fraction, message)),
    )
    assert seen[0] == (0.0, "trajectories of SGD")
    assert len([message for _, message in seen if message == "trajectories of SGD"]) > 10  # many take long
    assert seen[-1] == (1.0, "Fokker-Planck")
    assert [fraction for fraction, _ in seen] == sorted(fraction for fraction, _ in seen)


@pytest.mark.parametrize("diffusion", [100.0, 5000.0])
def test_far_above_the_barrier_the_start_is_where_the_walls_allow(diffusion):
    result = simulate(KNOBS, diffusion=diffusion, steps=4, frames=2, trajectories=10)
    start = result.positions[0].mean()
    assert start < -1.0
    assert result.landscape.value(start) < 10.0 * result.summary["temperature"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"landscape": "rosenbrock"}, "one dimension"),
        ({"landscape": "triple-well"}, "unknown landscape"),
        ({"steps": 0}, "steps must be an integer with 1 <= steps"),
        ({"steps": 10**23}, r"steps must be an integer with 1 <= steps < 2\*\*24"),
        ({"trajectories": 2**24}, r"6 <= trajectories < 2\*\*24, got 16777216"),
        ({"frames": 1}, "frames must be an integer with 2 <= frames"),
        ({"seed": 2**63}, r"seed must be an integer with 0 <= seed < 2\*\*63"),
        ({"start": math.nan}, "start must be a finite number, got nan"),
        *(
            ({"diffusion": value}, f"diffusion must be a finite number with diffusion > 0, got {value}")
            for value in (-1.0, 0.0, math.nan, math.inf)
        ),
        ({"cells": (10, 64)}, "too coarse in x"),
        ({"diffusion": 1e-3}, "more than 512 in one direction.*; raise the temperature or lower the barrier$"),
        ({"landscape": "log-cosh", "diffusion": 1e4}, "more than 512 in one direction.*; lower the temperature$"),
        ({"landscape": "log-cosh", "start": -20.0}, "more than 512 in one direction.*; start closer to a minimum$"),
        ({"knobs": Thermostat(0.005, 16, dataset_size=16)}, "batch_size=16 is the whole data set, which has no noise"),
        ({"start": -4.0}, "the loss reaches up to .* T above its minimum.* start closer to a minimum"),
        ({"landscape": "quadratic:5000"}, "times the largest stable rate"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments, message):
    with pytest.raises(ValueError, match=message) as caught:
        simulate(**{"knobs": KNOBS, "trajectories": 10, "steps": 10, "frames": 3, **arguments})
    assert "\n" not in str(caught.value)
