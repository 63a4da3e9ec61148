r"""Optimizers whose step is known, as SGD in coordinates of their own.

SGD with velocity ``b`` is its own rule. Adam and AdamW keep ``m' = beta1 m + (1 - beta1) G`` and divide by a running
size of the gradient: ``x' = x - l (P m' + lambda x)``. Here ``P = 1 / [(1 - beta1^t) (sqrt(v / (1 - beta2^t)) + eps)]``
is diagonal and slow (``beta2`` near 1), and ``lambda`` is AdamW's decay (Adam's is in ``G``). In the coordinates
``y = P^(-1/2) x``, whose gradient is ``P^(1/2) g``, this is SGD with momentum and dampening ``beta1``, and a decay
beside the velocity. So the temperature of ``y`` is ``T = l F tr(P S1) / (2 C d)``, whatever ``beta1``: see
``docs/temperature-adamw.md``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from heatbath.laws import Coupling, Law
from heatbath.optim.draw_sources import current_draw, hooked_optimizer
from heatbath.optim.random_sgd import RandomSGD
from heatbath.thermometry.per_sample import as_real, check_model
from heatbath.thermostat import Thermostat


@dataclass(frozen=True)
class Knobs:
    """The settings of one parameter group in its last step; ``lr`` is the mean rate."""

    lr: float
    momentum: float
    nesterov: bool
    law: Law
    coupling: Coupling
    multiplier: float
    dampening: float
    weight_decay: float
    sign: float
    is_multiplied: bool  # the gradients already hold the multiplier
    decay_beside: float = 0.0  # weight decay that does not enter the velocity
    has_velocity: bool = False  # also without momentum

    def temperature(self, noise: float) -> float:
        """The sum over directions of ``T = l F S / (2 C (1 - mu))``, for ``noise`` the sum of ``S / C``."""
        law_and_momentum = Thermostat(1.0, 1, self.momentum, self.nesterov, self.law, self.coupling)
        return self.lr * (1.0 - self.dampening) * law_and_momentum.temperature(noise)

    def kinetic_temperature(self, squared_velocity: float) -> float:
        """The sum over directions of ``T = l (1 + mu)/2 K b^2``, ``K = F`` in coupling "update", else 1.

        At leading order in ``l`` the velocity is driven by noise alone, ``<b^2> = <G^2> / (1 - mu^2)``, Nesterov or
        not, where ``<G^2>`` is ``S / C`` times ``1 + s2`` in coupling "gradient" and times 1 in coupling "update". So
        ``T = l F S / (2 C (1 - mu))`` becomes the above.
        """
        thermostat = Thermostat(1.0, 1, self.momentum, self.nesterov, self.law, self.coupling)
        factor = thermostat.law_factor if self.coupling == "update" else 1.0
        return self.lr * 0.5 * (1.0 + self.momentum) * factor * squared_velocity / (1.0 - self.dampening)

    @property
    def memory(self) -> float:
        """The weight ``w`` of the memory in the fluctuation-dissipation relation."""
        return self.momentum**2 if self.nesterov else self.momentum


class StepRule(ABC):
    """How an optimizer steps."""

    def __init__(self, optimizer: Optimizer, law: Law | None = None) -> None:
        self.optimizer, self._law = optimizer, law

    def knobs(self, group: dict[str, Any]) -> Knobs:
        """Return the knobs of a group, as a post-step hook finds them."""
        draw, settings = current_draw(self.optimizer, group), self._settings(group)
        coupling = draw.coupling
        if not settings["momentum"] and not draw.is_in_gradients:
            coupling = "update"  # the same as "gradient", and averaged over the law
        return Knobs(
            lr=float(draw.lr),
            law=self._law if self._law is not None and draw.law.variance == 0.0 else draw.law,
            coupling=coupling,
            multiplier=float(draw.multiplier),
            sign=-1.0 if group.get("maximize", False) else 1.0,
            is_multiplied=draw.is_in_gradients,
            **settings,
        )

    @abstractmethod
    def momentum(self, group: dict[str, Any]) -> float:
        """Return ``mu`` of a group."""

    @abstractmethod
    def _settings(self, group: dict[str, Any]) -> dict[str, Any]: ...

    @abstractmethod
    def vectors(self, group: dict[str, Any], parameter: Tensor) -> list[Tensor]:
        """Return position, gradient and velocity after the step, in the coordinates in which it is SGD's."""


