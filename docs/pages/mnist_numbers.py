"""Numbers of docs/results.md and docs/evidence.md on the perceptron and the CNN."""

from __future__ import annotations

import json
import math
from itertools import combinations
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy import stats

from committed import ROOT, check, figures, interval, late_gain, means, records, runs_of, values, verdict, verdicts
from heatbath.paper import EXPERIMENTS
from heatbath.paper.claims import all_equal
from heatbath.paper.collapse import KNOBS, RESAMPLES, SHUFFLES
from heatbath.paper.groups import FigureRuns
from heatbath.paper.quantities import BEST_TEST, FINAL_TEST, MEAN_TEST, ROUGHNESS, TAIL_LOSS
from heatbath.paper.temperature import late_balance
from heatbath.stats.order import explained_by_chance, explained_by_order, rank_correlation
from heatbath.stats.verdicts import Verdict, judge
from heatbath.thermostat import Thermostat


def protocols(figure: str) -> SimpleNamespace:
    """Return by what factor the losses of five protocols differ, over epochs and over the summed rate."""
    over_epochs, over_sums, gone = {}, [], {}
    parts = [45, *range(18, 181)]  # of the summed rate, in epochs of a constant rate
    for label, runs in runs_of(figure).items():
        sums = [np.cumsum(run.curve("rate")) / run.config.lr for run in runs]
        losses = [np.log(run.curve("train_loss")) for run in runs]
        over_epochs[label] = [np.mean([loss[k - 1] for loss in losses]) for k in (10, 45, 180)]
        over_sums.append(np.mean([np.interp(parts, x, loss) for x, loss in zip(sums, losses, strict=True)], axis=0))
        gone[label] = np.mean([x[-20:].mean() / 180 for x in sums])
    early, later, last = np.exp(np.ptp(list(over_epochs.values()), axis=0))
    quarter, *others = np.exp(np.ptp(over_sums, axis=0))
    pair = [over_epochs[label][2] for label in ("cyclic:6", "cyclic:30")]
    return SimpleNamespace(
        early=early,
        later=later,
        last=last - 1.0,
        last_of_pair=np.ptp(pair),
        quarter=quarter,
        most=max(others),
        sum_6=gone["cyclic:6"],
        sum_30=gone["cyclic:30"],
        loss=verdict(figure, "reach the same training loss"),
        accuracy=verdict(figure, "reach the same test accuracy"),
        train_accuracy=verdict(figure, "reach the same train accuracy"),
    )


def figure2_at_the_end() -> SimpleNamespace:
    """Return what the last epoch of figure 2 says."""
    runs = runs_of("figure2")
    ends = values(runs, FINAL_TEST)
    check(np.ptp([fmean(some) for some in ends.values()]) < 0.0005, "no pair more than 0.0005")
    found = FigureRuns("paper", tuple(EXPERIMENTS["figure2"].groups("paper")), records())
    by_that_epoch = all_equal(found, "", found.groups, FINAL_TEST, margin=0.001).weigh(0.05 / 5)
    losses = {label: np.mean([np.log(run.curve("train_loss")[-1]) for run in some]) for label, some in runs.items()}
    above = [np.exp(loss - losses["constant"]) for label, loss in losses.items() if label != "constant"]
    check(1.02 < min(above) < max(above) < 1.03, "the last loss of constant is 2 to 3 % below that of the others")
    pair = interval(stats.ttest_rel(ends["cyclic:6"], ends["cyclic:30"]), 0.95)
    return SimpleNamespace(pair=pair, distance=abs(pair.estimate), p=5 * by_that_epoch.p_if_false)


def best_accuracies() -> SimpleNamespace:
    """Return the verdicts of figure 3 on the best test accuracy."""
    same = "is the same under all five protocols"
    perceptron, cnn = (verdict("figure3", name, same) for name in ("perceptron", "CNN"))
    return SimpleNamespace(perceptron=perceptron, cnn=cnn)


def figure5() -> SimpleNamespace:
    """Return the verdicts of figure 5."""
    ends, halfway = verdict("figure5", "end at the same"), verdict("figure5", "after half its epochs")
    return SimpleNamespace(ends=ends, differs=verdict("figure5", "learns otherwise"), halfway=halfway)


def delta() -> SimpleNamespace:
    """Return the verdicts on the width of the law."""
    return SimpleNamespace(wider=verdict("delta", "grows with"), same=verdict("delta", "does not change"))


