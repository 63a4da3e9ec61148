"""The discrete algorithm itself, with Gaussian gradient noise, on thousands of trajectories at once.

This is what the stochastic equation approximates. With the paper's sign of the velocity and ``G = grad f(x) + n``,
``n`` normal of variance ``D / C`` in each direction (equations 1 and 2 of the paper)::

    coupling "gradient":   v' = mu v - alpha G,   x' = x + l v'
    coupling "update":     v' = mu v - G,         x' = x + l alpha v'

and with Nesterov's momentum, in PyTorch's form, the step goes along ``mu v' - alpha G`` (``mu v' - G``), not ``v'``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from heatbath import draws
from heatbath.laws import Constant, Law, check_coupling
from heatbath.theory.landscapes import Array, Landscape
from heatbath.theory.quadratic import largest_stable_rate
from heatbath.theory.trajectories import NoisyDescent, Process, State, Trajectories, run, start
from heatbath.thermostat import Thermostat

_MULTIPLIERS = 1  # the stream of the seed that the multipliers use


@dataclass(frozen=True)
class DiscreteSGD(NoisyDescent):
    """The knobs of the algorithm; ``diffusion`` is bare, without the factor of the multiplier's ``law``."""

    law: Law = Constant()  # noqa: RUF009 (a law is frozen)
    coupling: Literal["gradient", "update"] = "gradient"
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_coupling(self.coupling)

    @property
    def knobs(self) -> Thermostat:
        """All knobs but the noise."""
        return Thermostat(self.lr, 1, self.momentum, self.nesterov, self.law, self.coupling)

    def step(self, landscape: Landscape, state: State, multipliers: Array, noise: Array) -> State:
        """Return the state one mini-batch later, from standard normals of the shape of the positions.

        There is one multiplier for each trajectory: ``(count,)``, or ``(count, 1)`` in several dimensions.
        """
        scale = np.sqrt(self.local_diffusion(state.position) / self.batch_size)
        gradient = state.gradient + scale * noise
        in_gradient = self.coupling == "gradient"
        if in_gradient:
            gradient = multipliers * gradient
        velocity = self.momentum * state.velocity - gradient
        direction = self.momentum * velocity - gradient if self.nesterov else velocity
        rate = self.lr if in_gradient else self.lr * multipliers
        position = state.position + rate * direction
        return State(position, velocity, landscape.gradient(position))


def simulate_sgd(
    sgd: DiscreteSGD,
    landscape: Landscape,
    positions: Array,
    *,
    steps: Sequence[int],
    velocities: Array | None = None,
    seed: int = 0,
) -> Trajectories:
    """Return snapshots, at times ``l * steps``, of many trajectories of the algorithm.

    They start as those of `heatbath.theory.langevin.simulate_langevin`. Each has its own noise and, from another stream
    of the seed, its own multipliers: two laws at one seed see the same noise and the same quantiles, and their
    difference has little sampling error.

    Raises:
        ValueError: the rate is unstable, or a trajectory runs off to infinity.
    """
    process = sgd_process(sgd, landscape, seed=seed)
    return run(process, start(landscape, positions, velocities), steps, sgd.lr)


def sgd_process(sgd: DiscreteSGD, landscape: Landscape, *, seed: int = 0) -> Process:
    """Return the function that moves a state of any number of trajectories by one step of SGD, with fresh draws.

    It is refused where second moments grow at the landscape's stiffest minimum.
    """
    bound = largest_stable_rate(sgd.knobs, landscape.stiffness)
    if sgd.lr >= bound:
        raise ValueError(
            f"lr = {sgd.lr:.6g} is {sgd.lr / bound:.3g} times the largest stable rate, {bound:.6g}, at curvature "
            f"{landscape.stiffness:.6g} with momentum {sgd.momentum:g} and law {sgd.law}"
        )
    generator = np.random.default_rng(seed)
    take_multipliers = _multiplier_source(sgd.law, seed)

    def move(state: State) -> State:
        noise = np.asarray(generator.standard_normal(state.position.shape))
        shape = state.position.shape if landscape.dimension == 1 else (*state.position.shape[:-1], 1)
        return sgd.step(landscape, state, take_multipliers(math.prod(shape)).reshape(shape), noise)

    return move


def _multiplier_source(law: Law, seed: int) -> Callable[[int], Array]:
    """Return a function that takes the next so many multipliers of one sequence, which is drawn in large blocks."""
    block, drawn = np.empty(0), 0

    def take(count: int) -> Array:
        nonlocal block, drawn
        if block.size < count:
            size = max(count, 2**15)
            block = np.concatenate([block, draws.draw(law, seed, drawn, size, stream=_MULTIPLIERS)])
            drawn += size
        taken, block = block[:count], block[count:]
        return taken

    return take
