"""The engine against the plain PyTorch loop, in one run: how much faster one training run is in a full stack.

    python benchmarks/engine.py [--device cpu|cuda] [--models mlp cnn:30 vgg16] [--rounds 3] [--json FILE]

A model may have its batch size behind a colon, 256 by default. The plain loop has its data on the device and
`torch.optim.SGD(fused=True)`, and takes one run after another, in PyTorch's default precision; a second one on a GPU
computes in bf16 by autocast with its channels last, where the engine does so, and on a CPU reads from a DataLoader. The
engine trains what `plan_stacks` (or `cpu_workers`) chooses for the machine. Images are noise of the right shape: speed
does not depend on them. Both are timed in turn, a round of each; the ratio is the median over the rounds, with its
smallest and largest value. Steps are compared with steps, and epochs of training and evaluation on all images with the
same. Shares of the peak: operations of the products over a large matrix product, and the bytes that weights, gradients,
velocities and images move at least over a large copy.

We hold ourselves to: perceptron 300 (H200) and 1.6, 3 against a DataLoader (2-core CPU); CNN 4 and 1; VGG16 3 and 1.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

from heatbath.data.datasets import Dataset
from heatbath.data.image_sets import IMAGE_SETS
from heatbath.engine.planning import cpu_workers, plan_stacks, resolve_precision
from heatbath.engine.stack import Stack
from heatbath.runs.configs import RunConfig
from heatbath.tasks.models import build_model
from heatbath.tasks.registry import networks

DATASETS = {"mlp": "mnist", "cnn": "mnist", "vgg16": "cifar10"}
REPLICAS = {"mlp": 500, "cnn": 6, "vgg16": 5}
STEPS = {"mlp": 100, "cnn": 2, "vgg16": 1}  # of a round on a CPU
KNOBS: dict[str, Any] = {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", nargs="+", default=[(model, 256) for model in DATASETS], type=model_and_batch_size)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="also write the rows here")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} cores"
    peaks = measure_peaks(device)
    print(f"torch {torch.__version__}, {machine}; matrix product {peaks['flops'] / 1e12:.3g} TFLOP/s, ", end="")
    print(f"copy {peaks['bytes'] / 1e9:.3g} GB/s")
    rows = []
    for model, size in arguments.models:
        row = {"model": model, "batch_size": size}
        row |= (on_gpu if device.type == "cuda" else on_cpu)(model, size, device, arguments.rounds)
        row |= shares(model, size, row["engine_step_ms"] / 1e3, peaks, device)
        rows.append(row)
        print(describe(row), flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"torch": torch.__version__, "machine": machine, "peaks": peaks, "rows": rows}, file, indent=1)


def model_and_batch_size(text: str) -> tuple[str, int]:
    model, _, size = text.partition(":")
    if model not in DATASETS or not (size or "256").isdecimal() or int(size or 256) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not mlp, cnn or vgg16, or one of them with a batch size: cnn:60")
    return model, int(size or 256)


def on_gpu(model: str, size: int, device: torch.device, rounds: int) -> dict[str, Any]:
    """Milliseconds of a step and seconds of an epoch for one run: the plain loop's, and a replica's share."""
    data = noise(DATASETS[model], device)
    configs = [config(model, size, seed) for seed in range(REPLICAS[model])]
    count = plan_stacks(configs, device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()  # the peaks' own tensors are larger than a small stack
    start = time.perf_counter()
    stack = Stack(configs[:count], data, device=device, compile=True)
    torch.cuda.synchronize()
    build = time.perf_counter() - start
    stack.train_epoch()
    memory = torch.cuda.max_memory_allocated()  # the stack alone: the plain loops come after
    loops = {"plain": PlainLoop(model, size, data, device)}
    if stack.precision == "bf16":
        loops["autocast"] = PlainLoop(model, size, data, device, autocast=True)
    steps, full = configs[0].steps_per_epoch, len(data.train_labels) // size
    for loop in loops.values():
        loop.train(20)
        loop.evaluate()
    times: dict[str, list[float]] = {f"{name}{part}": [] for name in (*loops, "engine") for part in ("", "_eval")}
    for _ in range(rounds):
        for name, loop in loops.items():
            times[name].append(timed(partial(loop.train, full), device) / full)
            times[f"{name}_eval"].append(timed(loop.evaluate, device))
        times["engine"].append(timed(stack.advance, device) / steps / count)
        times["engine_eval"].append(timed(stack.measure, device) / count)
    epochs = {
        name: [steps * a + b for a, b in zip(times[name], times[f"{name}_eval"], strict=True)]
        for name in (*loops, "engine")
    }
    row = {
        "replicas": count,
        "precision": stack.precision,
        "plain_step_ms": 1e3 * statistics.median(times["plain"]),
        "engine_step_ms": 1e3 * statistics.median(times["engine"]),
        "engine_evaluation_s": statistics.median(times["engine_eval"]),
        "run_of_180_epochs_s": 180 * statistics.median(epochs["engine"]),
        "build_s": build,
        "memory_GiB": memory / 2**30,
        "step_ratio": ratio(times["plain"], times["engine"]),
        "epoch_ratio": ratio(epochs["plain"], epochs["engine"]),
    }
    return row | ({"autocast_epoch_ratio": ratio(epochs["autocast"], epochs["engine"])} if "autocast" in loops else {})


def on_cpu(model: str, size: int, device: torch.device, rounds: int) -> dict[str, Any]:
    """The same with the processes and threads that the runner uses, all of them at work while one is timed."""
    data = noise(DATASETS[model], device, 4096 if model != "vgg16" else 1024)
    loop = PlainLoop(model, size, data, device)
    steps = STEPS[model]
    processes, threads = cpu_workers(config(model, size, 0), torch.get_num_threads())
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(processes)]
    workers = [context.Process(target=serve, args=(model, size, threads, child), daemon=True) for _, child in pipes]
    for worker in workers:
        worker.start()

    def train_stacks() -> None:
        for parent, _ in pipes:
            parent.send(steps)
        for parent, _ in pipes:
            parent.recv()

    loop.train(1)
    loop.train_from_loader(1)
    train_stacks()
    times: dict[str, list[float]] = {name: [] for name in ("plain", "loader", "engine")}
    for _ in range(rounds):
        times["plain"].append(timed(lambda: loop.train(steps), device) / steps)
        times["loader"].append(timed(lambda: loop.train_from_loader(steps), device) / steps)
        times["engine"].append(timed(train_stacks, device) / steps / processes)
    for worker in workers:
        worker.terminate()
    return {
        "processes": processes,
        "threads": threads,
        "plain_step_ms": 1e3 * statistics.median(times["plain"]),
        "loader_step_ms": 1e3 * statistics.median(times["loader"]),
        "engine_step_ms": 1e3 * statistics.median(times["engine"]),
        "step_ratio": ratio(times["plain"], times["engine"]),
        "loader_ratio": ratio(times["loader"], times["engine"]),
    }


def serve(model: str, size: int, threads: int, pipe: Any) -> None:
    """A worker: take as many steps as it is told to, over and over."""
    torch.set_num_threads(threads)
    data = noise(DATASETS[model], torch.device("cpu"), 4096 if model != "vgg16" else 1024)
    IMAGE_SETS[DATASETS[model]] = replace(IMAGE_SETS[DATASETS[model]], training_images=len(data.train_labels))
    (group,) = Stack([config(model, size, os.getpid())], data).groups
    group.prepare(0)
    while True:
        for step in range(pipe.recv()):
            group.step(step % (len(data.train_labels) // size))
        pipe.send(None)


class PlainLoop:
    """One run as a newcomer would write it, with the data on the device; in bf16 as a careful one would."""

    def __init__(self, model: str, size: int, data: Dataset, device: torch.device, autocast: bool = False) -> None:
        self.size, self.data, self.autocast = size, data, autocast
        self.layout = torch.channels_last if autocast else torch.contiguous_format
        self.model = build_model(model, device=device)
        self.model.to(memory_format=self.layout)  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, fused=True, **KNOBS)

    def train(self, steps: int) -> None:
        """Take some steps on shuffled batches."""
        order = torch.randperm(len(self.data.train_labels), device=self.data.device).split(self.size)
        full = len(self.data.train_labels) // self.size
        for step in range(steps):
            rows = order[step % full]
            self._step(self.data.normalize(self.data.train_images[rows]), self.data.train_labels[rows])

    def train_from_loader(self, steps: int) -> None:
        """The same from a DataLoader."""
        images = self.data.normalize(
            self.data.train_images[: self.size * min(steps, len(self.data.train_labels) // self.size)]
        )
        pairs = TensorDataset(images, self.data.train_labels[: len(images)])
        taken = 0
        while taken < steps:
            for batch in DataLoader(pairs, batch_size=self.size, shuffle=True):
                if taken < steps:
                    self._step(*batch)
                    taken += 1

    @torch.no_grad()
    def evaluate(self) -> list[tuple[float, float]]:
        """Return loss and accuracy on all training and test images."""
        self.model.eval()
        found = []
        for images, labels in (
            (self.data.train_images, self.data.train_labels),
            (self.data.test_images, self.data.test_labels),
        ):
            loss, hits = 0.0, 0.0
            for part, target in zip(images.split(1000), labels.split(1000), strict=True):
                logits = self._logits(self.data.normalize(part))
                loss += functional.cross_entropy(logits, target, reduction="sum").item()
                hits += (logits.argmax(1) == target).sum().item()
            found.append((loss / len(labels), hits / len(labels)))
        self.model.train()
        return found

    def _step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        functional.cross_entropy(self._logits(images), labels).backward()
        self.optimizer.step()

    def _logits(self, images: torch.Tensor) -> torch.Tensor:
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.autocast):
            logits: torch.Tensor = self.model(images.contiguous(memory_format=self.layout))
        return logits.float()


def shares(model: str, size: int, step_s: float, peaks: dict[str, float], device: torch.device) -> dict[str, float]:
    """The parts of the peaks that a replica's share of a step is worth."""
    network = networks()[model].stacked
    params = [tensor[None].requires_grad_() for tensor in network.pack(build_model(model))]
    image = torch.zeros(1, *IMAGE_SETS[DATASETS[model]].shape)
    with FlopCounterMode(display=False) as counter:
        torch.autograd.grad(network.logits(params, image, None).sum(), params)
    flops = size * counter.get_total_flops()  # of a layer one product forward, two backward, of the first layer one
    weights = sum(tensor.numel() for tensor in params)
    width = 2 if resolve_precision(config(model, size, 0), device) == "bf16" else 4
    # Forward reads the weights; backward writes gradients; the update reads three and writes two. In half precision
    # forward reads the upper halves of the weights, and gradients are half as wide.
    # Images come in as bytes, are written once and read twice.
    moved = weights * (22 if width == 2 else 28) + size * image.numel() * (1 + 3 * width)
    return {"share_of_flops": flops / step_s / peaks["flops"], "share_of_bytes": moved / step_s / peaks["bytes"]}


