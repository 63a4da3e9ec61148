"""`heatbath simulate`: SGD on a landscape, in pictures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from heatbath.cli.screens import Answer, print_table, say
from heatbath.engine.progress_bar import display
from heatbath.system.whole_files import check_folder
from heatbath.thermostat import Thermostat


def simulate_landscape(
    landscape: str = "double-well",
    lr: Annotated[float | None, "Mean learning rate; by default 0.005, in two dimensions 0.0002."] = None,
    batch_size: int = 16,
    momentum: float = 0.95,
    nesterov: bool = False,
    law: str = "uniform:1",
    coupling: str = "gradient",
    dataset_size: int | None = None,
    diffusion: Annotated[
        float | None, "Variance of the gradient of one sample; by default 24, in two dimensions 1200."
    ] = None,
    steps: int | None = None,
    trajectories: int = 20_000,
    seed: Annotated[int, "Seed of the trajectories."] = 0,
    out: Path = Path("out"),
) -> Answer:
    """Simulate SGD on a loss landscape, and plot its trajectories, its density and the Boltzmann distribution.

    In one dimension the density is also computed from the Fokker-Planck equation. In two dimensions it is a histogram,
    compared with a simulation of the stochastic differential equation.
    """
    check_folder(out, "--out")
    with display() as shown:
        from heatbath.report import plots  # noqa: F401 - a missing extra is told before the work
        from heatbath.studies import plane_simulation, simulation
        from heatbath.theory.landscapes import parse_landscape

        loss = parse_landscape(simulation.DEFAULT_LANDSCAPE if landscape == "double-well" else landscape)
        if loss.dimension > 2:
            raise ValueError(f"--landscape {landscape} has {loss.dimension} dimensions: pictures need one or two")
        simulate: Any = simulation.simulate
        write: Any = simulation.write_simulation
        usual, share = simulation.DEFAULT_KNOBS, 0.6  # of the time, before the pictures
        if loss.dimension == 2:
            simulate, write = plane_simulation.simulate_plane, plane_simulation.write_plane_simulation
            usual, share = plane_simulation.DEFAULT_KNOBS, 0.8
        knobs = Thermostat(usual.lr if lr is None else lr, batch_size, momentum, nesterov, law, coupling, dataset_size)
        given = {"diffusion": diffusion, "steps": steps, "trajectories": trajectories, "seed": seed}
        asked = {name: value for name, value in given.items() if value is not None}
        found = simulate(knobs, loss, **asked, progress=lambda done, what: shown.follow_fraction(share * done, what))
        files = write(found, out, lambda done, what: shown.follow_fraction(share + (1.0 - share) * done, what))
    numbers = found.summary

    def show() -> None:
        say(f"{numbers['landscape']} at temperature {numbers['temperature']:.4g}, after {numbers['steps']} steps")
        _show(numbers)
        say(*(f"wrote {file}" for file in files))

    return Answer({**numbers, "files": [str(file) for file in files]}, show)


def _show(numbers: Mapping[str, Any]) -> None:
    """Moments of the position, of both coordinates in the plane, and how far the histogram is from the theory."""
    names = {"sgd": "SGD", "fokker_planck": "Fokker-Planck", "langevin": "equation", "boltzmann": "Boltzmann"}
    losses, distances = numbers.get("loss_mean"), numbers["histogram_distance"]
    kinds = [kind for kind in names if (losses or numbers["position_mean"]).get(kind) is not None]
    rows = []
    for key, words in (("position_mean", "mean"), ("position_variance", "variance")):
        values = [numbers[key][kind] for kind in kinds]
        if losses is None:
            rows.append((words, *(f"{value:.4f}" for value in values)))
        else:
            rows += [(f"{words} of {axis}", *(f"{value[k]:.4f}" for value in values)) for k, axis in enumerate("xy")]
    if losses is not None:
        rows.append(("mean loss", *(f"{losses[kind]:.4f}" for kind in kinds)))
    print_table(("position", *(names[kind] for kind in kinds)), rows)
    say("")
    if losses is None:
        say(f"Histogram of SGD against Fokker-Planck: {_distance(distances)}")
        say(f"Fokker-Planck against equilibrium: distance {numbers['distance_to_equilibrium']:.4f}.")
        return
    for key, other in (("sgd_to_langevin", "the equation"), ("sgd_to_boltzmann", "Boltzmann")):
        if distances[key] is not None:
            say(f"Histogram of SGD against {other}: {_distance(distances[key])}")


def _distance(distance: Mapping[str, float]) -> str:
    made = f"{distance['expected_from_sampling']:.4f} ± {distance['standard_deviation']:.4f}"
    return f"distance {distance['found']:.4f}; sampling alone makes {made}."
