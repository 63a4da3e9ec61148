"""The temperature of a training in the Trainer of Transformers: one of its callbacks.

trainer = Trainer(model, args, train_dataset=dataset, callbacks=[ThermometerCallback()])
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from heatbath.integrations.watch import Watch, guarded
from heatbath.laws import parse_law
from heatbath.thermometry.batch_halves import batch_length

try:
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    message = "heatbath.integrations.transformers needs Transformers: pip install 'heatbath[transformers]'"
    raise ImportError(message) from error

__all__ = ["ThermometerCallback"]


class ThermometerCallback(Watch, TrainerCallback, ExportableState):
    """Measures gradient noise, temperature and equilibrium of a training with a `heatbath.Thermometer`.

    The noise comes from the micro-batches of gradient accumulation or the ranks of data parallelism, at no extra cost.
    Otherwise the callback runs the Trainer's ``compute_loss`` on the two halves of one batch in ``interval``, in the
    Trainer's precision; weights, gradients, buffers and random states stay as they are. A loss per item, as causal
    language models have it, is divided by the items of half a batch there.

    Readings are logged by the Trainer, so that all its reporters have them, as ``heatbath/temperature`` and so on. The
    state is saved with the checkpoints and restored when a training is resumed. A thermometer never stops a training: a
    reading that could not be taken has a ``reason``, and each reason is told once, in a warning.

    Args:
        settings: those of `heatbath.Thermometer`: ``interval``, ``decay``, ``window``, ``confidence``, ``batch_size``,
            ``dataset_size``, ``law``. They are saved with the checkpoints: numbers and text.
    """

    def __init__(self, **settings: Any) -> None:
        if settings.get("law") is not None:
            settings["law"] = str(parse_law(settings["law"]))
        allowed = ("interval", "decay", "window", "confidence", "batch_size", "dataset_size", "law")
        if unknown := sorted(settings.keys() - set(allowed)):
            raise TypeError(f"{unknown[0]!r} is not a setting of ThermometerCallback: it takes {', '.join(allowed)}")
        super().__init__(**settings)
        self._trainer: Any = None  # from the beginning of a training to its end
        self._waits = False  # for its first step
        self._watched: list[tuple[Any, str]] = []  # methods of the Trainer that are ours until the end

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: numbers and text only."""
        return {"args": self._settings, "attributes": {"saved": self.saved}}

    saved = property(
        Watch.state_dict,
        Watch.load_state_dict,
        doc="The state of the thermometer; what is written here is where the next training goes on.",
    )

    @guarded
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 (an event)
        """Find the Trainer, and the state of the training that is resumed."""
        self._let_go()
        trainer, name = _calling_trainer(self), type(self).__name__
        if trainer is None:
            self._refuse("no Trainer of Transformers calls it")
            return
        if self._is_second(trainer.callback_handler.callbacks):
            return
        saved = state.stateful_callbacks.setdefault(name, self.state())
        if state.global_step > 0 and isinstance(saved, dict):
            self.saved = saved["attributes"]["saved"]
        self._trainer, self._waits = trainer, True
        self._watch(trainer)

    @guarded
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 (an event)
        """Attach to optimizer and model at the first step, when nothing can raise any more that we do not see."""
        if self._waits:
            self._waits, trainer = False, self._trainer
            self._attach(trainer.model_wrapped, trainer.optimizer, trainer.accelerator.scaler)

    @guarded
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 (an event)
        """Let the Trainer log new readings."""
        if self._trainer is None:
            return
        for numbers in self._new_numbers():
            logs = control.should_log  # which the Trainer takes back when it has logged
            try:
                self._trainer.log(numbers)
            finally:
                control.should_log = logs

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 (an event)
        """Let go of the optimizer; the readings stay."""
        self._let_go()

    def _let_go(self) -> None:
        self._detach()
        for owner, name in self._watched:
            vars(owner).pop(name, None)
        self._trainer, self._waits, self._watched = None, False, []

    def _watch(self, trainer: Any) -> None:
        """See the batches of losses, and a training that ends early: no event of the Trainer shows them."""
        compute_loss = trainer.compute_loss

        @wraps(compute_loss)
        def watched(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if not (self._is_due and model.training and torch.is_grad_enabled()):
                return compute_loss(model, inputs, *args, **kwargs)
            items = kwargs.get("num_items_in_batch")
            batches = trainer.current_gradient_accumulation_steps  # in this step, whose last one may be smaller
            has_parts = batches > 1 or trainer.args.world_size > 1
            if has_parts:
                self._count(inputs, weighs_samples=items is not None)
            else:

                def loss_of(part: Any) -> Tensor:
                    share = batch_length(part) / batch_length(inputs)
                    settings = kwargs if items is None else {**kwargs, "num_items_in_batch": items * share}
                    loss: Tensor = _loss_in(compute_loss(model, part, *args, **settings))
                    return loss

                self._observe(loss_of, dict(inputs))
            output = compute_loss(model, inputs, *args, **kwargs)
            if has_parts:  # divided by the items of all micro-batches, it is a part of the mean
                self._note_loss(_loss_in(output), 1 if items is None else batches)
            return output

        vars(trainer)["compute_loss"] = watched
        parts = [
            (trainer, name) for name in ("_run_epoch", "_evaluate", "_finalize_training") if hasattr(trainer, name)
        ]
        parts.append((trainer.callback_handler, "on_epoch_begin"))
        for owner, name in parts:  # all that comes after the beginning
            vars(owner)[name] = self._until_it_raises(getattr(owner, name))
        self._watched = [(trainer, "compute_loss"), *parts]

    def _until_it_raises(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except BaseException:
                self._let_go()
                raise

        return call


def _loss_in(output: Any) -> Any:
    """The loss in what `compute_loss` returns, which may have the model's outputs beside it."""
    return output[0] if isinstance(output, tuple) and output else output


def _calling_trainer(callback: ThermometerCallback) -> Any:
    """Find the Trainer that calls this callback: its events tell the model and the optimizer, but not the Trainer."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Trainer) and any(c is callback for c in owner.callback_handler.callbacks):
            return owner
        frame = frame.f_back
    return None
