"""`heatbath thermostat`: knobs to temperature, and other knobs of equal temperature."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from heatbath.cli.screens import console, print_table, warn, write
from heatbath.thermostat import Thermostat


def print_temperature(
    lr: Annotated[float, typer.Option(help="The mean learning rate.")],
    batch_size: Annotated[int, typer.Option(help="Samples in a mini-batch.")],
    momentum: Annotated[float, typer.Option(help="The momentum, from 0 to below 1.")] = 0.0,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="Nesterov's form of the step.")] = False,
    law: Annotated[str, typer.Option(help="The law of the multiplier, such as uniform:1.")] = "constant",
    coupling: Annotated[str, typer.Option(help="What the multiplier acts on: gradient or update.")] = "gradient",
    dataset_size: Annotated[int | None, typer.Option(help="Samples, if drawn without replacement.")] = None,
    sampling: Annotated[
        str, typer.Option(help="replacement if batches are independent, shuffled if an epoch partitions the data.")
    ] = "replacement",
    diffusion: Annotated[float, typer.Option(help="The variance of a sample's gradient.")] = 1.0,
    curvature: Annotated[float | None, typer.Option(help="The largest curvature, to test the rate.")] = None,
    at_batch_size: Annotated[int | None, typer.Option(help="Ask for equal temperature at this batch size.")] = None,
    at_momentum: Annotated[float | None, typer.Option(help="Ask for equal temperature at this momentum.")] = None,
    at_lr: Annotated[float | None, typer.Option(help="Ask for equal temperature at this rate.")] = None,
    solve: Annotated[str | None, typer.Option(help="The knob to solve for: lr, batch_size or momentum.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the temperature that the knobs set, and other knobs of equal temperature."""
    own = Thermostat(lr, batch_size, momentum, nesterov, law, coupling, dataset_size, sampling)
    temperature = own.temperature(diffusion)
    if math.isinf(temperature):
        raise ValueError(f"--lr {lr:g} with --diffusion {diffusion:g} gives a temperature beyond what a float can hold")
    solve = solve and solve.replace("-", "_")
    asked = {"batch_size": at_batch_size, "momentum": at_momentum, "lr": at_lr, "solve": solve}
    rows = [("given", own), *_alternatives(own, {name: value for name, value in asked.items() if value is not None})]
    regime = _small_rate_regime(own, curvature)
    answer = next((_small_rate_regime(row, curvature) for label, row in rows if label == "asked"), None)
    if as_json:
        report = _thermostat_report(rows, regime, diffusion)
        write(json.dumps({**report, "asked_warning": answer.warning if answer else None}, indent=2))
        return
    form = f"{'Nesterov' if own.nesterov else 'heavy ball'}, coupling {own.coupling}" if own.momentum else "no momentum"
    data = "" if own.dataset_size is None else f", {own.dataset_size} samples without replacement"
    lines = []
    for label, row in rows:
        here = row.temperature(diffusion)
        ratio = f"{here / temperature:.4g}" if temperature > 0.0 else "-"
        knobs = (f"{row.lr:.6g}", str(row.batch_size), _momentum(row), str(row.law), f"{here:.6g}", ratio)
        lines.append((label, *knobs))
    out = console()
    out.print(f"SGD, {form}{data}")
    out.print(f"Temperature at leading order: {temperature:.6g} (for a gradient variance of {diffusion:g} per sample)")
    out.print(f"Relative to the constant protocol at the same knobs: {own.law_factor:.6g}\n")
    print_table(("", "lr", "batch", "momentum", "law", "T", "T / given"), lines)
    if own.sampling == "shuffled":
        out.print(f"\n{_reshuffled(own, diffusion)}", end="")
    elif own.law.variance > 0.0:
        out.print("\nThe fair control of a random rate is the constant rate of equal temperature.", end="")
    out.print(f"\n{regime.note}")
    if regime.warning:
        warn(regime.warning)
    if answer is not None and answer.warning:
        warn(f"the asked setting is {answer.warning}")


