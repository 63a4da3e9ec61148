"""Pictures of positions in the plane."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from heatbath.report.plots.plane import (
    Scene,
    plot_plane,
    plot_plane_marginals,
    plot_plane_over_time,
    plot_plane_trajectories,
)
from heatbath.theory.landscapes import AnisotropicQuadratic
from heatbath.theory.plane import PlaneMesh

MESH = PlaneMesh((-2.0, 2.0), (-1.0, 3.0), (40, 60))
LANDSCAPE = AnisotropicQuadratic()
SCENE = Scene(MESH, LANDSCAPE.value(MESH.points), np.array([0.1, 0.4, 1.6, 6.4]), LANDSCAPE.minima)


def test_positions_are_drawn_where_they_are():
    axis = plot_plane(np.full((50, 2), [1.0, 2.5]), SCENE, title="There")
    image = np.asarray(axis.images[0].get_array())
    row, column = np.unravel_index(image.argmax(), image.shape)
    left, right, bottom, top = axis.images[0].get_extent()
    assert left + (column + 0.5) / image.shape[1] * (right - left) == pytest.approx(1.0, abs=0.06)
    assert bottom + (row + 0.5) / image.shape[0] * (top - bottom) == pytest.approx(2.5, abs=0.06)
    assert image.max() == 1.0
    assert (image > 0).sum() <= 9  # a bar and its neighbours
    assert axis.get_title() == "There"
    levels = axis.collections[0].levels
    np.testing.assert_array_equal(levels, SCENE.levels)


def test_what_lies_outside_is_not_drawn():
    assert np.asarray(plot_plane(np.full((5, 2), 9.0), SCENE).images[0].get_array()).max() == 0.0


def test_small_multiples_are_one_for_each_time():
    axes = plot_plane_over_time(np.zeros((4, 10, 2)), [0, 5, 50, 2000], SCENE, title="Over time", key="Key")
    assert [axis.get_title() for axis in axes] == [
        "after 0 steps",
        "after 5 steps",
        "after 50 steps",
        "after 2,000 steps",
    ]
    assert axes[0].figure.get_suptitle() == "Over time\n"


def test_trajectories_run_from_start_to_end():
    paths = np.random.default_rng(0).normal(size=(30, 2, 2))
    given = Figure().subplots()
    axis = plot_plane_trajectories(paths, SCENE, given, title="Two")
    assert axis is given
    lines = [line.get_xydata() for line in axis.lines]
    for index in range(2):
        path, start, end = lines[3 * index : 3 * index + 3]
        np.testing.assert_array_equal(path, paths[:, index])
        np.testing.assert_array_equal(start, paths[:1, index])
        np.testing.assert_array_equal(end, paths[-1:, index])
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["minimum", "start", "end"]


def test_marginals_of_x_and_y_stand_side_by_side():
    edges = [np.linspace(0.0, 1.0, 5), np.linspace(0.0, 2.0, 5)]
    sgd, equation = [np.ones(4), 0.5 * np.ones(4)], [2.0 * np.ones(4), np.ones(4)]
    axes = plot_plane_marginals(edges, sgd, equation, [(edges[0], edges[0]), (edges[1], edges[1])], title="Both")
    for index, axis in enumerate(axes):
        stairs = [patch.get_data() for patch in axis.patches]
        np.testing.assert_array_equal(stairs[0].values, sgd[index])
        np.testing.assert_array_equal(stairs[1].values, equation[index])
        np.testing.assert_array_equal(axis.lines[0].get_ydata(), edges[index])
    figure = axes[0].figure
    FigureCanvasAgg(figure).draw()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()][:2] == ["SGD", "stochastic equation"]
    assert not any(legend.get_window_extent().overlaps(axis.get_tightbbox()) for axis in axes)
    without = plot_plane_marginals(edges, sgd, equation, None, title="Both")
    assert not without[0].lines
