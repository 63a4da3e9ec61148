from __future__ import annotations

import dataclasses
import math
import subprocess
import sys

import numpy as np
import pytest

from heatbath.laws import Constant, LogNormal, TwoPoint, Uniform
from heatbath.theory import quadratic, shuffled
from heatbath.thermostat import Thermostat

FORMS = [(coupling, nesterov) for coupling in ("gradient", "update") for nesterov in (False, True)]


def same(left: Thermostat, right: Thermostat, tolerance: float = 1e-12) -> bool:
    return math.isclose(left.temperature(), right.temperature(), rel_tol=tolerance)


def test_temperature_is_the_papers_formula():
    thermostat = Thermostat(lr=3e-4, batch_size=48, momentum=0.8)
    assert thermostat.temperature(diffusion=2.5) == pytest.approx(3e-4 * 2.5 / (2 * 48 * 0.2), rel=1e-14)


def test_the_papers_pairs():
    assert same(Thermostat(2e-4, 60), Thermostat(1e-4, 30))
    assert not same(Thermostat(1e-4, 60), Thermostat(1e-4, 30), tolerance=0.4)
    assert same(Thermostat(1e-4, 60, 0.75), Thermostat(1e-4, 30, 0.5))
    assert same(Thermostat(2.5e-4, 128, 0.9), Thermostat(5e-4, 256, 0.9))
    assert Thermostat(1e-4, 30).at(batch_size=60).lr == pytest.approx(2e-4, rel=1e-14)
    assert Thermostat(1e-4, 30, 0.5).at(batch_size=60, solve="momentum").momentum == pytest.approx(0.75, rel=1e-14)
    assert Thermostat(5e-4, 256, 0.9).at(lr=2.5e-4).batch_size == 128


@pytest.mark.parametrize(
    ("coupling", "nesterov", "expected"),
    [("gradient", False, 1.333), ("gradient", True, 1.333), ("update", False, 1.018), ("update", True, 1.024)],
)
def test_law_factor_in_the_table(coupling, nesterov, expected):
    thermostat = Thermostat(1e-3, 32, 0.9, nesterov, Uniform(1.0), coupling)
    assert round(thermostat.law_factor, 3) == expected
    assert thermostat.temperature() == pytest.approx(thermostat.law_factor * 1e-3 / (2 * 32 * 0.1), rel=1e-14)


def test_nesterov_factor_equals_its_long_form():
    mu, variance = 0.37, 0.6**2
    long = 1 + variance * (1 - mu) ** 2 * ((1 + mu) ** 2 + mu**4 / (1 - mu**2))
    assert Thermostat(1.0, 1, mu, True, TwoPoint(0.6), "update").law_factor == pytest.approx(long, rel=1e-14)


def test_uniform_law_enters_with_delta_squared():
    """The paper prints ``1 + D/3``; they agree at D = 0 and D = 1 only."""
    factor = Thermostat(1e-3, 8, 0.5, law=Uniform(0.5)).law_factor
    assert factor == pytest.approx(1 + 0.25 / 3, rel=1e-14)
    assert abs(factor - (1 + 0.5 / 3)) > 0.08


@pytest.mark.parametrize(("coupling", "nesterov"), FORMS)
def test_couplings_agree_without_momentum(coupling, nesterov):
    assert Thermostat(1e-3, 8, 0.0, nesterov, "uniform:0.8", coupling).law_factor == pytest.approx(1 + 0.64 / 3)


def test_only_the_variance_of_the_law_matters():
    laws = [Uniform(0.9), TwoPoint(0.9 / math.sqrt(3)), LogNormal(math.sqrt(math.log1p(0.27)))]
    temperatures = {round(Thermostat(1e-3, 8, 0.7, True, law, "update").temperature(), 15) for law in laws}
    assert len(temperatures) == 1


