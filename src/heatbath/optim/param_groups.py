"""The settings in a parameter group of `heatbath.RandomSGD`: which are allowed, what completes a group, its counter.

A group comes from three places: from the user, who may leave settings out or write into them at any time, from a
state dict of ours, or from one of `torch.optim.SGD`, which knows nothing of draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from torch import Tensor

from heatbath.draws import Multipliers, check_integer
from heatbath.laws import Constant, check_coupling, parse_law


def check_settings(group: dict[str, Any]) -> None:
    """Raise an error that names the setting, its value and what is allowed: ValueError, TypeError or RuntimeError."""
    lr = group["lr"]
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError(f"Tensor lr must be 1-element, got shape {tuple(lr.shape)}")
    names = {"lr": "learning rate", "momentum": "momentum value", "weight_decay": "weight_decay value"}
    for key, name in {**names, "dampening": "dampening value"}.items():
        value = group[key]
        if isinstance(value, bool) or not isinstance(value, (Real, Tensor)):
            raise TypeError(f"Invalid {name}: {value!r}; {key} must be a number")
        number = float(value.detach() if isinstance(value, Tensor) else value)
        if not math.isfinite(number) or (key in names and number < 0):
            raise ValueError(f"Invalid {name}: {value}; {key} must be finite" + " and >= 0" * (key in names))
        if key == "momentum" and number >= 1:
            raise ValueError(f"Invalid {name}: {value}; momentum must be below 1, or the velocity grows for ever")
    if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
        raise ValueError(
            "Nesterov momentum requires a momentum and zero dampening; got "
            f"momentum={group['momentum']}, dampening={group['dampening']}"
        )
    check_coupling(group["coupling"])
    parse_law(group["law"])
    check_integer("seed", group["seed"])
    for one, other in (("fused", "foreach"), ("fused", "differentiable"), ("capturable", "differentiable")):
        if group[one] and group[other]:
            raise RuntimeError(f"`{one}` and `{other}` cannot be `True` together.")


def prepare_group(group: dict[str, Any], step: int) -> None:
    """Make the group's settings what the step expects, ``step`` steps into its draws."""
    law, seed = parse_law(group["law"]), check_integer("seed", group["seed"])
    multiplier = Multipliers(law, seed).at(step - 1) if step and type(law) is not Constant else 1.0
    group.update(law=law, seed=seed, step=step, multiplier=multiplier)
    group.pop("rate", None)  # what the multiplier was called in older state dicts
    for key in ("lr", "momentum", "dampening", "weight_decay"):
        if not isinstance(group[key], (int, float, Tensor)):
            group[key] = float(group[key])  # a NumPy number could be saved but not loaded with weights_only
    group.setdefault("buffer_scale", 1.0)


def adopt_group(index: int, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Complete a saved group from ours; raise if its draws are not ours, or it is no group of SGD."""
    if missing := [key for key in ("momentum", "dampening", "nesterov") if key not in theirs]:
        raise ValueError(
            f"the state dict is that of another optimizer: param_groups[{index}] lacks {', '.join(missing)}; RandomSGD "
            "loads its own state, or that of torch.optim.SGD"
        )
    refuse_other_draws(theirs, ours, "optimizer", f" in param_groups[{index}]")
    for key in ("law", "coupling", "seed", "capturable"):
        theirs.setdefault(key, ours[key])
    theirs["step"] = check_integer("step", theirs.get("step", 0), 2**62)
    scale = theirs.get("buffer_scale", 1.0)
    if not isinstance(scale, (int, float)) or not 0.0 < scale < math.inf:
        raise ValueError(f"param_groups[{index}]['buffer_scale'] must be a positive number, got {scale!r}")


def refuse_other_draws(theirs: Mapping[str, Any], ours: Mapping[str, Any], owner: str, place: str = "") -> None:
    """Raise ValueError if a saved law, coupling or seed is not ours; what either side lacks is not compared."""
    for key in ("law", "coupling", "seed"):
        if key not in theirs or key not in ours:
            continue
        saved, own = theirs[key], ours[key]
        if (parse_law(saved) != parse_law(own)) if key == "law" else (saved != own):
            raise ValueError(
                f"the state dict has {key}={saved!r}{place}, this {owner} has {key}={own!r}: they must be equal, or "
                f"the run would go on with other draws; build the {owner} with the saved {key}"
            )
