"""Tasks of one's own in the engine against a plain PyTorch loop, in one run: how much faster one training run is.

    python benchmarks/own.py [--device cpu|cuda] [--models mlp gpt resnet] [--replicas 200] [--rounds 3] [--json FILE]

Models are written as people write them: an MLP 784-256-256-10 and ResNet-18 for 32 x 32 images with BatchNorm, both at
C = 128, and a character GPT (4 layers, width 128, dropout 0.1, 32 x 128 tokens). The plain loop is eager, has its data
on the device and `torch.optim.SGD(fused=True)`, on a GPU in bf16 by autocast, and takes one run after another; on a CPU
with all cores and with one, of which the faster counts. A second one is compiled by `torch.compile`, on a GPU. The
engine trains what it chooses for the machine: on a CPU a process for each core, on a GPU a stack of replicas. Both are
timed in turn, a round of each; the ratio is the median over the rounds, with its smallest and largest value. On a CPU
there is also the ratio of processor times on one core, which other programs disturb less. Compile times are told apart.

We hold ourselves to: 1.5 on 2 CPU cores for each model; on an H200 MLP 500 (200 replicas), GPT 50 (64) and ResNet-18 4
(4).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import heatbath as hb
from heatbath.engine.batched_task import BatchedTask, reason_against_batching
from heatbath.engine.planning import cpu_workers, plan_stacks
from heatbath.engine.precision import arithmetic
from heatbath.engine.task_replica import TaskReplica, split_task
from heatbath.system.machine import available_cores, keep_freed_memory

REPLICAS = {"mlp": 200, "gpt": 64, "resnet": 4}
BATCH = {"mlp": 128, "gpt": 32, "resnet": 128}
STEPS = {"mlp": 200, "gpt": 3, "resnet": 1}  # of a round on a CPU; 50 on a GPU
TOKENS, LENGTH, WIDTH = 96, 128, 128
KNOBS: dict[str, Any] = {"lr": 1e-3, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3}


def mlp() -> nn.Module:
    sizes = (784, 256, 256)
    hidden = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(256, 10))


class Block(nn.Module):
    """Attention and a perceptron, each after a norm and around a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.perceptron = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the places, then the features."""
        query, key, value = (
            part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.mix(self.first(x)).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))
        found: Tensor = x + self.dropout(self.perceptron(self.second(x)))
        return found


class GPT(nn.Module):
    """Next characters."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(4)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores of shape (rows, places, characters)."""
        places = self.places(torch.arange(tokens.shape[1], device=tokens.device))
        found: Tensor = self.head(self.blocks(self.tokens(tokens) + places))
        return found


class Residual(nn.Module):
    """Two convolutions around a shortcut."""

    def __init__(self, inside: int, out: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(inside, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()),
            *(nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)),
        )
        project = nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.shortcut = project if stride != 1 or inside != out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return images of half the size, where the stride is 2."""
        found: Tensor = (self.layers(x) + self.shortcut(x)).relu()
        return found


def resnet() -> nn.Module:
    widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
    blocks = [Residual(a, b, 1 + (a != b)) for a, b in pairwise(widths)]
    stem = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def make_task(name: str, batches: int) -> hb.Task:
    """Return a task on noise, on which speed does not depend."""
    generator, count = torch.Generator().manual_seed(0), batches * BATCH[name]
    if name == "gpt":
        rows = torch.randint(0, TOKENS, (count, LENGTH + 1), generator=generator)
        pair = rows[:, :-1], rows[:, 1:]
        return hb.Task(GPT, pair, tuple(part[:8] for part in pair), name=name)
    shape = (784,) if name == "mlp" else (3, 32, 32)
    inputs, labels = (
        torch.randn(count, *shape, generator=generator),
        torch.randint(0, 10, (count,), generator=generator),
    )
    return hb.Task({"mlp": mlp, "resnet": resnet}[name], (inputs, labels), (inputs[:8], labels[:8]), name=name)


class PlainLoop:
    """One run after another, as a script does it."""

    def __init__(self, task: hb.Task, batch_size: int, device: torch.device, compiled: bool = False) -> None:
        self.model = task.build(0).to(device).train()
        self.call: Callable[[Tensor], Tensor] = torch.compile(self.model) if compiled else self.model
        self.data, self.task, self.device, self.size = task.train.to(device), task, device, batch_size
        self.optimizer = torch.optim.SGD(self.model.parameters(), **KNOBS, fused=True)

    def train(self, steps: int) -> None:
        """Take so many steps."""
        order = torch.randperm(len(self.data), device=self.device)
        for rows in order.split(self.size)[:steps]:
            self.optimizer.zero_grad()
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                outputs = self.call(self.data.inputs[rows])
            functional.cross_entropy(outputs.flatten(0, -2), self.data.targets[rows].flatten()).backward()
            self.optimizer.step()


def on_cpu(name: str, rounds: int) -> dict[str, Any]:
    """With the processes and threads that the engine uses, all of them at work while one is timed."""
    steps, cores = STEPS[name], available_cores()
    task = make_task(name, steps)
    processes, threads = cpu_workers(config(task, name, 0), cores)
    loop = PlainLoop(task, BATCH[name], torch.device("cpu"))
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(processes)]
    workers = [context.Process(target=serve, args=(name, k, threads, pipe[1])) for k, pipe in enumerate(pipes)]
    for worker in workers:
        worker.start()

    used: list[float] = []  # processor time of each worker

    def engine() -> None:
        for parent, _ in pipes:
            parent.send(True)
        used[:] = [parent.recv() for parent, _ in pipes]

    times: dict[str, list[float]] = {"plain": [], "engine": []}
    core: dict[str, list[float]] = {"plain": [], "engine": []}
    for _ in range(rounds + 1):  # the first warms up
        alone = []
        for count in (cores, 1):
            torch.set_num_threads(count)
            busy = time.process_time()
            alone.append(timed(partial(loop.train, steps)) / steps)
        core["plain"].append((time.process_time() - busy) / steps)
        times["plain"].append(min(alone))
        times["engine"].append(timed(engine) / steps / processes)
        core["engine"].append(statistics.mean(used) / steps)
    for (parent, _), worker in zip(pipes, workers, strict=True):
        parent.send(False)
        worker.join()
    row = _row({kind: values[1:] for kind, values in times.items()})
    on_core = _row({kind: values[1:] for kind, values in core.items()})
    how = f"{processes} processes x {threads} threads"
    return {"how": how, **row, "one_core_ratio": on_core["plain_ratio"], "load": os.getloadavg()[0]}


def serve(name: str, seed: int, threads: int, line: Any) -> None:
    """Be one of the engine's processes: take an epoch whenever it is asked for."""
    torch.set_num_threads(threads)
    keep_freed_memory()
    task = make_task(name, STEPS[name])
    replica = TaskReplica(config(task, name, seed), split_task(task, 0), "fp32")
    while line.recv():
        busy = time.process_time()
        with arithmetic("fp32", torch.device("cpu")):
            replica.prepare(0)
            for step in range(STEPS[name]):
                replica.step(step)
        line.send(time.process_time() - busy)


