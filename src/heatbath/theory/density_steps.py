"""Single time steps of a density in phase space, the parts of `FokkerPlanck`.

`FlowStep` moves along the level lines of the energy, `FrictionStep` mixes velocities, `ImplicitStep` does both over a
long time once the density is smooth. All of them conserve mass, and leave equilibrium alone to rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import expm
from scipy.sparse.linalg import splu

from heatbath.theory.landscapes import Array

TINY = 1e-60
"""Taken for zero: products of such numbers are subnormal, and processors slow down a hundredfold on them."""


@dataclass(frozen=True, eq=False)
class Fluxes:
    """The fluxes of equilibrium through the inner faces of the mesh, which sum to zero around every cell."""

    equilibrium: Array  # cell averages ``M``, of shape ``(nx, nv)``
    along_x: Array  # per area of a cell, shape ``(nx - 1, nv)``
    along_v: Array  # likewise, shape ``(nx, nv - 1)``

    def leaving(self) -> Array:
        """Return the rate at which the flow carries equilibrium out of each cell."""
        rate = np.zeros_like(self.equilibrium)
        rate[:-1] += np.maximum(self.along_x, 0.0)
        rate[1:] -= np.minimum(self.along_x, 0.0)
        rate[:, :-1] += np.maximum(self.along_v, 0.0)
        rate[:, 1:] -= np.minimum(self.along_v, 0.0)
        return rate / self.equilibrium

    def generator(self) -> Any:
        """Return the sparse matrix of the flow on ``density.ravel()``, without the cut that keeps steps positive."""
        (nx, nv), identity = self.equilibrium.shape, sparse.identity
        flow = sparse.csr_matrix((nx * nv, nx * nv))
        for flux, cells, lift in (
            (self.along_x, nx, lambda matrix: sparse.kron(matrix, identity(nv))),
            (self.along_v, nv, lambda matrix: sparse.kron(identity(nx), matrix)),
        ):
            below, above = _extrapolation(cells)
            forward, backward = sparse.diags(np.maximum(flux, 0.0).ravel()), sparse.diags(np.minimum(flux, 0.0).ravel())
            on_face = forward @ lift(below) + backward @ lift(above)
            flow = flow - lift(_difference(cells)) @ on_face
        return flow @ sparse.diags(1.0 / self.equilibrium.ravel())


class FlowStep:
    """Heun's step of the flow along the level lines of ``H``, by fluxes between cells.

    The flux of the density is that of equilibrium times ``q = P/M`` on the face, extrapolated from upwind. With the
    face value cut to ``[0, ceiling q_upwind]``, at most 98 % of a cell can leave it in an Euler step, and Heun's step
    is a mean of two of them: a density stays non-negative.

    Arrays are flat, and a neighbour is ``stride`` entries away: one loop without rows, which halves the time. Along
    ``v`` this makes faces between the end of a row and the start of the next, which carry no flux and no slope.
    """

    def __init__(self, fluxes: Fluxes, step: float) -> None:
        nv = fluxes.equilibrium.shape[1]
        self._weights = (1.0 / fluxes.equilibrium).ravel()
        self._ceiling = np.minimum(0.98 / np.maximum(step * fluxes.leaving(), 1e-6), 100.0).ravel()
        self._ratio, self._highest = np.empty_like(self._weights), np.empty_like(self._weights)
        self._sweeps = []
        along_v = np.pad(fluxes.along_v, ((0, 0), (0, 1))).ravel()[:-1]
        for stride, flux, breaks in ((nv, fluxes.along_x.ravel(), slice(0)), (1, along_v, slice(nv - 1, None, nv))):
            both = step * np.maximum(flux, 0.0), step * np.minimum(flux, 0.0)
            self._sweeps.append((stride, breaks, both, [np.empty_like(flux) for _ in range(3)]))

    def advance(self, density: Array) -> Array:
        """Return the density one step later."""
        start = density.ravel()
        result = self._euler(self._euler(start))
        result += start
        result *= 0.5
        return result.reshape(density.shape)

    def _euler(self, density: Array) -> Array:
        result = density.copy()
        ratio = np.multiply(density, self._weights, out=self._ratio)
        highest = np.multiply(ratio, self._ceiling, out=self._highest)
        for sweep in self._sweeps:
            _move(result, ratio, highest, *sweep)
        return result


class FrictionStep:
    """The exact propagator of friction and noise in the velocity, the same for every position."""

    def __init__(self, generator: Array, duration: float) -> None:
        matrix = expm(duration * generator).T
        matrix = np.where(matrix > TINY, matrix, 0.0)  # rounding must not make a probability negative
        self._propagator = np.ascontiguousarray(matrix / matrix.sum(axis=1, keepdims=True))

    def advance(self, density: Array) -> Array:
        """Return the density one step later.

        The product is taken in blocks so small that the linear algebra below stays on one thread: it takes 0.1 ms, and
        to wake a second thread for it takes a hundred times longer where the cores are busy.
        """
        result = np.empty_like(density)
        rows = max(1, 2**18 // self._propagator.size)
        for first in range(0, len(density), rows):
            np.matmul(density[first : first + rows], self._propagator, out=result[first : first + rows])
        return result


class ImplicitStep:
    """Alexander's L-stable step of order 2 for the linear ``dq/dt = M^-1 G M q``, from one sparse factorisation.

    The ratio ``q`` rather than the density is solved for, so that rounding is relative to the density at each place,
    less its least value, of which the equation moves nothing: close to equilibrium the rounding of what stays would
    outweigh what still moves, and over a long step the rates multiply it. For the same reason the mass is restored.
    """

    def __init__(self, generator: Any, equilibrium: Array, step: float) -> None:
        self.step = step
        self._equilibrium = equilibrium
        weights = equilibrium.ravel()
        self._rates = (sparse.diags(1.0 / weights) @ generator @ sparse.diags(weights)).tocsr()
        implicit = sparse.identity(weights.size) - (1.0 - math.sqrt(0.5)) * step * self._rates
        self._solve = splu(implicit.tocsc()).solve

    def advance(self, density: Array) -> tuple[Array, float]:
        """Return the density one step later and ``sum |P' - P'_1|``, with ``P'_1`` of first order."""
        ratio, gamma = (density / self._equilibrium).ravel(), 1.0 - math.sqrt(0.5)
        moving = ratio - ratio.min()
        first = self._solve(self._rates @ moving)
        second = self._solve(self._rates @ (moving + (1.0 - gamma) * self.step * first))
        error = gamma * self.step * (second - first)
        result = (ratio + self.step * first + error).reshape(density.shape) * self._equilibrium
        result *= density.sum() / result.sum()
        return result, float(np.abs(error.reshape(density.shape) * self._equilibrium).sum())


