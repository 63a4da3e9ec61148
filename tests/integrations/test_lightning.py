import csv
import json
import random
import warnings
from functools import partial

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import torchmetrics
from hosts import EPOCHS, Perceptron, Samples, batches, read_tensorboard, weights
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.plugins import MixedPrecision
from plain_loops import assert_close, in_pairs, measure_plainly, random_sgd
from torch import nn
from torch.utils.data import DataLoader

from heatbath.integrations.lightning import ThermometerCallback

QUIET = {
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class Module(pl.LightningModule):
    def __init__(self, model=None):
        super().__init__()
        self.model = model or Perceptron()

    def training_step(self, batch, batch_idx):
        return self.model(**batch)["loss"]

    def configure_optimizers(self):
        return random_sgd(self.parameters())


def fit(module, *callbacks, loader=None, ckpt_path=None, **settings):
    trainer = pl.Trainer(**{**QUIET, "max_epochs": EPOCHS, "callbacks": list(callbacks), **settings})
    trainer.fit(module, loader or batches(), ckpt_path=ckpt_path)
    return trainer


def test_readings_are_those_of_a_plain_loop():
    module, callback = Module(), ThermometerCallback(interval=2)
    fit(module, callback)
    history, end = measure_plainly()
    assert len(history) == 6
    assert callback.history == history
    assert torch.equal(weights(module), end)


def test_accumulated_batches_are_compared_without_extra_passes():
    module, callback = Module(), ThermometerCallback(interval=2)
    calls = []
    module.model.register_forward_hook(lambda *_: calls.append(1))
    fit(module, callback, accumulate_grad_batches=2)
    history, end = measure_plainly(steps=in_pairs())
    assert callback.history == history
    assert torch.equal(weights(module), end)
    assert len(calls) == 12


def test_mixed_precision():
    module, callback = Module(), ThermometerCallback(interval=2)
    fit(module, callback, precision="bf16-mixed")
    history, end = measure_plainly(context=partial(torch.autocast, "cpu", torch.bfloat16))
    assert_close(callback.history, history)
    torch.testing.assert_close(weights(module), end)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_scaled_losses(accumulation):
    module, callback = Module(), ThermometerCallback(interval=2)
    plugin = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=256.0))
    fit(module, callback, plugins=[plugin], accumulate_grad_batches=accumulation)
    steps = in_pairs() if accumulation == 2 else None
    history, end = measure_plainly(context=partial(torch.autocast, "cpu", torch.float16), steps=steps)
    torch.testing.assert_close(weights(module), end, rtol=0, atol=1e-3)
    assert_close(callback.history, history, relative=0.02)


def test_clipping_is_seen():
    module, callback = Module(), ThermometerCallback(interval=2)
    with pytest.warns(RuntimeWarning, match="clipped"):
        fit(module, callback, gradient_clip_val=0.1)
    with pytest.warns(RuntimeWarning, match="clipped"):
        history, _ = measure_plainly(clip=0.1)
    assert_close(callback.history, history)
    assert callback.history[-1]["clipping"] < 0.9


def test_a_resumed_training_goes_on_with_the_same_readings(tmp_path):
    first = fit(Module(), ThermometerCallback(interval=4), max_epochs=1)
    first.save_checkpoint(tmp_path / "model.ckpt")
    callback = ThermometerCallback(interval=4)
    fit(Module(), callback, ckpt_path=tmp_path / "model.ckpt")
    history, _ = measure_plainly(interval=4)
    assert callback.history == history
    assert json.loads(json.dumps(callback.state_dict())) == callback.state_dict()


def test_a_state_of_other_groups_is_told_and_left():
    class InTwoGroups(Module):
        def configure_optimizers(self):
            first, *others = self.parameters()
            return random_sgd([{"params": [first]}, {"params": others}])

    callback = ThermometerCallback(interval=2)
    fit(Module(), callback, max_epochs=1)
    callback.load_state_dict(callback.state_dict())
    with pytest.warns(
        RuntimeWarning, match="begins anew: the state dict is of 1 parameter groups, this optimizer has 2"
    ):
        fit(InTwoGroups(), callback)
    assert [reading["step"] for reading in callback.history] == [2, 4, 6, 8, 10, 12]