def _reshuffled(own: Thermostat, diffusion: float) -> str:
    slow = own.limits(diffusion).slow
    told = (
        f"Reshuffled epochs: T is that of directions that relax within an epoch; those that take many are at {slow:.6g}"
    )
    return told + (", so no constant rate is the fair control." if own.law.variance > 0.0 else ".")


@dataclass(frozen=True)
class _Regime:
    """Whether the leading order can be trusted; ``limit`` is the curvature up to which it is right to a tenth."""

    curvature: float | None
    limit: float
    stable_below: float
    exact_over_leading: float | None
    note: str
    warning: str | None


def _small_rate_regime(own: Thermostat, curvature: float | None) -> _Regime:
    """Compare the leading order with the exact temperature on a quadratic; it is left where they differ by 10 %.

    The exact ratio depends on ``lr * curvature`` alone, so an unknown curvature still has a limit that can be told. As
    nothing can be warned of without a curvature, one of order 1 is then supposed, and said to be.
    """
    from heatbath.theory.quadratic import exact_temperature, is_stable, largest_stable_rate, small_rate_limit

    supposed = 1.0 if curvature is None else curvature
    limit = small_rate_limit(own) / own.lr
    stable_below = largest_stable_rate(own, supposed) * supposed / own.lr
    note = f"At the given rate the leading order is within 10 % of the exact temperature below curvature {limit:.4g}"
    note += f"; second moments are stable below {stable_below:.4g}."
    who = f"curvature {supposed:g}" if curvature is not None else "a curvature of only 1"
    if curvature is None:
        note += " Give --curvature to test yours."
    ratio, warning = None, None
    if not is_stable(own, supposed):
        bound = largest_stable_rate(own, supposed)
        warning = f"unstable at {who}: the rate is {own.lr / bound:.3g} times the largest, {bound:.4g}."
    else:
        product = max(own.lr * supposed, 1e-100)  # below, the ratio is 1 and its terms too small for a float
        unit = Thermostat(product, 1, own.momentum, own.nesterov, own.law, own.coupling)  # noise cancels in the ratio
        ratio = float(exact_temperature(unit, 1.0, 1.0)) / unit.temperature()
        if supposed > limit:
            warning = f"not a small rate: {who} is {supposed / limit:.3g} times that limit"
            warning += f", and the exact temperature there {ratio:.4g} times the leading order."
    return _Regime(curvature, limit, stable_below, ratio if curvature is not None else None, note, warning)


def _momentum(row: Thermostat) -> str:
    """A momentum in few digits, but in all of them where it would look like 1, which is none."""
    text = f"{row.momentum:.6g}"
    return repr(row.momentum) if text == "1" else text


def _alternatives(own: Thermostat, asked: dict[str, Any]) -> list[tuple[str, Thermostat]]:
    """The rows below the first. What is asked for must have a solution; a row of ours without one is left out."""
    rows: list[tuple[str, Thermostat]] = []
    if asked:
        rows.append(("asked", own.at(**asked)))
    offers: list[tuple[str, dict[str, Any]]] = [
        ("batch x 2", {"batch_size": 2 * own.batch_size}),
        ("batch / 2", {"batch_size": own.batch_size // 2}),
    ]
    if own.law.variance > 0.0:
        offers.insert(0, ("fair control", {"law": "constant"}))
    for label, request in offers:
        try:
            rows.append((label, own.at(**request)))
        except ValueError:
            continue
    return rows


def _thermostat_report(rows: list[tuple[str, Thermostat]], regime: _Regime, diffusion: float) -> dict[str, Any]:
    own = rows[0][1]

    def describe(row: Thermostat) -> dict[str, Any]:
        knobs = {name: getattr(row, name) for name in row.__dataclass_fields__}
        limits = row.limits(diffusion)
        return {**knobs, "law": str(row.law), "temperature": limits.fast, "limits": limits._asdict()}

    return {
        **describe(own),
        "diffusion": diffusion,
        "law_factor": own.law_factor,
        "alternatives": [{"label": label, **describe(row)} for label, row in rows[1:]],
        "small_rate_regime": {name: None if value == math.inf else value for name, value in asdict(regime).items()},
    }
