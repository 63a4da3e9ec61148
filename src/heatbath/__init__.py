"""SGD with a random learning rate, and the temperature of a training run."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from heatbath import theory
from heatbath.draws import draw
from heatbath.laws import Arcsine, Constant, Exponential, Law, LogNormal, TwoPoint, Uniform, parse_law
from heatbath.thermostat import Thermostat

if TYPE_CHECKING:
    from heatbath.averages import Estimate
    from heatbath.configs import RunConfig, sweep
    from heatbath.noise import GradientNoise, measure_noise
    from heatbath.optimizer import RandomSGD
    from heatbath.randomizer import randomize
    from heatbath.readings import CSVLog, TensorBoardLog
    from heatbath.records import Record
    from heatbath.runner import load, run
    from heatbath.schedulers import CosineCycleLR, RandomLR
    from heatbath.thermometer import Thermometer

__version__ = "0.1.0"

__all__ = [
    "Arcsine",
    "CSVLog",
    "Constant",
    "CosineCycleLR",
    "Estimate",
    "Exponential",
    "GradientNoise",
    "Law",
    "LogNormal",
    "RandomLR",
    "RandomSGD",
    "Record",
    "RunConfig",
    "TensorBoardLog",
    "Thermometer",
    "Thermostat",
    "TwoPoint",
    "Uniform",
    "draw",
    "load",
    "measure_noise",
    "parse_law",
    "randomize",
    "run",
    "sweep",
    "theory",
]

# These come when they are asked for: the theory and most commands do without torch and its seconds of import.
_LATER = {
    "CSVLog": "heatbath.readings",
    "CosineCycleLR": "heatbath.schedulers",
    "Estimate": "heatbath.averages",
    "GradientNoise": "heatbath.noise",
    "RandomLR": "heatbath.schedulers",
    "RandomSGD": "heatbath.optimizer",
    "Record": "heatbath.records",
    "RunConfig": "heatbath.configs",
    "TensorBoardLog": "heatbath.readings",
    "Thermometer": "heatbath.thermometer",
    "load": "heatbath.runner",
    "measure_noise": "heatbath.noise",
    "randomize": "heatbath.randomizer",
    "run": "heatbath.runner",
    "sweep": "heatbath.configs",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LATER[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
