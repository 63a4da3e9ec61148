"""Batches of a shuffled epoch cancel in part: what relaxes more slowly than an epoch lasts stays colder."""

import numpy as np
import pytest

from heatbath.theory.quadratic import relaxation_time
from heatbath.thermostat import Thermostat

CURVATURE, BATCH, PATHS = 1.0, 5, 400


@pytest.mark.parametrize(
    ("steps", "rate", "relaxation", "weights", "velocities"),
    [(20, 0.1 / 75, 64, 0.034, 0.49), (60, 0.01, 19, 0.68, 0.97)],
    ids=["slower-than-an-epoch", "faster-than-an-epoch"],
)
def test_the_weights_of_shuffled_epochs_are_colder_than_the_formula(steps, rate, relaxation, weights, velocities):
    """The heavy ball on a quadratic of unit curvature, against `Thermostat`'s temperature with its ``1 - C/N``."""
    momentum = 0.9
    rng = np.random.default_rng(7)
    samples = rng.standard_normal(steps * BATCH)
    samples -= samples.mean()
    knobs = Thermostat(rate, BATCH, momentum, dataset_size=len(samples))
    assert round(relaxation_time(knobs, CURVATURE, "mean")) == relaxation
    temperature = knobs.temperature(samples.var(ddof=0) * CURVATURE)
    x, v, squares = np.zeros(PATHS), np.zeros(PATHS), []
    epochs = max(60, 20 * relaxation // steps)
    for epoch in range(epochs):
        order = rng.permuted(np.broadcast_to(samples, (PATHS, len(samples))), axis=1)
        for batch in order.reshape(PATHS, steps, BATCH).mean(axis=2).T:
            v = momentum * v + CURVATURE * x + batch
            x = x - rate * v
            if epoch >= epochs // 4:
                squares.append([np.mean(x**2), np.mean(v**2)])
    of_weights, of_velocities = np.mean(squares, axis=0)
    # The stationary velocity of T: <v^2> = 2 T / (l (1 + mu)) at leading order, in PyTorch's unit of the velocity.
    assert CURVATURE * of_weights / temperature == pytest.approx(weights, rel=0.04)
    assert 0.5 * rate * (1.0 + momentum) * of_velocities / temperature == pytest.approx(velocities, rel=0.04)
