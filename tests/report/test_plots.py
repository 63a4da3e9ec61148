import ast
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure
from PIL import Image

import heatbath
from figure_data import PROTOCOLS, categories_figure, empty_figure, sparse_figure, training_figure
from heatbath.report.panels import FigureData, Panel, Series
from heatbath.report.plots import (
    plot_density_over_time,
    plot_figure,
    plot_marginal_against_boltzmann,
    plot_phase_space,
    plot_trajectories,
    write_animation,
    write_figure,
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
    source = Path(heatbath.__file__).parent
    users = [path for path in source.rglob("*.py") if any(m.startswith("matplotlib") for m in imported_modules(path))]
    assert users
    assert {path.parent for path in users} == {source / "report" / "plots"}
    assert not any("pyplot" in module for path in users for module in imported_modules(path))


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


def test_a_figure_is_a_row_of_panels_with_one_legend():
    figure = plot_figure(training_figure())
    assert [ax.get_title() for ax in figure.axes] == ["Test accuracy", "Training loss"]
    assert [ax.get_yscale() for ax in figure.axes] == ["linear", "log"]
    assert figure.axes[0].get_position().y0 == pytest.approx(figure.axes[1].get_position().y0)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(PROTOCOLS)
    for ax, panel in zip(figure.axes, training_figure().panels, strict=True):
        curves = [line for line in ax.get_lines() if line.get_label() in PROTOCOLS]
        for line, series in zip(curves, panel.series, strict=True):
            np.testing.assert_array_equal(line.get_xydata(), np.column_stack([series.x, series.y]))
        assert len({line.get_color() for line in curves}) == len(PROTOCOLS)


def test_the_legend_shows_all_that_a_name_is_drawn_as():
    """Dash and mark of a name that has both, whichever panel comes last: colour alone must not tell series apart."""
    curves = tuple(Series(name, (1.0, 2.0), (1.0, 2.0 + k), colour=k) for k, name in enumerate("ab"))
    points = tuple(Series(name, (name,), (1.0,), style="points", colour=k) for k, name in enumerate("abc"))
    for panels in ((curves, points), (points, curves)):
        figure = FigureData("f", "t", "q", tuple(Panel("p", "x", "y", one) for one in panels))
        (legend,) = plot_figure(figure).legends
        keys = {text.get_text(): key for text, key in zip(legend.get_texts(), legend.legend_handles, strict=True)}
        looks = {name: (key.get_linestyle(), key.get_marker()) for name, key in keys.items()}
        assert looks == {"a": ("-", "o"), "b": ("--", "s"), "c": ("None", "^")}
        assert len({str(key.get_color()) for key in keys.values()}) == 3


def test_a_point_between_gaps_is_seen():
    ax = plot_figure(sparse_figure()).axes[0]
    dots = [line.get_xydata().tolist() for line in ax.get_lines() if line.get_marker() == "." and len(line.get_xdata())]
    assert dots == [[[1.0, 4.0], [3.0, 5.5]]]


def test_points_that_share_a_category_stand_side_by_side():
    shared, alone = plot_figure(categories_figure()).axes
    places = [sorted(x for points in ax.containers for x in points[0].get_xdata()) for ax in (shared, alone)]
    np.testing.assert_allclose(places[0], [k + shift for k in range(3) for shift in (-0.32, -0.16, 0.0, 0.16, 0.32)])
    assert places[1] == [0, 1, 2, 3, 4]
    assert [text.get_text() for text in shared.get_xticklabels()] == ["batch 64", "batch 256", "batch 1024"]


def test_figures_without_panels_numbers_or_formulas_are_drawn(tmp_path):
    assert plot_figure(empty_figure()).axes == []
    odd = Series("costs $5 or $6_", (1.0, 2.0), (None, 0.1), (None, -1.0), (None, 0.2), "points", 13)
    figure = FigureData("odd", "1 $ is 1 $", "?", (Panel("$^", "x_y", "$", (odd,), y_log=True), Panel("", "", "", ())))
    write_figure(plot_figure(figure), tmp_path / "odd.png")
    with Image.open(tmp_path / "odd.png") as picture:
        assert picture.size == (1440, 720)


@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
def test_the_same_figure_gives_the_same_bytes(kind, tmp_path):
    for name in ("one", "two"):
        write_figure(plot_figure(categories_figure()), tmp_path / f"{name}.{kind}")
    content = (tmp_path / f"one.{kind}").read_bytes()
    assert content == (tmp_path / f"two.{kind}").read_bytes()
    assert b"dc:date" not in content
    assert b"CreationDate" not in content


def test_turned_labels_end_at_their_category():
    names = ("constant", "random", "constant, T of random", "random update", "constant, T of update")
    series = tuple(Series(name, (name,), (0.9,), style="points", colour=k) for k, name in enumerate(names))
    page = plot_figure(FigureData("f", "t", "q", (Panel("p", "", "y", series),)))
    (ax,) = page.axes
    labels = ax.get_xticklabels()
    assert {label.get_rotation() for label in labels} == {30.0}
    page.canvas.draw()
    for place, label in enumerate(labels):
        tick, _ = ax.transData.transform((place, 0.9))
        box = label.get_window_extent()
        assert (box.x0 + box.x1) / 2.0 < tick < box.x1 + 5.0


def test_places_of_curves_are_hundredths_of_a_point_which_keeps_files_small():
    curves = [line for ax in plot_figure(training_figure()).axes for line in ax.lines if len(line.get_xydata()) > 9]
    assert curves
    for curve in curves:
        places = curve.get_transform().transform(curve.get_xydata())
        assert np.array_equal(places, np.round(places, 2), equal_nan=True)
