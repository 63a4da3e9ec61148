"""What docs/figures.md says of each figure: its verdicts, its settings, what the paper got wrong, and its command."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from types import SimpleNamespace
from typing import Any

from committed import ROOT, check, field, figures, planned, verdict
from heatbath.paper import EXPERIMENTS, PLANNED
from heatbath.paper.generic import MARGINS
from heatbath.paper.temperature import late_balance
from heatbath.report.panels import FigureData
from heatbath.stats import wording
from heatbath.stats.verdicts import Verdict
from heatbath.theory import quadratic, shuffled
from heatbath.thermostat import Thermostat

_SIGNS = {"confirmed": "✓", "contradicted": "✗", "undecided": "?"}
_TOLD = ("model", "data", "mean rate l", "batch size C", "momentum mu", "weight decay", "epochs", "runs per group")


def by_figure() -> dict[str, str]:
    """Return the section of each figure of the paper, in Markdown."""
    return {name: _section(figure) for name, figure in figures().items()}


def counts() -> dict[str, str]:
    """Return how many claims of each figure are confirmed, contradicted and undecided, in words."""
    return {name: _count(figure.verdicts) for name, figure in figures().items()}


def beyond() -> str:
    """Return the experiments that the paper does not have, as a table."""
    rows = [
        f"| `{name}` | {experiment.question} | {_count(figures()[name].verdicts)} |"
        for name, experiment in EXPERIMENTS.items()
        if not name.startswith("figure")
    ]
    return "\n".join(["| name | question | verdicts |", "| --- | --- | --- |", *rows])


def of_planned() -> dict[str, str]:
    """Return the verdicts of each preregistered experiment that has results, in Markdown."""
    sections = {}
    for name, figure in planned().items():
        left = "".join(f" {sentence}" for sentence in figure.missing if "wait" in sentence)
        sections[field(name)] = f"**Verdicts:** {_count(figure.verdicts)}.{left}\n\n{_table(figure.verdicts)}"
    return sections


def generic() -> SimpleNamespace:
    """Return what experiment 7 says of softmax regression and of the CNN, and check what the pages say of all."""
    judged = planned()["generic"].verdicts
    wins = [one.claim for one in judged if "better" in one.claim and one.outcome == "confirmed"]
    check(wins == ["CNN, MNIST: random ends with a better test loss than constant"], "it is certainly better once")
    losses = [one.claim.partition(":")[0] for one in judged if "better" in one.claim and one.outcome == "contradicted"]
    check(losses == ["softmax regression, MNIST"] * 2 + ["CNN, MNIST"], "it is certainly worse three times")
    apart = [one for one in judged if "same" in one.claim and one.outcome == "contradicted"]
    check(not apart, "wherever the seeds decide, random ends within the margin of constant")
    soft, cnn = (verdict("generic", name, "better test loss than constant") for name in ("softmax", "CNN"))
    cyclic = verdict("generic", "CNN", "better test loss than the best")
    assert soft.interval is not None
    assert cnn.interval is not None
    assert cyclic.interval is not None
    check(cyclic.evidence.part == "cyclic:2", "the best cyclic rate on the CNN is cyclic:2")
    gains = []
    for calculation in PLANNED["generic"].calculations("paper"):
        file = ROOT / f"results/calculations/{calculation.name}.json"
        if calculation.settings["task"] == "cnn":
            found = json.loads(file.read_text(encoding="utf-8"))["result"]["test_loss"]
            gains.append(math.expm1(fmean(map(math.log, found["random"])) - fmean(map(math.log, found["constant"]))))
    return SimpleNamespace(
        better=soft,
        soft=math.expm1(-soft.interval.estimate),
        cnn=[-math.expm1(-end) for end in (cnn.interval.estimate, cnn.interval.low, cnn.interval.high)],
        cyclic=math.expm1(-cyclic.interval.estimate),
        gains=gains,
    )


def reshuffling() -> SimpleNamespace:
    """Return what experiment 2 says of softmax regression and of the perceptron."""
    words = {
        "replacement": ("replacement", "what the theory says"),
        "shuffled": ("shuffled", "what the theory says"),
        "same": ("softmax", "equally far"),
        "hotter": ("softmax", "further above the minimum than constant at"),
        "law": ("softmax", "shuffled", "by the factor"),
        "law_independent": ("softmax", "replacement", "by the factor"),
        "deep_same": ("perceptron", "same regularised loss"),
        "deep_hotter": ("perceptron", "further above"),
        "deep_heat": ("perceptron", "replacement", "arms of equal temperature"),
        "deep_heat_shuffled": ("perceptron", "shuffled", "arms of equal temperature"),
        "still": ("perceptron", "twice the summed rate"),
    }
    above, heat, over = {}, {}, {}
    for sampling in ("replacement", "shuffled"):
        over, theory = _points("reshuffling", f"softmax regression, {sampling}")
        check(all(1.0 < over[arm] / theory[arm] < 1.06 for arm in over), "the measured excess is 1 to 5 % above")
        above[sampling], above[f"{sampling}_said"] = (
            some["random"] / some["constant l"] - 1.0 for some in (over, theory)
        )
        _, late = _points("reshuffling", f"perceptron, {sampling}")
        heat[sampling] = late["constant 2l"] - late["constant l"]
    share = over["random"] / over["constant 4/3 l"] - 1.0  # in the end of shuffled epochs
    verdicts = {name: verdict("reshuffling", *some) for name, some in words.items()}
    return SimpleNamespace(share=share, above=SimpleNamespace(**above), heat=SimpleNamespace(**heat), **verdicts)


def _points(experiment: str, title: str) -> list[dict[str, float]]:
    """The values of each series of one panel, by their place."""
    (panel,) = [one for one in planned()[experiment].panels if one.title == title]
    return [{str(x): y for x, y in zip(one.x, one.y, strict=True) if y is not None} for one in panel.series]


def theory() -> SimpleNamespace:
    """Return the largest stable rates at momentum 0.9, and how much hotter an arm of experiment 8 is than another."""
    stable = {
        name: quadratic.largest_stable_rate(Thermostat(0.1, 1, 0.9, nesterov, law), 1.0)
        for nesterov, kind in ((False, ""), (True, "nesterov_"))
        for law, name in (("constant", f"{kind}constant"), ("uniform:1", f"{kind}random"))
    }
    hot, cold = (
        shuffled.stationary_moments(Thermostat(0.01, size, 0.9, True, "constant"), 1e-4, 1.0, 5000 // size)[0, 0]
        for size in (32, 128)
    )
    return SimpleNamespace(arms=hot / cold, **stable)


def at_rest() -> SimpleNamespace:
    """Return what experiment 9 says of the CNN."""
    words = {"hot": "as hot as", "still": "At the end", "late": "In the last quarter"}
    found = {name: verdict("network-temperature", "CNN", some, "constant:") for name, some in words.items()}
    random = verdict("network-temperature", "CNN", words["late"], "random:")
    ends = {f"{name}_ends": _ratio_ends(one) for name, one in (("late", found["late"]), ("random", random))}
    results = [
        one["result"]
        for file in (ROOT / "results/calculations").glob("*.json")
        if (one := json.loads(file.read_text(encoding="utf-8")))["settings"].get("kind") == "thermometer"
        and one["settings"]["model"] == "cnn"
    ]
    first = [ratio for one in results if (ratio := late_balance(one["readings"][:20])) is not None]
    accuracies = [one["test_accuracy"][-1] for one in results]
    return SimpleNamespace(
        **found, **ends, random=random, first=fmean(first), learned=(min(accuracies), max(accuracies))
    )


def _ratio_ends(one: Verdict) -> tuple[float, float]:
    """The ends of the interval of a ratio, of which the claim has the distance from 1."""
    assert one.interval is not None
    return 1.0 + one.interval.low, 1.0 + one.interval.high


def heat() -> SimpleNamespace:
    """Return what experiment 8 says of each network; of losses also by which share they fall as T doubles."""
    words = {"mnist": "perceptron, MNIST", "cifar": "perceptron, CIFAR-10", "cnn": "CNN"}
    found = {
        f"{name}_{metric}": verdict("small-regularisation", network, f"test {metric}")
        for name, network in words.items()
        for metric in ("accuracy", "loss")
    }
    falls = {
        f"{name}_falls": SimpleNamespace(
            **{end: -math.expm1(-getattr(one.interval, end)) for end in ("estimate", "low", "high")}
        )
        for name, one in found.items()
        if name.endswith("loss") and one.interval is not None
    }
    return SimpleNamespace(**found, **falls)


def adamw() -> SimpleNamespace:
    """Return what experiment 6 says."""
    words = {
        "root": ("square root",),
        "linear": ("in proportion",),
        "nothing": ("nothing else changed",),
        "step": ("random rate on the step",),
        "heat": ("constant rate of its temperature",),
        "sum": ("constant rate of its summed rate",),
        "gradient": ("higher test loss than the base",),
        "order": ("twice the temperature",),
    }
    return SimpleNamespace(**{name: verdict("adamw-batch", *some) for name, some in words.items()})


def plain_loop() -> SimpleNamespace:
    """Return what experiment 5 says of the two small networks and of the perceptron of figure 1."""
    small, cnn = (verdict("plain-loop", f"{name}, MNIST, 5,000 images") for name in ("perceptron", "CNN"))
    large = verdict("plain-loop", "perceptron, constant")
    check({one.outcome for one in (small, cnn, large)} == {"confirmed"}, "a plain loop ends at the same accuracy")
    return SimpleNamespace(perceptron=small.interval, cnn=cnn.interval, margin=MARGINS["accuracy"], large=large)


def planned_counts() -> SimpleNamespace:
    """Return how many claims of the preregistered experiments are judged, and the outcomes in words."""
    everything = [one for figure in planned().values() for one in figure.verdicts]
    judged = [one for one in everything if one.planned]
    calculations = {one.name: one for name in planned() for one in PLANNED[name].calculations("paper")}
    networks = 0
    for name, one in calculations.items():
        file = ROOT / f"results/calculations/{name}.json"
        if file.exists():
            networks += _networks(one.settings["kind"], json.loads(file.read_text(encoding="utf-8"))["result"])
    later = [one for one in everything if not one.planned]
    return SimpleNamespace(
        total=len(judged), words=_count(judged), later=len(later), later_words=_count(later), networks=networks
    )


def _networks(kind: str, result: Mapping[str, Any]) -> int:
    """How many networks were trained for a calculation."""
    if kind == "generic":
        return sum(map(len, result["test_loss"].values()))
    of_seeds = {
        "stationary loss": "losses",
        "AdamW and batch size": "test_loss",
        "plain loop of a task": "test_accuracy",
    }
    return len(result[of_seeds[kind]]) if kind in of_seeds else 0 if kind == "predicted excess" else 1


def gaussian() -> SimpleNamespace:
    """Return what experiment 4 says of the trained perceptron along random directions."""
    tail = verdict("gaussian-noise", "perceptron", "random directions", "three standard deviations")
    assert tail.evidence.means is not None
    (found,) = [
        one["result"]
        for file in (ROOT / "results/calculations").glob("*.json")
        if (one := json.loads(file.read_text(encoding="utf-8")))["settings"].get("kind") == "noise shape"
        and one["settings"]["model"] == "mlp"
    ]
    start, trained = (fmean(found[f"random, {when}"]["batch_kurtosis"]) for when in ("start", "trained"))
    check(abs(start) < 0.1 < trained, "the noise has heavy tails after the training and not before it")
    return SimpleNamespace(verdict=tail, tail=tail.evidence.means[0], start=start, trained=trained)


def check_the_headings_of_the_findings() -> None:
    """Check that the headings of docs/results.md are what the verdicts say."""
    said = {
        ("figure1", "same test accuracy"): "confirmed",
        ("figure4", "higher final", "than constant", "scratch"): "undecided",
        ("figure4", "higher final", "best cyclic", "scratch"): "contradicted",
        ("figure5", "end at the same"): "confirmed",
        ("collapse", "decides the final"): "confirmed",
        ("fair-control", "perceptron: random and constant at the same mean rate", "loss"): "confirmed",
        ("fair-control", "perceptron: random and constant at the same temperature, coupling gradient", "loss"): (
            "contradicted"
        ),
        ("temperature", "as hot as", "constant:"): "confirmed",
        ("temperature", "at equilibrium", "constant:"): "contradicted",
        ("figure6", "C = 128"): "contradicted",
        ("generic", "softmax", "better test loss than constant"): "contradicted",
        ("generic", "CNN", "better test loss than constant"): "confirmed",
        ("generic", "CNN", "better test loss than the best"): "contradicted",
        ("gaussian-noise", "perceptron", "random directions", "kurtosis"): "contradicted",
        ("network-temperature", "CNN", "At the end", "constant:"): "contradicted",
        ("network-temperature", "CNN", "In the last quarter", "constant:"): "confirmed",
        ("network-temperature", "CNN", "In the last quarter", "random:"): "confirmed",
        ("network-temperature", "CNN", "as hot as", "constant:"): "undecided",
        ("reshuffling", "softmax", "further above the minimum than constant at"): "confirmed",
        ("reshuffling", "softmax", "replacement", "by the factor"): "confirmed",
        ("reshuffling", "softmax", "shuffled", "by the factor"): "confirmed",
        ("reshuffling", "perceptron", "replacement", "arms of equal temperature"): "confirmed",
        ("reshuffling", "perceptron", "shuffled", "arms of equal temperature"): "confirmed",
        ("reshuffling", "softmax", "equally far"): "confirmed",
        ("reshuffling", "softmax", "shuffled", "what the theory says"): "confirmed",
        ("reshuffling", "perceptron", "further above"): "confirmed",
        ("reshuffling", "perceptron", "twice the summed rate"): "contradicted",
        ("small-regularisation", "perceptron, MNIST", "accuracy"): "confirmed",
        ("small-regularisation", "perceptron, MNIST", "loss"): "confirmed",
        ("small-regularisation", "perceptron, CIFAR-10", "accuracy"): "undecided",
        ("small-regularisation", "perceptron, CIFAR-10", "loss"): "confirmed",
        ("small-regularisation", "CNN", "accuracy"): "undecided",
        ("small-regularisation", "CNN", "loss"): "undecided",
        ("adamw-batch", "square root"): "contradicted",
        ("adamw-batch", "constant rate of its temperature"): "contradicted",
        ("adamw-batch", "constant rate of its summed rate"): "contradicted",
        ("adamw-batch", "random rate on the step"): "contradicted",
        ("adamw-batch", "in proportion"): "undecided",
    }
    for (name, *words), outcome in said.items():
        check(verdict(name, *words).outcome == outcome, f"the findings of {name}: {' '.join(words)} is {outcome}")


def _section(figure: FigureData) -> str:
    settings = "; ".join(f"{name} {figure.settings[name]}" for name in _TOLD if name in figure.settings)
    small = f"heatbath reproduce {figure.name}                  # a laptop, minutes\n"
    large = f"heatbath reproduce {figure.name} --scale paper    # a GPU"
    command = f"```sh\n{small if EXPERIMENTS[figure.name].exists('laptop') else ''}{large}\n```"
    errata = "\n".join(f"- {sentence}" for sentence in figure.errata)
    notes = f"\n\n**What to know about the figure:**\n\n{errata}" if errata else ""
    judged = f"**Verdicts:** {_count(figure.verdicts)}.\n\n{_table(figure.verdicts)}"
    return f"{judged}\n\n**Runs:** {settings}.{notes}\n\n{command}"


def _table(verdicts: Sequence[Any]) -> str:
    claims = [
        (
            f"{_SIGNS[one.outcome]}\N{NO-BREAK SPACE}{one.outcome}",
            one.claim,
            "; ".join(filter(None, (wording.numbers(one), wording.needs(one)))),
        )
        for one in verdicts
    ]
    rows = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in claims]
    return "\n".join(["| verdict | claim | numbers |", "| --- | --- | --- |", *rows])


def _count(verdicts: Sequence[Any]) -> str:
    counts = Counter(one.outcome for one in verdicts)
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in _SIGNS if counts[outcome])
