"""`heatbath measure`: the gradient noise and the temperature of a network in training."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heatbath.cli.screens import Answer, print_table, say
from heatbath.engine.progress_bar import display
from heatbath.system.machine import choose_device
from heatbath.system.whole_files import check_data_dir, check_folder
from heatbath.thermostat import Thermostat

if TYPE_CHECKING:
    from heatbath.studies.measurement import Measurement

_HEADINGS = (
    *("after epoch", "accuracy", "|g|^2", "tr S1", "noise scale", "effective rank", "along g / mean"),
    "dropped term",
)


def measure_network(
    model: str = "mlp",
    dataset: str = "mnist5k",
    lr: float = 0.01,
    batch_size: int = 64,
    momentum: float = 0.9,
    nesterov: bool = False,
    law: str = "uniform:1",
    coupling: str = "gradient",
    weight_decay: float = 0.0,
    epochs: int = 20,
    at_epoch: list[int] | None = None,
    samples: int = 1000,
    seed: int = 0,
    device: str = "auto",
    data_dir: Path | None = None,
    out: Path = Path("out"),
) -> Answer:
    """Train a network and measure its gradient noise, its temperature and whether it is at equilibrium."""
    check_folder(out, "--out")
    check_data_dir(data_dir, "--data-dir")
    knobs = Thermostat(lr, batch_size, momentum, nesterov, law, coupling)
    for name, value, least in (("--batch-size", batch_size, 2), ("--samples", samples, 4)):
        if value < least:
            raise ValueError(f"{name} must be at least {least} to measure noise, got {value}")
    with display() as shown:
        device = choose_device(device)
        from heatbath.report import plots  # noqa: F401 - a missing extra is told before the training, not after it
        from heatbath.studies import measurement

        settings: dict[str, Any] = {"epochs": epochs, "at_epochs": at_epoch or None, "weight_decay": weight_decay}
        settings |= {"samples": samples, "seed": seed, "device": device, "data_dir": data_dir}
        found = measurement.measure_training(knobs, model, dataset, **settings, progress=shown.follow_fraction)
    files = measurement.write_measurement(found, out)

    def show() -> None:
        _show(found, knobs)
        say(*(f"wrote {file}" for file in files))

    return Answer(measurement.describe(found), show)


def _show(found: Measurement, knobs: Thermostat) -> None:
    rows = []
    for epoch, noise in found.noises.items():
        parts = noise.covariance_trace(knobs.law, knobs.batch_size, found.settings["dataset_size"])
        along = noise.along() * noise.dimension / noise.trace if noise.trace else math.nan
        rows.append(
            (
                *(str(epoch), f"{found.accuracies[epoch]:.4f}", _two_digits(noise.gradient_norm_squared)),
                *(_with_error(noise.trace, noise.trace_error), _two_digits(noise.noise_scale)),
                *(_with_error(noise.effective_rank, noise.effective_rank_error), _two_digits(along)),
                f"{_two_digits(100 * parts.dropped_fraction)} %",
            )
        )
    say("{model} on {dataset}, noise of {samples} samples, {device}".format(**found.settings))
    print_table(_HEADINGS, rows, left=0)
    say(
        "\nalong g / mean: the noise along the gradient over that along an average direction, 1 if isotropic.",
        "dropped term: the share of s2 g g^T, which the paper leaves out, in the noise of a step.",
    )
    last = found.history[-1] if found.history else {}
    if last.get("temperature") is not None:
        say(
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
