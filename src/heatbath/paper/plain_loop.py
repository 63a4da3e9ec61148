"""Experiment 5 of docs/preregistration.md: the engine ends where a plain PyTorch loop does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from heatbath.paper.claims import accuracy_margin
from heatbath.paper.experiments import Calculation, Experiment, ProgressCallback
from heatbath.paper.groups import FigureRuns, Group, Scale, cnn, perceptron, vgg16
from heatbath.paper.quantities import FINAL_TEST
from heatbath.report.panels import Panel, Series
from heatbath.runs.configs import RunConfig
from heatbath.stats.verdicts import Claim, Judgeable

SEEDS: dict[str, int] = {"perceptron": 20, "CNN": 10, "VGG16": 6}
_SMOKE_SEEDS = 2
_SECONDS = {"perceptron": 60.0, "CNN": 150.0, "VGG16": 520.0}  # of one plain run on a GPU


def train_plainly(
    settings: Mapping[str, Any], *, device: str, data_dir: Any, progress: ProgressCallback
) -> dict[str, Any]:
    """Train one network with whole layers and `torch.optim.SGD`, and return its final test accuracy."""
    import torch
    from torch.nn import functional

    from heatbath.data.datasets import load_dataset
    from heatbath.runs.protocols import parse_protocol
    from heatbath.tasks.models import build_model

    data = load_dataset(settings["dataset"], device=device, data_dir=data_dir)
    model = build_model(settings["model"], seed=settings["seed"], device=device)
    optimizer = torch.optim.SGD(
        model.parameters(),
        settings["lr"],
        momentum=settings["momentum"],
        nesterov=settings["nesterov"],
        weight_decay=settings["weight_decay"],
    )
    protocol, law = parse_protocol(settings["protocol"]), RunConfig(protocol=settings["protocol"]).law
    generator = torch.Generator(device).manual_seed(settings["seed"])
    train_images, test_images = data.normalize(data.train_images), data.normalize(data.test_images)
    with torch.random.fork_rng(devices=[device] if device != "cpu" else []):  # dropout draws from the global state
        torch.manual_seed(settings["seed"])
        precision = torch.get_float32_matmul_precision()
        if device != "cpu":
            torch.set_float32_matmul_precision("high")  # tf32
        try:
            for epoch in range(settings["epochs"]):
                progress(epoch / settings["epochs"], "")
                rate = settings["lr"] * float(protocol.multipliers(law, 0, epoch, 1)[0])
                for group in optimizer.param_groups:
                    group["lr"] = rate
                model.train()
                order = torch.randperm(len(train_images), generator=generator, device=device)
                for batch in order.split(settings["batch_size"]):
                    optimizer.zero_grad()
                    functional.cross_entropy(model(train_images[batch]), data.train_labels[batch]).backward()
                    optimizer.step()
        finally:
            if device != "cpu":
                torch.set_float32_matmul_precision(precision)
    model.eval()
    with torch.no_grad():
        parts = zip(test_images.split(1000), data.test_labels.split(1000), strict=True)
        hits = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in parts)
    return {"test_accuracy": hits / len(test_images)}


def _groups(scale: Scale) -> Sequence[Group]:
    if scale != "paper":
        seeds = _SMOKE_SEEDS if scale == "smoke" else 6
        return [Group("constant", perceptron(scale, protocol="constant"), seeds, 0, "perceptron")]
    configs = {
        "perceptron": [perceptron(scale, protocol="constant")],
        "CNN": [cnn(protocol="constant")],
        "VGG16": [vgg16(protocol="constant"), vgg16(protocol="cyclic:18")],
    }
    return [
        Group(str(config.protocol), config, SEEDS[part], colour, part)
        for part, several in configs.items()
        for colour, config in enumerate(several)
    ]


def _plain(group: Group) -> list[Calculation]:
    names = ("model", "dataset", "lr", "batch_size", "momentum", "nesterov", "weight_decay", "epochs")
    common = {name: getattr(group.config, name) for name in names} | {"protocol": str(group.config.protocol)}
    kind = {"kind": "plain loop", "format": 1}
    seconds = _SECONDS[group.part] * group.config.epochs / 180.0
    return [
        Calculation(f"{group.name}, seed {seed}", {**kind, **common, "seed": seed}, train_plainly, seconds)
        for seed in range(group.seeds)
    ]


def _accuracies(found: FigureRuns, group: Group) -> list[float]:
    results = (found.results.get(calculation.name) for calculation in _plain(group))
    return [result["test_accuracy"] for result in results if result is not None]


def _claims(found: FigureRuns) -> list[Judgeable]:
    return [
        Claim(
            f"{group.name}: the engine and a plain loop reach the same final test accuracy",
            "equal",
            found.values(group, FINAL_TEST),
            _accuracies(found, group),
            accuracy_margin(group),
        )
        for group in found.groups
    ]


def _panels(found: FigureRuns) -> list[Panel]:
    panels = []
    for part in found.parts:
        series = []
        for group in found.part(part):
            both = {"engine": found.values(group, FINAL_TEST), "plain loop": _accuracies(found, group)}
            series += [
                Series(
                    f"{group.label}, {way}", (way,) * len(values), tuple(values), style="points", colour=group.colour
                )
                for way, values in both.items()
                if values
            ]
        if series:
            panels.append(Panel(part, "", "final test accuracy", tuple(series), note="A point for each seed."))
    return panels


EXPERIMENT = Experiment(
    name="plain-loop",
    title="The engine against a plain loop",
    question=(
        "The engine trains stacks, folds VGG16's classifier and takes half precision on a GPU. Does it end where a "
        "plain PyTorch loop ends: whole layers, tf32, torch.optim.SGD with the rate set each epoch?"
    ),
    groups=_groups,
    calculations=lambda scale: [one for group in _groups(scale) for one in _plain(group)],
    claims=_claims,
    panels=_panels,
)
