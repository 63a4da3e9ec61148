"""SGD with a random learning rate, and the temperature of a training run."""

TYPE_CHECKING = False  # which type checkers take for True; the first import of typing would take longer than all else
if TYPE_CHECKING:
    from heatbath import theory
    from heatbath.draws import draw
    from heatbath.engine.run import load, run
    from heatbath.laws import Arcsine, Constant, Exponential, Law, LogNormal, TwoPoint, Uniform, parse_law
    from heatbath.optim.random_sgd import RandomSGD
    from heatbath.optim.randomizer import randomize
    from heatbath.optim.schedulers import CosineCycleLR, RandomLR
    from heatbath.runs.collection import Records
    from heatbath.runs.configs import RunConfig, sweep
    from heatbath.runs.records import Record
    from heatbath.stats.compare import compare
    from heatbath.stats.comparison import BestOf, Comparison, Comparisons
    from heatbath.studies.race import Race, race
    from heatbath.tasks.task import Task
    from heatbath.thermometry.averages import Estimate
    from heatbath.thermometry.logs import CSVLog, TensorBoardLog
    from heatbath.thermometry.noise import GradientNoise, measure_noise
    from heatbath.thermometry.thermometer import Thermometer
    from heatbath.thermostat import Thermostat

__version__ = "0.1.0"

__all__ = ["Arcsine", "Constant", "Exponential", "Law", "LogNormal", "TwoPoint", "Uniform", "draw", "parse_law"]
__all__ += ["CosineCycleLR", "RandomLR", "RandomSGD", "Thermostat", "randomize"]
__all__ += ["CSVLog", "Estimate", "GradientNoise", "TensorBoardLog", "Thermometer", "measure_noise"]
__all__ += ["Record", "Records", "RunConfig", "Task", "load", "run", "sweep"]
__all__ += ["BestOf", "Comparison", "Comparisons", "Race", "compare", "race", "theory"]

# All come when they are asked for: NumPy takes a moment to import and torch seconds, which most commands do without.
_MODULES = ("draws", "laws", "theory", "thermostat")
_HOMES = {
    "draws": ["draw"],
    "engine.run": ["load", "run"],
    "laws": ["Arcsine", "Constant", "Exponential", "Law", "LogNormal", "TwoPoint", "Uniform", "parse_law"],
    "optim.random_sgd": ["RandomSGD"],
    "optim.randomizer": ["randomize"],
    "optim.schedulers": ["CosineCycleLR", "RandomLR"],
    "runs.collection": ["Records"],
    "runs.configs": ["RunConfig", "sweep"],
    "runs.records": ["Record"],
    "stats.compare": ["compare"],
    "stats.comparison": ["BestOf", "Comparison", "Comparisons"],
    "studies.race": ["Race", "race"],
    "tasks.task": ["Task"],
    "thermometry.averages": ["Estimate"],
    "thermometry.logs": ["CSVLog", "TensorBoardLog"],
    "thermometry.noise": ["GradientNoise", "measure_noise"],
    "thermometry.thermometer": ["Thermometer"],
    "thermostat": ["Thermostat"],
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"heatbath.{name}")
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"heatbath.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