def detailed_balance(conductance: Array, weights: Array) -> Array:
    """The generator of a chain of neighbours with equilibrium ``weights``; column ``j`` says where ``j`` goes."""
    up, down = conductance / weights[:-1], conductance / weights[1:]
    leaving = np.append(up, 0.0) + np.append(0.0, down)
    return np.diag(up, -1) + np.diag(down, 1) - np.diag(leaving)


def _move(
    result: Array, q: Array, highest: Array, stride: int, breaks: slice, fluxes: tuple[Array, ...], work: list[Array]
) -> None:
    """Add to ``result`` what flows between neighbours; of equilibrium's ``fluxes`` one is above 0, the other below.

    The parabola through three cell averages has the value ``q_0 + (2 (q_1 - q_0) + (q_0 - q_-1))/6`` on the face
    between cells 0 and 1. Everything is in place: at these sizes new arrays would cost more than the arithmetic.
    """
    (forward, backward), (slope, face, other) = fluxes, work
    left, right = slice(None, -stride), slice(stride, None)
    np.subtract(q[right], q[left], out=slope)
    slope *= 1.0 / 6.0
    slope[breaks] = 0.0
    np.multiply(slope, 2.0, out=face)
    np.copyto(other, face)
    face[right] += slope[left]
    face += q[left]
    np.maximum(face, 0.0, out=face)
    np.minimum(face, highest[left], out=face)
    face *= forward
    other[left] += slope[right]
    np.subtract(q[right], other, out=other)
    np.maximum(other, 0.0, out=other)
    np.minimum(other, highest[right], out=other)
    other *= backward
    face += other
    result[left] -= face
    result[right] += face


def _difference(cells: int) -> Any:
    """What inner faces give to cells, with the sign of a divergence: shape (cells, cells - 1)."""
    return sparse.diags([np.ones(cells - 1), -np.ones(cells - 1)], [0, -1], shape=(cells, cells - 1))


def _extrapolation(cells: int) -> tuple[Any, Any]:
    """The matrices from cells to inner faces of `_move`'s parabolas, from below and from above."""
    slope = -_difference(cells).T / 6.0
    shift = sparse.eye(cells - 1, k=-1) + 2.0 * sparse.identity(cells - 1)
    lower = sparse.eye(cells - 1, cells)
    upper = sparse.eye(cells - 1, cells, k=1)
    return lower + shift @ slope, upper - shift.T @ slope