class SGDRule(StepRule):
    """SGD and `RandomSGD`."""

    def momentum(self, group: dict[str, Any]) -> float:
        """Return ``mu`` of a group."""
        return float(group["momentum"])

    def _settings(self, group: dict[str, Any]) -> dict[str, Any]:
        momentum, decay = self.momentum(group), float(group["weight_decay"])
        dampening = float(group["dampening"]) if momentum else 0.0
        nesterov = bool(group["nesterov"])
        return {"momentum": momentum, "nesterov": nesterov, "dampening": dampening, "weight_decay": decay}

    def vectors(self, group: dict[str, Any], parameter: Tensor) -> list[Tensor]:
        """Return position, gradient and velocity after the step."""
        assert parameter.grad is not None
        vectors = [parameter.detach(), parameter.grad.detach()]
        if group["momentum"]:
            velocity = self.optimizer.velocity(parameter) if isinstance(self.optimizer, RandomSGD) else None
            vectors.append(self.optimizer.state[parameter]["momentum_buffer"] if velocity is None else velocity)
        return vectors


class AdamRule(StepRule):
    """Adam and AdamW, in preconditioned coordinates."""

    def momentum(self, group: dict[str, Any]) -> float:
        """Return ``beta1`` of a group."""
        return float(group["betas"][0])

    def _settings(self, group: dict[str, Any]) -> dict[str, Any]:
        beta, decay = self.momentum(group), float(group["weight_decay"])
        is_beside = isinstance(self.optimizer, AdamW) or group.get("decoupled_weight_decay", False)
        decays = {"weight_decay": 0.0, "decay_beside": decay} if is_beside else {"weight_decay": decay}
        return {"momentum": beta, "nesterov": False, "dampening": beta, "has_velocity": True, **decays}

    def root_metric(self, group: dict[str, Any], parameter: Tensor) -> Tensor:
        """Return ``P^(1/2)`` of the last step, by which the gradient of the preconditioned coordinates is larger."""
        state = self.optimizer.state[parameter]
        # Without `item()`: what is on an accelerator stays there.
        one, two = (1.0 - torch.as_tensor(beta, dtype=torch.float64) ** state["step"] for beta in group["betas"])
        size = as_real(state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"])
        dtype = torch.promote_types(size.dtype, torch.float32)
        root: Tensor = (size.to(dtype) / two.to(size.device, dtype)).sqrt_().add_(float(group["eps"]))
        return root.mul_(one.to(size.device, dtype)).rsqrt_()

    def vectors(self, group: dict[str, Any], parameter: Tensor) -> list[Tensor]:
        """Return position, gradient and velocity after the step, preconditioned."""
        assert parameter.grad is not None
        root, velocity = self.root_metric(group, parameter), self.optimizer.state[parameter]["exp_avg"]
        position, gradient, velocity = (as_real(x.detach()) for x in (parameter, parameter.grad, velocity))
        return [position / root, gradient * root, velocity * root]


def watched_optimizer(model: nn.Module, optimizer: Optimizer) -> Optimizer:
    """Return the optimizer whose steps can be watched, or raise if it runs no hooks, shards, or has another model."""
    optimizer = hooked_optimizer(optimizer)
    check_model(model, "Thermometer")
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not {id(p) for p in parameters} & {id(p) for p in model.parameters()}:
        raise ValueError("the optimizer holds none of the model's parameters: give the model that it trains")
    return optimizer


def find_rule(optimizer: Optimizer, law: Law | None = None) -> tuple[StepRule | None, str]:
    """Return the rule of an optimizer's step, or None and why its temperature is not known."""
    # Not where it is defined: torch puts a wrapper into the class of every optimizer that is built.
    step = unwrap(type(optimizer).step)
    if step in (unwrap(Adam.step), unwrap(AdamW.step)):
        return AdamRule(optimizer, law), ""
    if step not in (unwrap(SGD.step), unwrap(RandomSGD.step)):
        name = type(optimizer).__name__
        return None, f"the step of {name} is not known: SGD, RandomSGD, Adam and AdamW have a temperature"
    for group in optimizer.param_groups:
        if not 0.0 <= group["momentum"] < 1.0 or not 0.0 <= group["dampening"] < 1.0:
            found = f"momentum={group['momentum']}, dampening={group['dampening']}"
            return None, f"a temperature needs 0 <= momentum < 1 and 0 <= dampening < 1, got {found}"
    return SGDRule(optimizer, law), ""
