"""`heatbath transfer`: a recipe at another batch size, momentum or law, by the rule of the theory; and its proof."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from heatbath.cli.comparisons import MARGINS, JsonOption, print_lines
from heatbath.cli.screens import console, print_table, write
from heatbath.cli.training import (
    DataOption,
    DeviceOption,
    QuietOption,
    StoreOption,
    WorkersOption,
    complete,
    import_task,
    read_options,
)
from heatbath.laws import parse_law


def transfer_recipe(
    lr: Annotated[float, typer.Option(help="The learning rate of the recipe.")],
    batch_size: Annotated[int, typer.Option(help="Its samples in a mini-batch.")],
    optimizer: Annotated[str, typer.Option(help="sgd or adamw.")] = "sgd",
    momentum: Annotated[float | None, typer.Option(help="The momentum, 0 by default; AdamW's first beta, 0.9.")] = None,
    beta2: Annotated[float, typer.Option(help="AdamW's second beta.")] = 0.999,
    weight_decay: Annotated[float, typer.Option(help="Part of SGD's gradient, apart from AdamW's.")] = 0.0,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="Nesterov's form of SGD's step.")] = False,
    law: Annotated[str, typer.Option(help="The law of the multiplier, such as uniform:1.")] = "constant",
    dataset_size: Annotated[int | None, typer.Option(help="Samples, if drawn without replacement.")] = None,
    to_batch_size: Annotated[int | None, typer.Option(help="The new batch size.")] = None,
    to_momentum: Annotated[float | None, typer.Option(help="The new momentum, for SGD.")] = None,
    to_law: Annotated[str | None, typer.Option(help="The new law of the multiplier, for SGD.")] = None,
    to_optimizer: Annotated[str | None, typer.Option(help="The new optimizer.")] = None,
    prove: Annotated[
        str | None,
        typer.Option(metavar="TASK", help="Race both recipes on this task: model/dataset, or package.module:task."),
    ] = None,
    margin: Annotated[str | None, typer.Option(metavar="X", help=MARGINS)] = None,
    metric: Annotated[str, typer.Option(metavar="NAME", help="What the race compares.")] = "test_accuracy",
    epochs: Annotated[int, typer.Option(metavar="N", help="How long the race trains.")] = 20,
    max_seeds: Annotated[int, typer.Option(metavar="N", help="The most seeds of the race.")] = 40,
    budget: Annotated[str | None, typer.Option(metavar="X", help="The most runs of the race, or a time.")] = None,
    store: StoreOption = Path("runs"),
    device: DeviceOption = "auto",
    data_dir: DataOption = None,
    workers: WorkersOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print the recipe that the theory gives at another batch size, momentum or law, and what it assumes.

    With --prove both recipes are trained on a task until they are equal within --margin, or not: without it nothing has
    been tested.
    """
    from heatbath.studies import transfer as study

    if to_optimizer not in (None, "sgd", "adamw"):
        raise ValueError(f"--to-optimizer must be sgd or adamw, got {to_optimizer!r}")
    if to_optimizer not in (None, optimizer):
        raise ValueError(
            f"the theory has no rule from {optimizer} to {to_optimizer}: their rates are not in the same units; tune "
            "the new rate, and let 'heatbath race' tell which is better"
        )
    usual = 0.9 if optimizer == "adamw" else 0.0
    own = usual if momentum is None else momentum
    recipe = study.Recipe(optimizer, lr, batch_size, own, beta2, weight_decay, nesterov, parse_law(law))
    to: dict[str, Any] = {"batch_size": to_batch_size, "momentum": to_momentum, "law": to_law}
    found = study.transfer(recipe, **to, dataset_size=dataset_size)
    ended = None
    if prove is not None:
        if margin is None:
            raise ValueError("--prove needs a --margin, within which the recipes count as equal")
        options = read_options(device, data_dir, workers)
        race: dict[str, Any] = {"metric": metric, "max_seeds": max_seeds, "budget": budget, "store": store}
        train = partial(complete, store=store, options=options, quiet=quiet)
        ended = study.prove(found, _base(prove, epochs), margin, **race, train=train)
    if as_json:
        write(json.dumps({**found.to_dict(), "proof": None if ended is None else ended.to_dict()}, indent=2))
    else:
        _print(found, ended, prove)


def _print(found: Any, ended: Any, prove: str | None) -> None:
    rows = [
        (
            name,
            f"{r.lr:.6g}",
            str(r.batch_size),
            f"{r.momentum:.6g}",
            f"{r.beta2:.6g}",
            f"{r.weight_decay:.4g}",
            str(r.law),
        )
        for name, r in (("original", found.original), ("moved", found.moved))
    ]
    headings = ("", "lr", "batch", "momentum", "beta2", "decay", "law")
    kept = [k for k, name in enumerate(headings) if name != ("beta2" if found.original.optimizer == "sgd" else "law")]
    console().print(f"{found.rule}\n")
    print_table([headings[k] for k in kept], [[row[k] for k in kept] for row in rows])
    print_lines(["", "Assumed:", *(f"- {text}" for text in found.assumed), ""])
    if ended is None:
        print_lines(["Nothing of this has been tested; --prove TASK --margin X does."])
        return
    proved = [one.verdict for one in ended.comparisons] == ["equal"]
    words = [one.sentence for one in ended.comparisons] or [ended.sentence]
    print_lines([f"{'Proved' if proved else 'Not proved'} on {prove}: {words[0]}"])


def _base(task: str, epochs: int) -> Any:
    """The task as a run."""
    from heatbath.runs.configs import RunConfig

    if ":" in task:
        return RunConfig(task=import_task(task), epochs=epochs, batch_size=1)
    model, slash, dataset = task.partition("/")
    if not slash or not model or not dataset:
        raise ValueError(f"--prove must be model/dataset, such as mlp/mnist5k, or package.module:task, got {task!r}")
    return RunConfig(model=model, dataset=dataset, epochs=epochs, batch_size=1)
