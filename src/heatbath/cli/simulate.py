"""`heatbath simulate`: SGD on a landscape, in pictures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from heatbath.cli.progress import display, follow_fraction
from heatbath.cli.screens import console, folder_option, print_table
from heatbath.system.folders import check_folder
from heatbath.thermostat import Thermostat


def simulate_landscape(
    landscape: Annotated[
        str, typer.Option(help="The loss, such as double-well:0.2:2, quadratic:1 or, in the plane, rosenbrock:10.")
    ] = "double-well",
    lr: Annotated[
        float | None, typer.Option(help="The mean learning rate; by default 0.005, in the plane 0.0002.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Samples in a mini-batch.")] = 16,
    momentum: Annotated[float, typer.Option(help="The momentum, from 0 to below 1.")] = 0.95,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="Nesterov's form of the step.")] = False,
    law: Annotated[str, typer.Option(help="The law of the multiplier, such as uniform:1.")] = "uniform:1",
    coupling: Annotated[str, typer.Option(help="What the multiplier acts on: gradient or update.")] = "gradient",
    dataset_size: Annotated[int | None, typer.Option(help="Samples, if drawn without replacement.")] = None,
    diffusion: Annotated[
        float | None, typer.Option(help="The variance of a sample's gradient; by default 24, in the plane 1200.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="How many steps of SGD to follow; by default 1500, in the plane 3000.")
    ] = None,
    trajectories: Annotated[int, typer.Option(help="How many trajectories make the histogram.")] = 20_000,
    seed: Annotated[int, typer.Option(help="Of the trajectories.")] = 0,
    out: Annotated[Path, folder_option("--out", "The folder for the pictures.")] = Path("out"),
) -> None:
    """Follow SGD on a landscape: its density, its trajectories and Boltzmann's weight, in pictures.

    On a line the density is one in phase space, of the Fokker-Planck equation; in the plane it is a histogram, and the
    stochastic equation is followed beside SGD.
    """
    check_folder(out, "--out")
    from heatbath.report import plots  # noqa: F401 - a missing extra is told before the work
    from heatbath.studies import plane_simulation, simulation
    from heatbath.theory.landscapes import parse_landscape

    loss = parse_landscape(simulation.DEFAULT_LANDSCAPE if landscape == "double-well" else landscape)
    if loss.dimension > 2:
        raise ValueError(f"--landscape {landscape} has {loss.dimension} dimensions: pictures need one or two")
    simulate: Any = simulation.simulate
    write: Any = simulation.write_simulation
    usual, print_numbers, share = simulation.DEFAULT_KNOBS, _print_line, 0.6  # of the time, before the pictures
    if loss.dimension == 2:
        simulate, write = plane_simulation.simulate_plane, plane_simulation.write_plane_simulation
        usual, print_numbers, share = plane_simulation.DEFAULT_KNOBS, _print_plane, 0.8
    knobs = Thermostat(usual.lr if lr is None else lr, batch_size, momentum, nesterov, law, coupling, dataset_size)
    given = {"diffusion": diffusion, "steps": steps, "trajectories": trajectories, "seed": seed}
    asked = {name: value for name, value in given.items() if value is not None}
    with display(log=False) as shown:
        report = follow_fraction(shown)
        found = simulate(knobs, loss, **asked, progress=lambda done, what: report(share * done, what))
        files = write(found, out, lambda done, what: report(share + (1.0 - share) * done, what))
    numbers = found.summary
    console().print(
        f"{numbers['landscape']} at temperature {numbers['temperature']:.4g}, after {numbers['steps']} steps"
    )
    print_numbers(numbers)
    for file in files:
        console().print(f"wrote {file}")


def _print_line(numbers: Mapping[str, Any]) -> None:
    kinds = {"sgd": "SGD", "fokker_planck": "Fokker-Planck", "boltzmann": "Boltzmann"}
    rows = [
        (name, *(f"{numbers[key][kind]:.4f}" for kind in kinds))
        for key, name in (("position_mean", "mean"), ("position_variance", "variance"))
    ]
    print_table(("position", *kinds.values()), rows)
    screen = console()
    screen.print(f"\nHistogram of SGD against Fokker-Planck: {_distance(numbers['histogram_distance'])}")
    screen.print(f"Fokker-Planck against equilibrium: distance {numbers['distance_to_equilibrium']:.4f}.")


def _print_plane(numbers: Mapping[str, Any]) -> None:
    kinds = {"sgd": "SGD", "langevin": "equation", "boltzmann": "Boltzmann"}
    kinds = {kind: name for kind, name in kinds.items() if numbers["loss_mean"][kind] is not None}
    rows = [
        (f"{name} of {axis}", *(f"{numbers[key][kind][index]:.4f}" for kind in kinds))
        for key, name in (("position_mean", "mean"), ("position_variance", "variance"))
        for index, axis in enumerate("xy")
    ]
    rows.append(("mean loss", *(f"{numbers['loss_mean'][kind]:.4f}" for kind in kinds)))
    print_table(("position", *kinds.values()), rows)
    screen, distances = console(), numbers["histogram_distance"]
    screen.print(f"\nHistogram of SGD against the equation: {_distance(distances['sgd_to_langevin'])}")
    if distances["sgd_to_boltzmann"] is not None:
        screen.print(f"Histogram of SGD against Boltzmann: {_distance(distances['sgd_to_boltzmann'])}")


def _distance(distance: Mapping[str, float]) -> str:
    return (
        f"distance {distance['found']:.4f}; sampling alone makes "
        f"{distance['expected_from_sampling']:.4f} ± {distance['standard_deviation']:.4f}."
    )
