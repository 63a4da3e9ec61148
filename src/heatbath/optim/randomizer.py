"""A random learning rate, in either coupling, for an optimizer that somebody else wrote."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from heatbath.draws import Multipliers, check_integer
from heatbath.laws import Law, Uniform, check_coupling, parse_law
from heatbath.optim.param_groups import refuse_other_draws
from heatbath.optim.step_hooks import is_rehearsal, outside_graphs


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

    A step that `torch.amp.GradScaler` skips, or whose closure raises, consumes no draw. Keep ``state_dict()`` of the
    handle beside the optimizer's to resume exactly. Copies of the optimizer are plain: randomize them anew.

    Raises:
        TypeError: not an optimizer, one that runs no hooks, or the law is not one.
        ValueError: unknown coupling or law, a seed out of range, or the optimizer is randomized already.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    check_coupling(coupling)
    optimizer = hooked_optimizer(optimizer)
    if getattr(optimizer, "_randomizer", None) is not None:
        raise ValueError("this optimizer is randomized already; call remove() on the handle first")
    if getattr(optimizer, "_puts_base_lr_back", False):
        raise ValueError("this optimizer has a RandomLR already; use RandomLR or randomize, not both")
    refuse_random_sgd(optimizer)
    return Randomizer(optimizer, parse_law(law), coupling, check_integer("seed", seed))


def hooked_optimizer(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer whose steps run hooks: this one, or the one that it wraps.

    Some wrappers (of Accelerate, `PostLocalSGDOptimizer`, ...) are optimizers by type but were never set up as such.

    Raises:
        TypeError: there is none.
    """
    if hasattr(optimizer, "_optimizer_step_post_hooks"):
        return optimizer
    for name in ("optimizer", "optim"):
        if isinstance(inner := getattr(optimizer, name, None), Optimizer):
            return hooked_optimizer(inner)
    raise TypeError(f"optimizer, a {type(optimizer).__name__}, runs no step hooks: give the one that it wraps")


def refuse_random_sgd(optimizer: Optimizer) -> None:
    """Raise if the optimizer draws multipliers of its own."""
    if any(parse_law(group.get("law", "constant")).variance > 0 for group in optimizer.param_groups):
        raise ValueError("this optimizer is a RandomSGD and draws already; give it law=Constant(), or leave it be")


class Randomizer:
    """What `randomize` returns: the draws of one optimizer.

    Attributes:
        law: of the multiplier.
        coupling: where it enters, ``"gradient"`` or ``"update"``.
        rate: the multiplier of the last step (1 before the first).
    """

    def __init__(self, optimizer: Optimizer, law: Law, coupling: str, seed: int) -> None:
        self.law, self.coupling = law, coupling
        self.rate = 1.0
        self._multipliers = Multipliers(law, seed)
        self._step = 0
        self._own: list[tuple[dict[str, Any], float | Tensor]] = []  # what lr was before the step under way
        self._optimizer = weakref.ref(optimizer)  # which holds us already, through the hooks
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]
        optimizer._randomizer = self  # type: ignore[attr-defined]

    def remove(self) -> None:
        """Give the optimizer back as it was."""
        self._restore()
        for hook in self._hooks:
            hook.remove()
        optimizer = self._optimizer()
        if optimizer is not None and getattr(optimizer, "_randomizer", None) is self:
            optimizer._randomizer = None  # type: ignore[attr-defined]

    def lr_of(self, group: dict[str, Any]) -> float | Tensor | None:
        """Return what the rate of a group is without the multiplier, None while it is not multiplied."""
        return next((lr for multiplied, lr in self._own if multiplied is group), None)

    def state_dict(self) -> dict[str, Any]:
        """Return law and coupling as text, seed and step as integers."""
        seed = self._multipliers.seed
        return {"law": str(self.law), "coupling": self.coupling, "seed": seed, "step": self._step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state of the same law, coupling and seed.

        Raises:
            ValueError: it is another's, or incomplete; nothing has been changed.
        """
        ours = self.state_dict()
        if missing := sorted(ours.keys() - state_dict.keys()):
            raise ValueError(f"the state dict lacks {', '.join(missing)}: it is not a randomizer's")
        refuse_other_draws(state_dict, ours, "randomizer")
        self._step = check_integer("step", state_dict["step"], 2**62)
        self.rate = self._multipliers.at(self._step - 1) if self._step else 1.0

    def __reduce__(self) -> Any:
        raise TypeError("a randomizer belongs to its optimizer: randomize the copy, and load this one's state_dict")

    @outside_graphs
    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self._restore()  # a step that raised has left lr multiplied
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None and found_inf.item():
            return None
        if closure is None and not optimizer.state and is_rehearsal(optimizer):
            return None
        self.rate = self._multipliers.at(self._step)
        self._step += 1
        if self.coupling == "update":
            self._own = [(group, group["lr"]) for group in optimizer.param_groups]
            for group, lr in self._own:
                group["lr"] = lr * self.rate
        if closure is None:
            if self.coupling == "gradient":
                self._multiply_gradients(optimizer)
            return None
        # The optimizer evaluates the gradients itself: they are multiplied as they come.
        watched = self._watched(closure, optimizer)
        return (args[0], watched, *args[2:]), {k: v for k, v in kwargs.items() if k != "closure"}

    @outside_graphs
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG002 (a hook's signature)
        self._restore()

    def _restore(self) -> None:
        for group, lr in self._own:
            group["lr"] = lr
        self._own = []

    def _watched(self, closure: Callable[[], Any], optimizer: Optimizer) -> Callable[[], Any]:
        step = self._step

        def evaluate() -> Any:
            try:
                loss = closure()
            except BaseException:
                self._restore()
                self._step = step - 1
                raise
            if self.coupling == "gradient":
                self._multiply_gradients(optimizer)
            return loss

        return evaluate

    @torch.no_grad()
    def _multiply_gradients(self, optimizer: Optimizer) -> None:
        found = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        grads = {id(grad): grad for grad in found}.values()  # two parameters may share one
        if dense := [grad for grad in grads if not grad.is_sparse]:
            torch._foreach_mul_(dense, self.rate)
        for grad in grads:
            if grad.is_sparse:
                grad.mul_(self.rate)
