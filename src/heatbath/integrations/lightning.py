"""The temperature of a training in Lightning: one argument of the Trainer.

trainer = Trainer(callbacks=[ThermometerCallback()])
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from heatbath.integrations.watch import Watch, guarded

try:
    try:
        import lightning.pytorch as pl
    except ImportError:  # the same under its older name
        import pytorch_lightning as pl  # type: ignore[no-redef]
    from torchmetrics import Metric, MetricCollection
except ImportError as error:
    raise ImportError("heatbath.integrations.lightning needs Lightning: pip install 'heatbath[lightning]'") from error

__all__ = ["ThermometerCallback"]

LossOfBatch = Callable[[Any, Any], Tensor]


class ThermometerCallback(Watch, pl.Callback):
    """Measures gradient noise, temperature and equilibrium of a Lightning training with a `heatbath.Thermometer`.

    The noise comes from the micro-batches of gradient accumulation or the ranks of data parallelism, at no extra cost.
    Otherwise the callback runs ``training_step`` on the two halves of one batch in ``interval``, in the Trainer's
    precision, with `log` muted and torchmetrics put aside; weights, gradients, buffers and random states stay as they
    are. If your ``training_step`` has other side effects, or you optimize manually, tell the loss with ``loss``.

    Readings go to the Trainer's loggers as ``heatbath/temperature`` and so on. The state is saved and restored with the
    checkpoints. A thermometer never stops a training: a reading that could not be taken has a ``reason``, and each
    reason is told once, in a warning.

    Args:
        loss: ``loss(module, batch)``, the mean over the batch; by default what ``training_step`` returns.
        settings: those of `heatbath.Thermometer`: ``interval``, ``decay``, ``window``, ``confidence``, ``batch_size``,
            ``dataset_size``, ``law``, ``callback``. Of several processes the first one calls the callbacks.
    """

    def __init__(self, loss: LossOfBatch | None = None, **settings: Any) -> None:
        if loss is not None and not callable(loss):
            raise TypeError(f"loss must be a function of the module and a batch, got {loss!r}")
        self._loss = loss
        super().__init__(**settings)

    @guarded
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Attach to the optimizer, which is complete by now, and to the model as the strategy has wrapped it."""
        if len(trainer.optimizers) != 1:
            self._refuse(f"it needs one optimizer, the module has {len(trainer.optimizers)}")
            return
        if self._is_second(trainer.callbacks):  # type: ignore[attr-defined]  # set by a part of the Trainer
            return
        model = trainer.strategy.model or pl_module
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self._attach(model, trainer.optimizers[0], scaler, tells=trainer.is_global_zero)

    @guarded
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Measure the noise of the batch if a reading is due and nothing else tells it; else count its samples."""
        if not self._is_due:
            return
        if _has_parts(trainer):
            self._count(batch, divisor=trainer.accumulate_grad_batches)
            return

        def loss_of(part: Any) -> Tensor:
            with _without_side_effects(pl_module), trainer.precision_plugin.train_step_context():
                return self._loss_of(pl_module, part, batch_idx)

        self._observe(loss_of, batch)

    @guarded
    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:  # noqa: ARG002
        """Note the loss of a micro-batch or a rank."""
        if self._is_due and _has_parts(trainer):
            scaler = getattr(trainer.precision_plugin, "scaler", None)
            scale = 1.0 if scaler is None else scaler.get_scale()
            self._note_loss(loss, trainer.accumulate_grad_batches / scale)

    @guarded
    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Pass new readings on to the loggers."""
        for numbers in self._new_numbers():
            for logger in trainer.loggers:
                logger.log_metrics(numbers, step=trainer.global_step)

    def on_train_end(self, *_: Any) -> None:
        """Let go of the optimizer; the readings stay."""
        self._detach()

    def on_exception(self, *_: Any) -> None:
        """Let go of the optimizer."""
        self._detach()

    def _loss_of(self, module: pl.LightningModule, batch: Any, batch_idx: int) -> Tensor:
        if self._loss is not None:
            return self._loss(module, batch)
        parameters = inspect.signature(module.training_step).parameters
        if not module.automatic_optimization or "dataloader_iter" in parameters:
            why = (
                "training_step takes a dataloader_iter"
                if module.automatic_optimization
                else "the module optimizes manually"
            )
            raise ValueError(f"{why}: tell the loss, ThermometerCallback(loss=...)")
        output = module.training_step(batch, batch_idx) if len(parameters) > 1 else module.training_step(batch)
        loss = output["loss"] if isinstance(output, dict) else output
        if not isinstance(loss, Tensor):
            raise ValueError(f"training_step returned no tensor as its loss, got {loss!r}")
        return loss


@contextmanager
def _without_side_effects(module: pl.LightningModule) -> Iterator[None]:
    """Let `self.log` do nothing, and metrics count elsewhere."""
    metrics = [
        (parent, name, child)
        for parent in module.modules()
        if not isinstance(parent, Metric | MetricCollection)
        for name, child in parent.named_children()
        if isinstance(child, Metric | MetricCollection)
    ]
    for parent, name, metric in metrics:
        setattr(parent, name, metric.clone())
    vars(module)["log"] = lambda *_, **__: None
    try:
        yield
    finally:
        del vars(module)["log"]
        for parent, name, metric in metrics:
            setattr(parent, name, metric)


def _has_parts(trainer: pl.Trainer) -> bool:
    """Whether a step has micro-batches or ranks, whose gradients tell the noise."""
    return trainer.world_size > 1 or trainer.accumulate_grad_batches > 1