def on_gpu(name: str, rounds: int, replicas: int | None) -> dict[str, Any]:
    """A stack of as many replicas as fit, up to the number asked for."""
    device, steps = torch.device("cuda"), 50
    task = make_task(name, steps)
    configs = [config(task, name, seed) for seed in range(replicas or REPLICAS[name])]
    against = reason_against_batching(configs[0])
    if against is not None:
        raise SystemExit(f"{name} does not batch: {against}")
    configs = configs[: plan_stacks(configs, device)]
    start = time.perf_counter()
    stack = BatchedTask(configs, split_task(task, 0, device), "bf16", compiled=True)

    def engine() -> None:
        with arithmetic("bf16", device):
            stack.prepare(0)
            for step in range(steps):
                stack.step(step)

    engine()
    torch.cuda.synchronize()
    built = {"engine": time.perf_counter() - start}
    loops = {"plain": PlainLoop(task, BATCH[name], device), "compiled": PlainLoop(task, BATCH[name], device, True)}
    for kind, loop in loops.items():
        built[kind] = timed(partial(loop.train, steps), device)
    times: dict[str, list[float]] = {kind: [] for kind in (*loops, "engine")}
    for _ in range(rounds):
        for kind, loop in loops.items():
            times[kind].append(timed(partial(loop.train, steps), device) / steps)
        times["engine"].append(timed(engine, device) / steps / len(configs))
    memory = torch.cuda.max_memory_allocated() / 2**30
    return {"how": f"{len(configs)} replicas, bf16", **_row(times), "first_s": built, "memory_GiB": memory}


def config(task: hb.Task, name: str, seed: int) -> hb.RunConfig:
    return hb.RunConfig(task=task, batch_size=BATCH[name], epochs=10, seed=seed, **KNOBS)


def timed(function: Callable[[], Any], device: torch.device | None = None) -> float:
    start = time.perf_counter()
    function()
    if device is not None:
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _row(times: dict[str, list[float]]) -> dict[str, Any]:
    """Milliseconds of a step of one run, and how many times faster it is in the engine."""
    row: dict[str, Any] = {f"{name}_ms": 1e3 * statistics.median(values) for name, values in times.items()}
    for name in times.keys() - {"engine"}:
        found = [a / b for a, b in zip(times[name], times["engine"], strict=True)]
        row[f"{name}_ratio"] = {"median": statistics.median(found), "least": min(found), "most": max(found)}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--models", nargs="+", default=list(REPLICAS), choices=list(REPLICAS))
    parser.add_argument("--replicas", type=int, help="on a GPU, in place of 200, 64 and 4")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="also write the rows here")
    arguments = parser.parse_args()
    cuda = arguments.device == "cuda"
    machine = torch.cuda.get_device_name() if cuda else f"CPU, {available_cores()} cores"
    print(f"torch {torch.__version__}, {machine}")
    rows = []
    for name in arguments.models:
        found = on_gpu(name, arguments.rounds, arguments.replicas) if cuda else on_cpu(name, arguments.rounds)
        rows.append({"model": name, "batch_size": BATCH[name], **found})
        ratios = ", ".join(
            f"{key.removesuffix('_ratio')} / engine {value['median']:.3g} [{value['least']:.3g}, {value['most']:.3g}]"
            for key, value in found.items()
            if key.endswith("_ratio")
        )
        print(
            f"{name:<7}{found['how']:<28}{found['plain_ms']:.3g} -> {found['engine_ms']:.3g} ms a step; {ratios}",
            flush=True,
        )
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"torch": torch.__version__, "machine": machine, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