class Eventful(Module):
    """A step with everything that a second call of it could disturb."""

    def __init__(self):
        super().__init__(nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Dropout(0.3), nn.Linear(7, 3)))
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=3)
        self.losses = torchmetrics.MetricCollection([torchmetrics.MeanMetric()])

    def training_step(self, batch):
        inputs = batch["inputs"] + 0.1 * random.random() + 0.1 * np.random.random()  # noqa: NPY002
        logits = self.model(inputs)
        loss = nn.functional.cross_entropy(logits, batch["labels"])
        self.accuracy(logits, batch["labels"])
        self.losses(loss.detach())
        self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
        self.log_dict({"loss": loss, "mean_loss": self.losses["MeanMetric"].compute()})
        return {"loss": loss, "extra": logits.detach()}


def test_nothing_else_changes(tmp_path):
    ends, logs = [], []
    for name, callbacks in (("plain", []), ("watched", [ThermometerCallback(interval=2)])):
        pl.seed_everything(1, verbose=False)
        module = Eventful()
        logger = CSVLogger(tmp_path, name)
        trainer = fit(module, *callbacks, logger=logger, log_every_n_steps=1)
        ends.append(module.state_dict())
        with open(f"{logger.log_dir}/metrics.csv") as file:
            rows = list(csv.DictReader(file))
        logs.append([{k: v for k, v in row.items() if not k.startswith("heatbath") and v} for row in rows])
        assert trainer.callback_metrics["accuracy"] > 0
    for key, value in ends[0].items():
        assert torch.equal(ends[1][key], value), key
    assert [row for row in logs[1] if row.keys() != {"step"}] == logs[0]
    assert len(callbacks[0].history) == 6
    assert callbacks[0].history[-1]["trace"] > 0


def test_readings_go_to_the_loggers(tmp_path):
    logger, callback = CSVLogger(tmp_path), ThermometerCallback(interval=3)
    fit(Module(), callback, logger=logger, log_every_n_steps=1)
    with open(f"{logger.log_dir}/metrics.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["heatbath/temperature"]]
    assert [int(row["step"]) for row in rows] == [reading["step"] for reading in callback.history] == [3, 6, 9, 12]
    assert [float(row["heatbath/temperature"]) for row in rows] == [r["temperature"] for r in callback.history]


def test_readings_arrive_in_tensorboard(tmp_path):
    logger, callback = TensorBoardLogger(tmp_path), ThermometerCallback(interval=3)
    fit(Module(), callback, logger=logger, log_every_n_steps=1)
    steps, values = read_tensorboard(logger.log_dir, "heatbath/temperature")
    assert steps == [3, 6, 9, 12]
    assert values == pytest.approx([reading["temperature"] for reading in callback.history])


class WithoutLoss(Module):
    def training_step(self, batch, batch_idx):
        return None


class Manual(Module):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        self.optimizers().zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        self.optimizers().step()


class ForeignOptimizer(Module):
    def configure_optimizers(self):
        return random_sgd(Perceptron().parameters())


class TwoOptimizers(Manual):
    def configure_optimizers(self):
        return [random_sgd(self.parameters()), random_sgd(self.parameters())]

    def training_step(self, batch, batch_idx):
        return None


class NotFinite(Module):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss * float("nan") if self.global_step == 3 else loss


def reasons(callback):
    return [reading.get("reason") for reading in callback.history]


def test_a_manual_training_tells_its_loss():
    callback = ThermometerCallback(interval=6)
    with pytest.warns(RuntimeWarning, match="the module optimizes manually: tell the loss"):
        fit(Manual(), callback)
    assert all("the module optimizes manually" in reason for reason in reasons(callback))
    callback, module = ThermometerCallback(lambda module, batch: module.model(**batch)["loss"], interval=2), Manual()
    fit(module, callback)
    history, end = measure_plainly()
    assert callback.history == history
    assert torch.equal(weights(module), end)


def test_a_batch_of_one_has_no_noise():
    callback = ThermometerCallback(interval=20)
    with pytest.warns(RuntimeWarning, match="a batch of 1 has no two halves"):
        fit(Module(), callback, loader=DataLoader(Samples(), batch_size=1), max_epochs=1)
    assert ["a batch of 1" in reason for reason in reasons(callback)] == [True, True]
    assert callback.history[0]["kinetic_temperature"] > 0


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (ForeignOptimizer, "the optimizer holds none of the model's parameters"),
        (TwoOptimizers, "it needs one optimizer"),
    ],
)
def test_what_no_thermometer_can_read_is_told_once(module, message):
    callback = ThermometerCallback(interval=2)
    with pytest.warns(RuntimeWarning, match=message) as told:
        fit(module(), callback)
    assert len([w for w in told if "thermometer" in str(w.message)]) == 1
    assert callback.history == []
    assert callback.thermometer is None


