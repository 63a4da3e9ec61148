"""What `heatbath measure` does: train one of the paper's networks and measure its noise and temperature on the way."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heatbath.data.datasets import Dataset, epoch_order, load_dataset, permutation
from heatbath.draws import Stream, check_integer
from heatbath.optim.random_sgd import RandomSGD
from heatbath.studies.ensembles import OnFraction, describe_knobs
from heatbath.system.whole_files import check_data_dir, write_together
from heatbath.tasks.models import build_model
from heatbath.tasks.registry import check_images
from heatbath.thermometry.logs import Reading
from heatbath.thermometry.noise import GradientNoise, measure_noise
from heatbath.thermometry.thermometer import Thermometer
from heatbath.thermostat import Thermostat


@dataclass(frozen=True, eq=False)
class Measurement:
    """What a training told of its noise."""

    noises: dict[int, GradientNoise]  # of the gradient, by the epoch at which they were measured
    history: list[Reading]  # the readings of the `Thermometer`
    accuracies: list[float]  # on the test images after each epoch; the first before any
    settings: dict[str, Any]  # what was run, ready for JSON


def measure_training(
    knobs: Thermostat,
    model: str = "mlp",
    dataset: str = "mnist5k",
    *,
    epochs: int = 20,
    at_epochs: Sequence[int] | None = None,
    weight_decay: float = 0.0,
    samples: int = 1000,
    readings: int = 60,
    seed: int = 0,
    device: str = "cpu",
    data_dir: str | os.PathLike[str] | None = None,
    progress: OnFraction | None = None,
) -> Measurement:
    """Train, and return the gradient noise at some epochs and the thermometer's readings in between.

    The noise is measured on some training ``samples``, by default before the first epoch, in the middle and at the end.
    """
    report = progress or (lambda _fraction, _message: None)
    check_images(model, dataset)
    for name, count, limit in (("epochs", epochs, 2**20), ("samples", samples, 2**31), ("readings", readings, 2**31)):
        check_integer(name, count, limit, least=1)
    wanted = sorted({0, epochs // 2, epochs} if at_epochs is None else set(at_epochs))
    if not wanted or wanted[0] < 0 or wanted[-1] > epochs:
        raise ValueError(f"at_epochs must lie between 0 and epochs = {epochs}, got {list(wanted)}")
    check_data_dir(data_dir)
    data = load_dataset(dataset, device=device, data_dir=data_dir)
    network = build_model(model, seed=seed, device=device)
    dataset_size = len(data.train_images)
    for name, count in (("batch_size", knobs.batch_size), ("samples", samples)):
        if count > dataset_size:
            raise ValueError(f"{name} = {count} is more than the {dataset_size} training images")
    own: dict[str, Any] = {"momentum": knobs.momentum, "nesterov": knobs.nesterov, "coupling": knobs.coupling}
    own |= {"law": knobs.law, "weight_decay": weight_decay, "seed": seed}
    optimizer = RandomSGD(network.parameters(), knobs.lr, **own)
    interval = max(1, epochs * (dataset_size // knobs.batch_size) // readings)
    thermometer = Thermometer(network, optimizer, interval=interval, dataset_size=dataset_size)
    chosen = torch.from_numpy(permutation(dataset_size, seed, Stream.CHOICE)[:samples].copy()).to(device)
    subset = data.normalize(data.train_images[chosen]), data.train_labels[chosen]
    noises: dict[int, GradientNoise] = {}
    accuracies = [_accuracy(network, data)]
    for epoch in range(epochs + 1):
        if epoch:
            for x, y in _batches(data, knobs.batch_size, epoch, seed):
                _step(network, optimizer, thermometer, x, y, epoch)
            accuracies.append(_accuracy(network, data))
        if epoch in wanted:
            report(epoch / (epochs + 1), "gradient noise")
            noises[epoch] = measure_noise(network, nn.functional.cross_entropy, *subset, seed=seed)
        report((epoch + 1) / (epochs + 1), "training")
    settings = {**describe_knobs(knobs), "model": model, "dataset": dataset, "epochs": epochs, "seed": seed}
    settings |= {"weight_decay": weight_decay, "samples": len(chosen), "dataset_size": dataset_size, "device": device}
    return Measurement(noises, thermometer.history, accuracies, settings)


def write_measurement(measurement: Measurement, folder: str | Path) -> list[Path]:
    """Write ``measure.json`` and ``measure.png`` into ``folder`` and return them; they appear when both are whole."""
    from heatbath.report import plots

    m = measurement
    figure = plots.plot_measurement(
        spectra={epoch: noise.spectrum for epoch, noise in m.noises.items()},
        layer_traces={epoch: noise.layer_traces for epoch, noise in m.noises.items()},
        history=m.history,
        title=title(m.settings),
    )

    def draw(pending: Path) -> None:
        figure.savefig(pending / "measure.png", dpi=150)
        (pending / "measure.json").write_text(json.dumps(describe(measurement), indent=1) + "\n")

    return write_together(folder, draw)


def describe(measurement: Measurement) -> dict[str, Any]:
    """The measurement in plain types, for JSON."""
    return {
        "settings": measurement.settings,
        "noise": {str(epoch): _describe_noise(noise) for epoch, noise in measurement.noises.items()},
        "test_accuracy": measurement.accuracies,
        "readings": measurement.history,
    }


def title(settings: dict[str, Any]) -> str:
    """Return the knobs of a run as one line, without those that change nothing."""
    parts = [f"lr {settings['lr']:g}", f"batch {settings['batch_size']}", f"momentum {settings['momentum']:g}"]
    parts += ["Nesterov"] if settings["nesterov"] else []
    parts += [settings["law"]] + (["coupling update"] if settings["coupling"] == "update" else [])
    parts += [f"weight decay {settings['weight_decay']:g}"] if settings["weight_decay"] else []
    return f"{settings['model']} on {settings['dataset']}: {', '.join(parts)}"


def _describe_noise(noise: GradientNoise) -> dict[str, Any]:
    uncertain = ("trace_error", "noise_scale", "effective_rank", "effective_rank_error")
    found = {name: getattr(noise, name) for name in uncertain}
    return {
        "gradient_norm_squared": noise.gradient_norm_squared,
        "trace": noise.trace,
        **{name: value if math.isfinite(value) else None for name, value in found.items()},
        "along_gradient": noise.along(),
        "layer_traces": noise.layer_traces,
        "spectrum": noise.spectrum[:64].tolist(),
        "method": noise.method,
    }


def _step(network: nn.Module, optimizer: RandomSGD, thermometer: Thermometer, x: Tensor, y: Tensor, epoch: int) -> None:
    optimizer.zero_grad()
    thermometer.observe(nn.functional.cross_entropy, x, y)
    loss = nn.functional.cross_entropy(network(x), y)
    if not torch.isfinite(loss):
        rate = optimizer.param_groups[0]["lr"]
        raise FloatingPointError(f"the loss is {loss.item()} in epoch {epoch}: lr = {rate:g} is too large")
    loss.backward()
    optimizer.step()


def _batches(data: Dataset, size: int, epoch: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Shuffled mini-batches of one epoch, all of one size: what is left over sits out."""
    order = torch.from_numpy(epoch_order(len(data.train_images), seed, epoch)).to(data.device)
    for rows in order[: len(order) // size * size].split(size):
        yield data.normalize(data.train_images[rows]), data.train_labels[rows]


@torch.no_grad()
def _accuracy(network: nn.Module, data: Dataset) -> float:
    was_training = network.training
    network.eval()
    hits = [
        (network(data.normalize(images)).argmax(1) == labels).sum().item()
        for images, labels in zip(data.test_images.split(1000), data.test_labels.split(1000), strict=True)
    ]
    network.train(was_training)
    return float(sum(hits)) / len(data.test_labels)
