"""SGD on a quadratic loss with additive noise, where everything is exact.

On ``f = x^T A x / 2`` with mini-batch gradient ``g_B = A x + noise``, the noise having covariance ``S1 / C`` (less for
a finite data set), one step is linear in ``z = (x, u)`` with ``u = l v`` the velocity in units of ``x``:

    coupling "gradient":  v' = mu v - alpha g_B,   x' = x + l v'          or  x + l (mu v' - alpha g_B)   for Nesterov
    coupling "update":    v' = mu v - g_B,         x' = x + l alpha v'    or  x + l alpha (mu v' - g_B)

In the eigenbasis of ``A`` the directions share nothing but ``alpha`` and the noise. Write the step of direction ``i``
as ``z' = (1 + G_i + (alpha - 1) H_i) z - (k + (alpha - 1) h) l noise_i``: ``G_i`` is its mean map less the identity and
``H_i`` what ``alpha`` shakes. With ``s2`` the variance of ``alpha``, the block ``M_ij = <z_i z_j^T>`` is stationary if

    G_i M + M G_j^T + G_i M G_j^T + s2 H_i M H_j^T + (l^2 S_ij / C) (k k^T + s2 h h^T) = 0,

four linear equations. The identity is taken out before anything is rounded, so small rates keep their digits.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from heatbath.laws import check_number
from heatbath.thermostat import Thermostat

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Moment = Literal["mean", "mean-square"]


def stationary_moments(thermostat: Thermostat, curvature: ArrayLike, diffusion: ArrayLike) -> Array:
    """Return the stationary second moments of position and velocity, in the paper's sign of ``v``.

    Args:
        thermostat: the knobs.
        curvature: ``A``: a number, an array of curvatures of independent directions, or a symmetric positive matrix.
        diffusion: ``S1``, the covariance of the gradients of single samples: likewise; a number times the identity.

    Returns:
        ``[[<x x>, <x v>], [<v x>, <v v>]]``: shape ``(2, 2)`` for numbers, ``(n, 2, 2)`` if an argument is an array of
        ``n`` directions, and the ``(2n, 2n)`` array of four blocks if an argument is a matrix.

    Raises:
        ValueError: the second moments have no stationary value: the rate exceeds `largest_stable_rate`.
    """
    found = directions(curvature, diffusion)
    check_stable(thermostat, found.curvatures)
    return assemble(thermostat, unit_moments(thermostat, *found.pairs(found.curvatures)), found)


def exact_temperature(thermostat: Thermostat, curvature: ArrayLike, diffusion: ArrayLike) -> float | Array:
    """Return the temperature ``<x f'(x)>`` of equipartition, exact at any stable rate.

    With ``y = l a`` for curvature ``a``, the leading order ``T_lead`` of `Thermostat.temperature`, the variance ``s2``
    of the law and its factor ``F``, the equations of this module have the solution

        T / T_lead = (1 + n y) / (1 - c1 y - c2 y^2),
        heavy ball:  n = c2 = 0,   2 (1 - mu^2) c1 = 1 - mu + s2 (1 + mu),
        Nesterov:    (1 + mu) F n = 2 (1 - mu^2) c2 = mu (1 + 2 mu)(1 + s2),
                     2 (1 - mu^2) c1 = 1 - mu - 4 mu^2 + s2 (1 + mu),

    in either coupling. The leading order is off by a relative ``(n + c1) y``: heavy
    ball is hotter than it says, Nesterov with much momentum is colder.

    Returns:
        A number for numbers, an array for directions, and for matrices the mean over directions ``tr(A <x x^T>) / n``.
    """
    found = directions(curvature, diffusion)
    check_stable(thermostat, found.curvatures)
    unit = unit_moments(thermostat, found.curvatures, found.curvatures)[..., 0, 0]
    noise = thermostat.lr * thermostat.batch_variance * found.variances
    temperatures: Array = noise * (thermostat.lr * found.curvatures * unit)
    if found.basis is not None:
        return float(temperatures.mean())
    return float(temperatures[0]) if found.scalar else temperatures


class FluctuationDissipation(NamedTuple):
    """The two sides of the relation of a stationary state: what the loss takes out, and what the noise puts in."""

    dissipation: float
    fluctuation: float


def fluctuation_dissipation(
    thermostat: Thermostat, curvature: ArrayLike, diffusion: ArrayLike
) -> FluctuationDissipation:
    """Return both sides of the fluctuation-dissipation relation, each from the stationary moments alone.

    In PyTorch's sign let ``b' = mu b + G`` be the buffer after a step and ``x' = x - l D`` the step, where

        coupling "gradient":  G = alpha g_B,   D = b'         or  G + mu b'          for Nesterov
        coupling "update":    G = g_B,         D = alpha b'   or  alpha (G + mu b')

    Nothing below needs a quadratic loss; only that ``alpha`` is drawn anew and that the averages do not change.

    1. ``<|x'|^2> = <|x|^2>`` gives ``2 <x.D> = l <|D|^2>``.
    2. ``<x'.b'> = <x.b> =: p`` gives ``p = mu p + <x.G> - l <D.b'>``, so ``p = (<x.G> - l <D.b'>) / (1 - mu)``.
    3. As ``alpha`` has mean 1 and does not know ``x``, ``<x.D>`` is ``mu p + <x.G>`` for heavy ball, and
       ``mu^2 p + (1 + mu) <x.G>`` for Nesterov. Put 2 into 3 and 3 into 1; the terms in ``<x.G>`` add up to
       ``<x.G> / (1 - mu)`` in both cases, and with ``w = mu`` for heavy ball, ``w = mu^2`` for Nesterov,

           <x.G> = l < (1 - mu)/2 |D|^2 + w D.b' >.

    This one form covers all four cases; written out,

        gradient, heavy ball:  <x.alpha g_B> = (l/2) (1 + mu) <|b|^2>                               (Yaida 2018)
        gradient, Nesterov:    <x.alpha g_B> = l [(1 - mu)/2 <|D|^2> + mu^2 <D.b'>]
        update, heavy ball:    <x.g_B>       = (l/2) [1 + mu + s2 (1 - mu)] <|b|^2>
        update, Nesterov:      <x.g_B>       = l [(1 + s2)(1 - mu)/2 <|d|^2> + mu^2 <d.b'>],   d = g_B + mu b'

    Returns:
        ``dissipation``: the left side, here ``tr(A <x x^T>)``; ``fluctuation``: the right side. Both are sums over
        directions, and equal to the number of directions times the temperature.
    """
    found = directions(curvature, diffusion)
    check_stable(thermostat, found.curvatures)
    curvatures, lr, mu, spread = found.curvatures, thermostat.lr, thermostat.momentum, thermostat.law.variance
    drift, shake, kick, kick_shake = one_step(thermostat, lr * curvatures)
    noise = lr * lr * thermostat.batch_variance * found.variances
    moments = noise[:, None, None] * unit_moments(thermostat, curvatures, curvatures)

    # The products of x' - x = -l D (row 0) and u' = -l b' (row 1).
    mean = drift + np.array([[0.0, 0.0], [0.0, 1.0]])
    products = np.einsum("nip,npq,njq->nij", mean, moments, mean)
    products = products + spread * np.einsum("nip,npq,njq->nij", shake, moments, shake)
    products = products + noise[:, None, None] * _kicks(kick, kick_shake, spread)
    memory = mu * mu if thermostat.nesterov else mu
    fluctuation = (0.5 * (1.0 - mu) * products[:, 0, 0] + memory * products[:, 0, 1]) / lr
    return FluctuationDissipation(float((curvatures * moments[:, 0, 0]).sum()), float(fluctuation.sum()))


def spectral_radius(thermostat: Thermostat, curvature: ArrayLike, moment: Moment = "mean-square") -> float:
    """Return the factor by which one step multiplies the slowest mode of the means or of the second moments."""
    return math.exp(_slowest_growth(thermostat, curvature, moment))


def is_stable(thermostat: Thermostat, curvature: ArrayLike, moment: Moment = "mean-square") -> bool:
    """Return whether the means or the second moments stay bounded: the rate is below `largest_stable_rate`."""
    return thermostat.lr < largest_stable_rate(thermostat, curvature, moment)


def largest_stable_rate(thermostat: Thermostat, curvature: ArrayLike, moment: Moment = "mean-square") -> float:
    """Return the rate ``l`` at which the means or the second moments cease to be bounded.

    It is ``y / a`` for the largest curvature ``a``, where for the means (the trace and determinant of one step)

        y = 2 (1 + mu)    or    2 (1 + mu) / (1 + 2 mu)   for Nesterov,

    and for the second moments, which the noise of ``alpha`` feeds as well, with ``s2`` its variance,

        y = 2 (1 - mu^2) / (1 - mu + s2 (1 + mu))    or the positive root, for Nesterov, of
        mu (1 + 2 mu)(1 + s2) y^2 + [1 - mu - 4 mu^2 + s2 (1 + mu)] y - 2 (1 - mu^2) = 0.

    The map of second moments keeps positive matrices positive, so its largest eigenvalue is real and first reaches 1
    where the stationary equations lose their solution: these are the zeros of their determinant. They are the same for
    both couplings, and for a constant law equal to those of the means. With momentum a random rate costs much of the
    range: at ``mu = 0.9`` and ``s2 = 1/3`` heavy ball falls from 3.8 to 0.52.
    """
    mu = thermostat.momentum
    if _checked(moment) == "mean":
        bound = 2.0 * (1.0 + mu) / (1.0 + 2.0 * mu if thermostat.nesterov else 1.0)
    else:
        linear, square = _denominator(thermostat)
        root = math.sqrt(linear * linear + 4.0 * square)
        bound = 2.0 / (root + linear) if linear > 0.0 else (root - linear) / (2.0 * square)  # no cancellation
    return bound / float(directions(curvature, 0.0).curvatures.max())


def relaxation_time(thermostat: Thermostat, curvature: ArrayLike, moment: Moment = "mean-square") -> float:
    """Return the number of steps in which the slowest mode decays by ``e``: ``-1 / log(spectral_radius)``.

    With momentum it is infinity where rounding hides the decay, beyond about 1e16 steps. An unstable rate is refused.
    """
    check_stable(thermostat, directions(curvature, 0.0).curvatures, moment)
    growth = _slowest_growth(thermostat, curvature, moment)
    return -1.0 / growth if growth < 0.0 else math.inf


def small_rate_limit(thermostat: Thermostat, tolerance: float = 0.1) -> float:
    """Return the product ``lr * curvature`` up to which the leading order of the temperature is right to ``tolerance``.

    It uses the closed form of `exact_temperature`: the least positive zero of ``T / T_lead = 1 +- tolerance``, or
    infinity where the ratio stays within.
    """
    check_number("tolerance", tolerance, above=0.0, below=1.0)
    linear, square = _denominator(thermostat)
    mu, factor = thermostat.momentum, thermostat.law_factor
    slope = 0.0
    if thermostat.nesterov:
        slope = mu * (1.0 + 2.0 * mu) * thermostat.law.second_moment / ((1.0 + mu) * factor)
    zeros: list[float] = []
    for ratio in (1.0 - tolerance, 1.0 + tolerance):
        # (1 + slope y) - ratio (1 - linear y - square y^2), highest power first
        roots = np.roots([ratio * square, slope + ratio * linear, 1.0 - ratio])
        zeros += [float(root.real) for root in roots if abs(root.imag) < 1e-12 * abs(root) and root.real > 0.0]
    return min(zeros, default=math.inf)


def _denominator(thermostat: Thermostat) -> tuple[float, float]:
    """The coefficients of ``1 - linear y - square y^2``, to which the determinant of the equations is proportional."""
    mu, spread = thermostat.momentum, thermostat.law.variance
    scale = 2.0 * (1.0 - mu * mu)
    linear = 1.0 - mu + spread * (1.0 + mu)
    if not thermostat.nesterov:
        return linear / scale, 0.0
    return (linear - 4.0 * mu * mu) / scale, mu * (1.0 + 2.0 * mu) * (1.0 + spread) / scale


def one_step(thermostat: Thermostat, y: Array) -> tuple[Array, Array, Array, Array]:
    """Return ``G``, ``H``, ``k`` and ``h`` of this module for curvatures ``y / l``: maps and kicks in ``(x, l v)``."""
    mu = thermostat.momentum
    memory, reach = (mu * mu, 1.0 + mu) if thermostat.nesterov else (mu, 1.0)
    drift, shake = np.zeros((2, *y.shape, 2, 2))
    drift[..., 0, 0], drift[..., 0, 1] = -reach * y, memory
    drift[..., 1, 0], drift[..., 1, 1] = -y, mu - 1.0
    kick = np.array([reach, 1.0])
    shake[..., 0, 0] = -reach * y
    if thermostat.coupling == "gradient":
        shake[..., 1, 0] = -y
        return drift, shake, kick, kick
    shake[..., 0, 1] = memory
    return drift, shake, kick, np.array([reach, 0.0])


def _slowest_growth(thermostat: Thermostat, curvature: ArrayLike, moment: Moment) -> float:
    """The logarithm of `spectral_radius`, to which a rate counts that vanishes beside 1."""
    curvatures = directions(curvature, 0.0).curvatures
    drift, shake, _, _ = one_step(thermostat, thermostat.lr * curvatures)
    if _checked(moment) == "mean":
        generator = drift
    else:
        generator = second_moment_generator(drift, shake, drift, shake, thermostat.law.variance)
    growth = np.linalg.eigvals(generator)
    with np.errstate(divide="ignore"):  # a mode that one step takes to 0
        return float(0.5 * np.log1p(2.0 * growth.real + np.abs(growth) ** 2).max())


def _kicks(kick: Array, kick_shake: Array, spread: float) -> Array:
    return np.outer(kick, kick) + spread * np.outer(kick_shake, kick_shake)


def second_moment_generator(drift: Array, shake: Array, drift2: Array, shake2: Array, spread: float) -> Array:
    """Return the 4x4 matrices of ``M -> G M + M G2^T + G M G2^T + s2 H M H2^T`` on ``M`` read row by row."""
    one = np.eye(2)
    return kronecker(drift, one) + kronecker(one, drift2) + kronecker(drift, drift2) + spread * kronecker(shake, shake2)


def kronecker(left: Array, right: Array) -> Array:
    """Return the Kronecker products of two stacks of matrices."""
    product: Array = np.einsum("...ab,...cd->...acbd", left, right)
    rows, columns = left.shape[-2] * right.shape[-2], left.shape[-1] * right.shape[-1]
    matrices: Array = product.reshape(*product.shape[:-4], rows, columns)
    return matrices


def unit_moments(thermostat: Thermostat, curvatures: Array, others: Array) -> Array:
    """Return the blocks of pairs of directions in ``(x, l v)``, in units of the noise ``l^2 S_ij / C``."""
    if thermostat.sampling != "replacement":
        raise ValueError(
            f"sampling={thermostat.sampling!r} needs the length of an epoch: use heatbath.theory.shuffled, or "
            "sampling='replacement' for independent batches"
        )
    drift, shake, kick, kick_shake = one_step(thermostat, thermostat.lr * curvatures)
    drift2, shake2, _, _ = one_step(thermostat, thermostat.lr * others)
    spread = thermostat.law.variance
    generator = second_moment_generator(drift, shake, drift2, shake2, spread)
    noise = np.broadcast_to(_kicks(kick, kick_shake, spread).reshape(4, 1), (*generator.shape[:-1], 1))
    return np.asarray(np.linalg.solve(-generator, noise).reshape(*generator.shape[:-2], 2, 2))


def assemble(thermostat: Thermostat, unit: Array, found: Directions) -> Array:
    """Return the moments of ``(x, v)`` from those of directions, or pairs of them, in units of the noise."""
    lr = thermostat.lr
    # Together these are l^2 and the units of (x, l v); apart, the square of a tiny rate does not underflow.
    moments = unit * (lr * thermostat.batch_variance * found.covariance[..., None, None])
    moments = moments * np.array([[lr, 1.0], [1.0, 1.0 / lr]])
    if found.basis is None:
        return np.asarray(moments[0] if found.scalar else moments)
    moments = np.einsum("ai,ijpq,bj->paqb", found.basis, moments, found.basis, optimize=True)
    moments = moments.reshape(2 * len(found.curvatures), -1)
    return np.asarray(0.5 * (moments + moments.T))


class Directions(NamedTuple):
    """The directions in which the loss is diagonal, and the noise along them."""

    curvatures: Array
    basis: Array | None  # where a matrix was given
    covariance: Array  # of the noise in the basis; without one, the variances alone
    scalar: bool  # whether both arguments were numbers

    @property
    def variances(self) -> Array:
        """The variance of the noise along each direction."""
        return self.covariance if self.basis is None else np.diagonal(self.covariance)

    def pairs(self, each: Array) -> tuple[Array, Array]:
        """Return what belongs to both directions of each pair: a direction with itself, or in a basis any two."""
        return (each, each) if self.basis is None else (each[:, None], each[None, :])


def directions(curvature: ArrayLike, diffusion: ArrayLike) -> Directions:
    """Return the directions of a loss, of arguments that are finite, symmetric, positive and agree in size."""
    a, s = np.array(curvature, dtype=np.float64), np.array(diffusion, dtype=np.float64)
    for name, value in (("curvature", a), ("diffusion", s)):
        if value.ndim > 2 or value.size == 0 or not np.isfinite(value).all():
            raise ValueError(f"{name} must be a finite number, array or matrix, got shape {value.shape}: {value}")
        square = value.ndim < 2 or value.shape[0] == value.shape[1]
        if not square or np.abs(value - value.T).max() > 1e-10 * np.abs(value).max():
            raise ValueError(f"{name} must be a symmetric matrix, got shape {value.shape}: {value}")
    count = max(value.shape[-1] if value.ndim else 1 for value in (a, s))
    if any(value.shape[-1] not in ((count,) if value.ndim == 2 else (1, count)) for value in (a, s) if value.ndim):
        raise ValueError(f"curvature and diffusion must agree in size, got shapes {a.shape} and {s.shape}")
    basis = None
    if a.ndim == 2 or s.ndim == 2:
        a, s = (value if value.ndim == 2 else np.diag(np.broadcast_to(value, (count,))) for value in (a, s))
        curvatures, basis = np.linalg.eigh(a)
        covariance = basis.T @ s @ basis
        least = float(np.linalg.eigvalsh(s).min())
        least = 0.0 if least > -1e-12 * np.abs(s).max() else least
    else:
        curvatures, covariance = np.broadcast_to(a, (count,)), np.broadcast_to(s, (count,))
        least = float(covariance.min())
    if curvatures.min() <= 0.0:
        raise ValueError(f"curvature must be positive in each direction, got a least value of {curvatures.min():.4g}")
    if least < 0.0:
        raise ValueError(f"diffusion must not be negative in any direction, got a least value of {least:.4g}")
    return Directions(curvatures, basis, covariance, np.ndim(curvature) == np.ndim(diffusion) == 0)


def check_stable(thermostat: Thermostat, curvatures: Array, moment: Moment = "mean-square") -> None:
    """Raise ``ValueError`` unless the rate is below `largest_stable_rate`."""
    bound = largest_stable_rate(thermostat, curvatures, moment)
    if thermostat.lr >= bound:
        what = "the means" if moment == "mean" else "the second moments"
        raise ValueError(
            f"lr={thermostat.lr:.4g} is unstable: {what} grow without bound from lr={bound:.4g} on at curvature "
            f"{curvatures.max():.4g}, which is exceeded {thermostat.lr / bound:.4g}-fold (the mean alone is stable "
            f"below {largest_stable_rate(thermostat, curvatures, 'mean'):.4g})"
        )


def _checked(moment: str) -> str:
    if moment not in ("mean", "mean-square"):
        raise ValueError(f"moment must be 'mean' or 'mean-square', got {moment!r}")
    return moment
