"""What Ray costs: the same runs by its workers and by local processes, in turn, in one call.

    python benchmarks/executors.py --workers 3 --repeats 5

Both train the same runs on a CPU into new stores, and the records must be equal, or the benchmark fails. Neither is
charged for its start: a call is timed from the moment when each worker can have reported twice to the last epoch. A
ratio is the time of an epoch with Ray over that of the local call next to it; the order of the two alternates. The
whole calls are told too: of Ray with a cluster on this machine that is warm, of local processes with their start. Ray
gives its workers a niceness of 15, with which they wait for whatever else the machine has to do; here it is 0.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
import torch

from heatbath.engine.progress import Progress
from heatbath.engine.run import run
from heatbath.runs.configs import RunConfig, sweep


def train(configs: list[RunConfig], executor: str, workers: int) -> tuple[float, float, list[Any]]:
    """Return the seconds of a call, those of an epoch after the start, and the numbers of its runs."""
    reports: list[tuple[float, int]] = []

    def follow(progress: Progress) -> None:
        if progress.epochs_done >= 2 * workers:
            reports.append((time.perf_counter(), progress.epochs_done))

    with tempfile.TemporaryDirectory(prefix="heatbath-") as store:
        start = time.perf_counter()
        records = run(configs, store, "cpu", workers=workers, executor=executor, progress=follow)
        seconds = time.perf_counter() - start
    (first, before), (last, after) = reports[0], reports[-1]
    return seconds, (last - first) / (after - before), [[epoch.metrics for epoch in one.epochs] for one in records]


def measure(configs: list[RunConfig], workers: int, repeats: int) -> dict[str, Any]:
    """Return the times of both and their ratios."""
    start = time.perf_counter()
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - its name
    ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    train(configs[:workers], "ray", workers)
    warming = time.perf_counter() - start
    times: dict[str, list[float]] = {"ray": [], "local": []}
    calls: dict[str, list[float]] = {"ray": [], "local": []}
    for repeat in range(repeats):
        numbers = {}
        for executor in sorted(times, reverse=repeat % 2 == 1):
            call, epoch, numbers[executor] = train(configs, executor, workers)
            calls[executor].append(call)
            times[executor].append(1e3 * epoch)
        if numbers["ray"] != numbers["local"]:
            raise SystemExit("the records of the two are not equal")
        print(f"an epoch: ray {times['ray'][-1]:.2f} ms, local {times['local'][-1]:.2f} ms", flush=True)
    ray.shutdown()
    ratios = [ours / theirs for ours, theirs in zip(times["ray"], times["local"], strict=True)]
    return {
        "ray": ray.__version__,
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "workers": workers,
        "runs": len(configs),
        "epochs": configs[0].epochs,
        "start_and_warm_s": warming,
        "ray_epoch_ms": times["ray"],
        "local_epoch_ms": times["local"],
        "ray_call_s": calls["ray"],
        "local_call_s": calls["local"],
        "ratio": statistics.median(ratios),
        "ratio_low": min(ratios),
        "ratio_high": max(ratios),
    }


def main() -> None:
    """Compare the two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", help="a file for the numbers")
    arguments = parser.parse_args()
    base = RunConfig(dataset="mnist5k", batch_size=100, epochs=arguments.epochs)
    configs = sweep(base, seed=range(arguments.runs))
    row = measure(configs, arguments.workers, arguments.repeats)
    print(f"ratio {row['ratio']:.3f} ({row['ratio_low']:.3f} to {row['ratio_high']:.3f})")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(row, indent=1) + "\n")


if __name__ == "__main__":
    main()