def measure_peaks(device: torch.device) -> dict[str, float]:
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    source = torch.empty(2**28 if device.type == "cuda" else 2**25, device=device).normal_()
    target = torch.empty_like(source)
    product = min(timed(lambda: torch.mm(a, b), device) for _ in range(10))
    copy = min(timed(lambda: target.copy_(source), device) for _ in range(10))
    return {"flops": 2 * size**3 / product, "bytes": 2 * source.numel() * 4 / copy}


def config(model: str, size: int, seed: int) -> RunConfig:
    return RunConfig(model=model, dataset=DATASETS[model], lr=1e-3, batch_size=size, epochs=180, seed=seed, **KNOBS)


def noise(name: str, device: torch.device, count: int | None = None) -> Dataset:
    shape, count = IMAGE_SETS[name].shape, count or IMAGE_SETS[name].training_images
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count + 10_000, *shape), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 10, (count + 10_000,), generator=generator)
    parts = images[:count], labels[:count], images[count:], labels[count:]
    return Dataset(name, *parts, (0.5,) * shape[0], (0.25,) * shape[0]).to(device)


def timed(function: Callable[[], Any], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def ratio(plain: list[float], ours: list[float]) -> dict[str, float]:
    found = [a / b for a, b in zip(plain, ours, strict=True)]
    return {"median": statistics.median(found), "least": min(found), "most": max(found)}


def describe(row: dict[str, Any]) -> str:
    how = f"{row['replicas']} replicas, {row['precision']}" if "replicas" in row else ""
    how = how or f"{row['processes']} processes x {row['threads']} threads"
    text = f"{row['model']:<6}C = {row['batch_size']:<5}{how:<26} "
    text += f"step {row['plain_step_ms']:.3g} -> {row['engine_step_ms']:.3g} ms"
    for name in ("step_ratio", "epoch_ratio", "autocast_epoch_ratio", "loader_ratio"):
        if name in row:
            text += f", {name.replace('_', ' ')} {row[name]['median']:.3g} [{row[name]['least']:.3g}, "
            text += f"{row[name]['most']:.3g}]"
    text += f"; {row['share_of_flops']:.0%} of the product, {row['share_of_bytes']:.0%} of the copy"
    if "run_of_180_epochs_s" in row:
        text += f"; 180 epochs {row['run_of_180_epochs_s']:.3g} s, {row['memory_GiB']:.2g} GiB, built in "
        text += f"{row['build_s']:.0f} s"
    return text


if __name__ == "__main__":
    main()
