"""Parts of a set of runs for machines that do not talk to each other, such as the tasks of a Slurm array."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from heatbath.runs.configs import RunConfig


def take_shard(
    configs: Sequence[RunConfig], shard: str | None, environment: Mapping[str, str] = os.environ
) -> list[RunConfig]:
    """Return the ``k``-th of ``n`` parts of some runs, each run once, for the shard ``"k/n"``; None is all of them.

    Runs are dealt out in the order of their names, so that parts of one call never overlap, make up the whole, and
    differ by at most one in size, whoever asks. With ``"auto"`` a Slurm array says both numbers, in the environment.

    Raises:
        ValueError: the shard is neither, or there is no Slurm array.
    """
    configs = list({config.run: config for config in configs}.values())
    if shard is None:
        return configs
    text = _of_slurm(environment) if shard == "auto" else shard
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(f"shard must be K/N with K from 1 to N, or auto, got {text!r}")
    k, n = int(match[1]), int(match[2])
    mine = {config.run for config in sorted(configs, key=lambda config: config.run)[k - 1 :: n]}
    if not mine:
        raise ValueError(f"shard {text}: there are only {len(configs)} runs, so this part is empty")
    return [config for config in configs if config.run in mine]


def _of_slurm(environment: Mapping[str, str]) -> str:
    numbers = {"STEP": 1}
    for name in ("ID", "MIN", "COUNT", "STEP"):
        try:
            numbers[name] = int(environment[f"SLURM_ARRAY_TASK_{name}"])
        except (KeyError, ValueError) as error:
            if name not in numbers:
                what = "not set" if isinstance(error, KeyError) else "no number"
                words = f"this is not a task of a Slurm array (SLURM_ARRAY_TASK_{name} is {what})"
                raise ValueError(f"shard auto: {words}") from None
    part, beside = divmod(numbers["ID"] - numbers["MIN"], max(1, numbers["STEP"]))
    if beside or not 0 <= part < numbers["COUNT"]:
        raise ValueError("shard auto: tasks of a Slurm array must be evenly spaced, as in --array=1-8; or give K/N")
    if numbers["MIN"] > 1 or numbers["COUNT"] == 1:  # submitted again alone it would take the runs of all
        what = "of one task" if numbers["COUNT"] == 1 else f"that begins at {numbers['MIN']}"
        raise ValueError(f"shard auto: a Slurm array {what} may be a part of another: give K/N")
    return f"{part + 1}/{numbers['COUNT']}"
