"""SGD with reshuffled epochs on a quadratic loss, where everything is exact.

The ``n`` batches of an epoch partition the data, so their noises sum to zero: with variance ``s = S1 / C`` each, any
two of one epoch have covariance ``-s / (n - 1)``. Those of different epochs are independent. Directions that relax
within an epoch do not notice. In directions that take many epochs the noise of a constant rate cancels, which leaves
them cold; the part ``(alpha - 1) noise`` of a random rate does not cancel.

In the notation of `heatbath.theory.quadratic`, with ``A = 1 + G`` and noise of variance 1, a step is

    z' = (A + (alpha - 1) H) z + (k + (alpha - 1) h) noise.

Let ``m`` be the mean of ``z`` over all ``alpha`` at given noises, and ``d_i = A^i k``. After ``j`` steps of the epoch

    m_j = A^j m_0 + sum_{i<j} d_i noise_{j-1-i}.

With ``d`` the mean of the ``j`` vectors ``d_i``, the sum has the covariance

    V_j = n / (n - 1) [sum_{i<j} (d_i - d)(d_i - d)^T + j (1 - j / n) d d^T],

squares alone, so that nothing cancels in rounding. The second moments ``M`` of ``m``, and the covariance ``P`` of what
the multipliers add to it, obey

    M_j = A^j M_0 A^jT + V_j,                                                          M_n = M_0,
    P_{j+1} = A P_j A^T + s2 [H (M_j + P_j) H^T + H c_j h^T + h c_j^T H^T + h h^T],    P_n = P_0,

with ``c_j = <m_j noise>`` for each batch that is still to come: ``c_0 = 0`` and ``c_{j+1} = A c_j - k / (n - 1)``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from itertools import islice

import numpy as np
from numpy.typing import ArrayLike

from heatbath.draws import check_integer
from heatbath.theory import quadratic
from heatbath.theory.quadratic import Array, Directions, directions, second_moment_generator
from heatbath.thermostat import Thermostat


def stationary_moments(
    thermostat: Thermostat, curvature: ArrayLike, diffusion: ArrayLike, steps_per_epoch: int
) -> Array:
    """Return the stationary second moments of position and velocity, averaged over the steps of an epoch.

    Arguments and result are those of `heatbath.theory.quadratic.stationary_moments`, with ``n >= 2`` batches in an
    epoch; ``sampling`` is not used. With ``dataset_size``, the noise of a batch is that of a batch without replacement,
    and an epoch may have fewer steps than ``N / C``: the rest of the data sits out.

    Raises:
        ValueError: the second moments have no stationary value, or an epoch has more batches than the data.
    """
    count, batches = _epoch(thermostat, steps_per_epoch)
    found = directions(curvature, diffusion)
    return quadratic.assemble(thermostat, _averaged(thermostat, found, count, batches), found)


def moments_by_step(thermostat: Thermostat, curvature: ArrayLike, diffusion: ArrayLike, steps_per_epoch: int) -> Array:
    """Return the stationary second moments after 0, 1, ..., ``n - 1`` steps of an epoch, on the first axis.

    Arguments, further axes and errors are those of `stationary_moments`, which is the mean over the first axis.
    """
    count, batches = _epoch(thermostat, steps_per_epoch)
    found = directions(curvature, diffusion)
    return np.stack(
        [quadratic.assemble(thermostat, unit, found) for unit in _by_step(thermostat, found, count, batches)]
    )


def cooling(thermostat: Thermostat, curvature: ArrayLike, steps_per_epoch: int) -> float | Array:
    """Return ``<x x>`` of reshuffled epochs over that of independent batches, at the same knobs.

    Call it ``eps`` for a constant law: it is near 1 in directions that relax in far less than an epoch, and small in
    those that take many. A random rate in coupling "gradient" then has ``(eps + s2) / (1 + s2)`` at leading order in
    the rate.
    The curvature is a number, or an array of the curvatures along independent directions.
    """
    if np.ndim(curvature) > 1:
        raise ValueError(f"curvature must be a number or an array of curvatures, got shape {np.shape(curvature)}")
    count, batches = _epoch(thermostat, steps_per_epoch)
    found = directions(curvature, 1.0)
    independent = quadratic.unit_moments(
        replace(thermostat, sampling="replacement"), found.curvatures, found.curvatures
    )
    ratio: Array = (_averaged(thermostat, found, count, batches) / independent)[..., 0, 0]
    return ratio if np.ndim(curvature) else float(ratio[0])


def _epoch(thermostat: Thermostat, steps_per_epoch: int) -> tuple[int, float]:
    """The number of steps in an epoch, and the number of batches that would use up the data."""
    count = check_integer("steps_per_epoch", steps_per_epoch, least=2)
    if thermostat.dataset_size is None:
        return count, float(count)
    batches = thermostat.dataset_size / thermostat.batch_size
    if count > batches:
        raise ValueError(f"steps_per_epoch must be at most dataset_size / batch_size = {batches:.6g}, got {count}")
    return count, batches


def _averaged(thermostat: Thermostat, found: Directions, count: int, batches: float) -> Array:
    return np.asarray(reduce(np.add, _by_step(thermostat, found, count, batches)) / count)


def _by_step(thermostat: Thermostat, found: Directions, count: int, batches: float) -> Iterator[Array]:
    """The moments after each step, in ``(x, l v)`` and units of the noise, of all directions or all pairs of them."""
    quadratic.check_stable(thermostat, found.curvatures)
    drift, shake, kick, kick_shake = quadratic.one_step(thermostat, thermostat.lr * found.curvatures)
    spread, still, unit = thermostat.law.variance, np.zeros((2, 2)), np.eye(2)
    growth, noise, _ = deque(_means(drift, kick, found, count, batches), maxlen=1).pop()
    grown, other_grown = found.pairs(growth)
    start = _solve(-second_moment_generator(grown, still, other_grown, still, 0.0), noise)

    def sources() -> Iterator[tuple[Array, Array]]:
        """The moments of the means after each step, and what the next multiplier adds to ``P``."""
        for growth, noise, ahead in islice(_means(drift, kick, found, count, batches), count):
            means = _congruent(found.pairs(unit + growth), start) + noise
            left, right = found.pairs(_apply(shake, ahead))
            mixed = _outer(left, kick_shake) + _outer(kick_shake, right)
            added = _congruent(found.pairs(shake), means) + mixed + np.outer(kick_shake, kick_shake)
            yield means, spread * added

    (one, other), (shaken, other_shaken) = found.pairs(drift), found.pairs(shake)
    generator = second_moment_generator(one, shaken, other, other_shaken, spread)
    over_epoch, added = np.zeros_like(generator), np.zeros_like(start)
    for _, source in sources():
        added = added + _on_matrices(generator, added) + source
        over_epoch = over_epoch + generator @ (np.eye(4) + over_epoch)
    excess = _solve(-over_epoch, added)
    for means, source in sources():
        yield means + excess
        excess = excess + _on_matrices(generator, excess) + source


def _means(
    drift: Array, kick: Array, found: Directions, count: int, batches: float
) -> Iterator[tuple[Array, Array, Array]]:
    """``A^j - 1``, ``V_j`` of pairs and ``c_j`` after 0, 1, ..., ``count`` steps; the sums of squares are Welford's."""
    term = np.broadcast_to(kick, drift.shape[:-1])
    mean, ahead, growth = np.zeros_like(term), np.zeros_like(term), np.zeros_like(drift)
    squares = _outer(*found.pairs(mean))
    for j in range(count + 1):
        noise = squares + j * (1.0 - j / batches) * _outer(*found.pairs(mean))
        yield growth, batches / (batches - 1.0) * noise, ahead
        squares = squares + j / (j + 1.0) * _outer(*found.pairs(term - mean))
        mean = mean + (term - mean) / (j + 1.0)
        term = term + _apply(drift, term)
        growth = growth + drift @ (np.eye(2) + growth)
        ahead = ahead + _apply(drift, ahead) - kick / (batches - 1.0)


def _congruent(maps: tuple[Array, Array], matrices: Array) -> Array:
    return np.asarray(maps[0] @ matrices @ np.swapaxes(maps[1], -1, -2))


def _apply(matrices: Array, vectors: Array) -> Array:
    return np.asarray((matrices @ vectors[..., None])[..., 0])


def _outer(left: Array, right: Array) -> Array:
    return np.asarray(left[..., :, None] * right[..., None, :])


def _on_matrices(operators: Array, matrices: Array) -> Array:
    """Stacks of 4x4 matrices applied to 2x2 ones, which are read row by row."""
    return np.asarray((operators @ matrices.reshape(*matrices.shape[:-2], 4, 1)).reshape(matrices.shape))


def _solve(operators: Array, matrices: Array) -> Array:
    solution = np.linalg.solve(operators, matrices.reshape(*matrices.shape[:-2], 4, 1))
    return np.asarray(solution.reshape(matrices.shape), dtype=np.float64)
