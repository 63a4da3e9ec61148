import math
from dataclasses import dataclass

import numpy as np
import pytest

from heatbath.theory.landscapes import AnisotropicQuadratic, Landscape, Quadratic, Rosenbrock
from heatbath.theory.plane import PlaneMesh, boltzmann_density, plane_moments, suggest_plane


@dataclass(frozen=True)
class Gutter(Landscape):
    """``x^2 / 2``, flat along y: no equilibrium."""

    @property
    def dimension(self):
        return 2

    @property
    def minima(self):
        return np.zeros((1, 2))

    @property
    def stiffness(self):
        return 1.0

    def value(self, x):
        return 0.5 * x[..., 0] ** 2

    def gradient(self, x):
        return x * np.array([1.0, 0.0])


@pytest.mark.parametrize("temperature", [1e-4, 0.2, 3.0])
@pytest.mark.parametrize("narrowness", [0.5, 10.0, 100.0])
def test_rosenbrocks_weight_has_its_exact_moments(narrowness, temperature):
    # x is Gaussian about 1 of variance T/2, y given x is Gaussian about x^2 of variance T/(2 b).
    landscape = Rosenbrock(narrowness)
    mesh = suggest_plane(landscape, temperature)
    density = boltzmann_density(landscape, temperature, mesh)
    found = plane_moments(density, landscape, mesh)
    assert density.sum() * mesh.cell_area == pytest.approx(1.0, abs=1e-12)
    spread = math.sqrt(temperature)
    np.testing.assert_allclose(found.mean, [1.0, 1.0 + 0.5 * temperature], atol=1e-6 * spread)
    across = 2.0 * temperature + 0.5 * temperature**2 + 0.5 * temperature / narrowness
    np.testing.assert_allclose(found.variance, [0.5 * temperature, across], rtol=1e-6)
    assert found.loss == pytest.approx(temperature, rel=1e-6)


def test_the_mesh_holds_all_but_a_hundred_millionth_of_the_weight():
    mesh = suggest_plane(AnisotropicQuadratic((1.0, 25.0)), 0.3)
    for bounds, curvature in ((mesh.x_bounds, 1.0), (mesh.y_bounds, 25.0)):
        reach = math.sqrt(2.0 * 18.5 * 0.3 / curvature)
        assert bounds[0] == pytest.approx(-reach, rel=0.03)
        assert bounds[1] == pytest.approx(reach, rel=0.03)
        assert bounds[0] < -reach
        assert bounds[1] > reach


def test_a_weight_without_norm_has_no_mesh():
    assert suggest_plane(Gutter(), 0.1) is None


def test_bad_meshes_are_refused():
    with pytest.raises(ValueError, match="must have two dimensions, got Quadratic"):
        suggest_plane(Quadratic(), 0.1)
    with pytest.raises(ValueError, match="it spans 12224 thermal widths"):
        suggest_plane(AnisotropicQuadratic((1e-3, 1e3)), 0.1)
    with pytest.raises(ValueError, match="y_bounds must be two finite numbers"):
        PlaneMesh((0.0, 1.0), (1.0, 1.0), (4, 4))
    with pytest.raises(ValueError, match="cells must be at least 1"):
        PlaneMesh((0.0, 1.0), (0.0, 1.0), (4, 0))
