import json
import warnings

import pytest
import torch
from hosts import BATCH_SIZE, BATCHES, EPOCHS, Perceptron, Samples, read_tensorboard, training_arguments, weights
from plain_loops import assert_close, in_pairs, measure_plainly, random_sgd
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback

from heatbath.integrations.transformers import ThermometerCallback


def make_trainer(
    folder, *callbacks, model=None, dataset=None, trainer_class=Trainer, optimizer=None, factor=1.0, **settings
):
    model, data = model or Perceptron(), dataset or Samples()
    optimizer = optimizer or random_sgd(model.parameters())
    return trainer_class(
        model,
        training_arguments(folder, **{"num_train_epochs": EPOCHS, "save_strategy": "no", **settings}),
        train_dataset=data,
        eval_dataset=data,
        optimizers=(optimizer, LambdaLR(optimizer, lambda step: factor)),
        callbacks=list(callbacks),
    )


def train(folder, *callbacks, **settings):
    trainer = make_trainer(folder, *callbacks, **settings)
    trainer.train()
    return trainer


def test_readings_are_those_of_a_plain_loop(tmp_path):
    callback = ThermometerCallback(interval=2)
    trainer = train(tmp_path, callback, eval_strategy="steps", eval_steps=3)
    history, end = measure_plainly()
    assert len(history) == 6
    assert callback.history == history
    assert torch.equal(weights(trainer.model), end)


def test_accumulated_batches_are_compared_without_extra_passes(tmp_path):
    callback, model, calls = ThermometerCallback(interval=2), Perceptron(), []
    model.register_forward_hook(lambda *_: calls.append(1))
    train(tmp_path, callback, model=model, gradient_accumulation_steps=2)
    history, end = measure_plainly(steps=in_pairs())
    assert callback.history == history
    assert torch.equal(weights(model), end)
    assert len(calls) == 12


def test_mixed_precision(tmp_path):
    callback = ThermometerCallback(interval=2)
    trainer = train(tmp_path, callback, bf16=True)

    def autocast():
        return torch.autocast("cpu", torch.bfloat16)

    history, end = measure_plainly(context=autocast)
    assert_close(callback.history, history)
    torch.testing.assert_close(weights(trainer.model), end)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_clipping_of_the_trainer_biases_no_noise(tmp_path, accumulation):
    """The weights are frozen by a tiny rate, so that all trainings have the same noise."""

    def readings(folder, clip):
        callback, settings = ThermometerCallback(interval=1), {"gradient_accumulation_steps": accumulation}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            train(folder, callback, **settings, max_grad_norm=clip, factor=1e-30)
        return callback.history

    free, clipped = readings(tmp_path / "free", 0.0), readings(tmp_path / "clipped", 0.05)
    assert [r["trace"] for r in clipped] == [r["trace"] for r in free]
    assert [r["gradient_norm_squared"] for r in clipped] == [r["gradient_norm_squared"] for r in free]
    assert all(r["clipping"] < 0.5 for r in clipped)


class Texts(Dataset):
    """Lines of many lengths."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(20, (BATCHES * BATCH_SIZE, 10), generator=generator)
        self.lengths = torch.randint(3, 11, (BATCHES * BATCH_SIZE,), generator=generator)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        labels = self.tokens[index].clone()
        labels[self.lengths[index] :] = -100
        return {"input_ids": self.tokens[index], "labels": labels}


def language_model():
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2}
    settings = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **settings))


class ItemCounter(Trainer):
    """Notes by how many items the Trainer divides the losses of each step."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        self.__dict__.setdefault("items", []).append(num_items_in_batch)
        return super().training_step(model, inputs, num_items_in_batch)


def test_a_loss_per_item_is_that_of_half_a_batch(tmp_path):
    callback = ThermometerCallback(interval=2)
    trainer = train(tmp_path, callback, model=language_model(), dataset=Texts(), trainer_class=ItemCounter)
    model, current = language_model(), {}

    def loss_of(batch):
        share = len(batch["labels"]) / BATCH_SIZE
        return model(**batch, num_items_in_batch=current["items"] * share).loss

    history, end = measure_plainly(
        model=model,
        steps=[[batch] for _ in range(EPOCHS) for batch in DataLoader(Texts(), BATCH_SIZE)],
        loss_of=loss_of,
        before_step=lambda number: current.update(items=trainer.items[number]),
    )
    assert all(items is not None for items in trainer.items)
    assert callback.history == history
    assert torch.equal(weights(trainer.model), end)


