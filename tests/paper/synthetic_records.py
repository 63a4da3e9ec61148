"""Made-up records: curves that saturate at a level given by the config, with a little noise that depends on it too."""

import math
from random import Random

from heatbath.runs.records import Record
from measured import ORIGIN, an_epoch


def make_record(config, accuracy=0.9, status="finished", noise=2e-4, epochs=None):
    """A run that ends near ``accuracy``, a number or a function of the config."""
    level = accuracy(config) if callable(accuracy) else accuracy
    random = Random(config.run)
    offset, gap = random.gauss(0.0, noise), 0.02 + random.gauss(0.0, noise)
    found = []
    for k in range(config.epochs if epochs is None else epochs):
        rise = math.exp(-5.0 * (k + 1) / config.epochs)
        test = level + offset - 0.3 * rise + random.gauss(0.0, 0.1 * noise)
        found.append(an_epoch(config.lr, 1.0 - level + rise - offset, test + gap, 1.1 - level + rise, test))
    return Record(config, status, tuple(found), 1.0, ORIGIN)


def make_records(configs, **options):
    """The records of configs, by the name of the run."""
    return {config.run: make_record(config, **options) for config in configs}
