"""A random learning rate, in either coupling, for an optimizer that somebody else wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from heatbath.draws import Multipliers, check_integer
from heatbath.laws import Coupling, Law, Uniform, check_coupling, parse_law
from heatbath.optim.draw_sources import CurrentDraw, DrawSource, hooked_optimizer
from heatbath.optim.param_groups import refuse_other_draws
from heatbath.optim.step_hooks import is_nested, is_rehearsal, outside_graphs


def randomize(
    optimizer: Optimizer,
    law: Law | str = Uniform(1.0),  # noqa: B008 (laws are frozen)
    *,
    coupling: Coupling = "gradient",
    seed: int = 0,
) -> Randomizer:
    """Give any torch optimizer (AdamW, ...) a random learning rate, and return the handle to it.

    Each ``optimizer.step()`` draws ``alpha_k = heatbath.draw(law, seed, k, 1)`` and

    * coupling ``"gradient"``: multiplies the gradients by it, in place, before the optimizer sees them (one pass over
      them; ``p.grad`` stays multiplied). On SGD without weight decay this is `RandomSGD`. An optimizer that adds weight
      decay to the gradient itself does so after the multiplication.
    * coupling ``"update"``: multiplies ``lr`` by it for the length of the step. Schedulers own ``lr`` before and after
      and may be of any kind, stepped in any order.

    A step that `torch.amp.GradScaler` skips, or whose closure raises, consumes no draw. The optimizer's own
    ``state_dict()`` holds the state of the draws: load it into an optimizer that is randomized alike to resume exactly.
    `torch.distributed.checkpoint` leaves it out: keep ``state_dict()`` of the handle as well. Copies of the optimizer
    are plain: randomize them anew. Call ``remove()`` on the handle, or use it in a ``with`` statement, to end it.

    Raises:
        TypeError: not an optimizer, one that runs no hooks, or the law is not one.
        ValueError: unknown coupling or law, a seed out of range, or the optimizer is randomized already.
    """
    optimizer = hooked_optimizer(optimizer)
    check_coupling(coupling)
    return Randomizer(optimizer, parse_law(law), coupling, check_integer("seed", seed))


class Randomizer(DrawSource):
    """What `randomize` returns: the draws of one optimizer, until `remove`.

    Attributes:
        law, coupling: those of the multiplier.
        multiplier: that of the last step (1 before the first).
    """

    name = "randomize"

    def __init__(self, optimizer: Optimizer, law: Law, coupling: Coupling, seed: int) -> None:
        self.law, self.coupling = law, coupling
        self.multiplier = 1.0
        self._multipliers = Multipliers(law, seed)
        self._step = 0
        self._own: list[tuple[dict[str, Any], float | Tensor]] = []  # what lr was before the step under way
        self.attach(optimizer)
        # A step that raised has left lr multiplied, and may be followed by an emergency checkpoint.
        self._hooks.append(optimizer.register_state_dict_pre_hook(lambda _: self._restore()))

    def remove(self) -> None:
        """Give the optimizer back as it was."""
        self._restore()
        super().remove()

    def current_draw(self, group: dict[str, Any]) -> CurrentDraw:
        """Return the draw of a group's last step."""
        lr = next((lr for multiplied, lr in self._own if multiplied is group), group.get("lr"))
        return CurrentDraw(self.law, self.coupling, self.multiplier, lr, self.coupling == "gradient")

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
        refuse_other_draws(state_dict, ours, self.name)
        self._step = check_integer("step", state_dict["step"], 2**62)
        self.multiplier = self._multipliers.at(self._step - 1) if self._step else 1.0

    def __reduce__(self) -> Any:
        raise TypeError("a randomizer belongs to its optimizer: randomize the copy, and load this one's state_dict")

    @outside_graphs
    def before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Draw, and multiply what the coupling says."""
        if is_nested(optimizer):
            return None
        self._restore()  # a step that raised has left lr multiplied
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None and found_inf.item():
            return None
        if closure is None and not optimizer.state and is_rehearsal(optimizer):
            return None
        self.multiplier = self._multipliers.at(self._step)
        self._step += 1
        if self.coupling == "update":
            self._own = [(group, group["lr"]) for group in optimizer.param_groups]
            for group, lr in self._own:
                group["lr"] = lr * self.multiplier
        if closure is None:
            if self.coupling == "gradient":
                self._multiply_gradients(optimizer)
            return None
        # The optimizer evaluates the gradients itself: they are multiplied as they come.
        watched = self._watched(closure, optimizer)
        return (args[0], watched, *args[2:]), {k: v for k, v in kwargs.items() if k != "closure"}

    @outside_graphs
    def after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG002 (a hook's signature)
        """Take the multiplier off the rates."""
        if not is_nested(optimizer):
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
            torch._foreach_mul_(dense, self.multiplier)
        for grad in grads:
            if grad.is_sparse:
                grad.mul_(self.multiplier)
