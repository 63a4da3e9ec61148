"""What the figures conclude from runs whose truth is known."""

import math
import re
from itertools import accumulate
from random import Random

import pytest
from synthetic_records import make_record, make_records

from heatbath.paper import EXPERIMENTS
from heatbath.paper.quantities import ROUGHNESS
from heatbath.runs.records import Record
from heatbath.stats import wording
from measured import an_epoch


def judge(name, accuracy, scale="paper", **options):
    experiment = EXPERIMENTS[name]
    figure = experiment.figure(make_records(experiment.configs(scale), accuracy=accuracy, **options), scale)
    return {verdict.claim: verdict.outcome for verdict in figure.verdicts}, figure


def by_protocol(**levels):
    return lambda config: levels.get(config.protocol.kind, 0.9)


def one_of(verdicts, *words):
    (found,) = [outcome for claim, outcome in verdicts.items() if all(word in claim for word in words)]
    return found


@pytest.mark.parametrize("name", ["figure1", "figure2", "figure3", "laws", "period"])
def test_equal_runs_are_found_equal(name):
    verdicts, _ = judge(name, 0.97, noise=1e-4)
    assert set(verdicts.values()) == {"confirmed"}


@pytest.mark.parametrize("name", ["figure1", "figure3"])
def test_one_protocol_apart_contradicts_equality(name):
    verdicts, _ = judge(name, lambda config: 0.95 if str(config.protocol) == "cyclic:18" else 0.97)
    assert one_of(verdicts, "test accuracy", "five protocols" if name == "figure1" else "perceptron is the same") == (
        "contradicted"
    )


def test_figure3_tells_a_worse_random_rate():
    verdicts, _ = judge("figure3", by_protocol(random=0.88))
    assert one_of(verdicts, "no worse", "perceptron") == "contradicted"


def test_figure4_confirms_the_papers_story_where_it_is_true():
    verdicts, figure = judge("figure4", by_protocol(random=0.74, constant=0.72, cyclic=0.735), noise=5e-4)
    overfits = {claim: outcome for claim, outcome in verdicts.items() if "overfits" in claim}
    assert set(verdicts.values()) - set(overfits.values()) == {"confirmed"}
    assert "confirmed" not in overfits.values()  # made up with one and the same generalisation error
    assert [panel.title for panel in figure.panels][:2] == [
        "from scratch: final",
        "from scratch: best",
    ]


def test_figure4_contradicts_it_where_it_is_false():
    verdicts, _ = judge("figure4", by_protocol(random=0.72, constant=0.74, cyclic=0.74), noise=5e-4)
    assert one_of(verdicts, "higher final", "than constant", "scratch") == "contradicted"
    assert one_of(verdicts, "best cyclic", "reaches the final", "scratch") == "contradicted"
    assert one_of(verdicts, "best cyclic", "higher final", "scratch") == "contradicted"
    assert one_of(verdicts, "not practically", "final", "scratch") == "confirmed"


@pytest.mark.parametrize("by", ["summed rate", "epochs"])
def test_figure1_tells_the_summed_rate_from_epochs(by):
    """Made-up cycles, deeper for longer periods, and a loss that follows the sum of their rates, or the epochs."""
    experiment = EXPERIMENTS["figure1"]
    records = {}
    for config in experiment.configs("laptop"):
        depth = (config.protocol.period or 0.0) / 40.0
        rates = [config.lr * (1.0 + depth * math.cos(math.pi * (k + 0.5) / 30.0)) for k in range(config.epochs)]
        passed = [rate / config.lr for rate in rates] if by == "summed rate" else [1.0] * config.epochs
        noise = 1.0 + 0.01 * Random(config.run).random()
        epochs = [
            an_epoch(rate, noise * math.exp(-x / 15.0), 0.9, 0.2, 0.9)
            for rate, x in zip(rates, accumulate(passed), strict=True)
        ]
        records[config.run] = Record(config, "finished", tuple(epochs))
    figure = experiment.figure(records, "laptop")
    (verdict,) = (verdict for verdict in figure.verdicts if "of the summed rate" in verdict.claim)
    assert verdict.outcome == ("confirmed" if by == "summed rate" else "contradicted")
    slopes = [math.log(series.y[15]) / series.x[15] for series in figure.panels[-1].series]
    assert (max(slopes) == pytest.approx(min(slopes), rel=0.03)) == (by == "summed rate")