def test_a_resumed_training_goes_on_with_the_same_readings(tmp_path):
    train(tmp_path, ThermometerCallback(interval=4), num_train_epochs=1, save_strategy="epoch")
    history, _ = measure_plainly(interval=4)
    for restores in (False, True):
        callback = ThermometerCallback(interval=4)
        trainer = make_trainer(tmp_path, callback, restore_callback_states_from_checkpoint=restores)
        trainer.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{BATCHES}"))
        (used,) = [c for c in trainer.callback_handler.callbacks if isinstance(c, ThermometerCallback)]
        assert used.history == history
        assert json.loads(json.dumps(used.state())) == used.state()


def test_a_checkpoint_without_a_thermometer_can_be_resumed_with_one(tmp_path):
    train(tmp_path, num_train_epochs=1, save_strategy="epoch")
    callback = ThermometerCallback(interval=2)
    trainer = make_trainer(tmp_path, callback, save_strategy="epoch")
    trainer.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{BATCHES}"))
    assert [reading["step"] for reading in callback.history] == [2, 4, 6]


def test_dropout_and_random_states_are_left_alone(tmp_path):
    ends = []
    for callbacks in ([], [ThermometerCallback(interval=2)]):
        torch.manual_seed(3)
        model = Perceptron()
        model.layers.insert(1, nn.Dropout(0.3))
        model.layers.insert(1, nn.BatchNorm1d(7))
        train(tmp_path, *callbacks, model=model)
        ends.append(model.state_dict())
    for key, value in ends[0].items():
        assert torch.equal(ends[1][key], value), key
    assert callbacks[0].history[-1]["trace"] > 0


def test_readings_are_logged_by_the_trainer_beside_its_own_lines(tmp_path):
    lines = []

    class Reporter(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            lines.append((state.global_step, dict(logs)))

    callback = ThermometerCallback(interval=3)
    trainer = train(tmp_path, Reporter, callback, logging_steps=2)
    ours = [(step, logs["heatbath/temperature"]) for step, logs in lines if "heatbath/temperature" in logs]
    assert ours == [(reading["step"], reading["temperature"]) for reading in callback.history]
    assert [step for step, logs in lines if "loss" in logs] == [2, 4, 6, 8, 10, 12]
    kept = [line["heatbath/trace"] for line in trainer.state.log_history if "heatbath/trace" in line]
    assert kept == [reading["trace"] for reading in callback.history]


def test_readings_arrive_in_tensorboard(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    callback = ThermometerCallback(interval=3)
    train(tmp_path, callback, report_to=["tensorboard"])
    steps, values = read_tensorboard(tmp_path / "events", "train/heatbath/temperature")
    assert steps == [3, 6, 9, 12]
    assert values == pytest.approx([reading["temperature"] for reading in callback.history])


def reasons(callback):
    return [reading.get("reason") for reading in callback.history]


def test_a_loss_of_the_trainers_own(tmp_path):
    """It is what the Trainer minimizes, not what the model returns."""

    def doubled(outputs, labels, num_items_in_batch=None):
        return 2.0 * nn.functional.cross_entropy(outputs["logits"], labels)

    class WithoutLabels(Perceptron):
        def forward(self, inputs, labels=None):
            return {"logits": self.layers(inputs)}

    class Doubling(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return doubled(model(inputs["inputs"]), inputs["labels"])

    model = Perceptron()
    history, _ = measure_plainly(model=model, loss_of=lambda batch: 2.0 * model(**batch)["loss"])
    callback = ThermometerCallback(interval=2)
    train(tmp_path, callback, model=WithoutLabels(), trainer_class=Doubling)
    assert callback.history == history


def test_a_batch_of_one_has_no_noise(tmp_path):
    callback = ThermometerCallback(interval=20)
    with pytest.warns(RuntimeWarning, match="a batch of 1 has no two halves"):
        train(tmp_path, callback, per_device_train_batch_size=1, num_train_epochs=1)
    assert ["a batch of 1" in reason for reason in reasons(callback)] == [True, True]


def test_a_loss_that_is_no_mean_is_told(tmp_path):
    class Summing(Perceptron):
        def forward(self, inputs, labels):
            output = super().forward(inputs, labels)
            return {**output, "loss": len(labels) * output["loss"]}

    callback, model = ThermometerCallback(interval=6), Summing()
    with pytest.warns(RuntimeWarning, match="the loss sums over the batch"):
        train(tmp_path, callback, model=model)
    assert all("the loss sums over the batch" in reason for reason in reasons(callback))
    assert torch.isfinite(weights(model)).all()


def test_an_optimizer_of_another_model_is_told_once(tmp_path):
    callback = ThermometerCallback(interval=2)
    with pytest.warns(RuntimeWarning, match="the optimizer holds none of the model's parameters") as told:
        train(tmp_path, callback, optimizer=random_sgd(Perceptron().parameters()))
    assert len([w for w in told if "thermometer" in str(w.message)]) == 1
    assert callback.thermometer is None
    assert callback.history == []


def test_added_twice_the_first_one_reads(tmp_path):
    first, second = ThermometerCallback(interval=2), ThermometerCallback(interval=2)
    with pytest.warns(RuntimeWarning, match="the Trainer has another ThermometerCallback"):
        train(tmp_path, first, second)
    assert first.history == measure_plainly()[0]
    assert second.history == []


def test_gradients_that_are_not_finite(tmp_path):
    class Breaking(Perceptron):
        def forward(self, inputs, labels):
            output = super().forward(inputs, labels)
            is_fifth = torch.equal(inputs, Samples().inputs[4 * BATCH_SIZE : 5 * BATCH_SIZE])
            return {**output, "loss": output["loss"] * (float("nan") if is_fifth else 1.0)}

    callback = ThermometerCallback(interval=5)
    with pytest.warns(RuntimeWarning, match="not finite"):
        train(tmp_path, callback, model=Breaking())
    assert set(callback.history[0]) == {"step", "reason"}
    assert "not finite" in callback.history[0]["reason"]


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"interval": 0}, ValueError, "interval must be an integer with 1 <= interval"),
        ({"law": "unifrom"}, ValueError, "unknown law 'unifrom'"),
        (
            {"callback": print},
            TypeError,
            "'callback' is not a setting of ThermometerCallback: it takes interval, decay",
        ),
    ],
)
def test_bad_settings_are_told_where_they_are_written(settings, error, message):
    with pytest.raises(error, match=message):
        ThermometerCallback(**settings)


