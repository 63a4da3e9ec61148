"""`heatbath train`: trains the paper's networks, under every combination of protocols and knobs that is asked for."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from heatbath.cli.screens import console, either, terminal_width, write
from heatbath.cli.summaries import describe_settings, print_groups
from heatbath.cli.training import (
    CheckpointOption,
    DataOption,
    DeviceOption,
    ExecutorOption,
    MixOption,
    QuietOption,
    StackOption,
    StoreOption,
    TaskOption,
    WorkersOption,
    complete,
    import_task,
    read_options,
)
from heatbath.data.image_sets import DATASETS
from heatbath.engine.shards import take_shard
from heatbath.runs.configs import RunConfig, sweep
from heatbath.runs.records import Record
from heatbath.tasks.registry import find_network, networks

_MOST_SEEDS = 100_000

ModelOption = Annotated[str, typer.Option(metavar="NAME", help=f"{either(networks())}.")]
DatasetOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help=f"{either(DATASETS)}; by default the smallest that fits the network."),
]
ProtocolOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="constant, random (the default) or cyclic:P with P in epochs; may be repeated."),
]
LawOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="The law of the multiplier under random, such as uniform:1 (the default); may be repeated."
    ),
]
CouplingOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="What the multiplier acts on: gradient (the default) or update; may be repeated."
    ),
]
RateOption = Annotated[
    list[float] | None, typer.Option(metavar="X", help="The mean learning rate, 0.005 by default; may be repeated.")
]
BatchOption = Annotated[
    list[int] | None, typer.Option(metavar="N", help="Images in a mini-batch, 256 by default; may be repeated.")
]
MomentumOption = Annotated[
    list[float] | None,
    typer.Option(metavar="X", help="The momentum, from 0 to below 1; 0.9 by default; may be repeated."),
]
NesterovOption = Annotated[bool, typer.Option(help="Nesterov's form of the step, or the heavy ball's.")]
DecayOption = Annotated[
    list[float] | None,
    typer.Option(metavar="X", help="Part of the gradient, as in SGD; 0 by default; may be repeated."),
]
OptimizerOption = Annotated[
    str,
    typer.Option(metavar="NAME", help="sgd, or adamw, whose first beta is the momentum and whose decay is its own."),
]
ScheduleOption = Annotated[
    str, typer.Option(metavar="NAME", help="constant, cosine or linear: how the rate falls to 0, on top of a protocol.")
]
WarmupOption = Annotated[int, typer.Option(metavar="N", help="Steps over which the rate first grows.")]
ClipOption = Annotated[float | None, typer.Option(metavar="X", help="The largest norm of a gradient; by default any.")]
BetaOption = Annotated[float, typer.Option(metavar="X", help="AdamW's second beta; its first is --momentum.")]
SamplingOption = Annotated[
    str, typer.Option(metavar="NAME", help="shuffled (a new order in each epoch) or replacement (independent draws).")
]
EpochsOption = Annotated[int, typer.Option(metavar="N", help="How long to train.")]
PrecisionOption = Annotated[
    str,
    typer.Option(metavar="NAME", help="auto, fp32, tf32 or bf16; auto is fp32 on a CPU and what is fastest on a GPU."),
]
WeightsOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="imagenet starts vgg16's convolutions from there; else from the seed."),
]
ValidationOption = Annotated[int, typer.Option(metavar="N", help="Training images to hold out.")]
SeedsOption = Annotated[
    int | None, typer.Option(metavar="N", help="How many runs of each, of the seeds 0, 1, 2, ...; 1 by default.")
]
SeedListOption = Annotated[str | None, typer.Option(metavar="N,N,...", help="The seeds, such as 1,2,5.")]
ShardOption = Annotated[
    str | None,
    typer.Option(metavar="K/N", help="Train the K-th of N parts of the runs; auto takes both from a Slurm array."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, a list with an object for each run.")]


def train_networks(
    task: TaskOption = None,
    model: ModelOption = "mlp",
    dataset: DatasetOption = None,
    protocol: ProtocolOption = None,
    law: LawOption = None,
    coupling: CouplingOption = None,
    lr: RateOption = None,
    batch_size: BatchOption = None,
    momentum: MomentumOption = None,
    nesterov: NesterovOption = True,
    weight_decay: DecayOption = None,
    optimizer: OptimizerOption = "sgd",
    schedule: ScheduleOption = "constant",
    warmup: WarmupOption = 0,
    clip_norm: ClipOption = None,
    beta2: BetaOption = RunConfig.beta2,
    sampling: SamplingOption = "shuffled",
    epochs: EpochsOption = 20,
    precision: PrecisionOption = "auto",
    weights: WeightsOption = None,
    validation: ValidationOption = 0,
    seeds: SeedsOption = None,
    seed_list: SeedListOption = None,
    store: StoreOption = Path("runs"),
    device: DeviceOption = "auto",
    data_dir: DataOption = None,
    workers: WorkersOption = None,
    stack: StackOption = None,
    checkpoint_seconds: CheckpointOption = 0.0,
    executor: ExecutorOption = "local",
    shard: ShardOption = None,
    mix_origins: MixOption = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train networks and keep the results; what is in the store already is not trained again.

    Options that may be repeated make every combination: --protocol constant --protocol random --lr 0.01 --lr 0.02 is
    four groups of runs. An interrupted command goes on where it was when it is given again.
    """
    _check_protocol(protocol, {"--law": law, "--coupling": coupling})
    # All of these are axes, even of one value: what a constant protocol makes of a law must not reach the others.
    axes: dict[str, Sequence[Any] | None] = {
        **{"protocol": protocol, "law": law, "coupling": coupling, "lr": lr, "batch_size": batch_size},
        **{"momentum": momentum, "weight_decay": weight_decay, "nesterov": [nesterov]},
    }
    data = _read_data(task, model, dataset)
    knobs: dict[str, Any] = {
        **{"precision": precision, "validation": validation, "optimizer": optimizer, "schedule": schedule},
        **{"warmup": warmup, "clip_norm": clip_norm, "sampling": sampling, "weights": weights, "epochs": epochs},
    }
    base = RunConfig(**data, **knobs, beta2=beta2, batch_size=1)
    usual = {"law": None, "batch_size": RunConfig.batch_size}
    given = {name: values or [usual.get(name, getattr(base, name))] for name, values in axes.items()}
    configs = take_shard(sweep(base, **given, seed=_seeds(seeds, seed_list)), shard)
    options = read_options(device, data_dir, workers, stack, checkpoint_seconds, executor, mix_origins=mix_origins)
    records = complete(configs, store, options, quiet=quiet)
    if as_json:
        write(json.dumps([record.summary() for record in records], indent=2))
    else:
        _print_records(configs, records, store)


