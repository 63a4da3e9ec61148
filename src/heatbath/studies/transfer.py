"""From one recipe to another batch size or momentum: the rule that the theory gives, what it assumes, and its proof."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from heatbath.laws import Constant, Law, check_number, parse_law
from heatbath.runs.configs import RunConfig
from heatbath.studies.race import Race, race
from heatbath.theory.quadratic import small_rate_limit
from heatbath.thermostat import Thermostat

OPTIMIZERS = ("sgd", "adamw")


@dataclass(frozen=True)
class Recipe:
    """What is moved."""

    optimizer: str  # ``"sgd"`` or ``"adamw"``
    lr: float  # the mean learning rate
    batch_size: int  # samples in a mini-batch
    momentum: float = 0.0  # AdamW's first beta
    beta2: float = RunConfig.beta2  # AdamW's second beta
    weight_decay: float = 0.0  # part of the gradient for SGD, apart from it for AdamW
    nesterov: bool = False  # Nesterov's form of the step, for SGD
    # of the multiplier, for SGD
    law: Law = Constant()  # noqa: RUF009 - a frozen value, as safe as a number
    coupling: str = "gradient"  # what the multiplier acts on

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer must be {' or '.join(OPTIMIZERS)}, got {self.optimizer!r}")
        check_number("beta2", self.beta2, above=0.0, below=1.0)
        check_number("weight_decay", self.weight_decay, least=0.0)
        self.thermostat()  # which checks the others

    def thermostat(self, dataset_size: int | None = None) -> Thermostat:
        """Return the knobs of SGD."""
        return Thermostat(self.lr, self.batch_size, self.momentum, self.nesterov, self.law, self.coupling, dataset_size)

    def config(self, base: RunConfig) -> RunConfig:
        """Return a run of this recipe on the task of another run."""
        own = {name: value for name, value in vars(self).items() if name not in ("law", "coupling")}
        if isinstance(self.law, Constant):
            return base.with_(protocol="constant", **own)
        return base.with_(protocol="random", law=self.law, coupling=self.coupling, **own)


@dataclass(frozen=True)
class Transfer:
    """A recipe that was moved, by which rule, and what the rule assumes; nothing of it has been tested."""

    original: Recipe
    moved: Recipe
    rule: str
    assumed: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON knows it."""
        original, moved = (vars(recipe) | {"law": str(recipe.law)} for recipe in (self.original, self.moved))
        return {"original": original, "moved": moved, "rule": self.rule, "assumed": list(self.assumed)}


def transfer(
    original: Recipe,
    *,
    batch_size: int | None = None,
    momentum: float | None = None,
    law: Law | str | None = None,
    dataset_size: int | None = None,
) -> Transfer:
    """Return a recipe at another batch size, momentum or law, with the rate that the theory gives it.

    SGD keeps its temperature (`heatbath.Thermostat`). AdamW at ``k`` times the batch size has ``sqrt(k)`` times the
    rate and betas to the power ``k``, so that their half-lives are the same numbers of samples; and ``sqrt(k)`` times
    the weight decay, so that weights shrink as much over a sample.

    What is None stays. Samples that are drawn without replacement have a ``dataset_size``. What the theory has no rule
    for, or no rate, is refused.
    """
    if batch_size is None and momentum is None and law is None:
        raise ValueError("nothing to transfer to: give another batch size, momentum or law")
    if original.optimizer == "sgd":
        return _move_sgd(original, batch_size, momentum, law, dataset_size)
    if momentum is not None or law is not None:
        raise ValueError("the theory has a rule for AdamW's batch size alone: its betas and law stay")
    return _move_adamw(original, batch_size or original.batch_size)


def prove(
    moved: Transfer, base: RunConfig, margin: float | str, *, train: Callable[..., Any] | None = None, **options: Any
) -> Race:
    """Race the moved recipe against the original until they are equal within a margin or not; see `heatbath.race`.

    The task, the epochs and all else that both have in common are those of ``base``.
    """
    arms = {"moved": moved.moved.config(base), "original": moved.original.config(base)}
    return race(arms, margin=margin, train=train, **options)


def _move_sgd(
    original: Recipe, batch_size: int | None, momentum: float | None, law: Law | str | None, dataset_size: int | None
) -> Transfer:
    found = original.thermostat(dataset_size).at(batch_size=batch_size, momentum=momentum, law=law, solve="lr")
    new: dict[str, Any] = {"lr": found.lr, "batch_size": found.batch_size, "momentum": found.momentum}
    new |= {"law": parse_law(found.law)}
    limit = small_rate_limit(found) / found.lr
    assumed = (
        f"small rates: curvatures below {limit:.3g}, or else the moved recipe's temperature is off by more than 10 %",
        "gradient noise whose variance falls as one over the batch size",
        "the same number of epochs; weight decay is part of the loss and stays",
        "that the temperature decides the result, which is what has to be shown",
    )
    rule = "SGD: equal temperature, T ~ lr / (batch size (1 - momentum)) x law factor"
    return Transfer(original, replace(original, **new), rule, assumed)


def _move_adamw(original: Recipe, batch_size: int) -> Transfer:
    times = batch_size / original.batch_size
    root, beta2 = math.sqrt(times), original.beta2**times
    if not 0.0 < beta2 < 1.0:
        raise ValueError(f"batch_size {batch_size} is too far from {original.batch_size}: no beta2 keeps its half-life")
    new: dict[str, Any] = {"lr": root * original.lr, "batch_size": batch_size, "beta2": beta2}
    new |= {"momentum": original.momentum**times, "weight_decay": root * original.weight_decay}
    assumed = (
        "gradients that are mostly noise: Adam's denominator then falls as one over the root of the batch size, and "
        "the temperature goes as the rate over that root, which is kept",
        "an eps that is small against that denominator",
        "the same number of epochs; weights shrink as much over a sample, so the weight decay grows as the rate does",
    )
    rule = "AdamW: rate by the square root of the batch size, half-lives of the betas in samples kept"
    return Transfer(original, replace(original, **new), rule, assumed)
