"""What a `Thermometer` costs at its default interval, as a ratio to the same training without it in the same run.

    python benchmarks/thermometer.py [--device cpu|cuda] [--seconds 20] [--threads N] [--json FILE]

Three numbers for each model, on batches of 256 random images, or for the Transformer (with AdamW) of 16 random texts:

* ``reading``: a step with a reading over a step without, taken in turn; median with a 95 % bootstrap interval.
* ``idle``: what the two calls cost at a step without a reading, timed one by one between the parts of a step, as their
  code is no longer in the processor's caches by then; over a step.
* ``overall``: ``1 + idle + (reading - 1) / interval``; at most 1.02 is what we hold ourselves to. Where the time allows
  at least five rounds, ``whole runs`` of ``interval`` steps are timed as well: one training, a few steps with the
  thermometer and a few without in turn. On one thread all times are those of the processor (`time.process_time`).

Memory is the peak of a step with a reading over that of one without, at most 1.3. On CUDA it is PyTorch's own count,
``max_memory_allocated``. On the CPU it is the running sum of the allocations that `torch.profiler` records during the
step, on top of the weights, velocities and batch that are there before.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import heatbath as hb
from heatbath.thermometry.thermometer import Thermometer

Step = Callable[[], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=20.0, help="time for each model")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--threads", type=int, help="for the CPU; PyTorch's own choice by default")
    parser.add_argument("--json", help="also write the rows here")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"torch {torch.__version__}, {machine}")
    rows = []
    for model in arguments.models:
        row = {"model": model, **time_model(model, device, arguments.seconds), **peak_memory(model, device)}
        rows.append(row)
        print(
            f"{model:<11} overall {row['overall']:.4f} [{row['overall_low']:.4f}, {row['overall_high']:.4f}]  "
            f"reading {row['reading']:.2f} [{row['reading_low']:.2f}, {row['reading_high']:.2f}]  "
            f"idle {row['idle']:.5f}  step {row['step_ms']:.3f} ms  memory {row['memory']:.3f}"
        )
        if "whole_runs" in row:
            print(
                f"{'':<11} whole runs {row['whole_runs']:.4f} "
                f"[{row['whole_runs_low']:.4f}, {row['whole_runs_high']:.4f}]",
                flush=True,
            )
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"torch": torch.__version__, "machine": machine, "rows": rows}, file, indent=1)


def time_model(name: str, device: torch.device, seconds: float) -> dict[str, float]:
    plain, reading, sparse = (Training(name, device, interval) for interval in (None, 1, 0))
    thermometer = sparse.thermometer
    assert thermometer is not None
    for _ in range(3):
        for training in (plain, reading, sparse):
            training()
    once = timed(plain, 3, device)
    rounds = int(np.clip(0.4 * seconds / (3 * once), 5, 1000))
    times = np.array(
        [[timed(step, 1, device) for step in ((plain, reading), (reading, plain))[i % 2]] for i in range(rounds)]
    )
    times[1::2] = times[1::2, ::-1]

    step = float(np.median(times[:, 0]))
    idle = time_idle(name, device, rounds) / step
    ratio, low, high = interval_of_median(times[:, 1] / times[:, 0])
    row = {"reading": ratio, "reading_low": low, "reading_high": high, "idle": idle, "step_ms": 1e3 * step}
    for key in ("", "_low", "_high"):
        row[f"overall{key}"] = 1.0 + idle + (row[f"reading{key}"] - 1.0) / thermometer.interval
    runs = int(0.6 * seconds / (2 * thermometer.interval * once))
    if runs >= 5:
        thermometer.remove()  # its hook is there while it is timed, and no longer
        for _ in range(-thermometer.step % BLOCK):
            thermometer._after_step(sparse.optimizer, (), {})  # so that a reading ends a block
        ratios = [time_whole_run(sparse, thermometer.interval, i, device) for i in range(runs)]
        row["whole_runs"], row["whole_runs_low"], row["whole_runs_high"] = interval_of_median(np.array(ratios))
    return row


def time_whole_run(training: Training, interval: int, run: int, device: torch.device) -> float:
    """The time of ``interval`` steps with the thermometer over that without, few steps in turn: both meet alike loads.

    It is one training whose thermometer comes and goes, as two of them lie elsewhere in memory, which shows.
    """
    thermometer, took = training.thermometer, [0.0, 0.0]
    assert thermometer is not None
    for i in range(interval // BLOCK):
        for is_watched in (True, False) if (i + run) % 2 else (False, True):
            training.thermometer = thermometer if is_watched else None
            hook = training.optimizer.register_step_post_hook(thermometer._after_step) if is_watched else None
            took[is_watched] += timed(training, BLOCK, device)
            if hook is not None:
                hook.remove()
    training.thermometer = thermometer
    return took[True] / took[False]


def time_idle(name: str, device: torch.device, rounds: int) -> float:
    """The seconds that a step without a reading spends on the thermometer's two calls; the median."""
    training = Training(name, device, 10**9)
    thermometer, times = training.thermometer, []
    assert thermometer is not None
    thermometer.remove()  # what it does after a step is called here, by hand
    for _ in range(rounds):
        training.optimizer.zero_grad()
        start = now()
        thermometer.observe(training.loss_fn, training.inputs, training.targets)
        before = now() - start
        training.loss_fn(training.model(training.inputs), training.targets).backward()
        training.optimizer.step()
        start = now()
        thermometer._after_step(training.optimizer, (), {})
        times.append(before + now() - start)
    return float(np.median(times))


