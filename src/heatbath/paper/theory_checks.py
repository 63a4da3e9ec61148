"""Checks of the theory against the algorithm itself, on losses of one dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from heatbath.paper.claims import Every, near
from heatbath.paper.experiments import Calculation, Experiment, ProgressCallback
from heatbath.paper.groups import CONSTANT, RANDOM, SPARE, FigureRuns, Scale
from heatbath.report.panels import Panel, Series
from heatbath.stats.verdicts import Judgeable

_FORMS = {
    "constant": ("constant", "gradient", False),
    "gradient": ("uniform:1.0", "gradient", False),
    "update": ("uniform:1.0", "update", False),
    "update, Nesterov": ("uniform:1.0", "update", True),
}
_COLOURS = dict(zip(_FORMS, (CONSTANT, RANDOM, 6, SPARE), strict=True))
_MOMENTA = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_SMALL = 1e-3  # rate times curvature
_BATCHES = 8  # of trajectories, as independent measurements
MARGIN = 0.05  # relative: the rates are small but not infinitely so


def compute_factors(settings: Mapping[str, Any], *, progress: ProgressCallback, **_unused: Any) -> dict[str, Any]:
    """Return the exact temperature of each form over that of plain SGD, its leading order, and what SGD itself does."""
    import numpy as np

    from heatbath.theory.discrete import DiscreteSGD, simulate_sgd
    from heatbath.theory.landscapes import Quadratic
    from heatbath.theory.quadratic import exact_temperature
    from heatbath.thermostat import Thermostat

    rate, momentum = settings["rate"], settings["momentum"]
    forms: dict[str, Any] = {}
    for index, (label, (law, coupling, nesterov)) in enumerate(_FORMS.items()):
        progress(index / len(_FORMS), "exact temperatures")
        knobs = [Thermostat(_SMALL, 1, mu, nesterov, law, coupling) for mu in _MOMENTA]
        plain = [Thermostat(_SMALL, 1, mu).temperature() for mu in _MOMENTA]
        own = Thermostat(rate, 1, momentum, nesterov, law, coupling)
        sgd = DiscreteSGD(rate, momentum, 1.0, 1.0, own.law, own.coupling, nesterov)
        expected = float(exact_temperature(own, 1.0, 1.0))
        # A start at the exact spread needs only the velocities to settle.
        first = np.sqrt(expected) * np.random.default_rng(index).standard_normal(settings["trajectories"])
        found = simulate_sgd(sgd, Quadratic(1.0), first, steps=[settings["steps"]], seed=index).positions[-1]
        forms[label] = {
            "exact": [float(exact_temperature(k, 1.0, 1.0)) / p for k, p in zip(knobs, plain, strict=True)],
            "leading": [k.law_factor for k in knobs],
            "measured": [float(np.mean(part**2)) / expected for part in np.array_split(found, _BATCHES)],
        }
    return {"momenta": list(_MOMENTA), "forms": forms}


def compute_histogram(settings: Mapping[str, Any], *, progress: ProgressCallback, **_unused: Any) -> dict[str, Any]:
    """Return where SGD is found on a double well, by trajectories, by Fokker-Planck and by Boltzmann's weight."""
    import numpy as np

    from heatbath.studies.simulation import simulate
    from heatbath.theory.phase_space import marginals

    run = simulate(steps=settings["steps"], frames=3, trajectories=settings["trajectories"], seed=0, progress=progress)
    grid = run.grid
    edges = grid.x_edges[::2]
    heights = np.histogram(run.positions[-1], edges)[0] / (run.positions.shape[1] * (edges[1] - edges[0]))
    variance = run.summary["position_variance"]["fokker_planck"]
    parts = np.array_split(run.positions[-1], _BATCHES)
    return {
        "x": grid.x.tolist(),
        "fokker_planck": marginals(run.densities[-1], grid)[0].tolist(),
        "boltzmann": marginals(run.equilibrium, grid)[0].tolist(),
        "histogram_x": (0.5 * (edges[1:] + edges[:-1])).tolist(),
        "histogram": heights.tolist(),
        "variance_ratio": [float(part.var()) / variance for part in parts],
        "steps": settings["steps"],
    }


