"""A random learning rate, in either coupling, for an optimizer that somebody else wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim.optimizer import Optimizer

from heatbath.draws import Multipliers, check_integer
from heatbath.kernels import COUPLINGS
from heatbath.laws import Law, Uniform, parse_law


def randomize(
    optimizer: Optimizer,
    law: Law | str = Uniform(1.0),  # noqa: B008 (laws are frozen)
    *,
    coupling: Literal["gradient", "update"] = "gradient",
    seed: int = 0,
) -> Randomizer:
    """Give any torch optimizer (AdamW, ...) a random learning rate, and return the handle to it.

    Each ``optimizer.step()`` draws ``alpha_k = heatbath.draw(law, seed, k, 1)`` and

    * coupling ``"gradient"``: multiplies the gradients by it, in place, before the optimizer sees them (one pass over
      them; ``p.grad`` stays multiplied). On SGD without weight decay this is `RandomSGD`. An optimizer that adds weight
      decay to the gradient itself does so after the multiplication.
    * coupling ``"update"``: multiplies ``lr`` by it for the length of the step. Schedulers own ``lr`` before and after
      and may be of any kind, stepped in any order.

    A step that `torch.amp.GradScaler` skips consumes no draw. Keep ``state_dict()`` of the handle beside the
    optimizer's to resume exactly.

    Raises:
        TypeError: not an optimizer, or the law is not one.
        ValueError: unknown coupling or law, a seed out of range, or the optimizer is randomized already.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if coupling not in COUPLINGS:
        raise ValueError(f"coupling must be one of {', '.join(map(repr, COUPLINGS))}, got {coupling!r}")
    if getattr(optimizer, "_randomizer", None) is not None:
        raise ValueError("this optimizer is randomized already; call remove() on the handle first")
    return Randomizer(optimizer, parse_law(law), coupling, check_integer("seed", seed))


class Randomizer:
    """What `randomize` returns: the draws of one optimizer.

    Attributes:
        rate: the multiplier of the last step (1 before the first).
    """

    def __init__(self, optimizer: Optimizer, law: Law, coupling: str, seed: int) -> None:
        self.coupling = coupling
        self.rate = 1.0
        self._multipliers = Multipliers(law, seed)
        self._own: list[float | Tensor] | None = None
        self._optimizer = optimizer
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]
        optimizer._randomizer = self  # type: ignore[attr-defined]

    def remove(self) -> None:
        """Give the optimizer back as it was."""
        for hook in self._hooks:
            hook.remove()
        self._optimizer._randomizer = None  # type: ignore[attr-defined]

    def state_dict(self) -> dict[str, Any]:
        """Return law and coupling as text, seed and step as integers."""
        draws = self._multipliers
        return {"law": str(draws.law), "coupling": self.coupling, "seed": draws.seed, "step": draws.step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state of the same law, coupling and seed.

        Raises:
            ValueError: it is another's; nothing has been changed.
        """
        ours = self.state_dict()
        step = check_integer("step", state_dict["step"], 2**62)
        for key in ("law", "coupling", "seed"):
            if str(state_dict[key]) != str(ours[key]):
                raise ValueError(f"the state dict has {key}={state_dict[key]}, this randomizer has {key}={ours[key]}")
        self._multipliers.step = step
        self.rate = self._multipliers.at(step - 1) if step else 1.0

    @_disable_dynamo
    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None and found_inf.item():
            return None
        self.rate = self._multipliers.take()
        if self.coupling == "update":
            self._own = [group["lr"] for group in optimizer.param_groups]
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * self.rate
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._multiply_gradients()
            return None
        # The optimizer evaluates the gradients itself: they are multiplied as they come.
        return (args[0], self._multiplying(closure), *args[2:]), {k: v for k, v in kwargs.items() if k != "closure"}

    @_disable_dynamo
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG002 (a hook's signature)
        if self._own is not None:
            for group, lr in zip(optimizer.param_groups, self._own, strict=True):
                group["lr"] = lr
            self._own = None

    def _multiplying(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def evaluate() -> Any:
            loss = closure()
            self._multiply_gradients()
            return loss

        return evaluate

    @torch.no_grad()
    def _multiply_gradients(self) -> None:
        grads = [p.grad for group in self._optimizer.param_groups for p in group["params"] if p.grad is not None]
        if dense := [grad for grad in grads if not grad.is_sparse]:
            torch._foreach_mul_(dense, self.rate)
        for grad in grads:
            if grad.is_sparse:
                grad.mul_(self.rate)
