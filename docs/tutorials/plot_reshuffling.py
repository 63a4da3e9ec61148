r"""
What reshuffling does to the noise
==================================

Textbooks draw each mini-batch anew. Training loops reshuffle the data and go through all of it in each epoch. The
batches of an epoch then partition the data, so their noises sum to zero, and a direction that moves slowly never
feels them.

This tutorial shows the effect on a parabola, where it can be computed exactly, and on softmax regression.
"""

# %%
# Take a loss :math:`f = a x^2 / 2` and SGD with momentum. :math:`\epsilon` is the stationary :math:`\langle x^2
# \rangle` with reshuffled epochs, over that with independent batches.

import matplotlib.pyplot as plt
import numpy as np
import torch

import heatbath as hb
from heatbath.studies.stationary_loss import Problem, find_minimum, measure_stationary_losses, predict_excess_losses
from heatbath.theory import shuffled

steps_per_epoch = 235  # MNIST in batches of 256
curvatures = np.geomspace(1e-4, 10.0, 60)
arms = {
    "constant": hb.Thermostat(lr=0.01, batch_size=256, momentum=0.9),
    "random": hb.Thermostat(lr=0.01, batch_size=256, momentum=0.9, law="uniform:1"),
    "random, coupling update": hb.Thermostat(lr=0.01, batch_size=256, momentum=0.9, law="uniform:1", coupling="update"),
}
figure, axis = plt.subplots(figsize=(7, 3.4), layout="constrained")
for name, knobs in arms.items():
    axis.loglog(curvatures, shuffled.cooling(knobs, curvatures, steps_per_epoch), label=name)
axis.axvline(0.1 / (0.01 * steps_per_epoch), color="0.7", linestyle=":")
axis.set(xlabel="curvature a", ylabel="reshuffled / independent", title="Reshuffling cools slow directions")
axis.legend()

# %%
# Left of the dotted line a direction needs more than an epoch to relax. A constant rate leaves it cold. A random rate
# multiplies the noise by :math:`\alpha = 1 + (\alpha - 1)`, and the second part does not cancel: it keeps a quarter
# of its temperature, :math:`s_2 / (1 + s_2)`. In coupling "update" little of this is left.
#
# The two limits are what a thermostat says of reshuffled epochs:

hb.Thermostat(lr=0.01, batch_size=256, momentum=0.9, law="uniform:1", sampling="shuffled").limits()

# %%
# **On a real loss.** Softmax regression with weight decay is convex: it has one minimum, and SGD comes to rest around
# it. How far above it the loss stays follows from the Hessian and the gradient noise, without a free parameter.

rng = np.random.default_rng(0)
labels = rng.integers(3, size=300)
centres = np.array([[1.0, 0.0], [-0.5, 0.8], [-0.5, -0.8]])
inputs = centres[labels] + 0.9 * rng.standard_normal((300, 2))
problem = Problem(torch.from_numpy(inputs), torch.from_numpy(labels), (2, 3), weight_decay=0.05)
minimum, lowest = find_minimum(problem)

knobs = [
    hb.Thermostat(lr=0.02, batch_size=10, momentum=0.8, law=law, sampling=sampling)
    for sampling in ("replacement", "shuffled")
    for law in ("constant", "uniform:1")
]
predicted = predict_excess_losses(problem, minimum, knobs)
for one, expected in zip(knobs, predicted, strict=True):
    losses = measure_stationary_losses(problem, one, summed_rate=150.0, replicas=32) - lowest
    error = losses.mean(axis=1).std() / np.sqrt(len(losses))
    print(f"{one.sampling:12} {one.law!s:12} predicted {expected:.5f}, measured {losses.mean():.5f} +- {error:.5f}")

# %%
# With replacement the random rate is 4/3 as far above the minimum as the constant one. With reshuffled epochs both
# are lower, and the random rate is further above the constant one than 4/3. The experiment at full scale is
# preregistered: see :doc:`/preregistration`.

plt.show()
