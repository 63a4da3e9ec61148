r"""
The paper's figure 5: equal temperature, equal training
=======================================================

The paper's claim in one picture: runs of equal temperature :math:`T = l S / (2 C (1 - \mu))` learn alike, whatever
the learning rate :math:`l` and the batch size :math:`C` are; a run at half the temperature learns otherwise. This
tutorial draws it on a small part of MNIST, and then shows what else explains it.
"""

# %%
# **Three settings.** The second has twice the rate and twice the batch size of the first, so the same temperature.
# The third has twice the batch size alone, so half the temperature.

import matplotlib.pyplot as plt
import numpy as np

import heatbath as hb

base = hb.RunConfig(model="mlp", dataset="mnist5k", protocol="constant", lr=0.002, batch_size=32, epochs=12)
other = base.thermostat.at(batch_size=64)
settings = {
    "T: l, C": base,
    "T: 2l, 2C": base.with_(lr=other.lr, batch_size=64),
    "T/2: l, 2C": base.with_(batch_size=64),
}
for name, config in settings.items():
    print(f"{name:11} l = {config.lr:.4f}, C = {config.batch_size}, T = {config.thermostat.temperature():.2e}")

# %%
# **Train** each with a few seeds.

seeds = range(4)
configs = [config.with_(seed=seed) for config in settings.values() for seed in seeds]
records = hb.run(configs, device="cpu", workers=1)
curves = np.array([record.curve("test_accuracy") for record in records]).reshape(len(settings), len(seeds), -1)

# %%
# **Over epochs** the two of equal temperature fall together, and the colder one lags. **Over the summed rate**, the
# sum of :math:`l / (1 - \mu)` over all steps, all three fall together: at equal epochs temperature and summed rate
# are proportional, and this picture cannot tell which of the two decides.

figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
for (name, config), accuracies in zip(settings.items(), curves, strict=True):
    epochs = np.arange(1, config.epochs + 1)
    summed = epochs * np.ceil(4000 / config.batch_size) * config.lr / (1.0 - config.momentum)
    axes[0].plot(epochs, accuracies.mean(axis=0), label=name)
    axes[1].plot(summed, accuracies.mean(axis=0), label=name)
axes[0].set(xlabel="epoch", ylabel="test accuracy, mean over seeds")
axes[1].set(xlabel="summed rate")
axes[0].legend()

# %%
# At the paper's scale, with the verdicts: :doc:`/results`. Experiments that do tell temperature and summed rate apart
# are preregistered: :doc:`/preregistration`.

plt.show()
