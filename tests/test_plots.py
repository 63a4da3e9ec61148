import ast
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure
from PIL import Image

import heatbath
from heatbath.plots import (
    plot_density_over_time,
    plot_marginal_against_boltzmann,
    plot_phase_space,
    plot_trajectories,
    write_animation,
)
from heatbath.theory.phase_space import PhaseSpace, gaussian_density, marginals

GRID = PhaseSpace((-2.0, 2.0), (-3.0, 3.0), (40, 30))
X, V = np.meshgrid(GRID.x, GRID.v, indexing="ij")
ENERGY = 4.0 * X**2 + 2.0 * V**2
DENSITIES = np.array(
    [gaussian_density(GRID, [mean, 0.2], [[0.05, 0.01], [0.01, 0.2]]) for mean in (-0.8, -0.2, 0.3, 0.5)]
)
STEPS = np.array([0.0, 10.0, 200.0, 3000.0])


def imported_modules(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield f"{node.module}.{node.names[0].name}"


def test_matplotlib_has_one_home_and_no_global_state():
    homes = {
        path.name
        for path in Path(heatbath.__file__).parent.rglob("*.py")
        if any(module.startswith("matplotlib") for module in imported_modules(path))
    }
    assert homes == {"plots.py"}
    source = Path(heatbath.__file__).parent / "plots.py"
    assert not any("pyplot" in module for module in imported_modules(source))


def test_phase_space_has_position_along_x():
    ax = plot_phase_space(DENSITIES[0], GRID)
    (image,) = ax.images
    drawn = np.asarray(image.get_array())
    assert drawn.shape == (30, 40)
    np.testing.assert_allclose(drawn, (DENSITIES[0] / DENSITIES[0].max()).T)
    assert tuple(image.get_extent()) == (-2.0, 2.0, -3.0, 3.0)
    assert image.origin == "lower"
    assert "x" in ax.get_xlabel()
    assert "v" in ax.get_ylabel()


def test_plots_use_the_axis_they_are_given():
    ax = Figure().subplots()
    assert plot_phase_space(DENSITIES[0], GRID, ax, energy=ENERGY, title="Cold") is ax
    assert ax.get_title() == "Cold"
    assert plot_trajectories(STEPS, np.zeros((4, 2)), ax) is ax
    assert plot_marginal_against_boltzmann(GRID.x, GRID.x**2, GRID.x**2, ax) is ax


def test_the_view_holds_what_can_be_seen():
    ax = plot_phase_space(DENSITIES[0], GRID, energy=ENERGY)
    low, high = ax.get_xlim()
    assert -2.0 <= low <= -1.7
    assert 1.7 <= high <= 2.0


def test_densities_over_time_are_small_multiples_with_one_scale(tmp_path):
    axes = plot_density_over_time(DENSITIES, STEPS, GRID, energy=ENERGY)
    assert [ax.get_title() for ax in axes] == [
        "after 0 steps",
        "after 10 steps",
        "after 200 steps",
        "after 3,000 steps",
    ]
    assert len({ax.get_xlim() for ax in axes}) == 1
    figure = axes[0].figure
    assert len(figure.axes) == 4
    figure.savefig(tmp_path / "density.png")
    with Image.open(tmp_path / "density.png") as picture:
        assert picture.size[0] > 500


def test_trajectories_are_lines_over_steps():
    paths = np.random.default_rng(0).standard_normal((4, 3))
    ax = plot_trajectories(STEPS, paths, minima=[-1.0, 1.0])
    lines = ax.get_lines()
    assert len(lines) == 3 + 2
    np.testing.assert_array_equal(lines[1].get_ydata(), paths[:, 1])
    assert ax.get_xlim() == (0.0, 3000.0)
    assert len({line.get_color() for line in lines[:3]}) == 3


def test_the_marginal_stands_beside_boltzmann():
    marginal = marginals(DENSITIES[0], GRID)[0]
    heights, edges = np.ones(8), np.linspace(-2.0, 2.0, 9)
    ax = plot_marginal_against_boltzmann(GRID.x, marginal, 0.5 * marginal, histogram=(edges, heights))
    drawn = [line.get_ydata() for line in ax.get_lines()]
    np.testing.assert_array_equal(drawn[0], marginal)
    np.testing.assert_array_equal(drawn[1], 0.5 * marginal)
    labels = " ".join(text.get_text() for text in ax.get_legend().get_texts())
    assert all(word in labels for word in ("SGD", "Fokker-Planck", "Boltzmann"))


def test_the_animation_moves_and_is_small(tmp_path):
    path, seen = tmp_path / "density.gif", []
    write_animation(
        path,
        DENSITIES,
        STEPS,
        GRID,
        boltzmann=marginals(DENSITIES[3], GRID)[0],
        energy=ENERGY,
        progress=lambda done, total: seen.append((done, total)),
    )
    with Image.open(path) as movie:
        assert movie.n_frames == 4
        frames = []
        for index in range(4):
            movie.seek(index)
            frames.append(np.asarray(movie.convert("RGB"), dtype=np.int64))
    assert all(np.abs(one - other).max() > 50 for one, other in pairwise(frames))
    assert path.stat().st_size < 2_000_000
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
