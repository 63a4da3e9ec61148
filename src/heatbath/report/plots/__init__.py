"""Figures: the one place that imports Matplotlib.

A ``plot_*`` function takes data and an optional axis, draws there or on a new figure, and returns the axis; it keeps no
state and touches no global one. The caller saves: ``axis.figure.savefig("name.png")``.
"""

from heatbath.report.plots.figures import plot_figure, plot_panel, write_figure
from heatbath.report.plots.measurements import (
    plot_equilibrium_ratio,
    plot_layer_traces,
    plot_measurement,
    plot_noise_spectra,
    plot_temperatures,
)
from heatbath.report.plots.phase_space import (
    plot_density_over_time,
    plot_marginal_against_boltzmann,
    plot_phase_space,
    plot_trajectories,
    write_animation,
)

__all__ = [
    "plot_density_over_time",
    "plot_equilibrium_ratio",
    "plot_figure",
    "plot_layer_traces",
    "plot_marginal_against_boltzmann",
    "plot_measurement",
    "plot_noise_spectra",
    "plot_panel",
    "plot_phase_space",
    "plot_temperatures",
    "plot_trajectories",
    "write_animation",
    "write_figure",
]
