import math

import numpy as np
import pytest
import torch
from scipy import integrate, special

import heatbath as hb
from heatbath.laws import _normal_quantile

LAWS = [
    hb.Constant(),
    hb.Uniform(0.7),
    hb.Uniform(1.0),
    hb.TwoPoint(0.4),
    hb.TwoPoint(1.0),
    hb.Arcsine(0.8),
    hb.LogNormal(0.6),
    hb.Exponential(),
]


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_moments_are_those_of_the_quantile(law):
    def moment(power):
        halves = [(0.0, 0.5), (0.5, 1.0)]
        return sum(integrate.quad(lambda u: float(law.quantile(u)) ** power, a, b, limit=200)[0] for a, b in halves)

    assert moment(1) == pytest.approx(1.0, abs=1e-7)
    assert moment(2) == pytest.approx(law.second_moment, abs=1e-6)
    assert law.mean == 1.0
    assert law.second_moment == 1.0 + law.variance


def test_known_variances():
    assert hb.Constant().variance == 0.0
    assert hb.Uniform(0.6).variance == pytest.approx(0.36 / 3, rel=1e-15)
    assert hb.TwoPoint(0.6).variance == pytest.approx(0.36, rel=1e-15)
    assert hb.Arcsine(0.6).variance == pytest.approx(0.18, rel=1e-15)
    assert hb.LogNormal(0.6).variance == pytest.approx(math.exp(0.36) - 1, rel=1e-15)
    assert hb.Exponential().variance == 1.0


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_quantile_is_monotone_not_negative_and_the_same_in_torch(law):
    u = np.linspace(2.0**-53, 1 - 2.0**-53, 10_001)
    alpha = law.quantile(u)
    assert alpha.dtype == np.float64
    assert (alpha >= 0).all()
    assert (np.diff(alpha) >= -1e-15).all()
    in_torch = law.quantile(torch.from_numpy(u))
    assert in_torch.dtype == torch.float64
    np.testing.assert_allclose(in_torch.numpy(), alpha, rtol=1e-13, atol=1e-15)


def test_normal_quantile_against_scipy():
    u = np.concatenate([np.linspace(1e-6, 1 - 1e-6, 10_001), 10.0 ** -np.arange(1, 300), 1 - 10.0 ** -np.arange(2, 16)])
    np.testing.assert_allclose(_normal_quantile(u, np), special.ndtri(u), rtol=2e-14, atol=5e-16)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_prints_parses_and_hashes(law):
    assert hb.parse_law(str(law)) == law
    assert eval(repr(law), vars(hb)) == law
    assert hash(hb.parse_law(str(law))) == hash(law)
    assert hb.parse_law(law) is law


def test_spellings():
    assert hb.parse_law("uniform:0.5") == hb.Uniform(0.5) == hb.Uniform(delta=0.5)
    assert str(hb.Uniform(1)) == "uniform:1.0"
    assert hb.Uniform(1) == hb.Uniform(1.0)
    assert hb.parse_law(" Two-Point:0.25 ") == hb.TwoPoint(0.25)
    assert hb.parse_law("uniform") == hb.Uniform(1.0)


def test_laws_are_frozen():
    with pytest.raises(AttributeError):
        hb.Uniform(0.5).delta = 0.7


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: hb.Uniform(1.5), ValueError, ["Uniform", "delta", "1.5", "0 <= delta <= 1"]),
        (lambda: hb.Uniform(-0.1), ValueError, ["delta", "-0.1"]),
        (lambda: hb.Uniform(float("nan")), ValueError, ["delta", "nan"]),
        (lambda: hb.Uniform(10**400), ValueError, ["Uniform", "delta", "0 <= delta <= 1"]),
        (lambda: hb.Uniform("wide"), TypeError, ["delta", "'wide'"]),
        (lambda: hb.TwoPoint(2), ValueError, ["TwoPoint", "spread", "2"]),
        (lambda: hb.LogNormal(-1), ValueError, ["LogNormal", "sigma", "-1"]),
        (lambda: hb.parse_law("gauss:1"), ValueError, ["gauss:1", "uniform", "lognormal"]),
        (lambda: hb.parse_law("uniform:a"), ValueError, ["uniform:a", "number"]),
        (lambda: hb.parse_law("uniform:0.1:0.2"), ValueError, ["too many", "uniform:delta"]),
        (lambda: hb.parse_law("uniform:3"), ValueError, ["delta", "3"]),
        (lambda: hb.parse_law(3), TypeError, ["law", "3"]),
    ],
)
def test_bad_parameters(make, error, words):
    with pytest.raises(error) as caught:
        make()
    assert all(word in str(caught.value) for word in words)
