"""Many trajectories at once: their state, their snapshots, and the loop that moves them.

A process (the stochastic equation under an integrator, or the discrete algorithm) is a function from `State` to the
next `State`; it holds its own random numbers, and works for any number of trajectories.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from heatbath.laws import check_number
from heatbath.theory.landscapes import Array, Landscape


class State(NamedTuple):
    """Positions and velocities of all trajectories: ``(count,)``, or ``(count, dimension)`` in several dimensions."""

    position: Array
    velocity: Array
    gradient: Array  # of the landscape at `position`, kept because an integrator asks for it once per step


Process: TypeAlias = Callable[[State], State]
Diffusion: TypeAlias = float | Callable[[Array], Array]  # constant, or a function of position of its shape


@dataclass(frozen=True)
class NoisyDescent:
    """The knobs that the algorithm and the stochastic equation share, which set the noise and the friction.

    ``diffusion`` is ``D``, the variance of a per-sample gradient in one direction: a number, or a function of the
    positions, of their shape. The paper's symbols of the others are ``l``, ``mu`` with ``0 <= mu < 1``, and ``C``.
    """

    lr: float
    momentum: float
    diffusion: Diffusion
    batch_size: float = 1.0

    def __post_init__(self) -> None:
        check_number("lr", self.lr, above=0.0)
        check_number("momentum", self.momentum, least=0.0, below=1.0)
        check_number("batch_size", self.batch_size, above=0.0)
        if not callable(self.diffusion):
            check_number("diffusion", self.diffusion, above=0.0)

    def local_diffusion(self, position: Array) -> Array | float:
        """Return ``D`` at ``position``, and raise ``ValueError`` where a given function is negative."""
        if not callable(self.diffusion):
            return self.diffusion
        local = np.asarray(self.diffusion(position))
        if np.any(local < 0.0):
            raise ValueError(f"diffusion must not be negative anywhere, got {np.min(local):.6g} at a visited position")
        return local


@dataclass(frozen=True)
class Trajectories:
    """Snapshots: ``positions[i]`` and ``velocities[i]`` hold all trajectories at ``times[i]``."""

    times: Array
    positions: Array
    velocities: Array


def start(landscape: Landscape, positions: Array, velocities: Array | None = None) -> State:
    """Return the state that starts at ``positions``, at rest where no velocities are given, if the shapes fit."""
    position = np.array(positions, dtype=np.float64, ndmin=1)
    if landscape.dimension > 1 and position.shape[-1] != landscape.dimension:
        raise ValueError(
            f"positions must have {landscape.dimension} coordinates on the last axis, got shape {position.shape}"
        )
    velocity = np.zeros_like(position) if velocities is None else np.array(velocities, dtype=np.float64, ndmin=1)
    if velocity.shape != position.shape:
        raise ValueError(f"velocities have shape {velocity.shape}, positions {position.shape}: they must agree")
    return State(position, velocity, landscape.gradient(position))


def run(process: Process, state: State, steps: Sequence[int], time_step: float) -> Trajectories:
    """Move ``state`` through ``process`` and return snapshots after increasing numbers of steps, of ``time_step`` each.

    Raises:
        ValueError: ``steps`` do not increase, or a trajectory runs off to infinity.
    """
    wanted = [int(step) for step in steps]
    if not wanted or wanted[0] < 0 or any(later <= earlier for earlier, later in pairwise(wanted)):
        raise ValueError(f"snapshots must be a non-empty, increasing list of steps from 0 on, got {wanted}")
    positions, velocities, now = [], [], 0
    # An unstable run overflows; the check below says so in one line, where NumPy would warn many times.
    with np.errstate(over="ignore", invalid="ignore"):
        for step in wanted:
            for _ in range(step - now):
                state = process(state)
            now = step
            if not np.all(np.isfinite(state.position)):
                lost = int(np.sum(~np.isfinite(state.position)))
                raise ValueError(
                    f"{lost} of {state.position.size} coordinates ran off to infinity within {step} steps: "
                    "far from the minimum the landscape is too steep for this rate or step; decrease it or the noise"
                )
            positions.append(state.position)
            velocities.append(state.velocity)
    return Trajectories(time_step * np.array(wanted, dtype=np.float64), np.stack(positions), np.stack(velocities))
