"""
Ten minutes: is A better than B?
================================

You have a model, data and two ways to train it. One run of each says little: another seed may give the opposite answer.
This tutorial trains both ways with many seeds at once and gets a verdict with its uncertainty.
"""

# %%
# **Your model and your data.** A task holds a function that returns a new model, the training data and the test data.

import matplotlib.pyplot as plt
import numpy as np
from torch import nn

import heatbath as hb


def model():
    """Return a small network with new weights."""
    return nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))


def spirals(count, seed):
    """Return points on two noisy spirals, and which of them each is on."""
    rng = np.random.default_rng(seed)
    label = rng.integers(2, size=count)
    turn = 3.0 * np.sqrt(rng.random(count))
    angle = turn + np.pi * label
    points = turn[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    points += 0.25 * rng.standard_normal((count, 2))
    return points.astype(np.float32), label


task = hb.Task(model, spirals(800, 0), spirals(2000, 1), name="spirals")
points, label = spirals(800, 0)
figure, axis = plt.subplots(figsize=(3.2, 3.2), layout="constrained")
axis.scatter(*points.T, c=label, s=4, cmap="coolwarm")
axis.set(title="Two spirals", xticks=[], yticks=[])

# %%
# **Two ways, 30 seeds each.** A `RunConfig` describes one run, and `sweep` makes many runs of it. Here the question is
# whether a larger momentum is better at the same learning rate. The 60 runs take seconds. With ``store="runs"``,
# finished runs are kept and not trained again.

base = hb.RunConfig(task=task, protocol="constant", lr=0.02, batch_size=32, epochs=15, nesterov=False)
configs = hb.sweep(base, momentum=(0.5, 0.9), seed=range(30))
records = hb.run(configs, device="cpu", workers=1)
print(len(records), "runs")

# %%
# **The curves** differ from seed to seed.

figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
for momentum, colour in ((0.5, "C0"), (0.9, "C1")):
    for record in records.where(momentum=momentum):
        axis.plot(record.curve("test_accuracy"), color=colour, linewidth=0.6)
    axis.plot([], [], color=colour, label=f"momentum {momentum}")
axis.set(xlabel="epoch", ylabel="test accuracy")
axis.legend()

# %%
# **The verdict.** `compare` asks two questions: is the sign of the difference certain, and is the difference smaller
# than a margin that you chose? Two runs of the same seed start from the same weights, so they are compared in pairs.

groups = {f"momentum {momentum}": records.where(momentum=momentum) for momentum in (0.9, 0.5)}
found = hb.compare(groups, metric="test_accuracy", margin=0.01)
print(found)

# %%
# If the verdict is "equal", one way may still be ahead for certain, but by less than the margin. If it is "undecided",
# the sentence estimates how many seeds would decide. To add seeds without cheating, see :doc:`/adding-seeds`.

plt.show()
