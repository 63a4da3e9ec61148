"""The stochastic equation of SGD with momentum, and integrators for it.

In the paper's symbols (equations 10 and 11, the noise corrected), for a time in which one step of SGD takes ``l``::

    dV = -((1 - mu) / l) V dt - (1 / l) grad f(X) dt + sqrt(D / (C l)) dW
    dX = V dt

Its equilibrium is ``exp(-(V^2 / 2 + f / l) / Theta)`` with ``Theta = D / (2 C (1 - mu))``, so the loss has temperature
``T = l Theta``. The paper prints the noise as ``sqrt(D / C)``, which would make it ``l^2 D / (2 C (1 - mu))``: one step
of SGD adds noise of variance ``D / C`` to the velocity in a time ``l``, hence ``D / (C l)`` for each unit of time.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from heatbath.laws import check_number
from heatbath.theory.landscapes import Array, Landscape
from heatbath.theory.trajectories import Diffusion, NoisyDescent, Process, State, Trajectories, run, start


@dataclass(frozen=True)
class LangevinEquation(NoisyDescent):
    """The equation for given knobs; ``diffusion`` includes the law's factor if there is one.

    A number makes additive noise; a function of the positions makes multiplicative noise ``D(X)``, independent in each
    direction. The noise acts on ``V`` and depends on ``X`` alone, whose own equation has no noise: Ito's and
    Stratonovich's readings are then the same equation.
    """

    @property
    def friction(self) -> float:
        """``(1 - mu) / l``, per unit of time."""
        return (1.0 - self.momentum) / self.lr

    @property
    def inverse_mass(self) -> float:
        """``1 / l``: what turns the gradient of the loss into an acceleration."""
        return 1.0 / self.lr

    @property
    def theta(self) -> float:
        """``Theta = D / (2 C (1 - mu))``, the equilibrium variance of each velocity."""
        if callable(self.diffusion):
            raise ValueError("multiplicative noise has no single temperature: evaluate one at a position of interest")
        return self.diffusion / (2.0 * self.batch_size * (1.0 - self.momentum))

    @property
    def temperature(self) -> float:
        """``T = l Theta``, the temperature in the Boltzmann weight ``exp(-f / T)`` of the positions."""
        return self.lr * self.theta

    def noise_strength(self, position: Array) -> Array | float:
        """Return ``sqrt(D(X) / (C l))``, the factor of ``dW``."""
        return np.sqrt(self.local_diffusion(position) / (self.batch_size * self.lr))


class Integrator(ABC):
    """A rule that moves a `State` by one time step.

    ``weak_order`` is the power of the step in the error of moments, ``strong_order`` that in the mean distance to the
    exact path with the same noise; both are for smooth gradients of linear growth, on a fixed stretch of time.
    """

    weak_order: ClassVar[float]
    strong_order: ClassVar[float]

    @abstractmethod
    def step(
        self, equation: LangevinEquation, landscape: Landscape, state: State, time_step: float, noise: Array
    ) -> State:
        """Return the state one ``time_step`` later; ``noise`` holds standard normals of the shape of the positions."""

    @abstractmethod
    def largest_step(self, equation: LangevinEquation, stiffness: float) -> float:
        """Return the step from which on the rule is unstable on a quadratic of curvature ``stiffness``."""


@dataclass(frozen=True)
class EulerMaruyama(Integrator):
    """``V' = V + h (-friction V - grad f / l) + sqrt(h) sigma N``, ``X' = X + h V``.

    The strong order is 1, not the 1/2 of general multiplicative noise: Milstein's correction ``sigma d(sigma)/dV``
    vanishes because the noise does not depend on the velocity.
    """

    weak_order: ClassVar[float] = 1.0
    strong_order: ClassVar[float] = 1.0

    def step(
        self, equation: LangevinEquation, landscape: Landscape, state: State, time_step: float, noise: Array
    ) -> State:
        """Return the state one explicit Euler step later."""
        drift = -equation.friction * state.velocity - equation.inverse_mass * state.gradient
        kick = math.sqrt(time_step) * equation.noise_strength(state.position) * noise
        position = state.position + time_step * state.velocity
        return State(position, state.velocity + time_step * drift + kick, landscape.gradient(position))

    def largest_step(self, equation: LangevinEquation, stiffness: float) -> float:
        """Return the step at which ``|1 + h lambda| = 1`` for the eigenvalue of the drift that gets there first."""
        frequency_squared, friction = stiffness * equation.inverse_mass, equation.friction
        discriminant = friction**2 - 4.0 * frequency_squared
        if discriminant < 0.0:
            return friction / frequency_squared
        return 4.0 / (friction + math.sqrt(discriminant))


@dataclass(frozen=True)
class BAOAB(Integrator):
    """Half a kick, half a drift, friction and noise exactly, half a drift, half a kick (Leimkuhler and Matthews 2013).

    With ``c = exp(-friction h)`` the middle step is ``V' = c V + sigma sqrt((1 - c^2) / (2 friction)) N``, the exact
    law of the Ornstein-Uhlenbeck process. Being a symmetric composition of exact flows it has weak order 2, for
    multiplicative noise too. On a quadratic its stationary positions are exact for any stable step.
    """

    weak_order: ClassVar[float] = 2.0
    strong_order: ClassVar[float] = 1.0

    def step(
        self, equation: LangevinEquation, landscape: Landscape, state: State, time_step: float, noise: Array
    ) -> State:
        """Return the state one BAOAB step later; the noise of the path is the integral of ``exp(-friction s) dW``."""
        half, friction, inverse_mass = 0.5 * time_step, equation.friction, equation.inverse_mass
        spread = math.sqrt(-math.expm1(-2.0 * friction * time_step) / (2.0 * friction))
        velocity = state.velocity - (half * inverse_mass) * state.gradient
        position = state.position + half * velocity
        velocity = math.exp(-friction * time_step) * velocity + (spread * equation.noise_strength(position)) * noise
        position = position + half * velocity
        gradient = landscape.gradient(position)
        return State(position, velocity - (half * inverse_mass) * gradient, gradient)

    def largest_step(self, equation: LangevinEquation, stiffness: float) -> float:
        """Return ``2 / sqrt(stiffness / l)``, the bound of the leapfrog."""
        return 2.0 / math.sqrt(stiffness * equation.inverse_mass)


def simulate_langevin(
    equation: LangevinEquation,
    landscape: Landscape,
    positions: Array,
    *,
    times: Sequence[float],
    time_step: float,
    velocities: Array | None = None,
    integrator: Integrator | None = None,
    seed: int = 0,
) -> Trajectories:
    """Return snapshots at ``times``, increasing multiples of ``time_step``, of many trajectories of the equation.

    They start at ``positions``, of shape ``(count,)`` or ``(count, dimension)``, at rest where no ``velocities`` are
    given. The integrator is `BAOAB` if none is given. The noise of ``seed`` is all that is random.

    Raises:
        ValueError: the step is unstable, the times are not multiples of it, or a trajectory runs off to infinity.
    """
    process = langevin_process(equation, landscape, time_step, integrator=integrator, seed=seed)
    steps = [round(time / time_step) for time in times]
    for time, count in zip(times, steps, strict=True):
        if abs(time - count * time_step) > 1e-6 * time_step:
            raise ValueError(f"time {time!r} is not a multiple of the step {time_step!r}: the nearest is step {count}")
    return run(process, start(landscape, positions, velocities), steps, time_step)


def langevin_process(
    equation: LangevinEquation,
    landscape: Landscape,
    time_step: float,
    *,
    integrator: Integrator | None = None,
    seed: int = 0,
) -> Process:
    """Return the function that moves a state of any number of trajectories by one ``time_step``, with fresh noise.

    A step that is not positive, or unstable at the landscape's stiffest minimum, raises ValueError.
    """
    rule = BAOAB() if integrator is None else integrator
    check_number("time_step", time_step, above=0.0)
    bound = rule.largest_step(equation, landscape.stiffness)
    if time_step >= bound:
        raise ValueError(
            f"the time step {time_step:.6g} is {time_step / bound:.3g} times the largest stable one, {bound:.6g}, "
            f"of {type(rule).__name__} at curvature {landscape.stiffness:.6g}"
        )
    generator = np.random.default_rng(seed)

    def move(state: State) -> State:
        noise = np.asarray(generator.standard_normal(state.position.shape))
        return rule.step(equation, landscape, state, time_step, noise)

    return move


def random_rate_diffusion(landscape: Landscape, diffusion: float, batch_size: float, law_variance: float) -> Diffusion:
    """Return the ``D(X)`` that a random rate makes in one dimension, the gradient's own part included.

    The noise ``g - alpha g_B`` has the exact variance ``D(X) / C = (1 + s2) D / C + s2 g(X)^2`` (gradient coupling).
    The second term, which the paper drops, does not shrink with the batch size and vanishes at a minimum. In more
    dimensions it is a full matrix. ``diffusion`` is bare, without the law's factor; ``law_variance`` is ``s2``.
    """
    if landscape.dimension != 1:
        raise ValueError(f"the landscape must have dimension 1, got {landscape.dimension}")
    check_number("law_variance", law_variance, least=0.0)

    def local_diffusion(position: Array) -> Array:
        return (1.0 + law_variance) * diffusion + (law_variance * batch_size) * landscape.gradient(position) ** 2

    return local_diffusion
