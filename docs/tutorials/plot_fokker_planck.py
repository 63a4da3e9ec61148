r"""
The Fokker-Planck gallery in pictures
=====================================

Pictures of the density of SGD: how it relaxes in a parabola, how it crosses a barrier, what heat does to it, and what a
curved valley looks like at equilibrium. Each picture shows SGD itself beside the equation.

The state of SGD is a position :math:`x` and a velocity :math:`v`. The density of many runs obeys the Fokker-Planck
equation, and ends at :math:`e^{-(v^2/2 + f(x)/l)/\Theta}`, with the loss :math:`f`, the learning rate :math:`l` and
:math:`\Theta = T/l` for the temperature :math:`T`.
"""

# %%
# **A parabola.** The cloud starts at the side and at rest. It slides to the minimum and spreads, until it is Gaussian.
# Columns are times. The upper row is the density in position and velocity. The lower row is the density of the position
# (line) with a histogram of SGD (bars) and the equilibrium (dotted).

import matplotlib.pyplot as plt
import numpy as np

import heatbath as hb
from heatbath.studies.simulation import simulate
from heatbath.theory.landscapes import Rosenbrock
from heatbath.theory.phase_space import marginals
from heatbath.theory.plane import suggest_plane


def show(found, columns, title):
    """Draw a simulation at some of its frames."""
    figure, axes = plt.subplots(2, len(columns), figsize=(10, 4.2), layout="constrained", sharex=True, sharey="row")
    grid = found.grid
    for k, (above, below) in zip(columns, axes.T, strict=True):
        above.pcolormesh(grid.x, grid.v, found.densities[k].T, cmap="Blues", shading="auto", rasterized=True)
        above.set_title(f"after {found.steps[k]:.0f} steps", fontsize="small")
        below.hist(found.positions[k], bins=60, density=True, color="0.8")
        below.plot(grid.x, marginals(found.densities[k], grid)[0])
        below.plot(grid.x, marginals(found.equilibrium, grid)[0], ":")
        below.set_xlabel("position x")
    axes[0, 0].set_ylabel("velocity v")
    axes[1, 0].set_ylabel("density of x")
    figure.suptitle(title)


knobs = hb.Thermostat(lr=0.005, batch_size=16, momentum=0.95, law="uniform:1")
found = simulate(knobs, "quadratic:1", steps=1500, frames=12, trajectories=2000, cells=(56, 56))
show(found, (0, 1, 3, 11), "A parabola: relaxation")

# %%
# **Two wells.** The cloud first fills the well where it started, and then leaks into the other. The dotted line is the
# equilibrium, Boltzmann's weight, which has both wells filled alike.

found = simulate(knobs, "double-well:0.2:2", steps=3000, frames=12, trajectories=2000, cells=(56, 56))
show(found, (0, 4, 8, 11), "A double well: crossing the barrier")

# %%
# **Colder and hotter.** The same wells after the same number of steps, at three batch sizes. Four times the batch size
# is a quarter of the temperature: the barrier is then so high that nearly nothing crosses it.

figure, axes = plt.subplots(1, 3, figsize=(10, 2.8), layout="constrained", sharey=True)
for axis, size in zip(axes, (64, 16, 8), strict=True):
    colder = hb.Thermostat(lr=0.005, batch_size=size, momentum=0.95, law="uniform:1")
    found = simulate(colder, "double-well:0.2:2", steps=1500, frames=2, trajectories=2000, cells=(72, 56))
    axis.hist(found.positions[-1], bins=60, density=True, color="0.8")
    axis.plot(found.grid.x, marginals(found.densities[-1], found.grid)[0])
    axis.set(title=f"C = {size}, T = {colder.temperature(24.0):.3f}", xlabel="position x")
axes[0].set_ylabel("density of x after 1500 steps")

# %%
# **A curved valley.** In the plane the equilibrium is computed directly. The weight follows the valley of Rosenbrock's
# loss. Hotter, it spreads along the valley much more than across it.

figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
landscape = Rosenbrock(10.0)
for axis, temperature in zip(axes, (0.05, 0.5), strict=True):
    mesh = suggest_plane(landscape, temperature)
    loss = landscape.value(mesh.points)
    weight = np.exp(-(loss - loss.min()) / temperature)
    x, y = mesh.centres
    axis.contourf(x, y, (weight / weight.max()).T, levels=np.linspace(0.02, 1.0, 12), cmap="Blues")
    axis.set(title=f"T = {temperature}", xlabel="x", ylabel="y", xlim=(-2.5, 3.0), ylim=(-2.0, 6.0))

# %%
# More landscapes and an animation: ``heatbath simulate --help``. How long a trajectory stays in its well follows
# Arrhenius' law: see :mod:`heatbath.theory.escape`.

plt.show()
