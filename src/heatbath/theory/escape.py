"""How long a training stays in one well of a double well: measured, and by the formula of Kramers (1940).

At temperature ``T`` well below the barrier ``dE`` the mean time follows Arrhenius' law, ``exp(dE / T)`` times a slow
prefactor: the slope of ``log(time)`` against ``1 / T`` is the height of the barrier, whatever friction and rate.
Escape means arrival at the bottom of the other well; arrival at the saddle would count those who turn back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import integrate

from heatbath.theory.discrete import DiscreteSGD, sgd_process
from heatbath.theory.landscapes import Array, DoubleWell
from heatbath.theory.langevin import Integrator, LangevinEquation, langevin_process
from heatbath.theory.trajectories import Process, State, start


@dataclass(frozen=True)
class EscapeTime:
    """A mean escape time, in the time of the equation (a step of SGD takes ``l``), with its standard error."""

    mean: float
    standard_error: float
    escapes: int


@dataclass(frozen=True)
class ArrheniusFit:
    """The line ``log(time) = intercept + slope / T``; ``slope`` estimates the barrier."""

    slope: float
    slope_error: float
    intercept: float


def predict_kramers_time(equation: LangevinEquation, landscape: DoubleWell) -> float:
    """Return Kramers' mean time from one well to the other, for moderate to strong friction.

    With friction ``g = (1 - mu) / l`` and the frequencies ``w^2 = |f''| / l`` of the well and of the saddle::

        1 / time = (w_well / 2 pi) (sqrt(g^2 / 4 + w_saddle^2) - g / 2) / w_saddle exp(-barrier / T)

    For ``g >> w_saddle`` it becomes ``2 pi (1 - mu) / sqrt(f''_well |f''_saddle|) exp(barrier / T)``. It assumes a
    barrier of several ``T``, and a friction that takes more than ``T`` out of an oscillation at the barrier's height;
    below that the slow exchange of energy sets the time, and this formula is only a lower bound of it.
    """
    well = math.sqrt(landscape.stiffness * equation.inverse_mass)
    saddle = math.sqrt(-landscape.saddle_curvature * equation.inverse_mass)
    half = 0.5 * equation.friction
    # The same as sqrt(half^2 + saddle^2) - half, without the cancellation at strong friction.
    growth = saddle**2 / (math.hypot(half, saddle) + half)
    return 2.0 * math.pi / well * (saddle / growth) * math.exp(landscape.barrier / equation.temperature)


def predict_overdamped_time(equation: LangevinEquation, landscape: DoubleWell) -> float:
    """Return the mean time from one minimum to the other at strong friction, exact for any height of the barrier.

    There ``(1 - mu) dX = -f' dt + sqrt(2 T (1 - mu)) dW``, and with minima at ``-a`` and ``a``::

        time = (1 - mu) / T  int_{-a}^{a} dy exp(f(y) / T)  int_{-inf}^{y} dz exp(-f(z) / T)
    """
    temperature, a = equation.temperature, 0.5 * landscape.separation
    # Below the far end the weight exp(-f / T) is less than 1e-30 of that of the well.
    far = -a * math.sqrt(1.0 + math.sqrt(70.0 * temperature / landscape.barrier))
    grid = np.linspace(far, a, 20_001)
    energy = landscape.value(grid) / temperature
    below = integrate.cumulative_simpson(np.exp(-energy), x=grid, initial=0.0)
    inner = np.where(grid >= -a, np.exp(np.where(grid >= -a, energy, 0.0)) * below, 0.0)
    first = int(np.searchsorted(grid, -a))
    return float((1.0 - equation.momentum) / temperature * integrate.simpson(inner[first:], x=grid[first:]))


def measure_langevin_escape(
    equation: LangevinEquation,
    landscape: DoubleWell,
    *,
    time_step: float,
    trajectories: int = 2000,
    escaped: float = 0.8,
    integrator: Integrator | None = None,
    seed: int = 0,
) -> EscapeTime:
    """Return the mean escape time of the stochastic equation; see `measure_sgd_escape` for the arguments."""
    process = langevin_process(equation, landscape, time_step, integrator=integrator, seed=seed)
    velocity_spread = float(equation.noise_strength(landscape.minima[0])) / math.sqrt(2.0 * equation.friction)
    return _measure(process, landscape, time_step, trajectories, escaped, velocity_spread, seed)


def measure_sgd_escape(
    sgd: DiscreteSGD, landscape: DoubleWell, *, trajectories: int = 2000, escaped: float = 0.8, seed: int = 0
) -> EscapeTime:
    """Return the mean escape time of the discrete algorithm, in units where a step takes ``l``.

    All ``trajectories`` start at the bottom of the left well; the fraction ``escaped`` of them is waited for. After a
    short stay the escapes are a Poisson process, for which (time spent by all) / (escapes) is unbiased with relative
    error ``1 / sqrt(escapes)``; waiting for the last few would multiply the work by about ``log(trajectories)``.
    """
    return _measure(sgd_process(sgd, landscape, seed=seed), landscape, sgd.lr, trajectories, escaped, 0.0, seed)


def fit_arrhenius(temperatures: Sequence[float], times: Sequence[EscapeTime]) -> ArrheniusFit:
    """Return the weighted least-squares line of ``log(time)`` against ``1 / T`` and the standard error of its slope."""
    inverse = 1.0 / np.asarray(temperatures, dtype=np.float64)
    if len(times) != inverse.size or np.unique(inverse).size < 2:
        raise ValueError(f"give one time for each of two or more temperatures, got {len(times)} and {inverse.size}")
    logs = np.log([time.mean for time in times])
    weights = np.array([time.mean / time.standard_error for time in times])
    (slope, intercept), covariance = np.polyfit(inverse, logs, 1, w=weights, cov="unscaled")
    return ArrheniusFit(float(slope), math.sqrt(covariance[0, 0]), float(intercept))


def _measure(
    process: Process, landscape: DoubleWell, time_step: float, count: int, escaped: float, spread: float, seed: int
) -> EscapeTime:
    if count < 2 or not 0.0 < escaped <= 1.0:
        raise ValueError(f"need 2 or more trajectories and 0 < escaped <= 1, got {count} and {escaped!r}")
    left, right = landscape.minima
    # Another stream of the seed than the process uses.
    velocities: Array = spread * np.random.default_rng([seed, 1]).standard_normal(count)
    state = start(landscape, np.full(count, left), velocities)
    allowed_to_stay = count - max(1, math.ceil(escaped * count))
    steps_spent = 0
    while state.position.size > allowed_to_stay:
        steps_spent += state.position.size
        state = process(state)
        inside = state.position < right
        if not inside.all():
            state = State(*(part[inside] for part in state))
    escapes = count - state.position.size
    mean = time_step * steps_spent / escapes
    return EscapeTime(mean, mean / math.sqrt(escapes), escapes)
