"""SGD with a random learning rate, and the temperature of a training run."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from heatbath import theory
from heatbath.draws import draw
from heatbath.laws import Arcsine, Constant, Exponential, Law, LogNormal, TwoPoint, Uniform, parse_law
from heatbath.thermostat import Thermostat

if TYPE_CHECKING:
    from heatbath.optimizer import RandomSGD
    from heatbath.randomizer import randomize
    from heatbath.schedulers import CosineCycleLR, RandomLR

__version__ = "0.1.0"

__all__ = [
    "Arcsine",
    "Constant",
    "CosineCycleLR",
    "Exponential",
    "Law",
    "LogNormal",
    "RandomLR",
    "RandomSGD",
    "Thermostat",
    "TwoPoint",
    "Uniform",
    "draw",
    "parse_law",
    "randomize",
    "theory",
]

# What needs torch comes when it is asked for: the theory and most commands do without its seconds of import.
_NEEDS_TORCH = {
    "CosineCycleLR": "heatbath.schedulers",
    "RandomLR": "heatbath.schedulers",
    "RandomSGD": "heatbath.optimizer",
    "randomize": "heatbath.randomizer",
}


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_NEEDS_TORCH[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_NEEDS_TORCH})