def later_seeds() -> SimpleNamespace:
    """Return the largest p-value of what the seeds of figures 2 and 3 confirm that were run after the first look."""
    p_values = []
    for name, looked_at in (("figure2", 3), ("figure3", 5)):
        since = {run: record for run, record in records().items() if record.config.seed >= looked_at}
        found = FigureRuns("paper", tuple(EXPERIMENTS[name].groups("paper")), since)
        late = judge(EXPERIMENTS[name].claims(found))
        for one, two in zip(verdicts(name), late, strict=True):
            if "perceptron" not in one.claim:
                check(one.outcome == two.outcome, "what figures 2 and 3 confirm of the CNN the later seeds confirm")
                p_values += [two.p_value or 0.0] if two.outcome == "confirmed" else []
    return SimpleNamespace(p=max(p_values))


def cnn_of_figure3() -> SimpleNamespace:
    """Return the best test accuracies of the CNN, and where the cyclic protocols gain."""
    runs = runs_of("figure3", "CNN")
    best = values(runs, BEST_TEST)
    cyclic = [label for label in runs if label.startswith("cyclic")]
    gains = [stats.ttest_rel(best[label], best["constant"]) for label in cyclic]
    slow, fast = ([late_gain(runs, label, at) for label in cyclic] for at in ("low", "high"))
    return SimpleNamespace(
        best=means(runs, BEST_TEST),
        gain=interval(gains[0], 1 - 0.05 / 10),
        p=[float(f"{10 * gain.pvalue:.2g}") for gain in gains],
        slow=(min(slow), max(slow)),
        fast=(min(fast), max(fast)),
        last_p=stats.f_oneway(*values(runs, FINAL_TEST).values()).pvalue,
    )


def collapse() -> SimpleNamespace:
    """Return the numbers of the grid of rates, batch sizes and momenta."""
    found = [
        (runs[0].config.thermostat.temperature(), [FINAL_TEST.of(run) for run in runs])
        for runs in runs_of("collapse").values()
    ]
    pairs = [(x, y) for (one, x), (two, y) in combinations(found, 2) if max(one, two) < 1.02 * min(one, two)]
    temperatures, ends = np.array([(temperature, fmean(some)) for temperature, some in found]).T
    squares = (ends - ends.mean()) ** 2
    cold = temperatures < np.median(temperatures)
    check(sum(squares[cold]) > 0.75 * sum(squares), "the colder half of the runs makes most of the variance")
    decides = verdict("collapse", "decides the final")
    share = explained_by_order(
        temperatures.tolist(), [some for _, some in found], 1.0 - 0.1 / len(figures()["collapse"].verdicts)
    )
    return SimpleNamespace(
        pairs=len(pairs),
        widest=max(abs(fmean(one) - fmean(two)) for one, two in pairs),
        p=min(stats.ttest_rel(one, two).pvalue for one, two in pairs),
        verdict=decides,
        share=int(1e4 * share.low) / 1e4,
        groups=len(found),
        median=np.median(temperatures),
        **_orders(),
    )


def _orders() -> dict[str, Any]:
    """How well T, each knob and chance order the groups by their final accuracy, and how well T the hotter half."""
    groups = EXPERIMENTS["collapse"].groups("paper")
    final = list(values(runs_of("collapse"), FINAL_TEST).values())
    knobs = {name: [knob(group) for group in groups] for name, knob in KNOBS.items()}
    chances = {name: explained_by_chance(knob, final, shuffles=SHUFFLES) for name, knob in knobs.items()}
    by_knob = [chance for name, chance in chances.items() if name != "T"]
    shares = [explained_by_order(knob, final, resamples=RESAMPLES) for name, knob in knobs.items() if name != "T"]
    hot = [k for k, temperature in enumerate(knobs["T"]) if temperature >= np.median(knobs["T"])]
    ranks = rank_correlation([knobs["T"][k] for k in hot], [final[k] for k in hot], resamples=RESAMPLES)
    return {
        "chance": chances["T"],
        "chances": (min(by_knob), max(by_knob)),
        "best_knob": max(share.estimate for share in shares),
        "hot": ranks,
    }


def equal_sums() -> SimpleNamespace:
    """Return by how much a doubling of the temperature changes loss and accuracy at equal summed rate."""
    found = verdicts("equal-sums")
    check({one.outcome for one in found} == {"confirmed"}, "hotter runs are slightly worse")
    losses, accuracies = ([one.evidence.means[0] for one in found[start::2]] for start in (0, 1))
    return SimpleNamespace(loss=[math.expm1(slope) for slope in losses], accuracy=accuracies)


