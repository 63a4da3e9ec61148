"""Experiment 2 of docs/preregistration.md: the random rate heats what reshuffling cools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from heatbath.paper.claims import Every, near
from heatbath.paper.experiments import Calculation, Experiment, ProgressCallback
from heatbath.paper.groups import CONSTANT, RANDOM, SPARE, FigureRuns, Scale
from heatbath.paper.pictures import mean_points
from heatbath.report.panels import Panel, Series
from heatbath.stats.verdicts import Claim, Factor, Judgeable
from heatbath.thermostat import Thermostat

SEEDS: dict[Scale, int] = {"smoke": 4, "laptop": 24, "paper": 70}
SUMMED_RATE: dict[Scale, float] = {"smoke": 20.0, "laptop": 1000.0, "paper": 1000.0}
SAMPLINGS = ("replacement", "shuffled")
NETWORKS = ("softmax regression", "perceptron")
MARGIN = 0.1  # of a ratio about 1
LOSS_MARGIN = 0.001  # of a regularised loss: a sixth of what twice the temperature adds in the pilot
_RATE, _DECAY = 0.01, 0.01
_RANDOM = {"law": "uniform:1.0"}
ARMS: dict[str, tuple[dict[str, Any], int]] = {
    "constant l": ({}, CONSTANT),
    "constant 4/3 l": ({"lr": 4 / 3 * _RATE}, 5),
    "constant 2l, batch 2C": ({"lr": 2 * _RATE, "batch_factor": 2}, 3),
    "constant 2l, momentum 0.8": ({"lr": 2 * _RATE, "momentum": 0.8}, 4),
    "constant 2l": ({"lr": 2 * _RATE}, SPARE),
    "random": (_RANDOM, RANDOM),
    "random update": ({**_RANDOM, "coupling": "update"}, 6),
}
"""What each arm changes of the first: constant rate l, batch size C, momentum 0.9, heavy ball. With independent batches
the third and the fourth have the temperature of the first, and the second has that of the first random one."""


def arm_knobs(settings: Mapping[str, Any]) -> Thermostat:
    """Return the knobs of an arm as its settings say."""
    return Thermostat(
        settings["lr"],
        settings["batch_size"],
        settings["momentum"],
        law=settings["law"],
        coupling=settings["coupling"],
        sampling=settings["sampling"],
    )


def compute_losses(
    settings: Mapping[str, Any], *, device: str, data_dir: Any, progress: ProgressCallback
) -> dict[str, Any]:
    """Train one arm, and return the regularised loss of each seed at the summed rate and at twice it."""
    from heatbath.studies.stationary_loss import measure_stationary_losses

    problem = _problem(settings, device, data_dir)
    losses = measure_stationary_losses(
        problem,
        arm_knobs(settings),
        summed_rate=settings["summed_rate"],
        replicas=settings["seeds"],
        readings=settings["readings"],
        progress=progress,
    )
    return {"losses": losses.tolist()}


def compute_predictions(
    settings: Mapping[str, Any], *, device: str, data_dir: Any, progress: ProgressCallback
) -> dict[str, Any]:
    """Return the minimum of softmax regression, and the predicted excess of each arm over it."""
    from heatbath.studies.stationary_loss import find_minimum, predict_excess_losses

    problem = _problem(settings, device, data_dir)
    minimum, loss = find_minimum(problem)
    progress(0.5, "")
    knobs = [arm_knobs(arm) for arm in settings["arms"]]
    return {"minimum": loss, "excess": predict_excess_losses(problem, minimum, knobs)}


def _problem(settings: Mapping[str, Any], device: str, data_dir: Any) -> Any:
    from torch.nn import functional

    from heatbath.data.datasets import load_dataset
    from heatbath.studies.stationary_loss import Problem

    data = load_dataset(settings["dataset"], device=device, data_dir=data_dir)
    some = slice(settings["samples"])
    images = functional.avg_pool2d(data.normalize(data.train_images[some]), settings["pool"]).flatten(1)
    hidden = (settings["hidden"],) if settings["network"] == "perceptron" else ()
    return Problem(images, data.train_labels[some], (images.shape[1], *hidden, 10), settings["weight_decay"])


def _settings(scale: Scale, network: str, sampling: str, arm: str) -> dict[str, Any]:
    small = {"dataset": "mnist5k", "samples": 4000, "pool": 4, "batch_size": 32, "hidden": 40}
    full = {"dataset": "mnist", "samples": 30_000, "pool": 2, "batch_size": 128, "hidden": 40}
    common: dict[str, Any] = dict(full if scale == "paper" else small)
    common |= {"network": network, "weight_decay": _DECAY, "lr": _RATE, "momentum": 0.9, "law": "constant"}
    changes = dict(ARMS[arm][0])
    common["batch_size"] *= changes.pop("batch_factor", 1)
    return {**common, "coupling": "gradient", "sampling": sampling, **changes}


def _training(scale: Scale, network: str, sampling: str, arm: str) -> Calculation:
    settings = _settings(scale, network, sampling, arm)
    settings |= {"kind": "stationary loss", "format": 1, "summed_rate": SUMMED_RATE[scale], "seeds": SEEDS[scale]}
    settings["readings"] = 25
    seconds = 200.0 * _RATE / settings["lr"]  # on one core of a CPU
    return Calculation(f"{network}, {sampling}, {arm}", settings, compute_losses, seconds)


def _prediction(scale: Scale) -> Calculation:
    arms = [_settings(scale, NETWORKS[0], sampling, arm) for sampling in SAMPLINGS for arm in ARMS]
    settings = {**arms[0], "kind": "predicted excess", "format": 1, "arms": arms}
    return Calculation("prediction for softmax regression", settings, compute_predictions, 30.0)


def _calculations(scale: Scale) -> Sequence[Calculation]:
    trainings = [_training(scale, n, sampling, arm) for n in NETWORKS for sampling in SAMPLINGS for arm in ARMS]
    return [*trainings, _prediction(scale)]


class _Losses:
    """What is found: the losses of each seed, and of softmax regression the excess with its prediction."""

    def __init__(self, found: FigureRuns) -> None:
        self._found = found
        self._prediction = found.results.get(_prediction(found.scale).name, {})

    def at(self, network: str, sampling: str, arm: str, stretch: int = 1) -> list[float]:
        result = self._found.results.get(_training(self._found.scale, network, sampling, arm).name, {})
        return [row[stretch] for row in result.get("losses", ())]

    def excess(self, sampling: str, arm: str) -> list[float]:
        """Of softmax regression over its minimum."""
        minimum = self._prediction.get("minimum")
        return [] if minimum is None else [loss - minimum for loss in self.at(NETWORKS[0], sampling, arm)]

    def predicted(self, sampling: str, arm: str) -> float | None:
        excess = self._prediction.get("excess")
        return None if excess is None else excess[SAMPLINGS.index(sampling) * len(ARMS) + list(ARMS).index(arm)]

    def over_prediction(self, sampling: str, arm: str) -> list[float]:
        predicted = self.predicted(sampling, arm)
        return [value / predicted for value in self.excess(sampling, arm)] if predicted else []


def _claims(found: FigureRuns) -> list[Judgeable]:
    losses = _Losses(found)
    soft, deep = NETWORKS
    claims: list[Judgeable] = []
    for sampling in SAMPLINGS:
        said = f"{soft}, {sampling}: the loss lies above its minimum by what the theory says, in every arm"
        parts = {arm: near(said, losses.over_prediction(sampling, arm), 1.0, MARGIN) for arm in ARMS}
        claims.append(Every(said, parts))
    same = f"{soft}, replacement: random and constant at 4/3 l are equally far above the minimum"
    random, control = (losses.excess("replacement", arm) for arm in ("random", "constant 4/3 l"))
    claims.append(Claim(same, "equal", random, control, Factor(1.0 + MARGIN)))
    hotter = "shuffled: random is further above the minimum than constant at 4/3 l"
    for network in NETWORKS:
        random, control = (losses.at(network, "shuffled", arm) for arm in ("random", "constant 4/3 l"))
        claims.append(Claim(f"{network}, {hotter}", "greater", random, control))
    same = f"{deep}, replacement: random and constant at 4/3 l have the same regularised loss"
    random, control = (losses.at(deep, "replacement", arm) for arm in ("random", "constant 4/3 l"))
    claims.append(Claim(same, "equal", random, control, LOSS_MARGIN))
    claims.append(_governed_by_temperature(losses, "replacement"))
    still = f"{deep}: twice the summed rate changes no arm"
    parts = {
        f"{sampling}, {arm}": Claim(
            still,
            "equal",
            losses.at(deep, sampling, arm, 0),
            losses.at(deep, sampling, arm, 1),
            LOSS_MARGIN,
            paired=True,
        )
        for sampling in SAMPLINGS
        for arm in ARMS
    }
    return [*claims, Every(still, parts)]


def _later_claims(found: FigureRuns) -> list[Judgeable]:
    """The law itself, (eps + s2) / eps where epochs are reshuffled, and what governs the perceptron there."""
    losses = _Losses(found)
    claims: list[Judgeable] = []
    for sampling in SAMPLINGS:
        said = f"{NETWORKS[0]}, {sampling}: random lies above constant l by the factor that the theory says"
        random, base = (losses.over_prediction(sampling, arm) for arm in ("random", "constant l"))
        claims.append(Claim(said, "equal", random, base, Factor(1.0 + MARGIN)))
    return [*claims, _governed_by_temperature(losses, "shuffled")]


def _governed_by_temperature(losses: _Losses, sampling: str) -> Judgeable:
    network = NETWORKS[1]
    said = (
        f"{network}, {sampling}: at equal summed rate arms of equal temperature have the same loss, a hotter one more"
    )
    base, hot = (losses.at(network, sampling, arm) for arm in ("constant l", "constant 2l"))
    alike = {
        arm: Claim(said, "equal", losses.at(network, sampling, arm), base, LOSS_MARGIN)
        for arm in ("constant 2l, batch 2C", "constant 2l, momentum 0.8")
    }
    return Every(said, {**alike, "constant 2l": Claim(said, "greater", hot, base, LOSS_MARGIN)})


def _panels(found: FigureRuns) -> list[Panel]:
    losses = _Losses(found)
    note = "Mean over seeds with its 95 % interval. The prediction has no free parameter."
    panels = []
    for sampling in SAMPLINGS:
        values = {arm: losses.excess(sampling, arm) for arm in ARMS}
        some = {arm: several for arm, several in values.items() if several}
        if some:
            predicted = tuple(losses.predicted(sampling, arm) for arm in some)
            series = (
                mean_points("measured", some, CONSTANT),
                Series("predicted", tuple(some), predicted, style="points", colour=RANDOM),
            )
            panels.append(Panel(f"{NETWORKS[0]}, {sampling}", "", "loss above its minimum", series, note=note))
    for sampling in SAMPLINGS:
        stretches = ("first summed rate", "second summed rate")
        both = [
            mean_points(name, values, (5, 6)[k])
            for k, name in enumerate(stretches)
            if (values := {arm: several for arm in ARMS if (several := losses.at(NETWORKS[1], sampling, arm, k))})
        ]
        if both:
            note = "Mean over seeds with its 95 % interval, over the first stretch of the summed rate and the second."
            panels.append(Panel(f"{NETWORKS[1]}, {sampling}", "", "regularised loss", tuple(both), note=note))
    return panels


EXPERIMENT = Experiment(
    name="reshuffling",
    title="The random rate heats what reshuffling cools",
    question=(
        "The noise of a reshuffled epoch cancels in slow directions; that of a random rate does not. Is the "
        "stationary loss with weight decay what this theory says, with replacement and reshuffled?"
    ),
    calculations=_calculations,
    claims=_claims,
    later_claims=_later_claims,
    panels=_panels,
    in_parts=True,
    remarks=lambda scale: {"weight decay": f"{_DECAY:g}", "summed rate": f"{SUMMED_RATE[scale]:g}, and twice it"},
)