def test_finite_data():
    thermostat = Thermostat(1e-3, 25, 0.5, dataset_size=100)
    assert thermostat.temperature() == pytest.approx(75 / 99 * Thermostat(1e-3, 25, 0.5).temperature(), rel=1e-14)
    assert Thermostat(1e-3, 100, dataset_size=100).temperature() == 0.0
    assert Thermostat(1e-3, 1, dataset_size=1).temperature() == 0.0


@pytest.mark.parametrize(("coupling", "nesterov"), FORMS)
@pytest.mark.parametrize(
    "request_",
    [
        {"batch_size": 100},
        {"law": "constant"},
        {"momentum": 0.3, "dataset_size": None},
        {"batch_size": 200, "solve": "momentum"},
        {"lr": 1e-3, "batch_size": 40},
        {"lr": 1e-3, "solve": "momentum", "law": "lognormal:0.5"},
        {"nesterov": True, "coupling": "update"},
    ],
)
def test_at_keeps_the_temperature(coupling, nesterov, request_):
    thermostat = Thermostat(2e-3, 50, 0.6, nesterov, Uniform(0.7), coupling, dataset_size=5000)
    other = thermostat.at(**request_)
    assert same(other, thermostat, tolerance=1e-11)
    for name in ("lr", "batch_size", "momentum"):
        if name in request_:
            assert getattr(other, name) == request_[name]


@pytest.mark.parametrize("size", [None, 3000])
def test_batch_size_is_rounded_and_the_temperature_tells(size):
    thermostat = Thermostat(1e-3, 64, 0.9, law=Uniform(0.5), dataset_size=size)
    other = thermostat.at(lr=1.7e-3, momentum=0.85)
    assert not same(other, thermostat)
    assert same(other, thermostat, tolerance=0.5 / other.batch_size * 1.1)
    for neighbour in (other.batch_size - 1, other.batch_size + 1):
        worse = dataclasses.replace(other, batch_size=neighbour)
        gap = abs(worse.temperature() - thermostat.temperature())
        assert gap > abs(other.temperature() - thermostat.temperature())


def test_a_batch_that_is_solved_for_is_never_the_whole_data_set():
    assert Thermostat(1e-3, 60, dataset_size=64).at(lr=1.0).batch_size == 63


def test_momentum_nearest_to_the_present_one_where_there_are_two():
    """With a law of variance above 1, ``F / (1 - mu)`` falls before it rises."""
    law = LogNormal(1.2)
    cold = Thermostat(1e-3, 10, 0.02, law=law, coupling="update")
    near = cold.at(solve="momentum")
    far = dataclasses.replace(cold, momentum=0.5).at(lr=1e-3, solve="momentum")
    assert near.momentum == pytest.approx(0.02, abs=1e-10)
    assert far.momentum == pytest.approx(0.5, abs=1e-10)
    scale = cold.temperature() / Thermostat(1e-3, 10, 0.3, law=law, coupling="update").temperature()
    twin = Thermostat(1e-3 * scale, 10, 0.3, law=law, coupling="update").at(lr=1e-3, solve="momentum")
    assert same(twin, cold, 1e-11)
    assert twin.momentum > 0.2


def test_a_wide_law_does_not_bring_the_momentum_closer_to_1_than_a_float_can_be():
    """The temperature of this law is 7e10 times that of a constant rate; the momentum asked for is 1 - 1e-8."""
    thermostat = Thermostat(1e-3, 1, 0.99, law=LogNormal(5.0))
    other = thermostat.at(batch_size=10**6, solve="momentum")
    assert 1.0 - other.momentum == pytest.approx(1e-8, rel=1e-6)
    assert same(other, thermostat, 1e-6)


