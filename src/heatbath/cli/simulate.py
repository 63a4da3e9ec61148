"""`heatbath simulate`: SGD on a landscape, in pictures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from heatbath.cli.progress import display, follow_fraction
from heatbath.cli.screens import Answer, print_table, say
from heatbath.system.folders import check_folder
from heatbath.thermostat import Thermostat


def simulate_landscape(
    landscape: str = "double-well",
    lr: Annotated[float | None, "The mean learning rate; by default 0.005, in the plane 0.0002."] = None,
    batch_size: int = 16,
    momentum: float = 0.95,
    nesterov: bool = False,
    law: str = "uniform:1",
    coupling: str = "gradient",
    dataset_size: int | None = None,
    diffusion: Annotated[float | None, "The variance of a sample's gradient; by default 24, in the plane 1200."] = None,
    steps: int | None = None,
    trajectories: int = 20_000,
    seed: Annotated[int, "Of the trajectories."] = 0,
    out: Path = Path("out"),
) -> Answer:
    """Follow SGD on a landscape: its density, its trajectories and Boltzmann's weight, in pictures.

    On a line the density is one in phase space, of the Fokker-Planck equation; in the plane it is a histogram, and the
    stochastic equation is followed beside SGD.
    """
    check_folder(out, "--out")
    with display() as shown:
        report = follow_fraction(shown)
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
        found = simulate(knobs, loss, **asked, progress=lambda done, what: report(share * done, what))
        files = write(found, out, lambda done, what: report(share + (1.0 - share) * done, what))
    numbers = found.summary

    def show() -> None:
        say(f"{numbers['landscape']} at temperature {numbers['temperature']:.4g}, after {numbers['steps']} steps")
        (_show_line if loss.dimension == 1 else _show_plane)(numbers)
        say(*(f"wrote {file}" for file in files))

    return Answer({**numbers, "files": [str(file) for file in files]}, show)


def _show_line(numbers: Mapping[str, Any]) -> None:
    kinds = {"sgd": "SGD", "fokker_planck": "Fokker-Planck", "boltzmann": "Boltzmann"}
    rows = [
        (name, *(f"{numbers[key][kind]:.4f}" for kind in kinds))
        for key, name in (("position_mean", "mean"), ("position_variance", "variance"))
    ]
    print_table(("position", *kinds.values()), rows)
    say(f"\nHistogram of SGD against Fokker-Planck: {_distance(numbers['histogram_distance'])}")
    say(f"Fokker-Planck against equilibrium: distance {numbers['distance_to_equilibrium']:.4f}.")


def _show_plane(numbers: Mapping[str, Any]) -> None:
    kinds = {"sgd": "SGD", "langevin": "equation", "boltzmann": "Boltzmann"}
    kinds = {kind: name for kind, name in kinds.items() if numbers["loss_mean"][kind] is not None}
    rows = [
        (f"{name} of {axis}", *(f"{numbers[key][kind][index]:.4f}" for kind in kinds))
        for key, name in (("position_mean", "mean"), ("position_variance", "variance"))
        for index, axis in enumerate("xy")
    ]
    rows.append(("mean loss", *(f"{numbers['loss_mean'][kind]:.4f}" for kind in kinds)))
    print_table(("position", *kinds.values()), rows)
    distances = numbers["histogram_distance"]
    say(f"\nHistogram of SGD against the equation: {_distance(distances['sgd_to_langevin'])}")
    if distances["sgd_to_boltzmann"] is not None:
        say(f"Histogram of SGD against Boltzmann: {_distance(distances['sgd_to_boltzmann'])}")


def _distance(distance: Mapping[str, float]) -> str:
    made = f"{distance['expected_from_sampling']:.4f} ± {distance['standard_deviation']:.4f}"
    return f"distance {distance['found']:.4f}; sampling alone makes {made}."
