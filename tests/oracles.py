"""Slow, obvious answers that the fast code must reproduce."""

from __future__ import annotations

import numpy as np


def random_sgd_path(
    start,
    gradient,
    multipliers,
    *,
    lr,
    coupling,
    momentum=0.0,
    dampening=0.0,
    weight_decay=0.0,
    nesterov=False,
    sign=1.0,
):
    """Every position and velocity of SGD with a random rate, in float64, one line for each line of the definition.

    ``gradient(k, x)`` is the mini-batch gradient of step ``k``; ``sign`` is -1 to maximize.
    """
    x, v = np.array(start, dtype=np.float64), None
    positions, velocities = [x], []
    for k, alpha in enumerate(multipliers):
        g = sign * gradient(k, x) + weight_decay * x
        if coupling == "gradient":
            g = alpha * g
        if momentum != 0:
            v = g if v is None else momentum * v + (1 - dampening) * g
            direction = g + momentum * v if nesterov else v
        else:
            direction = g
        x = x - lr * (alpha if coupling == "update" else 1.0) * direction
        positions.append(x)
        velocities.append(v)
    return positions, velocities