@pytest.mark.parametrize(
    ("thermostat", "request_", "words"),
    [
        (
            Thermostat(1e-4, 30, 0.5),
            {"batch_size": 10, "solve": "momentum"},
            "no momentum.*=0, .*1.5 times too hot",
        ),
        (Thermostat(1e-4, 3, 0.5), {"lr": 1e-5}, "no batch_size.*batch_size=1.*3.333 times too cold"),
        (Thermostat(1e-300, 1), {"lr": 1e10}, "no batch_size.*lr=1e\\+10 .*2\\*\\*64 or more"),
        (Thermostat(1e-300, 1), {"lr": 1e30}, "no batch_size.*lr=1e\\+30 .*2\\*\\*64 or more"),
        (Thermostat(1e-4, 30, dataset_size=60), {"batch_size": 60}, "no lr.*whole data set"),
        (Thermostat(1e-4, 30, dataset_size=60), {"batch_size": 60, "solve": "momentum"}, "no momentum.*whole data set"),
        (Thermostat(1e-4, 60, dataset_size=60), {"batch_size": 30}, "temperature 0"),
        (Thermostat(1e-4, 30), {"lr": 1e-3, "dataset_size": 1}, "dataset_size=1 has no noise"),
        (Thermostat(1e-4, 30), {"lr": 1e-3, "solve": "lr"}, "lr is both given"),
        (Thermostat(1e-4, 30), {"lr": 1e-3, "batch_size": 3, "momentum": 0.1}, "nothing is left"),
        (Thermostat(1e-4, 30), {"solve": "law"}, "solve must be"),
        (Thermostat(1.0, 1, 0.9), {"lr": 1e-17, "solve": "momentum"}, "no momentum.*closer to 1 than a float can be"),
        (Thermostat(1e-310, 10**15), {"batch_size": 1}, "no lr.*beyond what a float can hold"),
        (Thermostat(1e308, 1, 0.99), {"batch_size": 2}, "no lr.*beyond what a float can hold"),
        (Thermostat(1e-4, 30), {"batch_size": 61, "dataset_size": 60}, "at most dataset_size=60, got 61"),
    ],
)
def test_requests_without_solution(thermostat, request_, words):
    with pytest.raises(ValueError, match=words):
        thermostat.at(**request_)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"lr": 0.0}, ValueError, "lr must be .* lr > 0, got 0.0"),
        ({"lr": math.nan}, ValueError, "lr must be a finite"),
        ({"lr": 10**400}, ValueError, "lr must be a finite number with lr > 0, got one too large for a float"),
        ({"lr": "fast"}, TypeError, "lr must be a finite number .*'fast'"),
        ({"lr": "0.1"}, TypeError, "lr must be a finite number .*'0.1'"),
        ({"momentum": False}, TypeError, "momentum must be a number .*False"),
        ({"batch_size": 0}, ValueError, "batch_size must be an integer with 1 <= batch_size"),
        ({"batch_size": 2.5}, TypeError, "batch_size must be an integer"),
        ({"momentum": 1.0}, ValueError, "0 <= momentum < 1, got 1.0"),
        ({"momentum": -0.1}, ValueError, "0 <= momentum < 1"),
        ({"nesterov": 1}, TypeError, "nesterov must be True or False"),
        ({"law": "uniform:2"}, ValueError, "delta"),
        ({"law": 3}, TypeError, "law must be"),
        ({"coupling": "both"}, ValueError, "coupling must be 'gradient' or 'update', got 'both'"),
        ({"dataset_size": 4}, ValueError, "batch_size must be at most dataset_size=4, got 8"),
    ],
)
def test_bad_knobs(change, error, words):
    with pytest.raises(error, match=words):
        Thermostat(**{"lr": 1e-3, "batch_size": 8, **change})


def test_diffusion_must_not_be_negative():
    with pytest.raises(ValueError, match="diffusion >= 0, got -1"):
        Thermostat(1e-3, 8).temperature(-1)


