"""What Ray costs: the same runs by its workers and by local processes, in turn, in one call.

    python benchmarks/executors.py --workers 2 --repeats 5

Both train the same runs on a CPU into new stores, and the records must be equal, or the benchmark fails. The Ray
cluster is one on this machine, started before and warm; local processes are started by each call, as always. A ratio is
the time with Ray over the time of the local call next to it; the order of the two alternates.
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

from heatbath.engine.run import run
from heatbath.runs.configs import RunConfig, sweep


def train(configs: list[RunConfig], executor: str, workers: int) -> tuple[float, list[Any]]:
    """Return the seconds of a call, and the numbers of its runs."""
    with tempfile.TemporaryDirectory(prefix="heatbath-") as store:
        start = time.perf_counter()
        records = run(configs, store, "cpu", workers=workers, executor=executor)
        seconds = time.perf_counter() - start
    return seconds, [[epoch.metrics for epoch in record.epochs] for record in records]


def measure(configs: list[RunConfig], workers: int, repeats: int) -> dict[str, Any]:
    """Return the times of both and their ratios."""
    start = time.perf_counter()
    ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    train(configs[:workers], "ray", workers)
    warming = time.perf_counter() - start
    times: dict[str, list[float]] = {"ray": [], "local": []}
    for repeat in range(repeats):
        numbers = {}
        for executor in sorted(times, reverse=repeat % 2 == 1):
            seconds, numbers[executor] = train(configs, executor, workers)
            times[executor].append(seconds)
        if numbers["ray"] != numbers["local"]:
            raise SystemExit("the records of the two are not equal")
        print(f"ray {times['ray'][-1]:.2f} s, local {times['local'][-1]:.2f} s", flush=True)
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
        "ray_s": times["ray"],
        "local_s": times["local"],
        "ratio": statistics.median(ratios),
        "ratio_low": min(ratios),
        "ratio_high": max(ratios),
    }


def main() -> None:
    """Compare the two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runs", type=int, default=8)
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