def fair_control() -> SimpleNamespace:
    """Return the numbers of the perceptron's fair control."""
    runs = runs_of("fair-control", "perceptron")
    rough, late = means(runs, ROUGHNESS), means(runs, TAIL_LOSS)
    along = values(runs, MEAN_TEST)
    same = "perceptron: random and constant at the same"
    loss = verdict("fair-control", f"{same} temperature, coupling gradient", "loss")
    return SimpleNamespace(
        loss=loss,
        heat=loss.interval,
        accuracy=verdict("fair-control", f"{same} temperature, coupling gradient", "accuracy"),
        mean=verdict("fair-control", f"{same} mean rate", "loss").interval,
        same_mean=verdict("fair-control", f"{same} mean rate", "loss"),
        mean_accuracy=verdict("fair-control", f"{same} mean rate", "accuracy").interval,
        rough=rough,
        relative={name: rough[name] / late[name] for name in rough},
        along=interval(stats.ttest_rel(along["constant, T of random"], along["random"]), 0.95),
        losses=(min(late.values()), max(late.values())),
        shaken=verdict("coupling", "no draw").interval,
        shaken_more=verdict("coupling", "one on the step").interval,
    )


def thermometer() -> SimpleNamespace:
    """Return the numbers of the thermometer on nine perceptrons."""
    runs = _readings()
    everything = [run for some in runs.values() for run in some]
    check(len(everything) == 9, "three protocols share their 3 seeds")
    ratios = [
        fmean(fmean(row["kinetic_temperature"] / row["temperature"] for row in run[18:]) for run in some)
        for some in runs.values()
    ]
    noise, motion = (
        [run[0][key] / run[-1][key] for run in everything] for key in ("temperature", "kinetic_temperature")
    )
    random, constant, update = ([[_heat(run, k) for run in runs[name]] for k in range(4)] for name in runs)
    quarters = list(zip(random, constant, strict=True))
    pairs = [x / y for hot, cold in quarters for x, y in zip(hot, cold, strict=True)]
    own = Thermostat(5e-3, 256, 0.9, True, "uniform", "update").law_factor  # by which the thermometer itself multiplies
    steps = [fmean(x) / fmean(y) / own for x, y in zip(update, constant, strict=True)]
    check(1.005 < min(steps) < max(steps) < 1.035, "with the draw on the step they are those of constant to 1 to 3 %")
    agreement, equilibrium = (verdict("temperature", words, "constant:") for words in ("as hot as", "at equilibrium"))
    return SimpleNamespace(
        ratios=(min(ratios), max(ratios)),
        agreement=agreement,
        agreement_ends=_ends(agreement),
        equilibrium=equilibrium,
        equilibrium_ends=_ends(equilibrium),
        noise=(min(noise), max(noise)),
        motion=(min(motion), max(motion)),
        hotter=[fmean(hot) / fmean(cold) for hot, cold in quarters],
        by_seed=(min(pairs), max(pairs)),
        first_third=fmean(late_balance(run[:60]) or math.nan for run in runs["constant"]),
        end=equilibrium.evidence.means[0] if equilibrium.evidence.means else math.nan,
        steps=everything[0][-1]["step"],
        reshuffled=1 - 2 * 0.9 * 256 / (0.1 * (60_000 - 256)),
    )


def _ends(of: Verdict) -> tuple[float, float]:
    """The ends of the interval of a ratio, where the claim is on the ratio less 1."""
    return (1 + of.interval.low, 1 + of.interval.high) if of.interval else (math.nan, math.nan)


def _readings() -> dict[str, list[list[dict[str, Any]]]]:
    """The readings of each protocol, by seed."""
    found: dict[str, dict[int, Any]] = {"random": {}, "constant": {}, "update": {}}
    for file in (ROOT / "results/calculations").glob("*.json"):
        content = json.loads(file.read_text())
        settings = content["settings"]
        if settings["kind"] == "thermometer" and settings["model"] == "mlp":
            name = "update" if settings["coupling"] == "update" else "random"
            name = "constant" if settings["law"] == "constant" else name
            found[name][settings["seed"]] = content["result"]["readings"]
    return {name: [some[seed] for seed in sorted(some)] for name, some in found.items()}


def _heat(run: list[dict[str, Any]], quarter: int) -> float:
    return fmean(row["kinetic_temperature"] for row in run[45 * quarter : 45 * (quarter + 1)])