def test_an_interrupted_evaluation_leaves_nothing_behind(tmp_path):
    class Interrupted(Trainer):
        def evaluation_loop(self, *args, **kwargs):
            raise ArithmeticError("in the evaluation")

    callback = ThermometerCallback(interval=4)
    evaluation = {"eval_strategy": "steps", "eval_steps": 3}
    trainer = make_trainer(tmp_path, callback, trainer_class=Interrupted, **evaluation)
    with pytest.raises(ArithmeticError, match="in the evaluation"):
        trainer.train()
    assert callback.thermometer.step == 3
    other = ThermometerCallback(interval=4)  # of a new Trainer with the same optimizer
    second = make_trainer(tmp_path, other, model=trainer.model, optimizer=trainer.optimizer.optimizer)
    second.train()
    assert callback.thermometer.step == 3
    assert [reading["step"] for reading in other.history] == [4, 8, 12]
    again = train(tmp_path, callback)  # the same callback, in a training that ends
    assert callback.history == measure_plainly(interval=4)[0]
    assert "compute_loss" not in vars(again)


def test_events_come_from_a_trainer():
    with pytest.warns(RuntimeWarning, match="no Trainer of Transformers calls it"):
        ThermometerCallback().on_train_begin(None, None, None)


@pytest.mark.parametrize("kind", [ArithmeticError, KeyboardInterrupt])
def test_an_interrupted_training_is_let_go_at_once(tmp_path, kind):
    class Interrupted(Trainer):
        def evaluation_loop(self, *args, **kwargs):
            raise kind

    callback = ThermometerCallback(interval=1)
    trainer = make_trainer(tmp_path, callback, trainer_class=Interrupted, eval_strategy="steps", eval_steps=3)
    with pytest.raises(kind):
        trainer.train()
    assert not {"compute_loss", "_run_epoch", "_evaluate"} & vars(trainer).keys()
    for batch in DataLoader(Samples(), BATCH_SIZE):
        trainer.model(**batch)["loss"].backward()
        trainer.optimizer.step()
    assert callback.thermometer.step == 3
    assert [reading["step"] for reading in callback.history] == [1, 2, 3]


