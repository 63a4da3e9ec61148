"""What is told before hours go into a training: how long it takes, about, and what is known of its tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import torch

from heatbath.engine import planning
from heatbath.engine.options import Options
from heatbath.engine.progress import Tally, count_runs
from heatbath.runs.configs import RunConfig
from heatbath.runs.records import Record
from heatbath.runs.store import Store
from heatbath.system import machine
from heatbath.tasks.probe import probe
from heatbath.tasks.samples import size_in_words
from heatbath.tasks.task import live_task

_LONG = 3600.0  # seconds from which on work is announced
_UNITS = {"years": 365.25 * 86400.0, "months": 30.4 * 86400.0, "weeks": 604800.0, "days": 86400.0, "hours": 3600.0}


def core_seconds(configs: Sequence[RunConfig], remaining: Mapping[str, int]) -> float:
    """Return about how long one core takes for the epochs that runs still lack."""
    return sum(remaining[c.run] * c.training_images * c.cost.cpu_seconds for c in configs)


def warn_of_long_work(configs: Sequence[RunConfig], tally: Tally, options: Options) -> None:
    """Say about how long runs will take on this CPU, where that is more than an hour."""
    cores, total = machine.available_cores(), 0.0
    for model in dict.fromkeys(config.model for config in configs):
        runs = [config for config in configs if config.model == model]
        processes, threads = planning.cpu_workers(runs[0], cores)
        busy = min(cores, threads * min(options.workers or processes, len(runs)))
        total += core_seconds(runs, tally.remaining) / busy
    if total > _LONG:
        reason = "no GPU is seen: " if options.device == "auto" else ""
        tally.say(f"{reason}on this CPU expect about {_roughly(total)}")


def introduce_tasks(configs: Sequence[RunConfig], store: Store, tally: Tally) -> None:
    """Say how large tasks are, and which runs of a store are of another version of them."""
    tasks = {config.task: config for config in configs if config.task is not None}
    if not tasks:
        return
    stored = [record.config.task for record in store.survey()[0] if record.config.task is not None]
    for one, config in tasks.items():
        task = live_task(one)
        data = (
            f"{len(task.train):,} + {len(task.test):,} samples in {size_in_words(task.train.nbytes + task.test.nbytes)}"
        )
        replica = f"{config.cost.weights:,} weights, about {size_in_words(planning.replica_bytes(config))} a run"
        tally.say(f"task {task.name}: {data}; {replica}", once=True, routine=True)
        if probe(task).same_start:
            tally.say(f"task {task.name}: all seeds start from the same weights, those that its function returns")
        others = [other.facts for other in stored if other.facts.name == task.name and other != task]
        if others:
            parts = dict.fromkeys(part for other in others for part in other.changes(task.facts))
            runs = f"{count_runs(len(others))} in the store ({', '.join(parts)})"
            tally.say(f"the task {task.name} has changed since {runs}, which stay as they are")


def check_origins(records: Iterable[Record], device: str, tally: Tally, options: Options) -> None:
    """Tell of runs that were begun with another torch, precision or kind of device, and refuse to mix what they gave.

    Raises:
        ValueError: there are such runs, and it was not asked for.
    """
    differing = Counter[str]()
    for record in records:
        then = record.epochs[-1].origin if record.epochs else {}
        now = {"torch": str(torch.__version__), "device": "CPU" if device == "cpu" else "GPU"}
        now["precision"] = planning.resolve_precision(record.config, torch.device(device))
        had = {name: _kind(name, then.get(name, "")) for name in ("torch", "precision", "device")}
        changed = [f"{name} {one}, here {now[name]}" for name, one in had.items() if one not in ("", now[name])]
        if changed:
            differing["; ".join(changed)] += 1
    for words, count in differing.items():
        begun = f"{count} run{'s were' if count > 1 else ' was'} begun with {words}"
        if not options.mix_origins:
            raise ValueError(f"{begun}: go on where they were begun, or ask for mix_origins (--mix-origins)")
        tally.say(f"{begun}; their epochs will say which were made where")


def _kind(name: str, origin: str) -> str:
    """What the numbers of a run depend on, to the last bits: of a device only whether it is a CPU."""
    return ("CPU" if origin.startswith("CPU") else "GPU") if name == "device" and origin else origin


def _roughly(seconds: float) -> str:
    """A time to one digit, in the largest unit of which there are two or more, such as 3 weeks."""
    unit = next((name for name, length in _UNITS.items() if seconds >= 1.5 * length), "hours")
    number = int(float(f"{seconds / _UNITS[unit]:.0e}"))
    return f"{number:,} {unit if number > 1 else unit.removesuffix('s')}"
