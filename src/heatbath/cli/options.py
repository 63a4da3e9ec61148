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
    "against": "Compare every group with this one; 'best' finds the best group.",
    "arm": "A recipe to race, such as lr=0.01,momentum=0.95; give at least two.",
    "as_json": "Print JSON instead of text.",
    "at_batch_size": "Find settings of equal temperature at this batch size.",
    "at_epoch": "Measure the noise after this epoch.",
    "at_lr": "Find settings of equal temperature at this learning rate.",
    "at_momentum": "Find settings of equal temperature at this momentum.",
    "batch_size": "Samples in a mini-batch.",
    "beta2": "AdamW's beta2; its beta1 is --momentum.",
    "budget": "Stop after this many runs, or start no look after a time such as '30 min'.",
    "by": "The setting or column that defines the groups.",
    "checkpoint_seconds": "Minimum seconds between checkpoints; 0 writes one after each epoch.",
    "clip_norm": "Clip gradients to this norm; by default they are not clipped.",
    "coupling": "What the multiplier scales: gradient or update.",
    "create": "Create the store if it does not exist.",
    "curvature": "The largest curvature of the loss, to check that the learning rate is stable.",
    "data_dir": "Look for the data here first.",
    "dataset": "{}.",
    "dataset_size": "Size of the data set, if batches are drawn without replacement.",
    "device": "auto (GPUs, if there are any), cpu, cuda (all GPUs), or cuda:1 (the second).",
    "diffusion": "Variance of the gradient of one sample.",
    "diverged": "How to count diverged runs: tell (report them and stay undecided), exclude, worst, or a number.",
    "draw_only": "Train nothing; draw the runs in the store.",
    "epochs": "Number of epochs.",
    "executor": "Where to train: local, ray, dask, or ray:ADDRESS, dask:ADDRESS for a cluster.",
    "export": "Write the verdict to this JSON file, for 'heatbath gate'.",
    "figures": "Figures to reproduce, such as figure1 or 1; all by default. See --list.",
    "file": "The output file; its suffix sets the format: .csv, .parquet, .jsonl or .jsonl.gz. - prints CSV.",
    "get": "Download mnist, cifar10 or vgg16 (weights of its convolutions, from ImageNet) first.",
    "landscape": "The loss, such as double-well:0.2:2, quadratic:1 or, in two dimensions, rosenbrock:10.",
    "law": "Distribution of the multiplier, such as uniform:1.",
    "level": "Confidence that no verdict of this call is wrong.",
    "list_figures": "List the figures and exit.",
    "looks": "Planned numbers of seeds at which you compare, such as 5,10,20,40.",
    "lower_is_better": "Direction of the metric; losses and errors are better when lower by default.",
    "lr": "Mean learning rate.",
    "margin": "Means this close count as equal: 0.002, or 5% for a ratio of geometric means (losses).",
    "max_seeds": "Most seeds for each arm; by default the last look, or 40.",
    "metric": "The metric to compare.",
    "mix_origins": "Also resume runs that another torch version or kind of device began.",
    "model": "{}.",
    "momentum": "Momentum, at least 0 and below 1.",
    "nesterov": "Use Nesterov momentum.",
    "new_runs": "A store, files from 'runs export' (or a folder of them), or a table (.csv[.gz], .jsonl[.gz]).",
    "optimizer": "sgd or adamw. AdamW takes --momentum as beta1 and decouples its weight decay.",
    "others": "Stores, .jsonl or .jsonl.gz files from 'runs export', or folders of such files.",
    "out": "Folder for the pictures and numbers.",
    "precision": "auto, fp32, tf32 or bf16. auto is fp32 on a CPU and the fastest on a GPU.",
    "protocol": "constant, random or cyclic:P. cyclic:P goes from twice the rate to 0 in P epochs, then back.",
    "prove": "Train both recipes on this task and compare them: model/dataset, or package.module:task.",
    "quiet": "Show no progress bar.",
    "run": "The run's name, or any unique prefix of it.",
    "samples": "Training images to measure the noise on.",
    "sampling": "shuffled (a new order each epoch) or replacement (independent draws).",
    "scale": "smoke (seconds, for tests), laptop (minutes, small data included) or paper (needs a GPU).",
    "schedule": "constant, cosine or linear. cosine and linear lower the learning rate to 0.",
    "seed": "Seed of the initial weights, the data order and the multipliers.",
    "seed_list": "Seeds to train, such as 1,2,5.",
    "seeds": "Runs for each group; the default depends on the scale.",
    "setting": "A setting shared by all arms, such as model=cnn.",
    "shard": "Train part K of N of the runs; auto reads both from a Slurm array.",
    "solve": "The setting to solve for: lr, batch_size or momentum.",
    "source": "A store, files from 'runs export' (or a folder of them), or a table (.csv[.gz], .jsonl[.gz]).",
    "stack": "Most runs trained together in one program; by default as many as fit in memory.",
    "status": "Only runs that are {}.",
    "steps": "SGD steps to simulate; by default 1500, in two dimensions 3000.",
    "store": "Folder for results and checkpoints.",
    "task": "Your heatbath.Task, instead of --model and --dataset.",
    "to_batch_size": "The new batch size.",
    "to_law": "The new distribution of the multiplier, for SGD.",
    "to_momentum": "The new momentum, for SGD.",
    "to_optimizer": "The new optimizer.",
    "trajectories": "Trajectories in the histogram.",
    "validation": "Training images to hold out for validation.",
    "verdict": "A file written by 'heatbath compare --export'.",
    "warmup": "Steps over which the learning rate rises at the start.",
    "weight_decay": "Weight decay, as in torch.optim.SGD.",
    "weights": "imagenet starts the convolutions of vgg16 from trained weights; by default the seed sets them.",
    "where": "Only runs with this setting.",
    "workers": "CPU processes at once; by default the fastest number.",
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