def test_is_frozen_comparable_and_parses_its_law():
    thermostat = Thermostat(1e-3, 8, law="uniform:0.5")
    assert thermostat == Thermostat(0.001, 8, law=Uniform(0.5))
    assert len({thermostat, Thermostat(1e-3, 8, law="uniform:0.5"), Thermostat(1e-3, 8)}) == 2
    assert Thermostat(1e-3, 8).law == Constant()
    with pytest.raises(dataclasses.FrozenInstanceError):
        thermostat.lr = 1.0


def test_the_theory_is_imported_when_it_is_used():
    """SciPy takes its time to load: neither the package of the theory nor the exact quadratic may need it."""
    program = (
        "import sys, heatbath.theory as theory\n"
        "loaded = {name for name in sys.modules if name.startswith('heatbath.theory.')}\n"
        "assert not loaded, loaded\n"
        "assert 'quadratic' in dir(theory)\n"
        "theory.quadratic.stationary_moments\n"
        "assert 'scipy' not in sys.modules\n"
        "try:\n    theory.nothing\nexcept AttributeError as error:\n    assert 'quadratic' in str(error)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("coupling", ["gradient", "update"])
def test_the_limits_of_reshuffled_epochs_are_those_of_the_exact_theory(coupling):
    """A slow direction of long epochs keeps the law's own part of the temperature, a fast one all of it."""
    knobs = Thermostat(1e-5, 4, 0.8, True, "uniform:0.9", coupling, sampling="shuffled")
    slow, fast = knobs.limits(3.0)
    assert fast == knobs.temperature(3.0) == Thermostat(1e-5, 4, 0.8, True, "uniform:0.9", coupling).temperature(3.0)
    assert slow == pytest.approx(fast * (1.0 - 1.0 / knobs.law_factor), rel=1e-12)
    curvatures = np.array([1e-5, 3e3])
    exact = curvatures * shuffled.stationary_moments(knobs, curvatures, 3.0, 2000)[:, 0, 0]
    assert exact[0] == pytest.approx(slow, rel=0.01)
    assert exact[1] == pytest.approx(fast, rel=0.05)


def test_independent_batches_have_one_temperature():
    knobs = Thermostat(0.1, 4, 0.5, law="uniform:1")
    assert knobs.sampling == "replacement"
    assert knobs.limits(2.0) == (knobs.temperature(2.0), knobs.temperature(2.0))


def test_both_limits_of_reshuffled_epochs_are_kept_or_the_request_is_refused():
    knobs = Thermostat(0.1, 4, 0.5, law="uniform:1", sampling="shuffled")
    moved = knobs.at(batch_size=16)
    assert moved.lr == pytest.approx(0.4)
    assert moved.sampling == "shuffled"
    assert moved.limits(2.0) == pytest.approx(knobs.limits(2.0))
    with pytest.raises(ValueError, match=r"no lr keeps both limits .* would be at 0 of .*, now at 0\.25; keep law"):
        knobs.at(law="constant")
    with pytest.raises(ValueError, match="no lr keeps both limits"):
        knobs.at(coupling="update")
    assert Thermostat(0.1, 4, 0.5, sampling="shuffled").at(momentum=0.75).lr == pytest.approx(0.05)
    with pytest.raises(ValueError, match="sampling must be 'replacement' or 'shuffled', got 'epochs'"):
        Thermostat(0.1, 4, sampling="epochs")


def test_the_theory_of_independent_batches_refuses_reshuffled_ones():
    with pytest.raises(ValueError, match="sampling='shuffled' needs the length of an epoch"):
        quadratic.exact_temperature(Thermostat(0.1, 4, sampling="shuffled"), 1.0, 1.0)


def test_a_notebook_shows_the_knobs_and_the_temperature_in_a_table():
    thermostat = Thermostat(0.1, 32, 0.9, law="uniform:0.5")
    page = thermostat._repr_html_()
    assert page.count("<tr>") == len(dataclasses.fields(thermostat)) + 1
    assert f"<td>{thermostat.temperature():.4g}</td>" in page
    assert "<th>law</th><td>uniform:0.5</td>" in page