def test_a_module_without_a_loss_is_trained_on():
    callback = ThermometerCallback(interval=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = fit(WithoutLoss(), callback)
    assert trainer.current_epoch == EPOCHS
    assert ["returned no tensor as its loss, got None" in reason for reason in reasons(callback)] == [True] * 6


def test_gradients_that_are_not_finite():
    callback = ThermometerCallback(interval=2)
    with pytest.warns(RuntimeWarning, match="not finite"):
        fit(NotFinite(), callback)
    assert callback.history[0].get("reason") is None
    assert set(callback.history[1]) == {"step", "reason"}
    assert "not finite" in callback.history[1]["reason"]


def test_added_twice_is_refused_by_lightning():
    with pytest.raises(RuntimeError, match="more than one stateful callback of type `ThermometerCallback`"):
        pl.Trainer(**QUIET, callbacks=[ThermometerCallback(), ThermometerCallback()])


def test_added_later_the_first_one_reads():
    first, second = ThermometerCallback(interval=2), ThermometerCallback(interval=2)
    trainer = pl.Trainer(**QUIET, max_epochs=EPOCHS, callbacks=[first])
    trainer.callbacks.append(second)
    with pytest.warns(RuntimeWarning, match="the Trainer has another ThermometerCallback already, which reads") as told:
        trainer.fit(Module(), batches())
    assert len([w for w in told if "thermometer" in str(w.message)]) == 1
    assert first.history == measure_plainly()[0]
    assert second.history == []


@pytest.mark.filterwarnings("ignore:.*dataloader_iter.*:UserWarning")
def test_a_step_that_fetches_its_own_batches_tells_its_loss():
    class Fetching(Module):
        def training_step(self, dataloader_iter):
            return super().training_step(next(dataloader_iter)[0], 0)

    callback = ThermometerCallback(interval=2)
    with pytest.warns(RuntimeWarning, match="training_step takes a dataloader_iter: tell the loss"):
        trainer = fit(Fetching(), callback)
    assert trainer.global_step == 12
    assert all("tell the loss" in reason for reason in reasons(callback))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"interval": 0}, ValueError, "interval must be an integer with 1 <= interval"),
        ({"intervall": 5}, TypeError, "intervall"),
        ({"loss": "mse"}, TypeError, "loss must be a function of the module and a batch, got 'mse'"),
        ({"callback": "run.csv"}, TypeError, "callback must be a function of a reading"),
    ],
)
def test_bad_settings_are_told_where_they_are_written(settings, error, message):
    with pytest.raises(error, match=message):
        ThermometerCallback(**settings)


