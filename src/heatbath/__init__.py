"""SGD with a random learning rate, and the temperature of a training run."""

from heatbath import theory
from heatbath.draws import draw
from heatbath.laws import Arcsine, Constant, Exponential, Law, LogNormal, TwoPoint, Uniform, parse_law
from heatbath.optimizer import RandomSGD
from heatbath.randomizer import randomize
from heatbath.schedulers import CosineCycleLR, RandomLR
from heatbath.thermostat import Thermostat

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
