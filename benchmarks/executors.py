"""What Ray costs: the same runs by its workers and by local processes, in turn, in one call.

    python benchmarks/executors.py --workers 3 --repeats 5

Both train the same runs on a CPU into new stores, and the records must be equal, or the benchmark fails. Neither is
charged for its start: a call is timed from the moment when each worker can have reported twice to the last epoch. A
ratio is the time of an epoch with Ray over that of the local call next to it; the order of the two alternates. There is
one of the clock, and one of the processor: what the driver and all processes below it took, those of Ray itself too,
which other programs do not lengthen. The whole calls are told too: of Ray with a cluster on this machine that is warm,
of local processes with their start. Ray gives its workers a niceness of 15, with which they wait for whatever else the
machine has to do; here it is 0.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
import torch

from heatbath.engine.progress import Progress
from heatbath.engine.run import run
from heatbath.runs.configs import RunConfig, sweep


def train(configs: list[RunConfig], executor: str, workers: int, seconds: float) -> tuple[dict[str, float], list[Any]]:
    """Return the milliseconds of an epoch after the start, the seconds of the call, and the numbers of its runs."""
    reports: list[tuple[int, float, float]] = []

    def follow(progress: Progress) -> None:
        if (not reports and progress.epochs_done >= 2 * workers) or progress.epochs_done == progress.epochs_total:
            reports.append((progress.epochs_done, time.perf_counter(), processor_seconds()))

    with tempfile.TemporaryDirectory(prefix="heatbath-") as store:
        start = time.perf_counter()
        how: dict[str, Any] = {"workers": workers, "executor": executor, "checkpoint_seconds": seconds}
        records = run(configs, store, "cpu", progress=follow, **how)
        call = time.perf_counter() - start
    epochs, clock, processor = (after - before for before, after in zip(reports[0], reports[-1], strict=True))
    times = {"epoch_ms": 1e3 * clock / epochs, "epoch_cpu_ms": 1e3 * processor / epochs, "call_s": call}
    return times, [[epoch.metrics for epoch in one.epochs] for one in records]


def processor_seconds() -> float:
    """What this process and all below it have taken of the processor, with those that have ended."""
    times, children = {}, defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            times[folder.name] = sum(map(int, fields[11:15]))
            children[fields[1]].append(folder.name)
    family = [str(os.getpid())]
    for process in family:
        family.extend(children[process])
    return sum(times[process] for process in family) / os.sysconf("SC_CLK_TCK")


def measure(configs: list[RunConfig], workers: int, repeats: int, seconds: float) -> dict[str, Any]:
    """Return the times of both and their ratios."""
    start = time.perf_counter()
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - its name
    ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    train(configs[:workers], "ray", workers, seconds)
    warming = time.perf_counter() - start
    times: dict[str, list[dict[str, float]]] = {"ray": [], "local": []}
    for repeat in range(repeats):
        numbers = {}
        for executor in sorted(times, reverse=repeat % 2 == 1):
            one, numbers[executor] = train(configs, executor, workers, seconds)
            times[executor].append(one)
            print(f"{executor}: " + ", ".join(f"{name} {value:.2f}" for name, value in one.items()), flush=True)
        if numbers["ray"] != numbers["local"]:
            raise SystemExit("the records of the two are not equal")
    ray.shutdown()
    row: dict[str, Any] = {
        "ray": ray.__version__,
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "workers": workers,
        "runs": len(configs),
        "epochs": configs[0].epochs,
        "checkpoint_seconds": seconds,
        "start_and_warm_s": warming,
    }
    row |= {
        f"{executor}_{name}": [one[name] for one in found] for executor, found in times.items() for name in found[0]
    }
    for name, what in (("ratio", "epoch_ms"), ("cpu_ratio", "epoch_cpu_ms")):
        ratios = [ours / theirs for ours, theirs in zip(row[f"ray_{what}"], row[f"local_{what}"], strict=True)]
        row |= {name: statistics.median(ratios), f"{name}_low": min(ratios), f"{name}_high": max(ratios)}
    return row


def main() -> None:
    """Compare the two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--checkpoint-seconds", type=float, default=0.0)
    parser.add_argument("--json", help="a file for the numbers")
    arguments = parser.parse_args()
    base = RunConfig(dataset="mnist5k", batch_size=100, epochs=arguments.epochs)
    configs = sweep(base, seed=range(arguments.runs))
    row = measure(configs, arguments.workers, arguments.repeats, arguments.checkpoint_seconds)
    for name in ("ratio", "cpu_ratio"):
        print(f"{name} {row[name]:.3f} ({row[f'{name}_low']:.3f} to {row[f'{name}_high']:.3f})")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(row, indent=1) + "\n")


if __name__ == "__main__":
    main()
