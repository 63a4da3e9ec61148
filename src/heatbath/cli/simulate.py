"""`heatbath simulate`: SGD on a landscape, in pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heatbath.cli.progress import display, follow_fraction
from heatbath.cli.screens import check_folder, console, print_table
from heatbath.thermostat import Thermostat


def simulate_landscape(
    landscape: Annotated[str, typer.Option(help="The loss, such as double-well:0.2:2 or quadratic:1.")] = "double-well",
    lr: Annotated[float, typer.Option(help="The mean learning rate.")] = 0.005,
    batch_size: Annotated[int, typer.Option(help="Samples in a mini-batch.")] = 16,
    momentum: Annotated[float, typer.Option(help="The momentum, from 0 to below 1.")] = 0.95,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="Nesterov's form of the step.")] = False,
    law: Annotated[str, typer.Option(help="The law of the multiplier, such as uniform:1.")] = "uniform:1",
    coupling: Annotated[str, typer.Option(help="What the multiplier acts on: gradient or update.")] = "gradient",
    dataset_size: Annotated[int | None, typer.Option(help="Samples, if drawn without replacement.")] = None,
    diffusion: Annotated[float, typer.Option(help="The variance of a sample's gradient.")] = 24.0,
    steps: Annotated[int, typer.Option(help="How many steps of SGD to follow.")] = 1500,
    trajectories: Annotated[int, typer.Option(help="How many trajectories make the histogram.")] = 20_000,
    seed: Annotated[int, typer.Option(help="Of the trajectories.")] = 0,
    out: Annotated[Path, typer.Option(help="The folder for the pictures.")] = Path("out"),
) -> None:
    """Follow SGD on a landscape: its density in phase space, its trajectories and Boltzmann's weight, in pictures."""
    check_folder(out, "--out")
    knobs = Thermostat(lr, batch_size, momentum, nesterov, law, coupling, dataset_size)
    from heatbath import plots, simulation  # noqa: F401 - a missing extra is told before the work, not after it

    landscape = simulation.DEFAULT_LANDSCAPE if landscape == "double-well" else landscape
    with display(log=False) as shown:
        report = follow_fraction(shown)
        found = simulation.simulate(
            knobs,
            landscape,
            diffusion=diffusion,
            steps=steps,
            trajectories=trajectories,
            seed=seed,
            progress=lambda done, what: report(0.6 * done, what),
        )
        files = simulation.write_simulation(found, out, lambda done, what: report(0.6 + 0.4 * done, what))
    numbers = found.summary
    kinds = {"sgd": "SGD", "fokker_planck": "Fokker-Planck", "boltzmann": "Boltzmann"}
    rows = [
        (name, *(f"{numbers[key][kind]:.4f}" for kind in kinds))
        for key, name in (("position_mean", "mean"), ("position_variance", "variance"))
    ]
    distance = numbers["histogram_distance"]
    screen = console()
    screen.print(f"{numbers['landscape']} at temperature {numbers['temperature']:.4g}, after {numbers['steps']} steps")
    print_table(("position", *kinds.values()), rows)
    screen.print(
        f"\nHistogram of SGD against Fokker-Planck: distance {distance['found']:.4f}; sampling alone makes "
        f"{distance['expected_from_sampling']:.4f} ± {distance['standard_deviation']:.4f}."
    )
    screen.print(f"Fokker-Planck against equilibrium: distance {numbers['distance_to_equilibrium']:.4f}.")
    for file in files:
        screen.print(f"wrote {file}")