def test_a_first_epoch_beyond_a_part_of_the_summed_rate_has_no_loss_there():
    _, figure = judge("figure1", 0.9, scale="smoke")
    (verdict,) = (verdict for verdict in figure.verdicts if "of the summed rate" in verdict.claim)
    assert verdict.outcome == "undecided"
    assert "no number" in wording.detail(verdict)


def test_figure5_tells_temperature_from_the_summed_rate():
    """Runs that learn by l N / C alone: III differs from I after the same epochs and not at the same summed rate."""
    experiment = EXPERIMENTS["figure5"]
    records = {}
    for seed_record in make_records(experiment.configs("laptop")).values():
        config = seed_record.config
        pace = config.lr / config.batch_size / (2e-4 * 50 / 60)
        epochs = []
        for k in range(config.epochs):
            accuracy = 0.9 - 0.5 * math.exp(-(k + 1) * pace / 12.0) + 1e-4 * (config.seed - 2.5)
            epochs.append(an_epoch(config.lr, 1.0 - accuracy, accuracy, 1.0 - accuracy, accuracy))
        records[config.run] = Record(config, "finished", tuple(epochs))
    figure = experiment.figure(records, "laptop")
    assert [verdict.outcome for verdict in figure.verdicts] == ["confirmed"] * 4
    over_epochs, over_sum, _ = figure.panels
    ends = {series.name: series.x[-1] for series in over_sum.series}
    assert ends["I: C = 60, 2l"] == pytest.approx(ends["II: C = 30, l"], rel=0.01)
    assert ends["III: C = 60, l"] == pytest.approx(0.5 * ends["I: C = 60, 2l"])
    assert over_epochs.series[0].x[-1] == 24


def test_figure6_compares_with_the_printed_numbers():
    verdicts, _ = judge("figure6", lambda config: 0.731 if config.model == "vgg16" else 0.99, noise=1e-3)
    assert one_of(verdicts, "printed 0.73036") == "confirmed"
    verdicts, _ = judge("figure6", lambda config: 0.75 if config.model == "vgg16" else 0.99, noise=1e-3)
    assert one_of(verdicts, "printed 0.73002") == "contradicted"
    assert one_of(verdicts, "VGG16", "end at the same") == "confirmed"


def test_the_fair_control_tells_rate_from_temperature():
    verdicts, _ = judge("fair-control", lambda config: 0.9 + 2.0 * config.lr if config.model == "mlp" else 0.7)
    assert one_of(verdicts, "perceptron", "same mean rate", "test accuracy") == "confirmed"
    assert one_of(verdicts, "perceptron", "coupling gradient", "test accuracy") == "contradicted"
    assert one_of(verdicts, "perceptron", "coupling update", "test accuracy") == "confirmed"


def test_delta_sees_a_trend():
    verdicts, figure = judge("delta", lambda config: 0.97 + 0.01 * 3.0 * config.law.variance)
    assert one_of(verdicts, "Delta = 1 has a higher test accuracy") == "confirmed"
    assert one_of(verdicts, "grows with Delta^2") == "confirmed"
    assert one_of(verdicts, "does not change") == "contradicted"
    accuracy = figure.panels[0].series[0]
    assert accuracy.x == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert accuracy.y[2] - accuracy.y[0] == pytest.approx(0.0025, abs=5e-4)


def test_delta_leaves_no_diverged_run_out_of_the_trend():
    experiment = EXPERIMENTS["delta"]
    configs = experiment.configs("paper")
    records = make_records(configs, accuracy=lambda config: 0.97 + 0.01 * config.law.variance)
    lost = next(config for config in configs if str(config.law) == "uniform:0.75")
    records[lost.run] = make_record(lost, status="diverged")
    wider = experiment.figure(records, "paper").verdicts[1]
    assert wider.outcome == "undecided"
    assert "diverged" in wording.detail(wider)


def test_spreads_of_any_size_are_told():
    _, figure = judge("laws", 0.97, noise=1e-6)
    assert re.search(r"Standard deviations between runs: random: \d\.\de-0\d, \d+ runs; ", figure.panels[2].note)


def test_the_period_that_beats_random_is_found():
    verdicts, figure = judge("period", lambda config: 0.98 if str(config.protocol) == "cyclic:10" else 0.97)
    assert set(verdicts.values()) == {"contradicted"}
    assert "cyclic:10" in wording.detail(figure.verdicts[0])
    scan, random, constant = figure.panels[0].series
    assert scan.x == (1, 2, 3, 6, 10, 18, 30, 60, 90)
    assert (random.x, random.name, constant.name) == ((1, 90), "random", "constant")


