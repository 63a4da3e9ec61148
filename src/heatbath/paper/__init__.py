"""The paper's figures and some beyond it: complete configurations, claims as statistical tests, and pictures.

Each module is one figure, or several that share their runs. `find_experiments` knows them by name,
`heatbath.paper.reproduction.reproduce` runs them.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from heatbath.paper import (
    adamw_batch,
    collapse,
    fair_control,
    figure4,
    figures_1_to_3,
    figures_5_and_6,
    gaussian_noise,
    generic,
    laws,
    network_temperature,
    open_claims,
    period,
    plain_loop,
    regularisation,
    reshuffling,
    small_regularisation,
    temperature,
    theory_checks,
)
from heatbath.paper.experiments import Calculation, Experiment
from heatbath.paper.groups import SCALES, Scale

__all__ = ["EXPERIMENTS", "PLANNED", "SCALES", "Calculation", "Experiment", "Scale", "find_experiments"]

_FIGURES = (
    *(figures_1_to_3.FIGURE1, figures_1_to_3.FIGURE2, figures_1_to_3.FIGURE3, figure4.EXPERIMENT),
    *(figures_5_and_6.FIGURE5, figures_5_and_6.FIGURE6),
)
_BEYOND = (
    *(fair_control.FAIR_CONTROL, fair_control.COUPLING, laws.EQUAL_VARIANCE, laws.DELTA),
    *(collapse.COLLAPSE, collapse.EQUAL_SUMS, period.EXPERIMENT, temperature.EXPERIMENT, theory_checks.EXPERIMENT),
)
_PLANNED = (
    *(reshuffling, regularisation, plain_loop, gaussian_noise),
    *(adamw_batch, generic, small_regularisation, network_temperature),
)

EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in (*_FIGURES, *_BEYOND)}
PLANNED: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (*(module.EXPERIMENT for module in _PLANNED), open_claims.ALONE, open_claims.OPEN)
}
"""Preregistered in docs/preregistration.md: run where they are named, and reported on where there are verdicts."""


def find_experiments(names: Sequence[str] = ()) -> list[Experiment]:
    """Return the experiments of these names, each once and in the order of the report; all but planned ones if none is.

    ``"1"``, ``"fig1"`` and ``"figure1"`` are the same; case, blanks and underscores do not matter.

    Raises:
        ValueError: a name is unknown; the message has the nearest one.
    """
    wanted = {_find(name) for name in names} or set(EXPERIMENTS)
    return [experiment for name, experiment in (EXPERIMENTS | PLANNED).items() if name in wanted]


def _find(name: str) -> str:
    plain = name.strip().lower().replace("_", "-").replace(" ", "").rstrip(".")
    number = plain.removeprefix("figure").removeprefix("fig").lstrip(".-")
    for candidate in (plain, f"figure{number}"):
        if candidate in EXPERIMENTS | PLANNED:
            return candidate
    near = difflib.get_close_matches(plain, EXPERIMENTS | PLANNED, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ValueError(f"unknown figure {name!r}: {hint}There are {', '.join(EXPERIMENTS | PLANNED)}")
