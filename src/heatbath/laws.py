"""Unit-mean laws of the random multiplier ``alpha``.

A law is frozen data: its parameters, its exact moments and its quantile function. Every law has mean 1 and no
negative values, so that a random rate ``l * alpha`` keeps the mean rate ``l`` and never ascends. At leading order in
the rate only ``variance`` decides the temperature of a training run.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final, Literal

import numpy as np

Coupling = Literal["gradient", "update"]
COUPLINGS: Final[tuple[Coupling, ...]] = ("gradient", "update")  # what the multiplier acts on
Numbers = Any  # a float, a NumPy array or a torch tensor; what goes in comes out


class Law(ABC):
    """A distribution of ``alpha`` with mean exactly 1 on ``[0, inf)``.

    To add a law, write a frozen dataclass with ``variance`` and ``quantile``: it then prints, parses and works in
    every optimizer, scheduler and theory of this package.
    """

    _greatest: ClassVar[float | None] = None  # value of a parameter, where that is checked

    def __post_init__(self) -> None:
        """Check parameters and make floats of them, so that equal laws print and hash alike."""
        if self._greatest is None:
            return
        for name, value in vars(self).items():
            number = check_number(f"{type(self).__name__}: {name}", value, least=0.0, most=self._greatest)
            object.__setattr__(self, name, number)

    @property
    def mean(self) -> float:
        """The mean of ``alpha``: 1 for every law."""
        return 1.0

    @property
    @abstractmethod
    def variance(self) -> float:
        """The exact variance of ``alpha``."""

    @property
    def second_moment(self) -> float:
        """The exact ``<alpha^2> = 1 + variance``."""
        return 1.0 + self.variance

    @abstractmethod
    def quantile(self, u: Numbers) -> Numbers:
        """The value below which ``alpha`` falls with probability ``u`` in (0, 1): float, NumPy array or tensor."""

    def __str__(self) -> str:
        """The form that `parse_law` reads back, for instance ``uniform:0.5``."""
        return ":".join([_name(type(self)), *(repr(getattr(self, f.name)) for f in fields(self))])  # type: ignore[arg-type]


@dataclass(frozen=True)
class Constant(Law):
    """``alpha = 1`` always: plain SGD."""

    @property
    def variance(self) -> float:
        return 0.0

    def quantile(self, u: Numbers) -> Numbers:
        return u * 0.0 + 1.0


@dataclass(frozen=True)
class Uniform(Law):
    """``alpha`` uniform on ``[1 - delta, 1 + delta]``, the paper's law; variance ``delta^2 / 3``."""

    _greatest: ClassVar[float] = 1.0
    delta: float = 1.0

    @property
    def variance(self) -> float:
        return self.delta**2 / 3.0

    def quantile(self, u: Numbers) -> Numbers:
        return 1.0 + self.delta * (2.0 * u - 1.0)


@dataclass(frozen=True)
class TwoPoint(Law):
    """``alpha = 1 - spread`` or ``1 + spread`` with equal probability; variance ``spread^2``."""

    _greatest: ClassVar[float] = 1.0
    spread: float = 1.0

    @property
    def variance(self) -> float:
        return self.spread**2

    def quantile(self, u: Numbers) -> Numbers:
        sign = 2.0 * (u > 0.5) - 1.0 + 0.0 * u  # the last term keeps the precision of u
        return 1.0 + self.spread * sign


@dataclass(frozen=True)
class Arcsine(Law):
    """``alpha = 1 + spread cos(phase)``, phase uniform: a cyclic rate met at random; variance ``spread^2 / 2``."""

    _greatest: ClassVar[float] = 1.0
    spread: float = 1.0

    @property
    def variance(self) -> float:
        return self.spread**2 / 2.0

    def quantile(self, u: Numbers) -> Numbers:
        return 1.0 - self.spread * _namespace(u).cos(math.pi * u)


@dataclass(frozen=True)
class LogNormal(Law):
    """``log alpha`` normal with variance ``sigma^2`` and mean ``-sigma^2 / 2``; variance ``exp(sigma^2) - 1``."""

    _greatest: ClassVar[float] = 5.0
    sigma: float = 0.5

    @property
    def variance(self) -> float:
        return math.expm1(self.sigma**2)

    def quantile(self, u: Numbers) -> Numbers:
        xp = _namespace(u)
        return xp.exp(self.sigma * _normal_quantile(u, xp) - 0.5 * self.sigma**2)


@dataclass(frozen=True)
class Exponential(Law):
    """``alpha`` exponential with mean 1; variance 1."""

    @property
    def variance(self) -> float:
        return 1.0

    def quantile(self, u: Numbers) -> Numbers:
        return -_namespace(u).log1p(-u)


