"""Numbers of docs/cost.md on the cost of a run, and of docs/clusters.md: from the records of benchmarks and runs."""

from __future__ import annotations

import math
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from committed import benchmark, check, records, runs_of, together
from heatbath import Record
from heatbath.tasks.models import build_model
from heatbath.tasks.registry import networks

_LATER = ("second_call", "load", "list")
_AIMS = (0.2, 20.0, 60.0)


def clusters() -> SimpleNamespace:
    """Return what Ray costs, and the driver of many workers."""
    rows: Any = benchmark("cluster_cpu")
    ray = benchmark("executors_cpu")
    check(ray["cpu_ratio"] <= 1.05, "Ray costs at most 5 %")
    states_rows: Any = benchmark("cluster_cpu_states")
    (states,) = states_rows
    least = min(row["reports_per_second"] for row in (*rows, *states_rows))
    check(least >= 2000.0, "the driver takes 2,000 reports a second")
    first, *_, last = rows
    return SimpleNamespace(
        ray=ray,
        pairs=len(ray["ray_epoch_ms"]),
        equal=benchmark("executors_cpu_equal"),
        states=states,
        growth=last["run_cpu_ms"] / first["run_cpu_ms"],
        record_kB=1e3 * (last["with_records_MB"] - last["empty_MB"]) / last["runs"],
        driver="\n".join(
            f"| {row['runs']:,} | {row['run_cpu_ms']:.2f} ms | {row['reports_per_cpu_second']:,.0f} "
            f"| {row['reports_per_second']:,.0f} | {row['driving_MB']:.0f} MB | {row['with_records_MB']:,.0f} MB |"
            for row in rows
        ),
        later="\n".join(
            f"| {row['runs']:,} | " + " | ".join(f"{row[f'{one}_cpu_s']:.1f}" for one in _LATER) + " |" for row in rows
        ),
    )


def cost() -> SimpleNamespace:
    """Return the timings on noise of an H200, and what the CPU's are."""
    small, large, before = (benchmark(f"engine_h200{suffix}") for suffix in ("", "_vgg16", "_earlier"))
    rows = [*small["rows"], *large["rows"]]
    below = all(row["run_of_180_epochs_s"] < aim for row, aim in zip(rows, _AIMS, strict=True))
    check(below, "all three are below what we aimed at")
    builds = sorted(row["build_s"] for row in rows)
    cpu = benchmark("engine_cpu")["rows"]
    return SimpleNamespace(
        rows=[_row(row, on_cpu) for row, on_cpu in zip(rows, cpu, strict=True)],
        flops=[record["peaks"]["flops"] / 1e12 for record in (small, large)],
        copies=[record["peaks"]["bytes"] / 1e12 for record in (small, large)],
        autocast=[row["autocast_epoch_ratio"]["median"] for row in rows[1:]],
        builds=(builds[0], builds[-1]),
        step=rows[2]["engine_step_ms"],
        loader=cpu[0]["loader_ratio"]["median"],
        earlier=before["rows"][0],
        earlier_flops=before["peaks"]["flops"] / 1e12,
        operations=[
            record["rows"][-1]["share_of_flops"] * record["peaks"]["flops"] * _seconds_of_a_step(record) / 1e9
            for record in (small, large)
        ],
        spared=2 * _weights("vgg16") / before["peaks"]["bytes"] / _seconds_of_a_step(before),
        production=_production(),
        **_small_batches(small, large),
    )


def _row(row: dict[str, Any], on_cpu: dict[str, Any]) -> SimpleNamespace:
    """A row of the table of the cost, in the digits that it shows."""
    digits = 0 if row["model"] == "mlp" else 1
    return SimpleNamespace(
        replicas=row["replicas"],
        step=f"{row['step_ratio']['median']:.{digits}f}",
        epoch=f"{row['epoch_ratio']['median']:.{digits}f}",
        seconds=f"{row['run_of_180_epochs_s']:.{2 - digits}f}",
        share=max(row["share_of_flops"], row["share_of_bytes"]),
        cpu=on_cpu["step_ratio"]["median"],
    )


def _small_batches(small: dict[str, Any], large: dict[str, Any]) -> dict[str, Any]:
    """What runs of smaller batches cost: seconds by batch size, the time to copy, shares of the product's speed."""
    pixels, bytes_a_second = 784 * (1 + 3 * 4), small["peaks"]["bytes"]
    copied = [180 * math.ceil(60_000 / c) * (28 * _weights("mlp") + c * pixels) / bytes_a_second for c in (64, 60, 30)]
    shares = []
    for record, model, shape, images, timings in (
        (small, "cnn", (1, 28, 28), 60_000, (25.0, 33.0)),
        (large, "vgg16", (3, 32, 32), 50_000, (76.0,)),
    ):
        row, network = record["rows"][-1], networks()[model].stacked
        with FlopCounterMode(display=False) as forward:
            network.logits([one[None] for one in network.pack(build_model(model))], torch.zeros(1, *shape), None)
        step = row["share_of_flops"] * _seconds_of_a_step(record)  # of the product at its full speed
        evaluation = (images + 10_000) * forward.get_total_flops() / record["peaks"]["flops"]
        floor = 180 * (images * step / row["batch_size"] + evaluation)
        shares += [floor / seconds for seconds in (row["run_of_180_epochs_s"], *timings)]
    by_batch = {f"C{r.config.batch_size}": r.seconds for r in records().values() if r.config.model == "mlp"}
    return {"by_batch": by_batch, "copied": copied, "shares": shares}


def _production() -> SimpleNamespace:
    """Seconds of the runs of the figures."""
    scratch = [run.seconds for run in together(runs_of("figure4", "from scratch")) if run.config.seed >= 5]
    shared = [*runs_of("figure6", "CNN").values(), runs_of("figure6", "VGG16")["C = 128, l = 2.5e-4"]]
    control = runs_of("fair-control", "VGG16")["random update"]
    return SimpleNamespace(
        cnn=_seconds([run for run in together(runs_of("figure2")) if run.config.seed >= 3]),
        tuned=_seconds(together(runs_of("figure4", "from ImageNet"))),
        scratch=(min(scratch), max(scratch)),
        early=_seconds([run for run in together(runs_of("figure3", "CNN")) if run.config.seed < 5]),
        shared=[_seconds(runs) for runs in shared],
        control=_seconds([run for run in control if run.config.seed < 3]),
    )


def _seconds(runs: list[Record]) -> float:
    return fmean(run.seconds for run in runs)


def _seconds_of_a_step(record: dict[str, Any]) -> float:
    return float(record["rows"][-1]["engine_step_ms"]) / 1e3


def _weights(model: str) -> int:
    return sum(tensor.numel() for tensor in networks()[model].stacked.pack(build_model(model)))