@pytest.mark.parametrize("event", ["on_train_begin", "on_epoch_begin", "on_step_begin", "on_step_end", "on_train_end"])
def test_a_callback_that_raises_leaves_no_hook_behind(tmp_path, event):
    def fail(args, state, control, **kwargs):
        if state.epoch >= 1 or event == "on_train_begin":
            raise ArithmeticError

    ours, other = ThermometerCallback(interval=1), TrainerCallback()
    setattr(other, event, fail)
    trainer = make_trainer(tmp_path, ours, other)
    with pytest.raises(ArithmeticError):
        trainer.train()
    seen = len(ours.history)
    for batch in DataLoader(Samples(), BATCH_SIZE):
        trainer.model(**batch)["loss"].backward()
        trainer.optimizer.step()
    assert len(ours.history) == seen
    assert seen > 0 or event == "on_train_begin"


def uneven(batch_size, accumulation):
    """The steps of one epoch in the Trainer: the last batch and the last step may be smaller."""
    each = list(DataLoader(Samples(), batch_size))
    return [each[i : i + accumulation] for i in range(0, len(each), accumulation)]


@pytest.mark.parametrize(("batch_size", "accumulation"), [(8, 4), (10, 2), (8, 5), (7, 1)])
def test_what_is_in_a_step_is_counted(tmp_path, batch_size, accumulation):
    callback = ThermometerCallback(interval=1)
    settings = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": accumulation}
    trainer = train(tmp_path, callback, num_train_epochs=1, **settings)
    history, end = measure_plainly(interval=1, steps=uneven(batch_size, accumulation), counts=True)
    assert_close(callback.history, history, relative=1e-9)
    torch.testing.assert_close(weights(trainer.model), end)


def test_an_own_loader_and_a_batch_size_that_is_found_are_counted(tmp_path):
    class OwnLoader(Trainer):
        def get_train_dataloader(self):
            return DataLoader(Samples(), 4)

    class Greedy(Perceptron):
        def forward(self, inputs, labels):
            if len(inputs) > 4:
                raise RuntimeError("CUDA out of memory.")
            return super().forward(inputs, labels)

    history = measure_plainly(interval=1, steps=uneven(4, 2), counts=True)[0]
    for settings in ({"trainer_class": OwnLoader}, {"model": Greedy(), "auto_find_batch_size": True}):
        callback = ThermometerCallback(interval=1)
        train(tmp_path, callback, num_train_epochs=1, gradient_accumulation_steps=2, **settings)
        assert_close(callback.history, history, relative=1e-9)


def test_a_loss_that_is_no_tensor_stops_no_training(tmp_path):
    class Boxed:
        def __init__(self, loss):
            self.loss = loss

        def __truediv__(self, number):
            return Boxed(self.loss / number)

        def backward(self, **settings):
            self.loss.backward(**settings)

        def detach(self):
            return self.loss.detach()

        def __mul__(self, number):
            raise TypeError("no number")

    class Boxing(Trainer):
        def compute_loss(self, *args, **kwargs):
            return Boxed(super().compute_loss(*args, **kwargs))

        def training_step(self, model, inputs, num_items_in_batch=None):
            boxed = self.compute_loss(model, inputs)
            (boxed / self.current_gradient_accumulation_steps).backward()
            return boxed.loss.detach()

    callback = ThermometerCallback(interval=2)
    trainer = train(tmp_path, callback, trainer_class=Boxing, gradient_accumulation_steps=2)
    history, end = measure_plainly(steps=in_pairs())
    assert [r["trace"] for r in callback.history] == [r["trace"] for r in history]
    assert torch.equal(weights(trainer.model), end)


def test_a_lost_reading_and_a_reporter_that_fails_stop_nothing(tmp_path):
    lines = []

    class Reporter(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            lines.append(logs)
            raise OSError("the disk is full")

    callback, model = ThermometerCallback(interval=1), Perceptron()
    model.register_forward_hook(lambda *_: {"loss": _[2]["loss"] * (float("nan") if callback.thermometer.step else 1)})
    settings = {"logging_strategy": "no", "num_train_epochs": 1, "model": model, "max_steps": 3}
    with pytest.warns(RuntimeWarning) as told, pytest.raises(OSError, match="the disk is full"):
        train(tmp_path, Reporter, callback, **settings)  # which raises at the Trainer's own last line
    messages = [str(warning.message) for warning in told]
    assert "the thermometer failed in on_step_end: OSError: the disk is full" in messages
    assert any("there is no reading at step 2" in message for message in messages)
    assert [set(reading) == {"step", "reason"} for reading in callback.history] == [False, True, True]
    assert [any(key.startswith("heatbath") for key in line) for line in lines] == [True, False]
