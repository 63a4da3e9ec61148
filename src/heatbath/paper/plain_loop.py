"""Experiment 5 of docs/preregistration.md: the engine ends where a plain PyTorch loop does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from heatbath.paper import small_regularisation
from heatbath.paper.claims import accuracy_margin
from heatbath.paper.experiments import Calculation, Experiment, ProgressCallback
from heatbath.paper.generic import MARGINS
from heatbath.paper.groups import FigureRuns, Group, Scale, cnn, perceptron, vgg16
from heatbath.paper.quantities import FINAL_TEST
from heatbath.report.curves import means_panel
from heatbath.report.panels import Panel
from heatbath.runs.configs import RunConfig
from heatbath.stats.verdicts import Claim, Judgeable

SEEDS: dict[str, int] = {"perceptron": 20, "CNN": 10, "VGG16 from ImageNet": 8}
VGG16_EPOCHS = 18  # from ImageNet's convolutions, where seeds differ little; cyclic:18 is at its coldest then
_SMOKE_SEEDS = 2
SMALL = {"perceptron": 40, "cnn": 20}  # networks of experiment 8 at C = 64, and the seeds of their plain loops
_SECONDS = {"perceptron": 60.0, "CNN": 150.0, "VGG16 from ImageNet": 300.0}  # of 180 epochs of one plain run on a GPU


def train_plainly(
    settings: Mapping[str, Any], *, device: str, data_dir: Any, progress: ProgressCallback
) -> dict[str, Any]:
    """Train one network with whole layers and `torch.optim.SGD`, and return its final test accuracy."""
    from heatbath.data.datasets import load_dataset
    from heatbath.tasks.models import build_model

    weights = settings.get("weights")
    data = load_dataset(settings["dataset"], device=device, data_dir=data_dir, statistics=weights)
    model = build_model(settings["model"], seed=settings["seed"], weights=weights, data_dir=data_dir, device=device)
    train = data.normalize(data.train_images), data.train_labels
    test = data.normalize(data.test_images), data.test_labels
    return {"test_accuracy": _train(model, train, test, settings, device, progress)}


def train_task_plainly(
    settings: Mapping[str, Any], *, device: str, data_dir: Any, progress: ProgressCallback
) -> dict[str, Any]:
    """Train all seeds of a small task in the same way, one after the other, and return their final test accuracies."""
    from heatbath.paper.generic_tasks import build_task

    task = build_task(settings["task"], settings["train"], settings["test"], data_dir)
    train, test = ((part.inputs.to(device), part.targets.to(device)) for part in (task.train, task.test))
    accuracies = []
    for seed in range(settings["seeds"]):
        progress(seed / settings["seeds"], settings["task"])
        one = {**settings, "seed": seed}
        accuracies.append(_train(task.build(seed).to(device), train, test, one, device, lambda *_: None))
    return {"test_accuracy": accuracies}


def _train(model: Any, train: Any, test: Any, settings: Mapping[str, Any], device: str, progress: Any) -> float:
    """Train a model and return its accuracy on the test images."""
    import torch
    from torch.nn import functional

    from heatbath.runs.protocols import parse_protocol

    on_gpu = device != "cpu"
    if on_gpu:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(),
        settings["lr"],
        momentum=settings["momentum"],
        nesterov=settings["nesterov"],
        weight_decay=settings["weight_decay"],
        fused=on_gpu,
    )
    protocol, law = parse_protocol(settings["protocol"]), RunConfig(protocol=settings["protocol"]).law
    generator = torch.Generator(device).manual_seed(settings["seed"])
    images, labels = train
    with torch.random.fork_rng(devices=[device] if on_gpu else []), _tf32(on_gpu):
        torch.manual_seed(settings["seed"])  # dropout draws from the global state
        for epoch in range(settings["epochs"]):
            progress(epoch / settings["epochs"], "")
            rate = settings["lr"] * float(protocol.multipliers(law, 0, epoch, 1)[0])
            for group in optimizer.param_groups:
                group["lr"] = rate
            model.train()
            order = torch.randperm(len(images), generator=generator, device=device)
            for batch in order.split(settings["batch_size"]):
                optimizer.zero_grad()
                functional.cross_entropy(model(images[batch]), labels[batch]).backward()
                optimizer.step()
    model.eval()
    with torch.no_grad():
        parts = zip(*(part.split(1000) for part in test), strict=True)
        hits = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in parts)
    return hits / len(test[0])


@contextmanager
def _tf32(on_gpu: bool) -> Iterator[None]:
    """On a GPU, tf32 throughout and cuDNN's fastest algorithms inside."""
    import torch

    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    try:
        if on_gpu:
            torch.set_float32_matmul_precision("high")
            torch.backends.cudnn.benchmark = True
        yield
    finally:
        if on_gpu:
            torch.set_float32_matmul_precision(before[0])
            torch.backends.cudnn.benchmark = before[1]


