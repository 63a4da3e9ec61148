"""`heatbath race`: trains recipes seed by seed until it is decided which one is better."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from heatbath.cli.comparisons import MARGINS, DivergedOption, JsonOption, parse_diverged, parse_looks, print_lines
from heatbath.cli.screens import folder_option, write
from heatbath.cli.training import (
    DataOption,
    DeviceOption,
    QuietOption,
    StackOption,
    StoreOption,
    TaskOption,
    WorkersOption,
    complete,
    import_task,
    read_options,
)
from heatbath.runs.configs import RunConfig
from heatbath.system.folders import check_folder

_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None}
_SETTINGS = tuple(field.name for field in fields(RunConfig) if field.name not in ("seed", "task"))


def race_arms(
    arm: Annotated[
        list[str],
        typer.Option(metavar="KEY=X,...", help="A recipe, such as lr=0.01,momentum=0.95; give two or more."),
    ],
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=X", help="A setting of all arms, such as model=cnn; may be repeated."),
    ] = None,
    task: TaskOption = None,
    metric: Annotated[str, typer.Option(metavar="NAME", help="What is compared.")] = "test_accuracy",
    margin: Annotated[str | None, typer.Option(metavar="X", help=MARGINS)] = None,
    level: Annotated[float, typer.Option(help="The chance that no verdict is wrong.")] = 0.95,
    budget: Annotated[
        str | None, typer.Option(metavar="X", help="The most runs, or a time such as '30 min' before the last look.")
    ] = None,
    max_seeds: Annotated[int, typer.Option(metavar="N", help="The most seeds of an arm, unless --looks says it.")] = 40,
    looks: Annotated[
        str | None, typer.Option(metavar="N,N,...", help="Planned numbers of seeds; by default they double.")
    ] = None,
    diverged: DivergedOption = "worst",
    store: StoreOption = Path("runs"),
    device: DeviceOption = "auto",
    data_dir: DataOption = None,
    workers: WorkersOption = None,
    stack: StackOption = None,
    quiet: QuietOption = False,
    out: Annotated[
        Path | None, folder_option("--out", "A folder for a page with the curves of all arms and the verdicts.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train recipes with more and more seeds until it is decided which one is better, or that they are equal.

    An arm that is worse than another stops. The chance that any verdict is wrong is held over all looks. An interrupted
    race goes on when the same command is given again, and ends as it would have.
    """
    from heatbath.studies.race import race

    common = parse_settings(setting or (), "--set")
    common |= {} if task is None else {"task": import_task(task)}
    arms = _read_arms(arm, common)
    options = read_options(device, data_dir, workers, stack)
    if out is not None:
        from heatbath.report import plots  # noqa: F401 - a missing extra is told before the work, not after it

        check_folder(out, "--out")
    found = race(
        arms,
        metric,
        margin,
        budget,
        max_seeds,
        level=level,
        looks=None if looks is None else parse_looks(looks),
        diverged=parse_diverged(diverged),
        store=store,
        train=lambda configs: complete(configs, store, options, quiet=quiet),
    )
    page = None if out is None or not found.runs else found.write_page(out)
    if as_json:
        write(json.dumps(found.to_dict(), indent=2, allow_nan=False))
    else:
        print_lines([*str(found).splitlines(), *([] if page is None else [f"The page: {page}"])])


def parse_settings(texts: list[str] | tuple[str, ...], option: str) -> dict[str, Any]:
    """Return fields of a RunConfig from ``KEY=VALUE``: numbers and words as what they are."""
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


def _read_arms(texts: list[str], common: dict[str, Any]) -> dict[str, RunConfig]:
    twice = [text for text in texts if texts.count(text) > 1]
    if twice:
        raise ValueError(f"--arm {twice[0]} is there twice: give different arms")
    return {text: RunConfig(**common | parse_settings(text.split(","), "--arm")) for text in texts}
