"""`heatbath measure`: the gradient noise and the temperature of a network in training."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heatbath.cli.progress import display, follow_fraction
from heatbath.cli.screens import check_data_dir, console, either, folder_option, print_table, write
from heatbath.cli.training import DataOption
from heatbath.data.image_sets import DATASETS
from heatbath.system.folders import check_folder
from heatbath.system.machine import choose_device
from heatbath.tasks.registry import networks
from heatbath.thermostat import Thermostat

if TYPE_CHECKING:
    from heatbath.studies.measurement import Measurement

_HEADINGS = (
    *("after epoch", "accuracy", "|g|^2", "tr S1", "noise scale", "effective rank", "along g / mean"),
    "dropped term",
)


def measure_network(
    model: Annotated[str, typer.Option(help=f"{either(networks())}.")] = "mlp",
    dataset: Annotated[str, typer.Option(help=f"{either(DATASETS)}.")] = "mnist5k",
    lr: Annotated[float, typer.Option(help="The mean learning rate.")] = 0.01,
    batch_size: Annotated[int, typer.Option(help="Samples in a mini-batch.")] = 64,
    momentum: Annotated[float, typer.Option(help="The momentum, from 0 to below 1.")] = 0.9,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="Nesterov's form of the step.")] = False,
    law: Annotated[str, typer.Option(help="The law of the multiplier, such as uniform:1.")] = "uniform:1",
    coupling: Annotated[str, typer.Option(help="What the multiplier acts on: gradient or update.")] = "gradient",
    weight_decay: Annotated[float, typer.Option(help="Part of the gradient, as in SGD.")] = 0.0,
    epochs: Annotated[int, typer.Option(help="How long to train.")] = 20,
    at_epoch: Annotated[list[int] | None, typer.Option(help="Measure the noise after this epoch; repeat.")] = None,
    samples: Annotated[int, typer.Option(help="Training images that the noise is measured on.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of weights, order and multipliers.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    data_dir: DataOption = None,
    out: Annotated[Path, folder_option("--out", "The folder for the picture and the numbers.")] = Path("out"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
) -> None:
    """Train a network and measure its gradient noise, its temperature and whether it is at equilibrium."""
    check_folder(out, "--out")
    check_data_dir(data_dir)
    knobs = Thermostat(lr, batch_size, momentum, nesterov, law, coupling)
    if batch_size < 2:
        raise ValueError(f"--batch-size must be at least 2 to measure noise, got {batch_size}")
    if samples < 4:
        raise ValueError(f"--samples must be at least 4 to measure noise, got {samples}")
    device = choose_device(device)
    from heatbath.report import plots  # noqa: F401 - a missing extra is told before the training, not after it
    from heatbath.studies import measurement

    with display() as shown:
        found = measurement.measure_training(
            knobs,
            model,
            dataset,
            epochs=epochs,
            at_epochs=at_epoch or None,
            weight_decay=weight_decay,
            samples=samples,
            seed=seed,
            device=device,
            data_dir=data_dir,
            progress=follow_fraction(shown),
        )
    files = measurement.write_measurement(found, out)
    if as_json:
        write(json.dumps(measurement.describe(found), indent=2))
        return
    _print_measurement(found, knobs)
    for file in files:
        console().print(f"wrote {file}")


def _print_measurement(found: Measurement, knobs: Thermostat) -> None:
    rows = []
    for epoch, noise in found.noises.items():
        parts = noise.covariance_trace(knobs.law, knobs.batch_size, found.settings["dataset_size"])
        along = noise.along() * noise.dimension / noise.trace if noise.trace else math.nan
        rows.append(
            (
                *(str(epoch), f"{found.accuracies[epoch]:.4f}", _two_digits(noise.gradient_norm_squared)),
                _with_error(noise.trace, noise.trace_error),
                _two_digits(noise.noise_scale),
                _with_error(noise.effective_rank, noise.effective_rank_error),
                _two_digits(along),
                f"{_two_digits(100 * parts.dropped_fraction)} %",
            )
        )
    last = found.history[-1] if found.history else {}
    screen = console()
    screen.print("{model} on {dataset}, noise of {samples} samples, {device}".format(**found.settings))
    print_table(_HEADINGS, rows, left=0)
    screen.print("\nalong g / mean: the noise along the gradient over that along an average direction, 1 if isotropic.")
    screen.print("dropped term: the share of s2 g g^T, which the paper leaves out, in the noise of a step.")
    if last.get("temperature") is not None:
        screen.print(
            f"At the end: temperature {last['temperature']:.3g} from the noise, {last['kinetic_temperature']:.3g} from "
            f"the velocity; equilibrium ratio {_interval(last)}"
        )


def _interval(reading: dict[str, Any]) -> str:
    value, low, high = (reading[f"equilibrium_{key}"] for key in ("ratio", "low", "high"))
    if value is None:
        return "not known yet"
    return f"{value:.3g}" + ("" if low is None else f" (95 %: {low:.3g} to {high:.3g})")


def _two_digits(value: float) -> str:
    """A number whose error is not known, but seldom below some percent."""
    return f"{float(f'{value:.2g}'):g}"


def _with_error(value: float, error: float) -> str:
    """A number with its standard error, where that is known."""
    from heatbath.stats.intervals import known_digits

    if math.isnan(error):
        return f"{value:.4g}"
    return f"{value:{known_digits(error)}} ± {error:{known_digits(error)}}"
