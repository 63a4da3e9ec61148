"""`heatbath thermostat`: knobs to temperature, and other knobs of equal temperature."""

from __future__ import annotations

import math
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

from heatbath.cli.screens import Answer, print_table, say, warn
from heatbath.thermostat import Thermostat


def print_temperature(
    lr: float,
    batch_size: int,
    momentum: float = 0.0,
    nesterov: bool = False,
    law: str = "constant",
    coupling: str = "gradient",
    dataset_size: int | None = None,
    sampling: Annotated[
        str, "replacement if batches are independent, shuffled if an epoch partitions the data."
    ] = "replacement",
    diffusion: float = 1.0,
    curvature: float | None = None,
    at_batch_size: int | None = None,
    at_momentum: float | None = None,
    at_lr: float | None = None,
    solve: str | None = None,
) -> Answer:
    """Print the temperature of these settings, and other settings of equal temperature."""
    own = Thermostat(lr, batch_size, momentum, nesterov, law, coupling, dataset_size, sampling)
    if math.isinf(own.temperature(diffusion)):
        raise ValueError(f"--lr {lr:g} with --diffusion {diffusion:g} gives a temperature beyond what a float can hold")
    asked = {
        "batch_size": at_batch_size,
        "momentum": at_momentum,
        "lr": at_lr,
        "solve": solve and solve.replace("-", "_"),
    }
    rows = {"given": own, **_alternatives(own, {name: value for name, value in asked.items() if value is not None})}
    regime = _small_rate_regime(own, curvature)
    answer = _small_rate_regime(rows["asked"], curvature)["warning"] if "asked" in rows else None
    data = {
        **_describe(own, diffusion),
        "diffusion": diffusion,
        "law_factor": own.law_factor,
        "alternatives": [{"label": name, **_describe(row, diffusion)} for name, row in rows.items() if name != "given"],
        "small_rate_regime": {name: None if value == math.inf else value for name, value in regime.items()},
        "asked_warning": answer,
    }
    return Answer(data, partial(_show, rows, diffusion, regime, answer))


def _show(rows: dict[str, Thermostat], diffusion: float, regime: dict[str, Any], answer: str | None) -> None:
    own = rows["given"]
    temperature = own.temperature(diffusion)
    form = f"{'Nesterov' if own.nesterov else 'heavy ball'}, coupling {own.coupling}" if own.momentum else "no momentum"
    data = "" if own.dataset_size is None else f", {own.dataset_size} samples without replacement"
    lines = []
    for label, row in rows.items():
        here = row.temperature(diffusion)
        ratio = f"{here / temperature:.4g}" if temperature > 0.0 else "-"
        lines.append((label, f"{row.lr:.6g}", str(row.batch_size), _momentum(row), str(row.law), f"{here:.6g}", ratio))
    say(
        f"SGD, {form}{data}",
        f"Temperature at leading order: {temperature:.6g} (for a gradient variance of {diffusion:g} per sample)",
        f"Relative to the constant protocol at the same knobs: {own.law_factor:.6g}\n",
    )
    print_table(("", "lr", "batch", "momentum", "law", "T", "T / given"), lines)
    say("")
    if own.sampling == "shuffled":
        told = "Reshuffled epochs: T is that of directions that relax in far less than one; slow ones are at "
        fair = ", so no constant rate is the fair control." if own.law.variance > 0.0 else "."
        say(f"{told}{own.limits(diffusion).slow:.6g}{fair}")
    elif own.law.variance > 0.0:
        say("The fair control of a random rate is the constant rate of equal temperature.")
    say(regime["note"])
    if regime["warning"]:
        warn(regime["warning"])
    if answer:
        warn(f"the asked setting is {answer}")


def _small_rate_regime(own: Thermostat, curvature: float | None) -> dict[str, Any]:
    """Compare the leading order with the exact temperature on a quadratic: its limit is where they differ by 10 %.

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
    bounds = {"limit": limit, "stable_below": stable_below}
    exact = ratio if curvature is not None else None
    return {"curvature": curvature, **bounds, "exact_over_leading": exact, "note": note, "warning": warning}


def _momentum(row: Thermostat) -> str:
    """A momentum in few digits, but in all of them where it would look like 1, which is none."""
    text = f"{row.momentum:.6g}"
    return repr(row.momentum) if text == "1" else text


def _alternatives(own: Thermostat, asked: dict[str, Any]) -> dict[str, Thermostat]:
    """The rows below the first. What is asked for must have a solution; a row of ours without one is left out."""
    rows = {"asked": own.at(**asked)} if asked else {}
    offers: dict[str, dict[str, Any]] = {"fair control": {"law": "constant"}} if own.law.variance > 0.0 else {}
    offers |= {"batch x 2": {"batch_size": 2 * own.batch_size}, "batch / 2": {"batch_size": own.batch_size // 2}}
    for label, request in offers.items():
        with suppress(ValueError):
            rows[label] = own.at(**request)
    return rows


def _describe(row: Thermostat, diffusion: float) -> dict[str, Any]:
    knobs = {name: getattr(row, name) for name in row.__dataclass_fields__}
    limits = row.limits(diffusion)
    return {**knobs, "law": str(row.law), "temperature": limits.fast, "limits": limits._asdict()}
