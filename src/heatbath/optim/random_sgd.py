"""`RandomSGD`: stochastic gradient descent with a random learning rate, for `torch.optim.SGD`.

One multiplier ``alpha`` of mean 1 is drawn for each mini-batch. PyTorch's own SGD kernels do the arithmetic, driven
with other scalars (see `heatbath.optim.sgd_step`), so that the draw costs no pass over memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.optim.optimizer import (
    Optimizer,
    ParamsT,
    _device_dtype_check_for_fused,
    _use_grad_for_differentiable,
)

from heatbath.draws import Multipliers
from heatbath.laws import COUPLINGS, Arcsine, Constant, Exponential, Law, LogNormal, TwoPoint, Uniform
from heatbath.optim.param_groups import adopt_group, check_settings, prepare_group
from heatbath.optim.sgd_step import SETTINGS, capturable_sgd, draw_on_device, random_sgd, refuse_capture
from heatbath.optim.step_hooks import is_rehearsal, outside_graphs

__all__ = ["RandomSGD"]

# ZeroRedundancyOptimizer saves groups as they are, laws and all, and torch.load refuses a class that it does not know.
torch.serialization.add_safe_globals([Arcsine, Constant, Exponential, LogNormal, TwoPoint, Uniform])


class RandomSGD(torch.optim.SGD):
    r"""SGD whose learning rate is multiplied by a fresh random number at each step.

    With velocity ``v``, mini-batch gradient ``g`` (weight decay included), momentum ``mu``, dampening ``tau`` and
    ``alpha_k`` drawn from ``law`` for the ``k``-th step (the paper's equations (1)-(2), in PyTorch's sign of ``v``):

    * coupling ``"gradient"``, the paper's: ``v <- mu v + (1 - tau) alpha g``, ``x <- x - lr v``; with Nesterov
      ``x <- x - lr (alpha g + mu v)``. The draw enters the velocity and lives on in it.
    * coupling ``"update"``, what changing ``lr`` at each step does: ``v <- mu v + (1 - tau) g``,
      ``x <- x - lr alpha v``; with Nesterov ``x <- x - lr alpha (g + mu v)``.

    With ``law=Constant()`` it is `torch.optim.SGD`, bit for bit. ``alpha_k`` is ``heatbath.draw(law, seed, k, 1)``: a
    function of the seed and the step alone, so that ranks agree without a message and a resumed run goes on as if it
    had never stopped. Groups with equal law and seed share their draws.

    Each group holds, beside torch's own settings, ``law``, ``coupling``, ``seed``, and ``multiplier``: that of the
    last step (1 before the first). ``lr`` belongs to the schedulers and is never written here.

    Args:
        params: parameters, named parameters or groups of them; a group may override any setting below.
        lr: the mean learning rate, a number or a one-element tensor.
        momentum: ``mu``. This and the next three may be given by position, in the order of `torch.optim.SGD`.
        dampening: ``tau``.
        weight_decay: L2 penalty, part of the gradient; ``alpha`` multiplies it too.
        nesterov: step with the look-ahead velocity.
        law: distribution of the multiplier, for instance ``Uniform(0.5)`` or ``"uniform:0.5"``.
        coupling: where the multiplier enters, ``"gradient"`` or ``"update"``.
        seed: an integer; the whole state of the randomness is this and the number of steps taken.
        maximize: ascend instead.
        foreach: use PyTorch's multi-tensor kernels; None decides as `torch.optim.SGD` does.
        fused: use PyTorch's fused kernel.
        capturable: draw on the device, so that a captured CUDA graph draws afresh at each replay. Take one step
            before the capture when there is momentum. ``multiplier`` is then a tensor.
        differentiable: let autograd see the step.

    A step that `torch.amp.GradScaler` skips consumes no draw: after ``k`` steps that moved the weights the next
    multiplier is ``alpha_k``. With ``fused=True`` this takes one read of ``found_inf`` a step (none if capturable).

    With Nesterov in coupling "gradient", ``state[p]["momentum_buffer"]`` holds the velocity divided by the group's
    ``buffer_scale`` (see `heatbath.optim.sgd_step`); `velocity` returns the velocity itself in every mode. To go back
    to `torch.optim.SGD` from there, multiply the saved buffers by it and set it to 1: SGD would hand it on as it is.
    """

    _need_device_dtype_check_for_fused = True  # torch's own mark

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float | Tensor = 0.0,
        nesterov: bool = False,
        *,
        law: Law | str = Uniform(1.0),  # noqa: B008 (laws are frozen)
        coupling: Literal["gradient", "update"] = "gradient",
        seed: int = 0,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        defaults: dict[str, Any] = {"lr": lr, "momentum": momentum, "dampening": dampening}
        defaults |= {"weight_decay": weight_decay, "nesterov": nesterov, "maximize": maximize, "foreach": foreach}
        defaults |= {"differentiable": differentiable, "fused": fused, "capturable": capturable}
        defaults |= {"law": law, "coupling": coupling, "seed": seed}
        check_settings(defaults)
        self._walkers: dict[int, Multipliers] = {}  # the draws at hand for each group: a cache
        self._in_half: dict[int, bool] = {}  # whether a group has parameters in float16: likewise
        # torch.optim.SGD's own __init__ knows nothing of the further settings: the one of Optimizer is next in line.
        Optimizer.__init__(self, params, defaults)
        if fused:
            self._step_supports_amp_scaling = True

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; what it leaves out is taken from the optimizer's own settings.

        It joins the draws where the other groups are: there is one mini-batch for all.
        """
        if isinstance(param_group, dict):
            check_settings({**self.defaults, **param_group})
            param_group = dict(param_group)  # ours to write into: another optimizer may be built from the same one
        super().add_param_group(param_group)
        *others, group = self.param_groups
        prepare_group(group, step=max((int(other["step"]) for other in others), default=0))

    @_use_grad_for_differentiable
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Draw a multiplier and take one step.

        Args:
            closure: reevaluates the model and returns the loss.

        Returns:
            The closure's loss, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if is_compiling():
            drawn = self._draw_outside_graph()  # before the groups are looked at: their `multiplier` is no constant
            for group, multiplier in zip(self.param_groups, drawn, strict=False):
                self._step_in_graph(group, multiplier)
            return loss
        if not self.state and self._rehearse():
            return loss
        if "found_inf" in self.__dict__ and self._is_skipped():
            return loss
        for index, group in enumerate(self.param_groups):
            multiplier = self._draw(index, group)
            if type(multiplier) is float:
                self._step_eagerly(group, multiplier, self._in_half[index])
            else:
                self._step_in_graph(group, multiplier)
        return loss

    def _step_eagerly(self, group: dict[str, Any], multiplier: float, in_half: bool) -> None:
        params: list[Tensor] = []
        grads: list[Tensor] = []
        buffers: list[Tensor] = []
        fresh: list[Tensor] = []  # parameters that have no velocity yet
        has_sparse_grad, has_momentum = False, group["momentum"] != 0
        unit = group["buffer_scale"]
        moves_unit = has_momentum and group["nesterov"] and group["coupling"] == "gradient" and not in_half
        for p in group["params"]:
            grad = p.grad
            if grad is None:
                if moves_unit and self.state.get(p, {}).get("momentum_buffer") is not None:
                    moves_unit = False  # a velocity that sits out would be left behind in the old unit
                continue
            if grad.is_sparse:
                has_sparse_grad = True
            if has_momentum:
                state = self.state[p]
                buffer = state.get("momentum_buffer")
                if buffer is None:
                    fresh.append(p)
                    continue
                buffers.append(buffer)
            params.append(p)
            grads.append(grad)
        if unit != 1.0 and not moves_unit:
            self._unscale_buffers(group)
            unit = 1.0
        if group["fused"] and self._need_device_dtype_check_for_fused:
            for p in params + fresh:
                _device_dtype_check_for_fused(p)
                self._need_device_dtype_check_for_fused = False
        scaling = self.__dict__  # where a GradScaler puts its two tensors; getattr takes longer if they are not there
        # Also with nothing to step: the unit follows the draws alone, so that ranks with other parts of a group agree.
        after = random_sgd(
            params,
            grads,
            buffers,
            has_sparse_grad,
            group["foreach"],
            group["fused"],
            scaling.get("grad_scale"),
            scaling.get("found_inf"),
            multiplier=multiplier,
            unit=unit,
            coupling=group["coupling"],
            lr=group["lr"],
            momentum=group["momentum"],
            dampening=group["dampening"],
            nesterov=group["nesterov"],
            weight_decay=group["weight_decay"],
            maximize=group["maximize"],
            moves_unit=moves_unit,
        )
        group["buffer_scale"] = after
        if fresh:
            self._start(group, fresh, multiplier, has_sparse_grad)

    def _start(self, group: dict[str, Any], params: list[Tensor], multiplier: float, has_sparse_grad: bool) -> None:
        """Take the first step of some parameters, which have no velocity yet."""
        if group["capturable"]:
            refuse_capture(params[0].device)
        buffers: list[Any] = [None] * len(params)
        grads = [p.grad for p in params if p.grad is not None]
        settings = self._kernel_settings(group, has_sparse_grad)
        random_sgd(params, grads, buffers, multiplier=multiplier, unit=None, **settings)
        unit = group["buffer_scale"]
        for p, buffer in zip(params, buffers, strict=True):
            self.state[p]["momentum_buffer"] = buffer if unit == 1.0 else buffer.div_(unit)

    def _step_in_graph(self, group: dict[str, Any], multiplier: float | Tensor) -> None:
        params: list[Tensor] = []
        grads: list[Tensor] = []
        buffers: list[Tensor | None] = []
        has_sparse_grad = self._init_group(group, params, grads, buffers)
        settings = self._kernel_settings(group, has_sparse_grad)
        has_fresh = any(b is None for b in buffers)
        if not isinstance(multiplier, Tensor):  # a constant law
            random_sgd(params, grads, buffers, multiplier=multiplier, unit=None if has_fresh else 1.0, **settings)
        elif params:
            if has_fresh:
                refuse_capture(params[0].device)
            capturable_sgd(params, grads, buffers, multiplier=multiplier, **settings)
        for p, buffer in zip(params, buffers, strict=False):
            self.state[p]["momentum_buffer"] = buffer

    def _kernel_settings(self, group: dict[str, Any], has_sparse_grad: bool) -> dict[str, Any]:
        scaling = {name: getattr(self, name, None) for name in ("grad_scale", "found_inf")}
        return {key: group[key] for key in SETTINGS} | scaling | {"has_sparse_grad": has_sparse_grad}

    def velocity(self, parameter: Tensor) -> Tensor | None:
        """Return a copy of the velocity of ``parameter``, in PyTorch's sign; None before its first step with momentum.

        Raises:
            KeyError: it is not a parameter of this optimizer.
        """
        group = next((g for g in self.param_groups if any(p is parameter for p in g["params"])), None)
        if group is None:
            raise KeyError(f"a tensor of shape {tuple(parameter.shape)} that is not among the optimizer's parameters")
        state = self.state.get(parameter, {})
        buffer: Tensor | None = state.get("momentum_buffer")
        return None if buffer is None else buffer * group["buffer_scale"]

    def state_dict(self) -> dict[str, Any]:
        """Return the state; of the randomness it holds ``law`` as text and the integers ``seed`` and ``step``."""
        state_dict = super().state_dict()
        for packed in state_dict["param_groups"]:
            if "law" in packed:
                # The multiplier follows from the rest; but saved and live groups must have the same keys.
                packed.update(law=str(packed["law"]), step=int(packed["step"]), multiplier=None)
        return state_dict

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of the same law, coupling and seed, or one of `torch.optim.SGD`.

        As in torch, the other settings become those of the state; the ones that it lacks stay as they are.

        Raises:
            ValueError: the state belongs to other groups, another law, coupling or seed; nothing has been changed.
        """
        super().load_state_dict(state_dict)

    def __setstate__(self, state: dict[str, Any]) -> None:
        groups = state["param_groups"]
        if "param_groups" in self.__dict__:  # load_state_dict, not a copy or an unpickling
            for index, (ours, theirs) in enumerate(zip(self.param_groups, groups, strict=True)):
                adopt_group(index, ours, theirs)
        super().__setstate__(state)
        self._walkers, self._in_half = {}, {}
        for group in groups:
            prepare_group(group, int(group["step"]))

    def _draw(self, index: int, group: dict[str, Any], as_tensor: bool = False) -> float | Tensor:
        """The group's multiplier for this step: a float, or where a graph needs it a tensor that is filled anew.

        The step is counted in an int, and where a graph would take that for a constant in a tensor.
        """
        law, counter = group["law"], group["step"]
        walker = self._walkers.get(index)
        if walker is None or walker.law is not law or walker.seed != group["seed"]:
            check_settings(group)
            prepare_group(group, int(counter))
            law, counter = group["law"], group["step"]
            walker = self._walkers[index] = Multipliers(law, group["seed"])
            self._in_half[index] = any(p.dtype is torch.float16 for p in group["params"])
        if group["coupling"] not in COUPLINGS:
            check_settings(group)
        if group["capturable"] and group["params"]:
            self._unscale_buffers(group)
            return draw_on_device(group, getattr(self, "found_inf", None))
        step = counter if type(counter) is int else int(counter)
        alpha = 1.0 if type(law) is Constant else walker.at(step)
        if not as_tensor:
            group["step"] = step + 1
            group["multiplier"] = alpha
            return alpha
        self._unscale_buffers(group)
        group["step"] = counter.fill_(step + 1) if isinstance(counter, Tensor) else torch.tensor(step + 1)
        if type(law) is Constant:
            return alpha
        if not isinstance(group["multiplier"], Tensor):
            device = group["params"][0].device if group["params"] else None
            group["multiplier"] = torch.empty((), dtype=torch.float64, device=device)
        multiplier: Tensor = group["multiplier"].fill_(alpha)
        return multiplier

    @outside_graphs
    def _draw_outside_graph(self) -> list[float | Tensor]:
        """Draw on the host while the step around it is compiled: the graph sees a tensor, never a new constant.

        A rehearsal ends here, with no multipliers for the graph to go on with.
        """
        if not self.state and self._rehearse():
            return []
        groups = list(enumerate(self.param_groups))
        moving = [p for _, group in groups if group["momentum"] != 0 for p in group["params"] if p.grad is not None]
        for p in moving:
            self.state.setdefault(p, {})  # here, not while the tracer looks on, who may have to start again
        with torch.no_grad():
            drawn = [self._draw(index, group, as_tensor=True) for index, group in groups]
            if self._is_skipped():
                for _, group in groups:  # the kernels will do nothing
                    if not group["capturable"]:
                        group["step"] -= 1
        return drawn

    def _is_skipped(self) -> bool:
        """Whether a `torch.amp.GradScaler` has found the gradients of this step to overflow: a read of the device.

        Capturable groups leave that to their kernels, which may not ask the host.
        """
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        return found_inf is not None and not all(g["capturable"] for g in self.param_groups) and bool(found_inf)

    def _rehearse(self) -> bool:
        """Make velocities of zero if the step is a rehearsal, and return whether it is."""
        if not is_rehearsal(self):
            return False
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and group["momentum"] != 0:
                    self.state[p] = {"momentum_buffer": torch.zeros_like(p.grad)}
        return True

    def _unscale_buffers(self, group: dict[str, Any]) -> None:
        """Make each momentum buffer the velocity itself, for the rules that know nothing of units."""
        if group["buffer_scale"] != 1.0:
            buffers = (self.state.get(p, {}).get("momentum_buffer") for p in group["params"])
            with torch.no_grad():
                for buffer in buffers:
                    if buffer is not None:
                        buffer.mul_(group["buffer_scale"])
            group["buffer_scale"] = 1.0
