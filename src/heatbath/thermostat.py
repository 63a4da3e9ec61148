"""The knobs of a training run and the temperature that they set.

At leading order in the rate and near a minimum, SGD samples the Boltzmann weight ``exp(-f / T)`` with

    T = T0 F,    T0 = l S / (2 C (1 - mu)),

for learning rate ``l``, momentum ``mu``, batch size ``C`` and variance ``S`` of a sample's gradient. The factor ``F``
belongs to the random multiplier ``alpha`` of variance ``s2``, and is derived in `Thermostat.law_factor`. The exact
temperature on a quadratic loss, of which this is the limit of small rates, is in `heatbath.theory.quadratic`.

All of this is for batches that are drawn independently of each other. The batches of a reshuffled epoch partition the
data, so that their noises sum to zero. `Thermostat.limits` says what is left, and `heatbath.theory.shuffled` is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from types import EllipsisType
from typing import Any, Final, Literal, NamedTuple

from heatbath.draws import check_integer
from heatbath.laws import Constant, Coupling, Law, check_coupling, check_number, parse_law

Knob = Literal["lr", "batch_size", "momentum"]
Sampling = Literal["replacement", "shuffled"]
_KNOBS: Final[tuple[Knob, ...]] = ("lr", "batch_size", "momentum")


class TemperatureLimits(NamedTuple):
    """The temperatures of directions that relax over many epochs, and of those that relax within a part of one."""

    slow: float
    fast: float


@dataclass(frozen=True, init=False)
class Thermostat:
    """The knobs of SGD that set its temperature; frozen, comparable and printable.

    Args:
        lr: the mean learning rate ``l > 0``.
        batch_size: the number of samples ``C >= 1`` in a mini-batch.
        momentum: ``0 <= mu < 1``.
        nesterov: whether the step looks ahead, in PyTorch's form.
        law: the law of the multiplier ``alpha``, or its name such as ``"uniform:1"``.
        coupling: ``"gradient"`` if ``alpha`` multiplies the gradient that enters the velocity (the paper's equations 1
            and 2), ``"update"`` if it multiplies the whole step (a learning rate changed at each step).
        dataset_size: the number of samples ``N`` if the samples of a mini-batch are drawn without replacement, None if
            with.
        sampling: ``"replacement"`` if batches are drawn independently of each other, ``"shuffled"`` if those of an
            epoch partition the data. The latter cancel in part: see `limits`.
    """

    lr: float
    batch_size: int
    momentum: float
    nesterov: bool
    law: Law
    coupling: Coupling
    dataset_size: int | None
    sampling: Sampling

    def __init__(
        self,
        lr: float,
        batch_size: int,
        momentum: float = 0.0,
        nesterov: bool = False,
        law: Law | str = Constant(),  # noqa: B008 - a frozen value, as safe as a number
        coupling: str = "gradient",
        dataset_size: int | None = None,
        sampling: str = "replacement",
    ) -> None:
        size = check_integer("batch_size", batch_size, least=1)
        if dataset_size is not None:
            dataset_size = check_integer("dataset_size", dataset_size, least=1)
            if size > dataset_size:
                raise ValueError(f"batch_size must be at most dataset_size={dataset_size}, got {size}")
        check_coupling(coupling)
        if sampling not in ("replacement", "shuffled"):
            raise ValueError(f"sampling must be 'replacement' or 'shuffled', got {sampling!r}")
        if not isinstance(nesterov, bool):
            raise TypeError(f"nesterov must be True or False, got {nesterov!r}")
        rate = check_number("lr", lr, above=0.0)
        mu = check_number("momentum", momentum, least=0.0, below=1.0)
        values = (rate, size, mu, nesterov, parse_law(law), coupling, dataset_size, sampling)
        for field, value in zip(fields(self), values, strict=True):
            object.__setattr__(self, field.name, value)

    def _repr_html_(self) -> str:
        """A table of the knobs and the temperature, for notebooks."""
        from html import escape

        rows = {field.name: getattr(self, field.name) for field in fields(self)}
        rows["temperature / diffusion"] = f"{self.temperature():.4g}"
        cells = (f"<tr><th>{name}</th><td>{escape(str(value))}</td></tr>" for name, value in rows.items())
        return f"<table>{''.join(cells)}</table>"

    def temperature(self, diffusion: float = 1.0) -> float:
        """Return the temperature ``T = l S F / (2 C (1 - mu)) (N - C) / (N - 1)`` at leading order in ``l``.

        The last factor is there if ``dataset_size`` is. With reshuffled epochs this is the temperature of directions
        that relax within a part of an epoch; slower ones are colder (`limits`).

        Args:
            diffusion: the variance ``S`` of the per-sample gradient in one direction, without the law's factor; for a
                mean over directions, the trace of the covariance over its dimension.
        """
        diffusion = check_number("diffusion", diffusion, least=0.0)
        return self.lr * diffusion * self.batch_variance * self.law_factor / (2.0 * (1.0 - self.momentum))

    def limits(self, diffusion: float = 1.0) -> TemperatureLimits:
        """Return the temperatures of slow and of fast directions, at leading order in ``l`` and for long epochs.

        For independent batches both are ``T0 F``. Over a reshuffled epoch the noise of the batches sums to zero: what a
        constant rate would do to a direction that relaxes over many epochs cancels, and of ``F`` the law's own part
        ``F - 1`` is left. A direction that relaxes within a part of an epoch is at ``T0 F``. In between, and for epochs
        not much longer than the ``1 / (1 - mu)`` steps that a velocity lasts, use `heatbath.theory.shuffled`.

        ``diffusion`` is that of `temperature`.
        """
        fast = self.temperature(diffusion)
        return TemperatureLimits(fast * self._slow_share, fast)

    @property
    def _slow_share(self) -> float:
        return 1.0 if self.sampling == "replacement" else 1.0 - 1.0 / self.law_factor

    @property
    def law_factor(self) -> float:
        """The factor ``F = T / T0`` between this law and a constant multiplier at the same knobs.

        Far below the rate of relaxation, ``x`` diffuses as the sum of the steps ``l w_n`` that noise alone would make,
        while the mean drift does not see ``alpha``. So ``F`` is the sum of the autocovariances of ``w`` over its value
        ``S / (C (1 - mu)^2)`` without ``alpha``. Coupling "gradient" scales each kick by its own ``alpha`` once and for
        all: ``F = <alpha^2> = 1 + s2``. Coupling "update" draws anew for each step, so that only the term of equal
        times gains: ``F = 1 + s2 (1 - mu)^2 <w^2> C / S``, with ``w = v'`` or, for Nesterov, ``w = mu v' - g_B``:

            update, heavy ball:  1 + s2 (1 - mu) / (1 + mu)
            update, Nesterov:    1 + s2 (1 - mu) (1 + 2 mu - 2 mu^3) / (1 + mu)

        The last is ``1 + s2 (1 - mu)^2 [(1 + mu)^2 + mu^4 / (1 - mu^2)]`` in lower terms.
        """
        return self._law_factor_at(self.momentum)

    @property
    def batch_variance(self) -> float:
        """The variance of a mini-batch's gradient over that of a sample's: ``1/C``, or ``(N - C) / ((N - 1) C)``."""
        if self.dataset_size is None:
            return 1.0 / self.batch_size
        # A batch of all samples has no noise; the maximum only keeps N = 1 from 0 / 0.
        return (self.dataset_size - self.batch_size) / max(self.dataset_size - 1, 1) / self.batch_size

    def at(
        self,
        *,
        batch_size: int | None = None,
        lr: float | None = None,
        momentum: float | None = None,
        solve: Knob | None = None,
        law: Law | str | None = None,
        coupling: str | None = None,
        nesterov: bool | None = None,
        dataset_size: int | EllipsisType | None = ...,
    ) -> Thermostat:
        """Return the Thermostat of equal temperature that has the given knobs, one further knob being solved for.

        What is neither given nor solved stays as it is, so ``t.at(law="constant")`` is the fair control of a random
        rate: the constant rate of equal temperature. A solved batch size is rounded to the nearest integer below that
        of the data; the ``temperature`` of the result tells what that costs. Where several momenta give the temperature
        (only for laws of variance above 1), the one nearest to the present momentum is taken. With reshuffled epochs
        both `limits` are kept, or the request is refused: no constant rate is as hot as a random one in both.

        Args:
            batch_size: as for the class, like the others; None keeps the present value.
            lr: the new rate.
            momentum: the new momentum.
            solve: the knob to solve for. If None, the rate; if that is given, the batch size; if both, the momentum.
            law: the new law.
            coupling: the new coupling.
            nesterov: the new form of the step.
            dataset_size: the new size of the data; None is drawing with replacement, ``...`` the present size.

        Raises:
            ValueError: no value of the knob gives this temperature, or both `limits`; or the knob is also given.
        """
        given = {"lr": lr, "batch_size": batch_size, "momentum": momentum}
        knob = _knob_to_solve(solve, {name for name, value in given.items() if value is not None})
        changes: dict[str, Any] = {**given, "law": law, "coupling": coupling, "nesterov": nesterov}
        changes = {name: value for name, value in changes.items() if value is not None}
        if not isinstance(dataset_size, EllipsisType):
            changes["dataset_size"] = dataset_size
        if knob == "batch_size":
            changes["batch_size"] = 1  # any size that no data set forbids
        other = replace(self, **changes)
        if self.batch_variance == 0.0:
            raise ValueError(
                f"no {knob} to solve for: batch_size={self.batch_size} is the whole data set, which has no noise and "
                "temperature 0 at every lr and momentum; give a smaller batch_size to begin with"
            )
        if not 0.0 < self.temperature() < math.inf:
            raise ValueError(
                f"no {knob} to solve for: with lr={self.lr:.4g}, batch_size={self.batch_size} and "
                f"momentum={self.momentum:.4g} the temperature is beyond what a float can hold"
            )
        if knob != "batch_size" and other.batch_variance == 0.0:
            raise ValueError(
                f"no {knob} gives temperature {self.temperature():.4g}: batch_size={other.batch_size} is the whole "
                f"data set, which has no noise at any {knob}; ask for a smaller batch_size"
            )
        solvers = {"lr": _with_lr, "batch_size": _with_batch_size, "momentum": _with_momentum}
        found = solvers[knob](other, self.temperature(), self.momentum)
        if not math.isclose(found._slow_share, self._slow_share, rel_tol=1e-9):
            raise ValueError(
                f"no {knob} keeps both limits of reshuffled epochs: directions slower than an epoch would be at "
                f"{found._slow_share:.4g} of the temperature of fast ones, now at {self._slow_share:.4g}; keep law, "
                "coupling and momentum, or take sampling='replacement'"
            )
        return found

    def _law_factor_at(self, momentum: float) -> float:
        mu, variance = momentum, self.law.variance
        if self.coupling == "gradient":
            return 1.0 + variance
        shape = 1.0 + 2.0 * mu - 2.0 * mu**3 if self.nesterov else 1.0
        return 1.0 + variance * (1.0 - mu) * shape / (1.0 + mu)


def _knob_to_solve(solve: str | None, given: set[str]) -> Knob:
    if solve is not None and solve not in _KNOBS:
        raise ValueError(f"solve must be 'lr', 'batch_size' or 'momentum', got {solve!r}")
    if solve in given:
        raise ValueError(f"{solve} is both given and to be solved for: leave it out, or solve for another knob")
    for knob in _KNOBS:
        if solve == knob or (solve is None and knob not in given):
            return knob
    raise ValueError("lr, batch_size and momentum are all given, so nothing is left to solve for: leave one out")


def _with_lr(other: Thermostat, target: float, _momentum: float) -> Thermostat:
    return replace(other, lr=other.lr * target / other.temperature())


def _with_batch_size(other: Thermostat, target: float, _momentum: float) -> Thermostat:
    """Solve ``(N - C) / ((N - 1) C) = q``, or ``1 / C = q`` without ``N``, where ``q`` is relative to ``C = 1``."""
    if other.batch_variance == 0.0:
        raise ValueError("no batch_size gives a temperature above 0: dataset_size=1 has no noise")
    hottest = other.temperature()
    q, samples = target / hottest, other.dataset_size
    size = hottest / target if samples is None else samples / (1.0 + q * (samples - 1))
    if size < 1.0 - 1e-9:
        raise ValueError(
            f"no batch_size gives temperature {target:.4g}: even batch_size=1 is only at {hottest:.4g}, {q:.4g} times "
            f"too cold, with lr={other.lr:.4g} and momentum={other.momentum:.4g}; raise the lr or the momentum"
        )
    if size >= 2.0**64:
        raise ValueError(
            f"no batch_size gives temperature {target:.4g}: with lr={other.lr:.4g} and momentum={other.momentum:.4g} "
            "it would be 2**64 or more; lower the lr or the momentum"
        )
    largest = math.inf if samples is None else samples - 1  # all samples have no noise
    return replace(other, batch_size=int(max(1, min(math.floor(size + 0.5), largest))))


def _with_momentum(other: Thermostat, target: float, momentum: float) -> Thermostat:
    """Solve ``F(mu) / (1 - mu) = q`` for ``0 <= mu < 1``, where ``q`` is the target over ``l S / (2 C)``."""
    scale = 0.5 * other.lr * other.batch_variance
    q = target / scale if scale else math.inf
    # The law's factor is nowhere below its value at mu = 1, which bounds every solution.
    greatest = max(0.0, 1.0 - other._law_factor_at(1.0) / q)
    if greatest == 1.0:
        raise ValueError(
            f"no momentum gives temperature {target:.4g}: with lr={other.lr:.4g} and batch_size={other.batch_size} it "
            f"would be closer to 1 than a float can be; raise the lr"
        )

    def excess(mu: float) -> float:
        return other._law_factor_at(mu) / (1.0 - mu) - q

    # The left side need not be monotone where the law's variance exceeds 1, so each cell of a grid is searched. The
    # last value is not negative but for rounding.
    cells = 256
    grid = [greatest * k / cells for k in range(cells + 1)]
    values = [excess(mu) for mu in grid]
    if abs(values[0]) <= 1e-12 * q:
        values[0] = 0.0
    if greatest > 0.0:
        values[-1] = max(values[-1], 0.0)
    solutions = [_bisect(excess, grid[k], grid[k + 1]) for k in range(cells) if values[k] * values[k + 1] < 0.0]
    solutions += [mu for mu, value in zip(grid, values, strict=True) if value == 0.0]
    if not solutions:
        bound = min((k / 1024 for k in range(1024)), key=excess)
        coldest = excess(bound) + q
        raise ValueError(
            f"no momentum gives temperature {target:.4g}: with lr={other.lr:.4g} and batch_size={other.batch_size} the "
            f"coldest, momentum={bound:.4g}, is at {coldest * scale:.4g}, {coldest / q:.4g} times too hot; "
            "lower the lr or raise the batch_size"
        )
    return replace(other, momentum=min(solutions, key=lambda mu: abs(mu - momentum)))


def _bisect(function: Any, low: float, high: float) -> float:
    """The zero between two points of unlike sign, to the last bit."""
    rising = function(low) < 0.0
    while low < (middle := 0.5 * (low + high)) < high:
        if (function(middle) < 0.0) == rising:
            low = middle
        else:
            high = middle
    return low
