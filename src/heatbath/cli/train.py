"""`heatbath train`: trains the paper's networks, under every combination of protocols and knobs that is asked for."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from heatbath.cli.options import read_seeds
from heatbath.cli.screens import Answer, count, say
from heatbath.cli.summaries import answer_with_runs, describe_settings, print_groups
from heatbath.cli.training import SafeTraining
from heatbath.engine.shards import take_shard
from heatbath.laws import parse_law
from heatbath.runs.configs import RunConfig, sweep
from heatbath.runs.records import Record
from heatbath.tasks.registry import find_network


@dataclass(frozen=True)
class Axes:
    """Settings that may have several values each: every combination is trained."""

    protocol: Annotated[
        list[str] | None,
        "constant, random (default) or cyclic:P, which goes from twice the rate to 0 in P epochs, then back.",
    ] = None
    law: Annotated[list[str] | None, "Distribution of the random multiplier, such as uniform:1 (default)."] = None
    coupling: Annotated[list[str] | None, "What the multiplier scales: gradient (default) or update."] = None
    lr: Annotated[list[float] | None, "Mean learning rate, 0.005 by default."] = None
    batch_size: Annotated[list[int] | None, "Samples in a mini-batch, 256 by default."] = None
    momentum: Annotated[list[float] | None, "Momentum, at least 0 and below 1; 0.9 by default."] = None
    weight_decay: Annotated[list[float] | None, "Weight decay, as in torch.optim.SGD; 0 by default."] = None


@dataclass(frozen=True)
class Settings:
    """Settings of all runs."""

    optimizer: str = "sgd"
    schedule: str = "constant"
    warmup: int = 0
    clip_norm: float | None = None
    beta2: float = RunConfig.beta2
    sampling: str = "shuffled"
    epochs: int = 20
    precision: str = "auto"
    weights: str | None = None
    validation: int = 0


def train_networks(
    *,
    task: str | None = None,
    model: str = "mlp",
    dataset: Annotated[str | None, "{}; by default the smallest that suits the model."] = None,
    axes: Axes,
    nesterov: Annotated[bool, "Use Nesterov momentum, or plain (heavy-ball) momentum."] = True,
    settings: Settings,
    seeds: Annotated[int | None, "Train this many seeds (0, 1, 2, ...) of each combination; 1 by default."] = None,
    seed_list: str | None = None,
    training: SafeTraining,
    shard: str | None = None,
) -> Answer:
    """Train networks and store the results. Runs that are already in the store are not trained again.

    Repeat an option to train every combination: --protocol constant --protocol random --lr 0.01 --lr 0.02 trains four
    groups of runs. Run the same command again to resume an interrupted one. The exit status is 3 if a run diverged.
    """
    _check_protocol(axes)
    if task is None:
        data: dict[str, Any] = {"model": model, "dataset": dataset or find_network(model).dataset}
    elif dataset is not None:
        raise ValueError(f"--dataset {dataset} and --task: give one of them")
    else:
        data = {"task": training.import_task(task), "model": model}
    base = RunConfig(**data, **vars(settings), batch_size=1)
    # All of these are axes, even of one value: what a constant protocol makes of a law must not reach the others.
    usual = {**{name: getattr(base, name) for name in vars(axes)}, "law": None, "batch_size": RunConfig.batch_size}
    given = {name: values or [usual[name]] for name, values in vars(axes).items()}
    configs = take_shard(sweep(base, **given, nesterov=[nesterov], seed=read_seeds(seeds, seed_list)), shard)
    records = training.complete(configs)
    return answer_with_runs(records, lambda: _show(configs, records, training.store))


def _check_protocol(axes: Axes) -> None:
    """Refuse options of the random protocol where it is not asked for, and the law that makes it a constant one."""
    chosen = [f"--{name}" for name in ("law", "coupling") if getattr(axes, name)]
    is_random = not axes.protocol or any(text.strip().lower() == "random" for text in axes.protocol)
    if chosen and not is_random:
        raise ValueError(f"{' and '.join(chosen)}: only for --protocol random")
    for law in axes.law or ():
        if parse_law(law).variance == 0.0:
            raise ValueError(f"--law {law} makes every rate the mean one: ask for --protocol constant instead")


def _show(configs: Sequence[RunConfig], records: Sequence[Record], store: Path) -> None:
    say(describe_settings(configs))
    print_groups(records)
    where = "" if store == Path("runs") else f" --store {shlex.quote(str(store))}"
    shows = f"'heatbath runs list{where}' shows {'it' if len(records) == 1 else 'them'}"
    say(f"\n{count(len(records), 'run')} in {store}; {shows}")
