"""How long a training takes: about, and told before hours go into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heatbath.engine import planning
from heatbath.engine.options import Options
from heatbath.engine.progress import Tally
from heatbath.runs.configs import RunConfig
from heatbath.system import machine

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


def _roughly(seconds: float) -> str:
    """A time to one digit, in the largest unit of which there are two or more, such as 3 weeks."""
    unit = next((name for name, length in _UNITS.items() if seconds >= 1.5 * length), "hours")
    number = int(float(f"{seconds / _UNITS[unit]:.0e}"))
    return f"{number:,} {unit if number > 1 else unit.removesuffix('s')}"
