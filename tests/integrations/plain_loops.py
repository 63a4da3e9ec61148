"""Oracles for the callbacks: the same training in a plain loop, with a `heatbath.Thermometer` of its own."""

import contextlib

import torch
from hosts import BATCH_SIZE, EPOCHS, Perceptron, batches, weights

import heatbath as hb


def random_sgd(parameters):
    return hb.RandomSGD(parameters, lr=0.1, momentum=0.9, law="uniform:1", seed=3)


def measure_plainly(
    interval=2,
    model=None,
    steps=None,
    loss_of=None,
    context=contextlib.nullcontext,
    clip=None,
    before_step=None,
    are_ranks=False,
    counts=False,
):
    """Train, and return the readings and the weights; each step is a list of micro-batches, or of batches of ranks.

    With ``counts`` the thermometer is told the samples of each micro-batch, else those of a step.
    """
    model = model or Perceptron()
    loss_of = loss_of or (lambda batch: model(**batch)["loss"])
    steps = steps or [[batch] for _ in range(EPOCHS) for batch in batches()]
    optimizer = random_sgd(model.parameters())
    size = None if counts else BATCH_SIZE * len(steps[0])

    def loss_in_context(batch):
        with context():
            return loss_of(batch)

    with hb.Thermometer(model, optimizer, interval=interval, batch_size=size) as thermometer:
        for number, micro_batches in enumerate(steps):
            if before_step is not None:
                before_step(number)
            optimizer.zero_grad()
            if len(micro_batches) == 1:
                thermometer.observe(loss_in_context, micro_batches[0])
            losses = []
            for batch in micro_batches:
                losses.append(loss_in_context(batch))
                (losses[-1] / len(micro_batches)).backward()
            for batch in micro_batches if counts and len(micro_batches) > 1 else ():
                thermometer.count(len(batch["labels"]))
            if len(micro_batches) > 1:
                thermometer.note_loss(sum(losses) / len(losses) if are_ranks else losses[-1])
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
    return thermometer.history, weights(model)


def in_pairs():
    """The batches of a training, two a step."""
    each = [batch for _ in range(EPOCHS) for batch in batches()]
    return [each[i : i + 2] for i in range(0, len(each), 2)]


def assert_close(history, expected, relative=1e-4):
    """Readings that differ by rounding alone."""
    assert [reading.keys() for reading in history] == [reading.keys() for reading in expected]
    for reading, other in zip(history, expected, strict=True):
        for key, value in other.items():
            if value is None or reading[key] is None:
                assert reading[key] is value, key
            else:
                assert abs(reading[key] - value) <= relative * abs(value) + 1e-9, (key, reading[key], value)
