"""Many trajectories of SGD and of the equation that it approaches: what simulations on lines and planes share."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from heatbath.draws import check_integer
from heatbath.laws import check_number
from heatbath.system.whole_files import write_together
from heatbath.theory.discrete import DiscreteSGD, sgd_process
from heatbath.theory.landscapes import Array, Landscape
from heatbath.theory.langevin import LangevinEquation
from heatbath.theory.trajectories import Process, State, run, start
from heatbath.thermostat import Thermostat

OnFraction: TypeAlias = Callable[[float, str], None]
"""Called with the fraction done, from 0 to 1, and what is being done."""

_FEW_SHARE = 0.1  # of the time of `Ensemble.follow_sgd`, for the paths of a few
_MOST = 2**24  # steps, frames or trajectories: all of them are kept in memory


class Ensemble(NamedTuple):
    """Trajectories of SGD, the equation that they approach at small rates, and the steps at which to look."""

    knobs: Thermostat
    landscape: Landscape
    diffusion: float
    sgd: DiscreteSGD
    equation: LangevinEquation
    at: np.ndarray[Any, np.dtype[np.int64]]
    trajectories: int
    seed: int

    def cloud(self, centre: Array | float, width: float, kind: int) -> State:
        """Return a Gaussian start of half the thermal widths about a place, at rest on average."""
        generator = np.random.default_rng([self.seed, kind])
        shape, speed = (self.trajectories, *np.shape(centre)), math.sqrt(self.equation.theta)
        positions = centre + 0.5 * width * generator.standard_normal(shape)
        return start(self.landscape, positions, 0.5 * speed * generator.standard_normal(shape))

    def follow_sgd(self, first: State, few: int, report: Callable[[float], None]) -> tuple[Array, Array]:
        """Return the paths of the first ``few`` trajectories at every step, and the positions of all when to look."""
        some = start(self.landscape, first.position[:few], first.velocity[:few])
        of_few, of_all = (sgd_process(self.sgd, self.landscape, seed=self.seed + kind) for kind in (0, 1))
        paths = follow(of_few, some, range(int(self.at[-1]) + 1), lambda done: report(_FEW_SHARE * done))
        rest = 1.0 - _FEW_SHARE
        return paths, follow(of_all, first, self.at.tolist(), lambda done: report(_FEW_SHARE + rest * done))

    def describe(self) -> dict[str, Any]:
        """Return what was simulated, in plain types."""
        return {
            "landscape": str(self.landscape),
            "knobs": {**describe_knobs(self.knobs), "diffusion": self.diffusion, "seed": self.seed},
            "temperature": self.equation.temperature,
            "law_factor": self.knobs.law_factor,
            "velocity_variance": self.equation.theta,
            "steps": int(self.at[-1]),
            "trajectories": self.trajectories,
        }


def prepare_ensemble(
    knobs: Thermostat,
    landscape: Landscape,
    diffusion: float,
    *,
    dimension: int,
    steps: int,
    frames: int,
    trajectories: int,
    seed: int,
) -> Ensemble:
    """Check what is asked for, and return the ensemble; a landscape must have the dimension."""
    for name, value, least in (("steps", steps, 1), ("frames", frames, 2), ("trajectories", trajectories, 6)):
        check_integer(name, value, _MOST, least)
    seed = check_integer("seed", seed, 2**63)  # the next one is used too
    if landscape.dimension != dimension:
        needs = {
            1: "the density needs a landscape of one dimension, such as quadratic, log-cosh or double-well",
            2: "pictures in the plane need a landscape of two dimensions, such as rosenbrock or anisotropic-quadratic",
        }[dimension]
        raise ValueError(f"{needs}; {landscape!r} has {landscape.dimension}")
    sgd, equation = algorithm_and_equation(knobs, landscape, diffusion)
    return Ensemble(knobs, landscape, diffusion, sgd, equation, frame_steps(steps, frames), trajectories, seed)


def algorithm_and_equation(
    knobs: Thermostat, landscape: Landscape, diffusion: float
) -> tuple[DiscreteSGD, LangevinEquation]:
    """Return the algorithm of the knobs, and the equation that it approaches at small rates.

    The equation's temperature is the thermostat's, whatever coupling, Nesterov and data set size make it. What has no
    noise, too much of it, or a rate that is unstable at a minimum is refused.
    """
    check_number("diffusion", diffusion, above=0.0)
    if knobs.sampling != "replacement":
        raise ValueError(
            f"sampling must be 'replacement', as trajectories draw each batch anew, got {knobs.sampling!r}"
        )
    if knobs.batch_variance == 0.0:
        raise ValueError(f"batch_size={knobs.batch_size} is the whole data set, which has no noise: take fewer samples")
    per_batch = diffusion * knobs.batch_variance
    equation = LangevinEquation(knobs.lr, knobs.momentum, per_batch * knobs.law_factor)
    sgd = DiscreteSGD(knobs.lr, knobs.momentum, per_batch, 1.0, knobs.law, knobs.coupling, knobs.nesterov)
    sgd_process(sgd, landscape)  # an unstable rate is the first thing to be told, before any mesh that it makes absurd
    if not math.isfinite(equation.temperature):
        raise ValueError(f"the temperature is {equation.temperature}: lower the rate or the diffusion")
    return sgd, equation


def frame_steps(steps: int, frames: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the steps at which to look: at most ``frames``, the first ones closer, where more happens."""
    return np.unique(np.round(steps * np.linspace(0.0, 1.0, frames) ** 2).astype(np.int64))


