import numpy as np
import pytest

from heatbath.theory.landscapes import (
    AnisotropicQuadratic,
    DoubleWell,
    LogCosh,
    Quadratic,
    Rosenbrock,
    parse_landscape,
)

LANDSCAPES = [
    Quadratic(2.5),
    AnisotropicQuadratic((0.7, 3.0, 11.0)),
    LogCosh(0.8, 1.7),
    DoubleWell(barrier=1.3, separation=2.6),
    Rosenbrock(7.0),
]


def sample_points(landscape, count):
    generator = np.random.default_rng(3)
    return generator.normal(size=count if landscape.dimension == 1 else (count, landscape.dimension))


def hessian(landscape, point, nudge=1e-5):
    units = np.eye(landscape.dimension) if landscape.dimension > 1 else np.ones(1)
    rows = [landscape.gradient(point + nudge * u) - landscape.gradient(point - nudge * u) for u in units]
    return np.array(rows).reshape(landscape.dimension, landscape.dimension) / (2 * nudge)


@pytest.mark.parametrize("landscape", LANDSCAPES, ids=str)
def test_gradient_is_the_derivative_of_the_value(landscape):
    points, nudge = sample_points(landscape, 50), 1e-5
    gradient = landscape.gradient(points)
    assert gradient.shape == points.shape
    directions = np.eye(landscape.dimension) if landscape.dimension > 1 else [1.0]
    for axis, direction in enumerate(directions):
        difference = landscape.value(points + nudge * direction) - landscape.value(points - nudge * direction)
        expected = gradient if landscape.dimension == 1 else gradient[:, axis]
        np.testing.assert_allclose(difference / (2 * nudge), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("landscape", LANDSCAPES, ids=str)
def test_minima_and_stiffness(landscape):
    assert np.abs(landscape.gradient(landscape.minima)).max() < 1e-12
    largest = max(np.linalg.eigvalsh(hessian(landscape, point)).max() for point in landscape.minima)
    assert landscape.stiffness == pytest.approx(largest, rel=1e-6)
    nearby = landscape.minima[0] + 1e-3 * sample_points(landscape, 20)
    assert (landscape.value(nearby) > landscape.value(landscape.minima[:1])).all()


@pytest.mark.parametrize("landscape", LANDSCAPES, ids=str)
def test_arrays_of_any_leading_shape(landscape):
    points = sample_points(landscape, 24)
    stacked = points.reshape(4, 6, *points.shape[1:])
    np.testing.assert_array_equal(landscape.value(stacked).ravel(), landscape.value(points))
    np.testing.assert_array_equal(landscape.gradient(stacked).reshape(points.shape), landscape.gradient(points))


def test_the_barrier_of_the_double_well():
    landscape = DoubleWell(barrier=1.3, separation=2.6)
    saddle = np.array(landscape.saddle)
    assert landscape.minima[1] - landscape.minima[0] == pytest.approx(2.6)
    assert landscape.value(saddle) - landscape.value(landscape.minima[0]) == pytest.approx(1.3)
    assert landscape.gradient(saddle) == 0.0
    assert hessian(landscape, saddle).item() == pytest.approx(landscape.saddle_curvature, rel=1e-6)


@pytest.mark.parametrize(
    ("text", "landscape"),
    [
        ("double-well", DoubleWell()),
        ("Double_Well:2:3", DoubleWell(2.0, 3.0)),
        ("quadratic:2.0", Quadratic(2.0)),
        ("anisotropic-quadratic:1:4:9", AnisotropicQuadratic((1.0, 4.0, 9.0))),
        ("anisotropic-quadratic", AnisotropicQuadratic()),
        ("log-cosh:0.5", LogCosh(0.5)),
        ("rosenbrock", Rosenbrock()),
        (Quadratic(3.0), Quadratic(3.0)),
    ],
)
def test_parsing(text, landscape):
    assert parse_landscape(text) == landscape


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("valley", "choose one of anisotropic-quadratic, double-well, log-cosh, quadratic, rosenbrock"),
        ("quadratic:1:2", "takes at most 1"),
        ("quadratic:steep", "not a number"),
        ("quadratic:-1", "curvature must be a finite number with curvature > 0"),
        ("double-well:1:0", "separation must be a finite number with separation > 0"),
        ("anisotropic-quadratic:1", "two or more"),
        ("anisotropic-quadratic:1:nan", "curvature > 0"),
    ],
)
def test_bad_names_say_what_is_allowed(text, message):
    with pytest.raises(ValueError, match=message):
        parse_landscape(text)


@pytest.mark.parametrize("make", [lambda: parse_landscape(3), lambda: Quadratic("2"), lambda: Quadratic(True)])
def test_what_is_neither_a_number_nor_a_name_is_refused(make):
    with pytest.raises(TypeError, match=r"must be a (finite number|Landscape or text)"):
        make()
