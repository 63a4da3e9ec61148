r"""
From one training run to a density
==================================

SGD on a loss with two wells, told three times: one trajectory, many trajectories, and the density that they follow.
The third is the Fokker-Planck equation, and it ends at Boltzmann's weight :math:`e^{-f/T}`.

A step of SGD with momentum :math:`\mu` moves the velocity by :math:`v' = \mu v - \alpha g_B` and the position by
:math:`x' = x + l v'`. Here :math:`g_B` is the gradient of a mini-batch, :math:`l` the learning rate, and
:math:`\alpha` a random number of mean 1.
"""

# %%
# The settings and the loss. The temperature follows from the settings alone.

import matplotlib.pyplot as plt
import numpy as np

import heatbath as hb
from heatbath.theory.discrete import DiscreteSGD, simulate_sgd
from heatbath.theory.fokker_planck import FokkerPlanck
from heatbath.theory.landscapes import DoubleWell
from heatbath.theory.langevin import LangevinEquation
from heatbath.theory.phase_space import gaussian_density, marginals, suggest_phase_space

knobs = hb.Thermostat(lr=0.005, batch_size=16, momentum=0.95, law="uniform:1")
diffusion = 24.0  # the variance of the gradient of one sample
wells = DoubleWell(barrier=0.2, separation=2.0)
print(f"temperature {knobs.temperature(diffusion):.3f}, barrier {wells.barrier}")

# %%
# **One trajectory** stays in a well for a while and then crosses the barrier.

sgd = DiscreteSGD(knobs.lr, knobs.momentum, diffusion, knobs.batch_size, knobs.law)
steps = np.arange(0, 4001, 10)
path = simulate_sgd(sgd, wells, np.array([-1.0]), steps=steps, seed=1).positions[:, 0]

figure, axis = plt.subplots(figsize=(7, 2.6), layout="constrained")
axis.plot(steps, path, linewidth=0.8)
axis.set(xlabel="step", ylabel="position x", title="One trajectory of SGD on a double well")

# %%
# **Many trajectories** from the same start make a histogram.

count = 2000
generator = np.random.default_rng(0)
positions = -1.0 + 0.1 * generator.standard_normal(count)
velocities = 1.0 * generator.standard_normal(count)
shown = (0, 200, 1000, 3000)
cloud = simulate_sgd(sgd, wells, positions, velocities=velocities, steps=shown, seed=2).positions

# %%
# **The density** needs no random numbers. It obeys the Fokker-Planck equation of the same settings, with the law of
# the random rate in its diffusion, on a mesh of position and velocity.

equation = LangevinEquation(knobs.lr, knobs.momentum, diffusion * knobs.law_factor, knobs.batch_size)
grid = suggest_phase_space(equation, wells, (72, 72))
solver = FokkerPlanck(equation, wells, grid)
first = gaussian_density(grid, [-1.0, 0.0], np.diag([0.1**2, 1.0**2]))
densities = solver.snapshots(first, [k * knobs.lr for k in shown])

figure, axes = plt.subplots(1, len(shown), figsize=(10, 2.6), sharey=True, layout="constrained")
for axis, step, some, density in zip(axes, shown, cloud, densities, strict=True):
    axis.hist(some, bins=50, range=(-1.8, 1.8), density=True, color="0.8")
    axis.plot(grid.x, marginals(density, grid)[0], label="Fokker-Planck")
    axis.plot(grid.x, marginals(solver.equilibrium, grid)[0], ":", label="Boltzmann")
    axis.set(title=f"after {step} steps", xlabel="position x", ylim=(0.0, 2.0))
axes[0].set_ylabel("density")
axes[-1].legend(fontsize="small")

# %%
# The grey bars are SGD itself, the line is the equation. They agree at every time, and end at the dotted weight. How
# long a trajectory stays in its well follows Arrhenius' law in the temperature: see :mod:`heatbath.theory.escape`.

plt.show()