def follow(process: Process, first: State, at: Sequence[int], report: Callable[[float], None]) -> Array:
    """Return the positions of trajectories from ``first`` after ``at`` steps; reports the fraction done at each."""
    done = 0

    def move(state: State) -> State:
        nonlocal done
        done += 1
        report(done / at[-1])
        return process(state)

    return run(move, first, at, 1.0).positions


def write_pictures(
    folder: str | Path,
    pictures: Mapping[str, Callable[[], Any]],
    animate: Callable[..., object],
    summary: Mapping[str, Any],
    progress: OnFraction | None,
) -> list[Path]:
    """Write ``density.gif``, ``summary.json`` and pictures, and return the files, which appear when all are whole.

    A picture is a function that draws an axis. ``animate`` writes to a file, and calls ``progress`` with the frames
    done and their total.
    """
    report = progress or (lambda _fraction, _message: None)

    def draw(pending: Path) -> None:
        for done, (name, plot) in enumerate(pictures.items()):
            report(0.3 * done / len(pictures), "pictures")
            plot().figure.savefig(pending / name, dpi=150)
        report(0.3, "animation")
        animate(pending / "density.gif", progress=lambda done, total: report(0.3 + 0.7 * done / total, "animation"))
        (pending / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")

    return write_together(folder, draw)


def six_of(steps: Array) -> Any:
    """Return the places of at most six steps, from the first to the last."""
    return np.unique(np.linspace(0, len(steps) - 1, 6).astype(np.int64))


def describe_knobs(knobs: Thermostat) -> dict[str, Any]:
    """Return the knobs in plain types."""
    return {**vars(knobs), "law": str(knobs.law)}


def histogram_distance(share: Array, expected: Array, variance: Array) -> dict[str, float]:
    """Return ``sum |share - expected|`` over bars, and what sampling makes it if the law is the expected one.

    A share is the fraction of the trajectories in a bar; the variance is that of ``share - expected``.
    """
    return {
        "found": float(np.abs(share - expected).sum()),
        "expected_from_sampling": float(np.sqrt(2.0 / math.pi * variance).sum()),
        "standard_deviation": math.sqrt((1.0 - 2.0 / math.pi) * float(variance.sum())),
    }
