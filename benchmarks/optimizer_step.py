"""The cost of one `RandomSGD` step, as a ratio to `torch.optim.SGD` with the same flags in the same run.

    python benchmarks/optimizer_step.py [--device cpu|cuda] [--seconds 2] [--json FILE]

Both optimizers step in turn on equal copies of the weights, a few steps each, in random order; the ratio is the
median over all rounds of (ours / theirs) and comes with a 95 % bootstrap interval. The last rows are the draw by
itself. No target is asserted here: at most 1.02 on VGG16 and 1.10 on the perceptron is what we hold ourselves to.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import heatbath as hb
from heatbath.draws import Multipliers, uniform

Shape = tuple[int, ...]
PERCEPTRON: list[Shape] = [(100, 784), (100,), (10, 100), (10,)]
CNN: list[Shape] = [
    *((64, 1, 3, 3), (64,), (64, 64, 3, 3), (64,), (128, 64, 3, 3), (128,), (128, 128, 3, 3), (128,)),
    *((128, 128, 3, 3), (128,), (10, 1152), (10,)),
]
_WIDTHS = [3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
VGG16: list[Shape] = [shape for a, b in itertools.pairwise(_WIDTHS) for shape in ((b, a, 3, 3), (b,))]
VGG16 += [(4096, 25088), (4096,), (4096, 4096), (4096,), (10, 4096), (10,)]
MODELS = {"perceptron": PERCEPTRON, "cnn": CNN, "vgg16": VGG16}

RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "heavy ball": {"momentum": 0.9},
    "nesterov + decay": {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-3},
}
FLAGS: dict[str, dict[str, Any]] = {
    "for-loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each row")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--json", help="also write the rows here")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"torch {torch.__version__}, {machine}; ratio to torch.optim.SGD, median [95 % interval]")
    rows = []
    for model in arguments.models:
        for rule in RULES:
            for flags in FLAGS:
                for coupling in ("gradient", "update"):
                    row = compare(model, rule, flags, coupling, device, arguments.seconds)
                    rows.append(row)
                    print(
                        f"{model:<11}{rule:<18}{flags:<10}{coupling:<9} {row['ratio']:.3f} "
                        f"[{row['low']:.3f}, {row['high']:.3f}]  {row['sgd_us']:9.1f} us",
                        flush=True,
                    )
    for name, microseconds in draw_costs(device).items():
        rows.append({"model": name, "us": microseconds})
        print(f"{name}: {microseconds:.2f} us")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"torch": torch.__version__, "machine": machine, "rows": rows}, file, indent=1)


def compare(model: str, rule: str, flags: str, coupling: str, device: torch.device, seconds: float) -> dict[str, Any]:
    settings = {**RULES[rule], **FLAGS[flags]}
    theirs, ours = make_parameters(model, device), make_parameters(model, device)
    plain = torch.optim.SGD(theirs, 1e-4, **settings)
    random = hb.RandomSGD(ours, 1e-4, coupling=coupling, **settings)  # type: ignore[arg-type]
    for _ in range(3):
        plain.step()
        random.step()
    once = timed(plain.step, 3, device)
    steps = max(1, min(50, int(2e-3 / once)))
    rounds = int(np.clip(seconds / (2 * steps * once), 15, 2000))
    times = np.empty((rounds, 2))
    order = np.random.default_rng(0).integers(0, 2, rounds)
    for i in range(rounds):
        for which in (order[i], 1 - order[i]):
            times[i, which] = timed((plain.step, random.step)[which], steps, device)
    ratios = times[:, 1] / times[:, 0]
    resampled = np.median(np.random.default_rng(1).choice(ratios, (1000, rounds)), axis=1)
    low, high = np.quantile(resampled, [0.025, 0.975])
    names = {"model": model, "rule": rule, "flags": flags, "coupling": coupling}
    numbers = {"ratio": np.median(ratios), "low": low, "high": high, "sgd_us": 1e6 * np.median(times[:, 0])}
    return {**names, **{key: float(value) for key, value in numbers.items()}}


def make_parameters(model: str, device: torch.device) -> list[torch.nn.Parameter]:
    generator = torch.Generator(device).manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(s, device=device, generator=generator)) for s in MODELS[model]]
    for p in parameters:
        p.grad = torch.randn(p.shape, device=device, generator=generator)
    return parameters


def timed(step: Callable[[], Any], steps: int, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps


def draw_costs(device: torch.device) -> dict[str, float]:
    costs = {}
    for law in (hb.Uniform(1.0), hb.LogNormal(0.5)):
        walker, steps = Multipliers(law, 0), itertools.count()
        costs[f"draw {law}"] = 1e6 * timed(lambda w=walker, s=steps: w.at(next(s)), 100_000, torch.device("cpu"))  # type: ignore[misc]
    counter = torch.zeros((), dtype=torch.int64, device=device)
    on_device = {"draw in tensor operations": lambda: hb.Uniform(1.0).quantile(uniform(0, 0, counter))}
    costs.update({name: 1e6 * timed(call, 200, device) for name, call in on_device.items()})
    return costs


if __name__ == "__main__":
    main()