def peak_memory(name: str, device: torch.device) -> dict[str, float]:
    """The peaks come from fresh trainings, one after the other, so that neither holds the other's weights."""
    peaks = []
    for interval in (None, 1):
        training = Training(name, device, interval)
        for _ in range(3):
            training()
        if device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            training()
            peaks.append(float(torch.cuda.max_memory_allocated()))
        else:
            training.optimizer.zero_grad()  # what is freed within must have been allocated within
            peaks.append(training.resident_bytes() + profiled_peak(training))
        del training
    return {"memory": peaks[1] / peaks[0], "memory_mib": peaks[0] / 2**20}


def profiled_peak(step: Step) -> float:
    """The largest sum of bytes that a step has allocated and not yet freed."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    results: Any = profile.profiler
    events = [e for e in results.kineto_results.events() if e.name() == "[memory]"]
    return float(np.cumsum([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]).max())


class Training:
    """A step of training without a thermometer (None), with one at its default interval (0) or at another."""

    def __init__(self, name: str, device: torch.device, interval: int | None) -> None:
        torch.manual_seed(0)
        make_model, make_batch, make_optimizer = MODELS[name]
        self.model = make_model().to(device)
        self.optimizer = make_optimizer(self.model.parameters())
        self.thermometer = None
        if interval is not None:
            settings: dict[str, Any] = {"interval": interval} if interval else {}
            self.thermometer = Thermometer(self.model, self.optimizer, **settings)
        self.inputs, self.targets = (tensor.to(device) for tensor in make_batch())

    def __call__(self) -> None:
        """Take one step."""
        self.optimizer.zero_grad()
        if self.thermometer is not None:
            self.thermometer.observe(self.loss_fn, self.inputs, self.targets)
        self.loss_fn(self.model(self.inputs), self.targets).backward()
        self.optimizer.step()

    @staticmethod
    def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over images, or over tokens."""
        return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())

    def resident_bytes(self) -> float:
        """The batch, the weights and what the optimizer keeps of them."""
        state = [tensor for state in self.optimizer.state.values() for tensor in state.values()]
        tensors = [self.inputs, self.targets, *self.model.parameters(), *state]
        return float(sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor)))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))


def cnn() -> nn.Module:
    first = [nn.Conv2d(1, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(64, 128, 3), nn.ReLU(), nn.Conv2d(128, 128, 3), nn.ReLU(), nn.Conv2d(128, 128, 3), nn.ReLU()]
    return nn.Sequential(*first, *second, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1152, 10))


def transformer() -> nn.Module:
    layers = [nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, norm_first=True) for _ in range(2)]
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), *layers, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS))


def images() -> tuple[Tensor, Tensor]:
    return torch.randn(256, 1, 28, 28), torch.randint(10, (256,))


def texts() -> tuple[Tensor, Tensor]:
    return torch.randint(WORDS, (16, 64)), torch.randint(WORDS, (16, 64))


def random_sgd(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return hb.RandomSGD(parameters, 5e-3, momentum=0.9)


def adamw(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, 1e-3)


WIDTH, WORDS = 128, 1000  # of the Transformer
BLOCK = 5  # steps at a time of a whole run
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, Tensor]], Callable[..., Any]]] = {
    "perceptron": (perceptron, images, random_sgd),
    "cnn": (cnn, images, random_sgd),
    "transformer": (transformer, texts, adamw),
}


def timed(step: Step, steps: int, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = now()
    for _ in range(steps):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (now() - start) / steps


def now() -> float:
    """Seconds; on one CPU thread those that the processor worked, so that other programs matter little."""
    is_alone = torch.get_num_threads() == 1 and not torch.cuda.is_initialized()
    return time.process_time() if is_alone else time.perf_counter()


def interval_of_median(values: Any) -> tuple[float, float, float]:
    resampled = np.median(np.random.default_rng(1).choice(values, (1000, len(values))), axis=1)
    low, high = np.quantile(resampled, [0.025, 0.975])
    return float(np.median(values)), float(low), float(high)


if __name__ == "__main__":
    main()