def parse_law(text: str | Law) -> Law:
    """Return the law that ``text`` names, for instance ``"uniform:0.5"``; a `Law` is returned as it is.

    Raises:
        ValueError: the name is unknown or a parameter is not allowed.
        TypeError: ``text`` is neither a string nor a law.
    """
    if isinstance(text, Law):
        return text
    if not isinstance(text, str):
        raise TypeError(f"law must be a heatbath law or a string such as 'uniform:0.5', got {text!r}")
    laws = {_name(law): law for law in _all_laws(Law)}  # type: ignore[type-abstract]
    name, *parameters = text.strip().lower().split(":")
    law = laws.get(name.replace("-", "").replace("_", ""))
    if law is None:
        raise ValueError(f"unknown law {text!r}: choose one of {', '.join(sorted(laws))}, for instance 'uniform:0.5'")
    names = [f.name for f in fields(law)]  # type: ignore[arg-type]
    if len(parameters) > len(names):
        form = ":".join([_name(law), *names])
        raise ValueError(f"law {text!r} has too many parameters: its form is {form!r}")
    try:
        values = [float(parameter) for parameter in parameters]
    except ValueError:
        raise ValueError(f"law {text!r} has a parameter that is not a number") from None
    return law(*values)


def check_number(
    name: str,
    value: Any,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
) -> float:
    """Return ``value`` as a float if it is a finite number within the bounds, else raise."""
    short, low, high = name.rpartition(" ")[2], max(least, above), min(most, below)
    if high < math.inf:
        bounds = f"{low:g} {'<' if above == low else '<='} {short} {'<' if below == high else '<='} {high:g}"
        allowed = f"{name} must be a number with {bounds}"
    else:
        bound = f" with {short} {'>' if above == low else '>='} {low:g}" if low > -math.inf else ""
        allowed = f"{name} must be a finite number{bound}"
    try:
        if isinstance(value, bool | str | bytes):  # of which float would make numbers
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{allowed}, got {value!r}") from None
    except OverflowError:
        raise ValueError(f"{allowed}, got one too large for a float") from None
    if not math.isfinite(number) or not least <= number <= most or not above < number < below:
        raise ValueError(f"{allowed}, got {value!r}")
    return number + 0.0  # -0.0 becomes 0.0, so that equal settings print alike


def check_coupling(coupling: object) -> None:
    """Raise ValueError if this is not one of `COUPLINGS`."""
    if coupling not in COUPLINGS:
        raise ValueError(f"coupling must be {' or '.join(map(repr, COUPLINGS))}, got {coupling!r}")


def _all_laws(law: type[Law]) -> list[type[Law]]:
    return [deeper for child in law.__subclasses__() for deeper in (child, *_all_laws(child))]


def _name(law: type[Law]) -> str:
    return law.__name__.lower()


def _namespace(values: Any) -> Any:
    """The module, NumPy, torch or JAX, whose functions act on ``values``; none is imported for it."""
    library = type(values).__module__.partition(".")[0]
    name = {"torch": "torch", "jax": "jax.numpy", "jaxlib": "jax.numpy"}.get(library)
    return np if name is None else sys.modules[name]


# Wichura's rational approximations (algorithm AS 241, PPND16), accurate to about 1e-16.
_CENTRE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457),
    (13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608),
    (5226.495278852854561, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867),
    (5394.1960214247511077, 687.1870074920579083, 42.313330701600911252, 1.0),
)
_MIDDLE = (
    (7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258),
    (3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459),
    (0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1.0),
)
_TAIL = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.0012426609473880784386, 0.026532189526576123093),
    (0.29656057182850489123, 1.7848265399172913358, 5.4637849111641143699, 6.6579046435011037772),
    (2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5, 7.868691311456132591e-4),
    (0.0148753612908506148525, 0.13692988092273580531, 0.59983220655588793769, 1.0),
)


def _normal_quantile(u: Any, xp: Any) -> Any:
    """The standard normal quantile, in the arithmetic of ``u`` (``scipy.special.ndtri`` without SciPy)."""
    q = u - 0.5
    centre = q * _ratio(_CENTRE, 0.180625 - q * q)
    r = xp.sqrt(-xp.log(xp.where(q < 0, u, 1.0 - u)))
    outer = xp.where(r <= 5.0, _ratio(_MIDDLE, r - 1.6), _ratio(_TAIL, r - 5.0))
    return xp.where(abs(q) <= 0.425, centre, xp.where(q < 0, -outer, outer))


def _ratio(coefficients: tuple[tuple[float, ...], ...], x: Any) -> Any:
    """The quotient of two polynomials of degree 7, highest power first, four coefficients a row."""
    above, below = 0.0 * x, 0.0 * x
    for coefficient in coefficients[0] + coefficients[1]:
        above = above * x + coefficient
    for coefficient in coefficients[2] + coefficients[3]:
        below = below * x + coefficient
    return above / below
