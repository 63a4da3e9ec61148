"""SGD with a random learning rate, and the temperature of a training run."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from heatbath import theory
from heatbath.draws import draw
from heatbath.laws import Arcsine, Constant, Exponential, Law, LogNormal, TwoPoint, Uniform, parse_law
from heatbath.thermostat import Thermostat

if TYPE_CHECKING:
    from heatbath.engine.run import load, run
    from heatbath.optim.random_sgd import RandomSGD
    from heatbath.optim.randomizer import randomize
    from heatbath.optim.schedulers import CosineCycleLR, RandomLR
    from heatbath.runs.collection import Records
    from heatbath.runs.configs import RunConfig, sweep
    from heatbath.runs.records import Record
    from heatbath.stats.best_of import BestOf
    from heatbath.stats.compare import compare
    from heatbath.stats.comparison import Comparison, Comparisons
    from heatbath.studies.race import Race, race
    from heatbath.tasks.task import Task
    from heatbath.thermometry.averages import Estimate
    from heatbath.thermometry.logs import CSVLog, TensorBoardLog
    from heatbath.thermometry.noise import GradientNoise, measure_noise
    from heatbath.thermometry.thermometer import Thermometer

__version__ = "0.1.0"

__all__ = [
    "Arcsine",
    "BestOf",
    "CSVLog",
    "Comparison",
    "Comparisons",
    "Constant",
    "CosineCycleLR",
    "Estimate",
    "Exponential",
    "GradientNoise",
    "Law",
    "LogNormal",
    "Race",
    "RandomLR",
    "RandomSGD",
    "Record",
    "Records",
    "RunConfig",
    "Task",
    "TensorBoardLog",
    "Thermometer",
    "Thermostat",
    "TwoPoint",
    "Uniform",
    "compare",
    "draw",
    "load",
    "measure_noise",
    "parse_law",
    "race",
    "randomize",
    "run",
    "sweep",
    "theory",
]

# These come when they are asked for: the theory and most commands do without torch and its seconds of import.
_LATER = {
    "BestOf": "heatbath.stats.best_of",
    "CSVLog": "heatbath.thermometry.logs",
    "Comparison": "heatbath.stats.comparison",
    "Comparisons": "heatbath.stats.comparison",
    "CosineCycleLR": "heatbath.optim.schedulers",
    "Estimate": "heatbath.thermometry.averages",
    "GradientNoise": "heatbath.thermometry.noise",
    "Race": "heatbath.studies.race",
    "RandomLR": "heatbath.optim.schedulers",
    "RandomSGD": "heatbath.optim.random_sgd",
    "Record": "heatbath.runs.records",
    "Records": "heatbath.runs.collection",
    "RunConfig": "heatbath.runs.configs",
    "Task": "heatbath.tasks.task",
    "TensorBoardLog": "heatbath.thermometry.logs",
    "Thermometer": "heatbath.thermometry.thermometer",
    "compare": "heatbath.stats.compare",
    "load": "heatbath.engine.run",
    "measure_noise": "heatbath.thermometry.noise",
    "race": "heatbath.studies.race",
    "randomize": "heatbath.optim.randomizer",
    "run": "heatbath.engine.run",
    "sweep": "heatbath.runs.configs",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LATER[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