def _groups(scale: Scale) -> Sequence[Group]:
    if scale != "paper":
        seeds = _SMOKE_SEEDS if scale == "smoke" else 6
        return [Group("constant", perceptron(scale, protocol="constant"), seeds, 0, "perceptron")]
    configs = {
        "perceptron": [perceptron(scale, protocol="constant")],
        "CNN": [cnn(protocol="constant")],
        "VGG16 from ImageNet": [
            vgg16(weights="imagenet", epochs=VGG16_EPOCHS, protocol=protocol) for protocol in ("constant", "cyclic:18")
        ],
    }
    return [
        Group(str(config.protocol), config, SEEDS[part], colour, part)
        for part, several in configs.items()
        for colour, config in enumerate(several)
    ]


def _plain(group: Group) -> list[Calculation]:
    names = ("model", "dataset", "lr", "batch_size", "momentum", "nesterov", "weight_decay", "epochs")
    common = {name: getattr(group.config, name) for name in names} | {"protocol": str(group.config.protocol)}
    common |= {"weights": group.config.weights} if group.config.weights else {}
    kind = {"kind": "plain loop", "format": 1}
    seconds = _SECONDS[group.part] * group.config.epochs / 180.0
    return [
        Calculation(f"{group.name}, seed {seed}", {**kind, **common, "seed": seed}, train_plainly, seconds)
        for seed in range(group.seeds)
    ]


def _small(network: str) -> tuple[Calculation, Calculation]:
    """The engine's runs of a small network, which are those of experiment 8, and its plain loops."""
    engine = small_regularisation.calculation(network, 64)
    settings = {name: value for name, value in engine.settings.items() if name != "protocols"}
    settings |= {"kind": "plain loop of a task", "format": 1, "protocol": "constant", "seeds": SMALL[network]}
    seconds = engine.seconds * SMALL[network] / engine.settings["seeds"]
    return engine, Calculation(f"{engine.label}, plain loop", settings, train_task_plainly, seconds)


def _calculations(scale: Scale) -> list[Calculation]:
    small = [one for network in SMALL for one in _small(network)] if scale == "paper" else []
    return [*(one for group in _groups(scale) for one in _plain(group)), *small]


class _Pair(NamedTuple):
    """Final test accuracies of one network in both ways, and by how much they may differ and count as equal."""

    title: str
    engine: list[float]
    plain: list[float]
    margin: float


def _pairs(found: FigureRuns) -> list[_Pair]:
    pairs = []
    for group in found.groups:
        loops = _plain(group)
        plain = [found.results[loop.name]["test_accuracy"] for loop in loops if loop.name in found.results]
        plain = plain if len(plain) == len(loops) else []  # a claim waits for all, so that nobody looks early
        pairs.append(_Pair(group.name, found.values(group, FINAL_TEST), plain, accuracy_margin(group)))
    for network in SMALL if found.scale == "paper" else ():
        engine, loops = (found.results.get(one.name, {}).get("test_accuracy", {}) for one in _small(network))
        title = f"{small_regularisation.ARENAS[network].title}, 5,000 images"
        pairs.append(_Pair(title, list(engine.get("constant", ())), list(loops), MARGINS["accuracy"]))
    return pairs


def _claims(found: FigureRuns) -> list[Judgeable]:
    same = "the engine and a plain loop reach the same final test accuracy"
    return [Claim(f"{one.title}: {same}", "equal", one.engine, one.plain, one.margin) for one in _pairs(found)]


def _panels(found: FigureRuns) -> list[Panel]:
    return [
        means_panel({"engine": one.engine, "plain loop": one.plain}, "final test accuracy", one.title)
        for one in _pairs(found)
        if one.engine and one.plain
    ]


EXPERIMENT = Experiment(
    name="plain-loop",
    title="The engine against a plain loop",
    question=(
        "The engine trains stacks, folds VGG16's classifier and takes half precision on a GPU. Does it end where a "
        "plain PyTorch loop ends: whole layers, tf32, torch.optim.SGD with the rate set each epoch?"
    ),
    groups=_groups,
    calculations=_calculations,
    claims=_claims,
    panels=_panels,
    in_parts=True,
)