def _calculations(scale: Scale) -> Sequence[Calculation]:
    few = scale == "smoke"
    factors = {"kind": "law factors", "format": 1, "rate": 0.02, "momentum": 0.5}
    factors |= {"trajectories": 24_000 if few else 32_000, "steps": 300}
    wells = {"kind": "double well", "format": 1}
    wells |= {"trajectories": 2000 if few else 20_000, "steps": 150 if few else 1500}
    return [
        Calculation("temperature factors", factors, compute_factors, 2.0),
        Calculation("double well", wells, compute_histogram, 1.0 if few else 8.0),
    ]


def _claims(found: FigureRuns) -> list[Judgeable]:
    calculations = _calculations(found.scale)
    factors, wells = (found.results.get(calculation.name, {}) for calculation in calculations)
    is_one = partial(near, target=1.0, margin=MARGIN, per_seed=False)
    exact = "SGD on a quadratic has the exact temperature of the theory, in every coupling"
    measured = {label: factors["forms"][label]["measured"] if factors else () for label in _FORMS}
    steps = calculations[1].settings["steps"]
    spread = f"After {steps} steps SGD on a double well is spread as the Fokker-Planck equation says"
    return [
        Every(exact, {label: is_one(exact, values) for label, values in measured.items()}),
        is_one(spread, wells.get("variance_ratio", ())),
    ]


def _panels(found: FigureRuns) -> list[Panel]:
    drawn = zip(_calculations(found.scale), (_factor_panel, _well_panel), strict=True)
    return [panel(found.results[one.name]) for one, panel in drawn if one.name in found.results]


def _factor_panel(factors: Mapping[str, Any]) -> Panel:
    momenta = tuple(factors["momenta"])
    series = []
    for label, form in factors["forms"].items():
        series.append(Series(f"{label}, exact", momenta, tuple(form["exact"]), style="points", colour=_COLOURS[label]))
        series.append(Series(f"{label}, leading order", momenta, tuple(form["leading"]), colour=_COLOURS[label]))
    note = f"On a quadratic at l a = {_SMALL:g}, rate uniform on [0, 2l]; gradient is heavy ball and Nesterov alike."
    return Panel("How much a random rate heats", "momentum mu", "T / T of the constant rate", tuple(series), note=note)


def _well_panel(wells: Mapping[str, Any]) -> Panel:
    x = tuple(wells["x"])
    series = (
        Series("SGD", tuple(wells["histogram_x"]), tuple(wells["histogram"]), style="points", colour=3),
        Series("Fokker-Planck", x, tuple(wells["fokker_planck"]), colour=4),
        Series("Boltzmann", x, tuple(wells["boltzmann"]), colour=5),
    )
    title = f"A double well after {wells['steps']} steps"
    return Panel(title, "position x", "density", series, note="The barrier is twice the temperature, 0.1.")


EXPERIMENT = Experiment(
    name="theory",
    title="The theory against the algorithm",
    question="Is SGD with a random rate on simple losses as hot, and spread as wide, as the theory says?",
    calculations=_calculations,
    claims=_claims,
    panels=_panels,
    errata=(
        "The noise of the stochastic equation must be sqrt(D / (C l)) dW, not sqrt(D / C) dW (main text) or "
        "sqrt(D / 2C) dW (appendix).",
        "The covariance of the noise is (1 + s2) S1 / C + s2 g g^T; the last term, dropped in the paper, does not "
        "shrink with C.",
        "The correction of higher order to the drift is the gradient of (l / 4) |grad f|^2, not that number.",
    ),
    remarks=lambda _scale: {"margin": f"{100 * MARGIN:g} %, as the rates are small but not infinitely so"},
)