def log_temperature(config):
    return math.log10(config.thermostat.temperature())


@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_the_collapse_is_seen_where_temperature_decides(scale):
    verdicts, figure = judge("collapse", lambda config: 0.99 + 0.02 * log_temperature(config), scale)
    assert set(verdicts.values()) == {"confirmed"}
    assert [panel.x_log for panel in figure.panels] == [True] * 8
    assert "Rank correlation" in figure.panels[0].note


def test_the_collapse_is_not_seen_where_the_rate_decides():
    verdicts, _ = judge("collapse", lambda config: 0.99 + 0.05 * math.log10(config.lr), "laptop")
    assert set(verdicts.values()) == {"contradicted"}


@pytest.mark.parametrize("hotter_is_worse", [True, False])
def test_equal_sums_tell_temperature_from_the_summed_rate(hotter_is_worse):
    """Made-up losses that fall with the summed rate alone, or grow with the temperature besides."""
    experiment = EXPERIMENTS["equal-sums"]
    records = {}
    for config in experiment.configs("paper", 4):
        pace = config.lr * config.steps_per_epoch / (1.0 - config.momentum)
        level = 0.01 * log_temperature(config) if hotter_is_worse else 0.0
        noise = Random(config.run).gauss(0.0, 1e-4)
        epochs = [(k + 1) * pace for k in range(config.epochs)]
        curves = [(x**-0.5 * math.exp(level + noise), 0.9 + 0.01 * math.log(x) - level + noise) for x in epochs]
        made = tuple(an_epoch(config.lr, loss, 0.9, loss, accuracy) for loss, accuracy in curves)
        records[config.run] = Record(config, "finished", made)
    figure = experiment.figure(records, "paper", 4)
    assert {verdict.outcome for verdict in figure.verdicts} == {"confirmed" if hotter_is_worse else "undecided"}
    assert not any(verdict.planned for verdict in figure.verdicts)
    slope = 0.01 * math.log10(2.0) if hotter_is_worse else 0.0
    assert figure.verdicts[2].interval.estimate == pytest.approx(slope, abs=1e-4)


def test_roughness_is_the_spread_of_steps_without_their_mean():
    config = EXPERIMENTS["figure1"].configs("smoke")[0]
    losses = [9.0, 1.0, 0.8, 0.7, 0.4]
    record = Record(config, "finished", tuple(an_epoch(0.1, loss, 0.5, loss, 0.5) for loss in losses))
    steps = [-8.0, -0.2, -0.1, -0.3]
    mean = sum(steps) / 4
    assert ROUGHNESS.of(record) == pytest.approx(math.sqrt(sum((step - mean) ** 2 for step in steps) / 3))


def curves_of(name, seeds, accuracy):
    records = make_records(EXPERIMENTS[name].configs("paper", seeds), accuracy=accuracy)
    figure = EXPERIMENTS[name].figure(records, "paper", seeds)
    return records, [panel for panel in figure.panels if panel.x_label == "epochs"]


def test_no_band_leaves_what_an_accuracy_can_be():
    """Runs of which half fall out make an interval of more than 1."""
    _, panels = curves_of("figure4", 6, lambda config: 0.05 if config.seed % 2 else 0.95)
    ends = [(min(one.low), max(one.high)) for panel in panels for one in panel.series]
    assert len(ends) == 10
    assert set(ends) == {(0.0, 1.0)}


def test_the_band_of_few_runs_is_where_they_lie():
    """The t interval of three runs, of which one falls behind, would hide all curves."""
    records, panels = curves_of("fair-control", 3, lambda config: 0.8 if config.seed == 1 else 0.9)
    assert len(panels) == 4
    assert all(panel.note.endswith("the band reaches from the lowest run to the highest.") for panel in panels)
    runs = [record for record in records.values() if record.config.model == "vgg16"]
    for curve, panel in zip(("train_loss", "test_accuracy"), panels[2:], strict=True):
        for series, group in zip(panel.series, EXPERIMENTS["fair-control"].groups("paper")[5:], strict=True):
            curves = [record.curve(curve) for record in runs if record.config.with_(seed=0) == group.config]
            assert len(curves) == 3
            assert series.low == tuple(map(min, *curves))
            assert series.high == tuple(map(max, *curves))
    _, panels = curves_of("fair-control", 6, 0.9)
    assert all(panel.note.endswith("the band is its 95 % interval.") for panel in panels)
