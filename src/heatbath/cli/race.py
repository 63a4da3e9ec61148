"""`heatbath race`: trains recipes seed by seed until it is decided which one is better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from heatbath.cli.options import read_diverged, read_looks
from heatbath.cli.screens import Answer, say, say_verdicts
from heatbath.cli.summaries import diverged_status
from heatbath.cli.training import Training
from heatbath.engine.progress_bar import display
from heatbath.runs.configs import RunConfig
from heatbath.system.whole_files import check_folder

_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None}
_SETTINGS = tuple(field.name for field in fields(RunConfig) if field.name not in ("seed", "task"))


def race_arms(
    *,
    arm: list[str],
    setting: list[str] | None = None,
    task: str | None = None,
    metric: str = "test_accuracy",
    margin: str | None = None,
    level: float = 0.95,
    budget: str | None = None,
    max_seeds: int | None = None,
    looks: Annotated[str | None, "Numbers of seeds at which the arms are compared; by default they double."] = None,
    diverged: str = "worst",
    training: Training,
    out: Annotated[Path | None, "Folder for a page with curves and verdicts."] = None,
) -> Answer:
    """Train recipes (arms) with more and more seeds until one is better, or they are equal within the margin.

    An arm that is worse than another stops early. The chance that any verdict is wrong stays below 1 - level over all
    looks. Run the same command again to resume an interrupted race. The exit status is 3 if a run diverged.
    """
    from heatbath.studies.race import race

    common = _read_settings(setting or (), "--set")
    common |= {} if task is None else {"task": training.import_task(task)}
    twice = [text for text in arm if arm.count(text) > 1]
    if twice:
        raise ValueError(f"--arm {twice[0]} is there twice: give different arms")
    arms = {text: RunConfig(**common | _read_settings(text.split(","), "--arm")) for text in arm}
    training.options()
    if out is not None:
        check_folder(out, "--out")
        with display(quiet=training.quiet):
            from heatbath.report import plots  # noqa: F401 - a missing extra is told before the work, not after it
    rules: dict[str, Any] = {"level": level, "looks": read_looks(looks), "diverged": read_diverged(diverged)}
    rules |= {"store": training.store, "train": training.complete}
    found = race(arms, metric, margin, budget, max_seeds, **rules)
    page = None if out is None or not found.runs else found.write_page(out)

    def show() -> None:
        say_verdicts(*str(found).splitlines())
        say(*[] if page is None else [f"The page: {page}"])

    status = diverged_status(record for records in found.records.values() for record in records)
    return Answer(found.to_dict(), show, status)


def _read_settings(texts: Sequence[str], option: str) -> dict[str, Any]:
    """Fields of a RunConfig from ``KEY=VALUE``: numbers and words as what they are."""
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or key not in _SETTINGS:
            raise ValueError(f"{option} must be KEY=VALUE with a KEY of {', '.join(_SETTINGS)}, got {text!r}")
        found[key] = _value(value)
    return found


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
