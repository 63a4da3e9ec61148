"""How far the law of the random rate matters: its variance alone at leading order, its shape beyond.

On a quadratic loss with additive noise the second moments of SGD obey a linear recursion in which only ``<alpha>`` and
``<alpha^2>`` enter: laws of equal variance have the same ``<x^2>`` at every rate. The shape of the law shows in the
fourth moments there, and in every moment on other losses. Both start at first order in the rate and, without momentum,
through one number.

Take ``x' = x - l alpha (g + n)`` with ``n`` normal of variance ``S``, hold ``T = l m2 S / 2`` fixed, and write ``m_k``
for ``<alpha^k>``. The mean of ``phi(x') - phi(x)``, over ``l``, is ``(L0 + l L1) phi`` plus terms of order ``l^2``::

    L0 phi = -g phi' + T phi''
    L1 phi = (m2 / 2) g^2 phi'' - (m3 / m2) T g phi''' + (m4 / (2 m2^2)) T^2 phi''''

For an observable ``A`` solve ``-L0 phi = A - <A>``, averages over the Boltzmann weight ``exp(-f / T)``; stationarity
gives ``<A>_l = <A> + l <L1 phi>``, and three integrations by parts, ``<g F> = T <F'>``, turn this into::

    <A>_l = <A> + l [ (m2 / 2) T <f'' phi''> + (shape / 2) T^2 <phi''''> ],
    shape = m2 - 2 m3 / m2 + m4 / m2^2 = < alpha^2 (alpha / m2 - 1)^2 >

The shape number is never negative. It vanishes for the constant law, and for a law on 0 and ``m2`` alone, as it must:
that one is plain SGD at the rate ``l m2`` with pauses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import numpy as np
from scipy import integrate, optimize, special

from heatbath.laws import Law, LogNormal, check_number
from heatbath.theory.discrete import DiscreteSGD
from heatbath.theory.landscapes import Array, Landscape
from heatbath.theory.quadratic import kronecker, one_step


def law_moment(law: Law, order: int) -> float:
    """Return ``<alpha^order>`` by quadrature over the law; accurate to about 1e-10 up to order 4."""
    return _average(lambda alpha: alpha**order, law)


def shape_number(law: Law) -> float:
    """Return ``< alpha^2 (alpha / m2 - 1)^2 >``, through which the law's shape acts at first order in the rate."""
    return _average(lambda alpha: (alpha * (alpha / law.second_moment - 1.0)) ** 2, law)


def predict_average(landscape: Landscape, observable: Callable[[Array], Array], temperature: float) -> float:
    """Return the average of ``observable(x)`` under ``exp(-f / T)``, in one dimension."""
    grid, weight = _boltzmann(landscape, temperature)
    return float(integrate.simpson(weight * observable(grid), x=grid))


def predict_shift(landscape: Landscape, observable: Callable[[Array], Array], temperature: float, law: Law) -> float:
    """Return the first-order shift ``(<A>_l - <A>) / l`` of SGD without momentum at fixed temperature.

    This is the bracket of the module's formula, with ``phi''`` from ``T phi'' = g phi' - (A - <A>)`` and the fourth
    derivative integrated by parts onto the weight, ``T^2 <phi''''> = <(g^2 - T f'') phi''>``. The temperature is
    ``T = l m2 D / (2 C)``, held fixed as ``l`` shrinks; the landscape has one dimension.
    """
    grid, weight = _boltzmann(landscape, temperature)
    gradient, nudge = landscape.gradient(grid), 1e-4 * float(grid[-1] - grid[0])
    curvature = (landscape.gradient(grid + nudge) - landscape.gradient(grid - nudge)) / (2.0 * nudge)
    centred = observable(grid) - predict_average(landscape, observable, temperature)
    # weight * phi' vanishes at both ends; summed from the nearer end it is not a small difference of large sums there.
    from_left = integrate.cumulative_simpson(weight * centred, x=grid, initial=0.0)
    from_right = -integrate.cumulative_simpson((weight * centred)[::-1], x=-grid[::-1], initial=0.0)[::-1]
    left_half = np.cumsum(weight) < 0.5 * np.sum(weight)
    slope = -np.where(left_half, from_left, from_right) / (temperature * weight)
    bend = (gradient * slope - centred) / temperature
    drift = integrate.simpson(weight * curvature * bend, x=grid)
    fourth = integrate.simpson(weight * (gradient**2 - temperature * curvature) * bend, x=grid)
    return float(0.5 * law.second_moment * temperature * drift + 0.5 * shape_number(law) * fourth)


