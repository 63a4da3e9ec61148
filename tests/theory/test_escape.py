import math

import pytest

from heatbath.laws import Uniform
from heatbath.theory.discrete import DiscreteSGD
from heatbath.theory.escape import (
    ArrheniusFit,
    EscapeTime,
    fit_arrhenius,
    measure_langevin_escape,
    measure_sgd_escape,
    predict_kramers_time,
    predict_overdamped_time,
)
from heatbath.theory.landscapes import DoubleWell
from heatbath.theory.langevin import BAOAB, LangevinEquation, random_rate_diffusion

WELL = DoubleWell(barrier=1.5, separation=2.0)
BARRIERS = (3.0, 3.7, 4.4, 5.1)  # in units of T
LAW = Uniform(0.7)


def knobs_at(barrier_over_t, lr, momentum, batch_size=4.0):
    """The equation at the temperature, and SGD with the bare noise that the law's factor raises to the same."""
    temperature = WELL.barrier / barrier_over_t
    diffusion = 2 * batch_size * (1 - momentum) * temperature / lr
    equation = LangevinEquation(lr, momentum, diffusion, batch_size)
    return equation, DiscreteSGD(lr, momentum, diffusion / LAW.second_moment, batch_size, LAW)


def time_step(equation):
    return 0.25 * BAOAB().largest_step(equation, WELL.stiffness)


@pytest.mark.parametrize("kind", ["equation", "sgd"])
def test_arrhenius_slope_is_the_barrier(kind):
    temperatures, times = [], []
    for barrier_over_t in BARRIERS:
        equation, sgd = knobs_at(barrier_over_t, lr=0.004, momentum=0.6)
        temperatures.append(equation.temperature)
        if kind == "equation":
            times.append(measure_langevin_escape(equation, WELL, time_step=time_step(equation), trajectories=1000))
        else:
            times.append(measure_sgd_escape(sgd, WELL, trajectories=1000, seed=1))
        # Kramers' formula is the limit of a high barrier; at 3 to 5 T the exact integral is about 5 % above it.
        assert times[-1].mean == pytest.approx(predict_kramers_time(equation, WELL), rel=0.25)
    fit = fit_arrhenius(temperatures, times)
    assert fit.slope_error < 0.03 * WELL.barrier
    assert fit.slope == pytest.approx(WELL.barrier, rel=0.1)


def test_kramers_formula_has_its_two_limits():
    strong, _ = knobs_at(5.0, lr=1e-5, momentum=0.6)
    curvatures = math.sqrt(-WELL.stiffness * WELL.saddle_curvature)
    assert predict_kramers_time(strong, WELL) == pytest.approx(2 * math.pi * 0.4 / curvatures * math.exp(5.0), rel=2e-3)
    weak, _ = knobs_at(5.0, lr=0.1, momentum=0.999)
    period = 2 * math.pi / math.sqrt(WELL.stiffness / 0.1)
    assert predict_kramers_time(weak, WELL) == pytest.approx(period * math.exp(5.0), rel=2e-3)


def test_the_exact_integral_tends_to_kramers_formula():
    """The correction of a finite barrier is of first order in T / barrier."""
    excess = []
    for barrier_over_t in (10.0, 20.0, 40.0):
        equation, _ = knobs_at(barrier_over_t, lr=1e-7, momentum=0.6)
        excess.append(abs(predict_overdamped_time(equation, WELL) / predict_kramers_time(equation, WELL) - 1.0))
    assert excess[0] / excess[1] == pytest.approx(2.0, rel=0.15)
    assert excess[1] / excess[2] == pytest.approx(2.0, rel=0.1)


def test_the_friction_sets_the_prefactor():
    """At mu = 0.9 the time is nearly three times that of strong friction, and the formula says so."""
    equation, _ = knobs_at(4.4, lr=0.01, momentum=0.9)
    measured = measure_langevin_escape(equation, WELL, time_step=0.5 * time_step(equation), trajectories=2000, seed=3)
    assert measured.mean == pytest.approx(predict_kramers_time(equation, WELL), rel=0.25)
    assert measured.mean > 2.5 * predict_overdamped_time(equation, WELL)


def test_the_noise_of_the_rate_on_the_slopes_hastens_the_escape():
    """The term s2 g g^T, dropped in the paper, vanishes at the minimum but not on the way up.

    Additive noise with the right temperature at the minimum keeps the equation much longer in the well than SGD with a
    random rate; the equation with the full noise goes most of the way.
    """
    equation, sgd = knobs_at(5.1, lr=0.01, momentum=0.9)
    local = random_rate_diffusion(WELL, sgd.diffusion, sgd.batch_size, LAW.variance)
    full = LangevinEquation(equation.lr, equation.momentum, local, equation.batch_size)
    additive, multiplicative = (
        measure_langevin_escape(e, WELL, time_step=time_step(equation), trajectories=1000, seed=4)
        for e in (equation, full)
    )
    discrete = measure_sgd_escape(sgd, WELL, trajectories=1000, seed=5)
    assert additive.mean - discrete.mean > 6 * math.hypot(additive.standard_error, discrete.standard_error)
    assert abs(multiplicative.mean - discrete.mean) < 0.4 * (additive.mean - discrete.mean)
    assert multiplicative.mean / additive.mean == pytest.approx(0.57, abs=0.1)  # sampling error 0.03


def test_the_fit_recovers_a_line_and_its_error():
    temperatures = [0.5, 0.4, 0.3]
    times = [EscapeTime(math.exp(0.3 + 1.2 / t), 0.02 * math.exp(0.3 + 1.2 / t), 2500) for t in temperatures]
    fit = fit_arrhenius(temperatures, times)
    assert isinstance(fit, ArrheniusFit)
    assert fit.slope == pytest.approx(1.2)
    assert fit.intercept == pytest.approx(0.3)
    inverse = [2.0, 2.5, 10 / 3]
    centre = sum(inverse) / 3
    assert fit.slope_error == pytest.approx(0.02 / math.sqrt(sum((i - centre) ** 2 for i in inverse)))


def test_waiting_for_fewer_escapes_gives_the_same_mean():
    equation, _ = knobs_at(3.0, lr=0.02, momentum=0.6)
    few, many = (
        measure_langevin_escape(equation, WELL, time_step=time_step(equation), trajectories=2000, escaped=e, seed=seed)
        for e, seed in ((0.6, 1), (1.0, 2))
    )
    assert 1200 <= few.escapes < 1210
    assert many.escapes == 2000
    # What is left of the first crossing, during which nobody can escape yet, weighs more the fewer are waited for.
    assert few.mean == pytest.approx(many.mean, rel=0.2)


def test_bad_requests_are_refused():
    equation, sgd = knobs_at(3.0, lr=0.02, momentum=0.6)
    with pytest.raises(ValueError, match=r"2 or more trajectories and 0 < escaped <= 1, got 10 and 1\.5"):
        measure_sgd_escape(sgd, WELL, trajectories=10, escaped=1.5)
    with pytest.raises(ValueError, match="times the largest stable one"):
        measure_langevin_escape(equation, WELL, time_step=1.0)
    with pytest.raises(ValueError, match="two or more temperatures"):
        fit_arrhenius([0.5], [EscapeTime(1.0, 0.1, 100)])
