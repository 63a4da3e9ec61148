"""Experiment 4 of docs/preregistration.md: is the gradient noise Gaussian, as the paper assumes?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from heatbath.paper.claims import near
from heatbath.paper.experiments import Calculation, Experiment, ProgressCallback
from heatbath.paper.groups import FigureRuns, Scale
from heatbath.report.panels import Panel, Series
from heatbath.stats.verdicts import Judgeable

KURTOSIS_MARGIN = 0.3  # of the excess kurtosis, which is 0 for a Gaussian and 3 for a Laplace law
TAIL, TAIL_MARGIN = 0.0027, 0.00135  # beyond three standard deviations: within half of a Gaussian's
_KINDS = ("random", "largest")
_NETWORKS: dict[str, dict[str, Any]] = {
    "perceptron": {"model": "mlp", "dataset": "mnist", "lr": 5e-3, "weight_decay": 0.0, "steps": 11_700},
    "CNN": {"model": "cnn", "dataset": "mnist", "lr": 5e-3, "weight_decay": 1e-3, "steps": 468},
    "VGG16": {"model": "vgg16", "dataset": "cifar10", "lr": 5e-4, "weight_decay": 1e-3, "steps": 1950},
}
_SAMPLES = {"perceptron": 10_000, "CNN": 4000, "VGG16": 2000}
_SECONDS = {"perceptron": 60.0, "CNN": 2400.0, "VGG16": 20_000.0}  # on one core of a CPU


def measure_shapes(
    settings: Mapping[str, Any], *, device: str, data_dir: Any, progress: ProgressCallback
) -> dict[str, Any]:
    """Train a network for some steps; return the shape of its noise along directions, before and after."""
    import torch
    from torch.nn import functional

    from heatbath.data.datasets import epoch_order, load_dataset
    from heatbath.studies.noise_shape import Projections, describe_shape
    from heatbath.tasks.models import build_model

    data = load_dataset(settings["dataset"], device=device, data_dir=data_dir)
    model = build_model(settings["model"], seed=settings["seed"], device=device).eval()  # without dropout throughout
    knobs = {name: settings[name] for name in ("lr", "momentum", "nesterov", "weight_decay")}
    optimizer = torch.optim.SGD(model.parameters(), **knobs)
    some = slice(settings["samples"])
    subset = data.normalize(data.train_images[some]), data.train_labels[some]
    generator = torch.Generator().manual_seed(settings["seed"])
    found: dict[str, Any] = {}

    def measure(when: str) -> None:
        projections = Projections(model, *subset)
        directions = {"random": [projections.random(generator) for _ in range(settings["random"])]}
        directions["largest"] = projections.largest(settings["largest"], settings["rounds"], generator)
        for kind, several in directions.items():
            shapes = [
                describe_shape(projections.along(one), settings["noise_batch_size"], settings["batches"], k)
                for k, one in enumerate(several)
            ]
            found[f"{kind}, {when}"] = {name: [getattr(s, name) for s in shapes] for name in vars(shapes[0])}

    measure("start")
    taken, epoch, size = 0, 0, settings["batch_size"]
    while taken < settings["steps"]:
        order = torch.from_numpy(epoch_order(len(data.train_images), settings["seed"], epoch)).to(device)
        epoch += 1
        for rows in order[: len(order) // size * size].split(size)[: settings["steps"] - taken]:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(data.normalize(data.train_images[rows])), data.train_labels[rows])
            loss.backward()
            optimizer.step()
            taken += 1
            progress(0.3 + 0.4 * taken / settings["steps"], settings["model"])
    measure("trained")
    return found


def _calculation(scale: Scale, network: str) -> Calculation:
    settings = {**_NETWORKS[network], "kind": "noise shape", "format": 1, "batch_size": 256, "momentum": 0.9}
    settings |= {"nesterov": True, "seed": 0, "samples": _SAMPLES[network], "random": 12, "largest": 4, "rounds": 8}
    settings |= {"noise_batch_size": 30, "batches": 20_000}  # the smallest batch of the paper
    if scale != "paper":
        settings |= {"dataset": "mnist5k", "steps": 60, "samples": 500, "batches": 2000, "rounds": 3}
    return Calculation(network, settings, measure_shapes, _SECONDS[network] if scale == "paper" else 5.0)


def _networks(scale: Scale) -> Sequence[str]:
    return list(_NETWORKS) if scale == "paper" else list(_NETWORKS)[:1]


def _shapes(found: FigureRuns, network: str, kind: str, what: str, when: str = "trained") -> list[float]:
    result = found.results.get(_calculation(found.scale, network).name, {})
    return list(result.get(f"{kind}, {when}", {}).get(what, ()))


def _claims(found: FigureRuns) -> list[Judgeable]:
    claims = []
    for network in _networks(found.scale):
        for kind in _KINDS:
            where = "random directions" if kind == "random" else "the directions in which it is largest"
            said = f"{network}: along {where} the noise of a batch of 30 is Gaussian,"
            shape = f"{said} its excess kurtosis is 0"
            tail = f"{said} three standard deviations are passed as often"
            values = _shapes(found, network, kind, "batch_kurtosis"), _shapes(found, network, kind, "tail")
            claims.append(near(shape, values[0], 0.0, KURTOSIS_MARGIN, per_seed=False))
            claims.append(near(tail, values[1], TAIL, TAIL_MARGIN, per_seed=False))
    return claims


def _panels(found: FigureRuns) -> list[Panel]:
    panels = []
    for what, axis in (("sample_kurtosis", "excess kurtosis of one sample"), ("tail", "share beyond 3 deviations")):
        series = []
        for colour, kind in enumerate(_KINDS):
            points = [
                (f"{network}, {when}", value)
                for network in _networks(found.scale)
                for when in ("start", "trained")
                for value in _shapes(found, network, kind, what, when)
            ]
            if points:
                x, y = zip(*points, strict=True)
                series.append(Series(f"{kind} directions", x, y, style="points", colour=colour))
        if series:
            note = "A point for each direction. A batch of C samples has the C-th part of the excess kurtosis."
            panels.append(Panel(axis.capitalize(), "", axis, tuple(series), note=note))
    return panels


EXPERIMENT = Experiment(
    name="gaussian-noise",
    title="Is the gradient noise Gaussian?",
    question=(
        "The stochastic equation supposes that the noise of a mini-batch is Gaussian. Is it, along random directions "
        "and along those in which it is largest?"
    ),
    calculations=lambda scale: [_calculation(scale, network) for network in _networks(scale)],
    claims=_claims,
    panels=_panels,
    in_parts=True,
    remarks=lambda _scale: {"noise": "of a batch of 30, drawn with replacement; trained at C = 256; dropout is off"},
)