def predict_kurtosis(sgd: DiscreteSGD, curvature: float) -> float:
    """Return the exact stationary excess kurtosis ``<x^4> / <x^2>^2 - 3`` of SGD on a quadratic, momentum included.

    With ``z' = A z + b n`` for ``z = (x, l v)``, ``A`` and ``b`` affine in ``alpha``, the second moments solve
    ``M = <C>`` with ``C = A M A^T + b b^T`` the covariance after a step of known ``alpha``. The fourth moments less
    their Gaussian value, the sum of ``M M`` over the 3 pairings of four indices, then solve, ``x4`` the fourfold
    Kronecker power,

        K = <A x4> K + sum over pairings of < (C - M)(C - M) >

    What is Gaussian is gone before anything is rounded, so small rates keep their digits. To first order in the rate
    the result is ``3 l curvature shape / (1 - mu)`` for the gradient coupling, Nesterov or not.

    Raises:
        ValueError: the fourth moments have no stationary value at this rate.
    """
    if callable(sgd.diffusion):
        raise ValueError("diffusion must be a number: where it depends on the position, a step is not linear")
    alpha, weights = _law_nodes(sgd.law)
    drift, slope, kick_at_one, kick_slope = one_step(sgd.knobs, np.array(sgd.lr * curvature))  # noise of any size
    constant, kick = np.eye(2) + drift - slope, kick_at_one - kick_slope
    a = constant + alpha[:, None, None] * slope
    b = (kick + alpha[:, None] * kick_slope)[:, :, None]

    def average(*factors: Array) -> Array:
        return np.asarray(np.einsum("n,nij->ij", weights, reduce(kronecker, factors)))

    fourth = average(a, a, a, a)
    radius = float(np.max(np.abs(np.linalg.eigvals(fourth))))
    if radius >= 1.0:
        raise ValueError(
            f"lr = {sgd.lr:.6g} is too large at curvature {curvature:.6g} with law {sgd.law}: the fourth moments grow "
            f"by {radius:.6g} in each step, the bound is 1"
        )
    m = np.linalg.solve(np.eye(4) - average(a, a), average(b, b)).reshape(2, 2)
    linear = constant @ m @ slope.T + np.outer(kick, kick_slope)
    square = slope @ m @ slope.T + np.outer(kick_slope, kick_slope)
    excess = np.multiply.outer(alpha - 1.0, linear + linear.T)
    excess = excess + np.multiply.outer(alpha**2 - sgd.law.second_moment, square)
    pairs = np.einsum("n,nij,nkl->ijkl", weights, excess, excess)
    source = pairs + pairs.transpose(0, 2, 1, 3) + pairs.transpose(0, 2, 3, 1)
    k = np.linalg.solve(np.eye(16) - fourth, source.ravel())
    return float(k[0] / m[0, 0] ** 2)


def _average(function: Callable[[Array], Array], law: Law) -> float:
    nodes, weights = _law_nodes(law)
    return float(np.sum(weights * function(nodes)))


def _law_nodes(law: Law) -> tuple[Array, Array]:
    """Values of ``alpha`` and weights that sum to 1, by Gauss-Legendre in the normal score of the quantile.

    In that variable every law is smooth but for a jump at the median (two points), which separates the two panels.
    High moments of a log-normal law live beyond score 8, where its quantile has no digits left, so that its values are
    computed from the scores themselves.
    """
    points, lengths = np.polynomial.legendre.leggauss(80)
    half = 4.0 + (2.0 * law.sigma if isinstance(law, LogNormal) else 0.0)
    scores = np.concatenate([half * (points - 1.0), half * (points + 1.0)])
    weights = np.concatenate([lengths, lengths]) * np.exp(-0.5 * scores**2)
    if isinstance(law, LogNormal):
        nodes: Array = np.exp(law.sigma * scores - 0.5 * law.sigma**2)
    else:
        nodes = law.quantile(special.ndtr(scores))
    return nodes, weights / np.sum(weights)


def _boltzmann(landscape: Landscape, temperature: float) -> tuple[Array, Array]:
    """A grid over all positions of weight above ``exp(-40)`` of the greatest, and the normalised weight on it."""
    if landscape.dimension != 1:
        raise ValueError(f"the landscape must have dimension 1, got {landscape.dimension}")
    check_number("temperature", temperature, above=0.0)
    lowest = float(np.min(landscape.value(landscape.minima)))

    def find_end(minimum: float, direction: float) -> float:
        def excess(reach: float) -> float:
            return float(landscape.value(np.array(minimum + direction * reach))) - lowest - 40.0 * temperature

        reach = math.sqrt(80.0 * temperature / landscape.stiffness)
        while excess(reach) < 0.0:
            reach *= 1.2
        return minimum + direction * float(optimize.brentq(excess, 0.0, reach))

    minima = landscape.minima
    grid = np.linspace(find_end(float(minima.min()), -1.0), find_end(float(minima.max()), 1.0), 8001)
    weight = np.exp(-(landscape.value(grid) - lowest) / temperature)
    return grid, weight / integrate.simpson(weight, x=grid)
