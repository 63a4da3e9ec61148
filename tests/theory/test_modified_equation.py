"""Erratum 6: the drift's correction of higher order is the gradient of ``(l/4) |grad f|^2``, not that number itself."""

import numpy as np
from scipy.integrate import solve_ivp

from heatbath.theory.landscapes import Rosenbrock

RATES = np.array([4e-3, 2e-3, 1e-3, 5e-4])
START, TIME = np.array([-0.5, 0.8]), 0.4


def half_gradient_of_the_square(landscape, x, step=1e-5):
    """``grad |grad f|^2 / 2 = H g``, the Hessian by central differences."""
    columns = [(landscape.gradient(x + step * e) - landscape.gradient(x - step * e)) / (2 * step) for e in np.eye(2)]
    return np.stack(columns) @ landscape.gradient(x)


def errors(correction):
    """Distance at a fixed time between gradient descent and the flow with the given correction, for each rate."""
    landscape = Rosenbrock(narrowness=5.0)
    found = []
    for rate in RATES:
        x = START
        for _ in range(round(TIME / rate)):
            x = x - rate * landscape.gradient(x)
        flow = solve_ivp(
            lambda _t, y, rate=rate: -landscape.gradient(y) - correction(landscape, y, rate),
            (0.0, TIME),
            START,
            method="DOP853",
            rtol=1e-11,
            atol=1e-13,
        )
        found.append(np.abs(x - flow.y[:, -1]).max())
    return np.array(found)


def order(error):
    return np.polyfit(np.log(RATES), np.log(error), 1)[0]


def test_with_the_gradient_the_flow_is_second_order():
    assert 1.9 < order(errors(lambda landscape, y, rate: 0.5 * rate * half_gradient_of_the_square(landscape, y))) < 2.1


def test_without_it_or_as_printed_it_is_first_order():
    assert 0.9 < order(errors(lambda landscape, y, rate: 0.0)) < 1.1
    as_printed = errors(lambda landscape, y, rate: 0.25 * rate * np.sum(landscape.gradient(y) ** 2) * np.ones(2))
    assert 0.9 < order(as_printed) < 1.1