def _check_protocol(protocol: Sequence[str] | None, asked: dict[str, Sequence[str] | None]) -> None:
    """Refuse options of the random protocol where it is not asked for."""
    chosen = [name for name, value in asked.items() if value]
    if chosen and protocol and not any(text.strip().lower() == "random" for text in protocol):
        raise ValueError(f"{' and '.join(chosen)}: only for --protocol random")


def _read_data(task: str | None, model: str, dataset: str | None) -> dict[str, Any]:
    if task is None:
        return {"model": model, "dataset": dataset or find_network(model).dataset}
    if dataset is not None:
        raise ValueError(f"--dataset {dataset} and --task: give one of them")
    return {"task": import_task(task), "model": model}


def _print_records(configs: Sequence[RunConfig], records: Sequence[Record], store: Path) -> None:
    console(wrap=terminal_width() is not None).print(describe_settings(configs))
    print_groups(records)
    where = "" if store == Path("runs") else f" --store {shlex.quote(str(store))}"
    count = f"{len(records)} run{'s' * (len(records) != 1)}"
    console().print(f"\n{count} in {store}; 'heatbath runs list{where}' shows {'it' if len(records) == 1 else 'them'}")


def _seeds(count: int | None, listed: str | None) -> list[int]:
    if listed is None:
        if count is not None and not 1 <= count <= _MOST_SEEDS:
            raise ValueError(f"--seeds must be from 1 to {_MOST_SEEDS:,}, got {count}")
        return list(range(count or 1))
    if count is not None:
        raise ValueError("--seeds and --seed-list: give one of them")
    try:
        return [int(text) for text in listed.split(",")]
    except ValueError:
        raise ValueError(f"--seed-list must be integers with commas between them, got {listed!r}") from None
