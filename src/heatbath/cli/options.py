"""What commands are asked with: a name means one thing in all of them, and its words stand in one table.

A command is a plain function that returns an `Answer`. Its parameters are its options, and `command` makes them known
to typer, with ``--json``. A parameter that is a dataclass stands for its fields. A text in ``Annotated`` replaces the
words of the table.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from glob import escape, glob
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from heatbath.cli.screens import Answer, either

_MOST_SEEDS = 100_000


_HELP = {
    "against": "Compare all groups with this one, or with the best one: best.",
    "arm": "A recipe, such as lr=0.01,momentum=0.95; give two or more.",
    "as_json": "Print JSON.",
    "at_batch_size": "Ask for equal temperature at this batch size.",
    "at_epoch": "Measure the noise after this epoch.",
    "at_lr": "Ask for equal temperature at this rate.",
    "at_momentum": "Ask for equal temperature at this momentum.",
    "batch_size": "Samples in a mini-batch.",
    "beta2": "AdamW's second beta; its first is --momentum.",
    "budget": "The most runs, or a time such as '30 min' before the last look.",
    "by": "The setting or column that makes the groups.",
    "checkpoint_seconds": "Least seconds between checkpoints; 0 writes one after each epoch.",
    "clip_norm": "The largest norm of a gradient; by default any.",
    "coupling": "What the multiplier acts on: gradient or update.",
    "create": "Make the store if it is not there.",
    "curvature": "The largest curvature, to test the rate.",
    "data_dir": "Where to look for the data first.",
    "dataset": "{}.",
    "dataset_size": "Samples, if drawn without replacement.",
    "device": "auto (GPUs, if there are any), cpu, cuda (all GPUs), or cuda:1 (the second).",
    "diffusion": "The variance of a sample's gradient.",
    "diverged": "Runs without a number: tell, exclude, worst, or a number that they count as.",
    "draw_only": "Train nothing: draw what is in the store.",
    "epochs": "How long to train.",
    "executor": "Who trains: local, ray, dask, or ray:ADDRESS, dask:ADDRESS for a cluster.",
    "export": "Write the verdict to this JSON file, for 'heatbath gate'.",
    "figures": "Such as figure1, or just 1; all by default. --list names them.",
    "file": "Its ending is the format: .csv, .parquet, .jsonl or .jsonl.gz; - prints CSV.",
    "get": "Fetch mnist, cifar10 or vgg16 (its ImageNet features) first.",
    "landscape": "The loss, such as double-well:0.2:2, quadratic:1 or, in the plane, rosenbrock:10.",
    "law": "The law of the multiplier, such as uniform:1.",
    "level": "The chance that no verdict is wrong.",
    "list_figures": "Print the figures, and train nothing.",
    "looks": "Planned numbers of seeds, such as 5,10,20,40, for runs that are added.",
    "lower_is_better": "By default, lower where it is a loss or an error.",
    "lr": "The mean learning rate.",
    "margin": "How far means may be apart and count as equal: 0.002, or 5% for the ratio of geometric means (losses).",
    "max_seeds": "The most seeds of an arm; by default the last look, or 40.",
    "metric": "What to compare.",
    "mix_origins": "Go on with runs that were begun with another torch or kind of device.",
    "model": "{}.",
    "momentum": "The momentum, from 0 to below 1.",
    "nesterov": "Nesterov's form of the step.",
    "new_runs": "A store, a file or folder of 'runs export', or a table (.csv[.gz] or .jsonl[.gz]).",
    "optimizer": "sgd, or adamw, whose first beta is the momentum and whose decay is its own.",
    "others": "Stores, .jsonl[.gz] files of 'runs export', or folders of such files.",
    "out": "The folder for the pictures and the numbers.",
    "precision": "auto, fp32, tf32 or bf16; auto is fp32 on a CPU and what is fastest on a GPU.",
    "prove": "Race both recipes on this task: model/dataset, or package.module:task.",
    "protocol": "constant, random or cyclic:P, from twice the rate to 0 in P epochs and back.",
    "quiet": "Show no progress.",
    "run": "The name of the run, or as much of its beginning as no other shares.",
    "samples": "Training images that the noise is measured on.",
    "sampling": "shuffled (a new order in each epoch) or replacement (independent draws).",
    "scale": "smoke (seconds, a test), laptop (minutes, embedded data) or paper (for a GPU).",
    "schedule": "constant, cosine or linear: how the rate falls to 0, on top of a protocol.",
    "seed": "Of weights, order and multipliers.",
    "seed_list": "The seeds, such as 1,2,5.",
    "seeds": "Runs of each group, instead of the scale's own number.",
    "setting": "A setting of all arms, such as model=cnn.",
    "shard": "Train the K-th of N parts of the runs; auto takes both from a Slurm array.",
    "solve": "The knob to solve for: lr, batch_size or momentum.",
    "source": "A store, a file or folder of 'runs export', or a table (.csv[.gz] or .jsonl[.gz]).",
    "stack": "Most runs trained as one program; by default what the memory holds.",
    "status": "Only those that are {}.",
    "steps": "How many steps of SGD to follow; by default 1500, in the plane 3000.",
    "store": "The folder where results and checkpoints are kept.",
    "task": "A heatbath.Task of yours, in the place of model and dataset.",
    "to_batch_size": "The new batch size.",
    "to_law": "The new law of the multiplier, for SGD.",
    "to_momentum": "The new momentum, for SGD.",
    "to_optimizer": "The new optimizer.",
    "trajectories": "How many trajectories make the histogram.",
    "validation": "Training images to hold out.",
    "verdict": "A file of 'heatbath compare --export'.",
    "warmup": "Steps over which the rate first grows.",
    "weight_decay": "Part of the gradient, as in SGD.",
    "weights": "imagenet starts vgg16's convolutions from there; else from the seed.",
    "where": "Only runs with this setting.",
    "workers": "Processes at once on a CPU; by default as many as is fastest.",
}
_ARGUMENTS = ("source", "new_runs", "figures", "verdict", "run", "others", "file")
_FILES = ("source", "new_runs", "verdict", "others", "file", "export")
_LEAST = {"workers": 1, "stack": 1, "checkpoint_seconds": 0.0}
_FLAGS = {
    **{"as_json": ("--json",), "list_figures": ("--list",), "quiet": ("--quiet", "-q"), "setting": ("--set",)},
    "lower_is_better": ("--lower-is-better/--higher-is-better",),
}
_METAVARS = {
    **{"arm": "KEY=X,...", "setting": "KEY=X", "where": "KEY=VALUE", "by": "KEY", "diverged": "HOW", "budget": "X"},
    **{"margin": "X", "shard": "K/N", "looks": "N,N,...", "seed_list": "N,N,...", "task": "PACKAGE.MODULE:NAME"},
    **{"prove": "TASK", "export": "FILE", "others": "OTHER", "figures": "FIGURE"},
}
_KINDS = {int: "N", float: "X", str: "NAME", Path: "DIR"}


def _choices(name: str) -> Iterable[str]:
    """What a shell offers for a name, and ``{}`` stands for in its help."""
    if name in ("model", "dataset", "by", "where"):
        from heatbath.data.image_sets import DATASETS
        from heatbath.runs.configs import RunConfig
        from heatbath.tasks.registry import networks

        return {"model": networks(), "dataset": DATASETS}.get(name) or [field.name for field in fields(RunConfig)]
    if name == "status":
        from heatbath.runs.records import STATUSES

        return STATUSES
    if name == "figures":
        from heatbath.paper import EXPERIMENTS, PLANNED

        return EXPERIMENTS | PLANNED
    return _CHOICES.get(name.removeprefix("to_"), ())


_CHOICES = {
    **{"against": ["best"], "coupling": ["gradient", "update"], "device": ["auto", "cpu", "cuda"]},
    **{"diverged": ["tell", "exclude", "worst"], "executor": ["local", "ray", "dask"]},
    **{"get": ["mnist", "cifar10", "vgg16"], "landscape": ["double-well:0.2:2", "quadratic:1", "rosenbrock:10"]},
    "law": ["constant", "uniform:1", "twopoint:0.5", "arcsine:1", "exponential", "lognormal:0.25"],
    "metric": [f"{split}_{name}" for split in ("test", "train", "validation") for name in ("accuracy", "loss")],
    **{"optimizer": ["sgd", "adamw"], "precision": ["auto", "fp32", "tf32", "bf16"]},
    **{"protocol": ["constant", "random", "cyclic:20"], "prove": ["mlp/mnist5k", "cnn/mnist", "vgg16/cifar10"]},
    **{"sampling": ["shuffled", "replacement"], "scale": ["smoke", "laptop", "paper"], "weights": ["imagenet"]},
    **{"schedule": ["constant", "cosine", "linear"], "solve": ["lr", "batch_size", "momentum"]},
}


def command(function: Callable[..., Answer]) -> Callable[..., None]:
    """Return a command as typer takes it: with an option for each parameter, and one for JSON; it prints the answer."""
    groups: dict[str, tuple[type, list[str]]] = {}
    options: list[inspect.Parameter] = []
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        if is_dataclass(hints[name]):
            inner = get_type_hints(hints[name], include_extras=True)
            groups[name] = hints[name], [field.name for field in fields(hints[name])]
            options += [_option(field.name, inner[field.name], field.default) for field in fields(hints[name])]
        else:
            empty = parameter.default is parameter.empty
            options.append(_option(name, hints[name], ... if empty else parameter.default))
    options.append(_option("as_json", bool, False))

    def run(*, as_json: bool, **values: Any) -> None:
        for name, (group, names) in groups.items():
            values[name] = group(**{part: values.pop(part) for part in names})
        function(**values).tell(as_json=as_json)

    run.__doc__ = function.__doc__
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return run


def _option(name: str, hint: Any, default: Any) -> inspect.Parameter:
    """An option, or an argument, as typer reads it from a signature."""
    hint, *instead = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    text = instead[0] if instead else _HELP[name]
    text = text.format(either(_choices(name))) if "{}" in text else text
    kinds = [hint, *get_args(hint), *(deeper for part in get_args(hint) for deeper in get_args(part))]
    kind = next((text for kind, text in _KINDS.items() if kind in kinds), None)
    is_folder = kind == "DIR" and name not in _FILES
    usual = name.upper() if name in _ARGUMENTS else kind
    settings: dict[str, Any] = {"metavar": _METAVARS.get(name, usual), "autocompletion": _completion(name, is_folder)}
    if name in _ARGUMENTS:
        made = typer.Argument(default, help=text, **settings)
    else:
        flags = _FLAGS.get(name) or ((f"--{name.replace('_', '-')}",) if is_folder or default is False else ())
        settings |= {"min": _LEAST[name]} if name in _LEAST else {"parser": _read_folder} if is_folder else {}
        if any(get_origin(kind) is list for kind in kinds):
            text = f"{text.removesuffix('.')}; may be repeated."
        made = typer.Option(default, *flags, help=text, **settings)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=made, annotation=hint)


def _read_folder(text: str | Path) -> Path:
    """A folder; an empty name, as of a variable that is unset, is refused."""
    if not str(text):  # which Path would take for the working folder
        raise typer.BadParameter("it is empty; name a folder, or . for this one")
    return Path(text)


def _completion(name: str, is_folder: bool) -> Callable[[str], list[str]]:
    """What a shell offers: the choices, or files and folders."""

    def complete(incomplete: str) -> list[str]:
        if is_folder or name in _FILES:
            return sorted(path for path in glob(f"{escape(incomplete)}*") if not is_folder or os.path.isdir(path))
        return [choice for choice in _choices(name) if choice.startswith(incomplete)]

    return complete


def read_seeds(count: int | None, listed: str | None = None) -> list[int]:
    """Return the seeds 0, 1, 2, ... or those that are listed, each once."""
    if listed is None:
        if count is not None and not 1 <= count <= _MOST_SEEDS:
            raise ValueError(f"--seeds must be from 1 to {_MOST_SEEDS:,}, got {count}")
        return list(range(count or 1))
    if count is not None:
        raise ValueError("--seeds and --seed-list: give one of them")
    try:
        seeds = [int(text) for text in listed.split(",")]
    except ValueError:
        raise ValueError(f"--seed-list must be integers with commas between them, got {listed!r}") from None
    twice = [seed for seed in seeds if seeds.count(seed) > 1]
    if twice:
        raise ValueError(f"--seed-list has {twice[0]} twice: a run of one seed is trained once, got {listed!r}")
    return seeds


def read_where(texts: Sequence[str] | None) -> dict[str, str]:
    """Return settings and their values from ``KEY=VALUE``."""
    pairs = [text.partition("=") for text in texts or ()]
    for key, equals, _ in pairs:
        if not equals or not key:
            raise ValueError(f"--where must be KEY=VALUE, got {key!r}")
    return {key: value for key, _, value in pairs}


def read_looks(text: str | None) -> tuple[int, ...] | None:
    """Return planned looks from numbers with commas between them."""
    try:
        return None if text is None else tuple(int(number) for number in text.split(","))
    except ValueError:
        raise ValueError(f"--looks must be numbers of seeds such as 5,10,20,40, got {text!r}") from None


def read_diverged(text: str) -> str | float:
    """Return what to do with diverged runs: a word, or a number."""
    try:
        return float(text)
    except ValueError:
        return text