@pytest.mark.parametrize(("batch_size", "accumulation"), [(8, {0: 1, 1: 2}), (8, {0: 3, 1: 6}), (10, {0: 5, 1: 5})])
def test_what_is_in_a_step_is_counted(batch_size, accumulation):
    """By a scheduler of the accumulation, and in batches of several sizes."""
    callback, module = ThermometerCallback(interval=1), Module()
    scheduler = pl.callbacks.GradientAccumulationScheduler(accumulation)
    fit(module, callback, scheduler, loader=DataLoader(Samples(), batch_size))
    each, steps = list(DataLoader(Samples(), batch_size)), []
    for number in accumulation.values():
        steps += [each[i : i + number] for i in range(0, len(each), number)]
    history, end = measure_plainly(interval=1, steps=steps, counts=True)
    assert_close(callback.history, history, relative=1e-9)
    torch.testing.assert_close(weights(module), end)


def test_a_last_step_of_fewer_batches():
    """Lightning still divides by the number of a whole step: the gradient is shorter, as if it were clipped."""
    callback, module = ThermometerCallback(interval=2), Module()
    module.configure_optimizers = lambda: torch.optim.SGD(module.parameters(), 1e-20)  # which freezes the weights
    with pytest.warns(RuntimeWarning, match="a last step of fewer micro-batches"):
        fit(module, callback, accumulate_grad_batches=4, max_epochs=1)
    each = list(batches())
    model = Perceptron()
    parts = torch.stack(
        [
            torch.cat([g.flatten() for g in torch.autograd.grad(model(**batch)["loss"], [*model.parameters()])])
            for batch in each[4:]
        ]
    ).double()
    small, whole = parts.square().sum(dim=1).mean().item(), parts.mean(dim=0).square().sum().item()
    (reading,) = callback.history
    assert reading["clipping"] == pytest.approx(0.5)
    assert reading["trace"] == pytest.approx(16 * (small - whole), rel=1e-5)
    assert reading["gradient_norm_squared"] == pytest.approx(2 * whole - small, rel=1e-5)
    expected = 0.5 * 1e-20 * reading["trace"] / (2 * 16 * parts.shape[1])
    assert reading["temperature"] == pytest.approx(expected, rel=1e-5)


def test_a_loader_of_an_odd_batch_size_and_a_loss_that_is_no_tensor_stop_nothing():
    class Odd:
        batch_size = "auto"

        def __iter__(self):
            return iter(batches())

    callback, module = ThermometerCallback(interval=2), Module()
    fit(module, callback, loader=Odd(), accumulate_grad_batches=2, max_epochs=2)
    history, end = measure_plainly(steps=in_pairs())
    assert callback.history == history
    assert torch.equal(weights(module), end)


def test_a_logger_that_fails_stops_nothing(tmp_path):
    class Full(CSVLogger):
        def log_metrics(self, metrics, step=None):
            if "heatbath/trace" in metrics:
                raise OSError("the disk is full")

    callback = ThermometerCallback(interval=2)
    with pytest.warns(RuntimeWarning, match="failed in on_train_batch_end: OSError: the disk is full") as told:
        trainer = fit(Module(), callback, logger=Full(tmp_path), log_every_n_steps=1)
    assert len([w for w in told if "disk" in str(w.message)]) == 1
    assert trainer.global_step == 12
    assert len(callback.history) == 6


def test_an_interrupted_evaluation_leaves_nothing_behind():
    class Interrupted(Module):
        def validation_step(self, batch, batch_idx):
            raise ArithmeticError("in the evaluation")

    module, callback = Interrupted(), ThermometerCallback(interval=4)
    trainer = pl.Trainer(**QUIET, max_epochs=1, callbacks=[callback], num_sanity_val_steps=0, val_check_interval=3)
    with pytest.raises(ArithmeticError, match="in the evaluation"):
        trainer.fit(module, batches(), batches())
    before = len(callback.history)
    optimizer = trainer.optimizers[0]
    for batch in batches():
        module.model(**batch)["loss"].backward()
        optimizer.step()
    assert len(callback.history) == before
    assert callback.thermometer.step == 3
