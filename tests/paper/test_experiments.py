import json
import subprocess
import sys

import pytest
from synthetic_records import make_record, make_records

from heatbath.paper import EXPERIMENTS, SCALES, Calculation, find_experiments
from heatbath.paper.groups import PROTOCOLS
from heatbath.runs.configs import RunConfig

RUN_BASED = [name for name, experiment in EXPERIMENTS.items() if experiment.configs("paper")]


def outcomes(figure):
    return [verdict.outcome for verdict in figure.verdicts]


def knobs(config):
    return config.model, config.dataset, config.lr, config.batch_size, config.momentum, config.weight_decay


@pytest.mark.parametrize("name", ["1", "fig1", "Figure1", "figure 1", "fig. 1", "FIGURE_1"])
def test_a_figure_has_several_names(name):
    assert [experiment.name for experiment in find_experiments([name])] == ["figure1"]


def test_all_experiments_come_once_and_in_the_order_of_the_report():
    assert [e.name for e in find_experiments()] == list(EXPERIMENTS)
    assert [e.name for e in find_experiments(["fair_control", "3", "figure3"])] == ["figure3", "fair-control"]


@pytest.mark.parametrize(
    ("name", "nearest"), [("figur1", "figure1"), ("colapse", "collapse"), ("faircontrol", "fair-control")]
)
def test_an_unknown_name_suggests_the_nearest(name, nearest):
    with pytest.raises(ValueError, match=f"unknown figure '{name}': did you mean {nearest}"):
        find_experiments([name])


def test_a_name_far_from_all_lists_them():
    with pytest.raises(ValueError, match=r"unknown figure '9zz': There are figure1, .*theory"):
        find_experiments(["9zz"])


def test_the_paper_needs_neither_torch_nor_matplotlib_to_be_described():
    program = "import sys, heatbath.paper as p; [e.configs('paper') for e in p.EXPERIMENTS.values()];"
    program += "print([m for m in ('torch', 'scipy', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("figure1", ("mlp", "mnist", 5e-3, 256, 0.9, 0.0)),
        ("figure2", ("cnn", "mnist", 5e-5, 256, 0.9, 1e-3)),
        ("figure4", ("vgg16", "cifar10", 5e-4, 256, 0.9, 1e-3)),
    ],
)
def test_protocol_figures_have_the_papers_settings(name, expected):
    configs = EXPERIMENTS[name].configs("paper")
    assert {knobs(config) for config in configs} == {expected}
    assert {str(config.protocol) for config in configs} == set(PROTOCOLS)
    assert all(config.nesterov and config.epochs == 180 for config in configs)


def test_figure3_is_both_networks_at_the_same_rate():
    expected = {("mlp", "mnist", 5e-3, 256, 0.9, 0.0): 20, ("cnn", "mnist", 5e-3, 256, 0.9, 1e-3): 10}
    configs = EXPERIMENTS["figure3"].configs("paper")
    for settings, seeds in expected.items():
        runs = [config for config in configs if knobs(config) == settings]
        assert len(runs) == 5 * seeds
        assert {config.seed for config in runs} == set(range(seeds))
    assert len(configs) == 150


def test_figure4_is_run_from_scratch_and_from_imagenet():
    groups = EXPERIMENTS["figure4"].groups("paper")
    found = [(group.config.weights, group.label, group.seeds) for group in groups]
    protocols = ("constant", "random", "cyclic:6", "cyclic:18", "cyclic:30")
    assert found[:5] == [(None, *pair) for pair in zip(protocols, (10, 10, 10, 5, 5), strict=True)]
    assert found[5:] == [("imagenet", label, 3) for label in protocols]


@pytest.mark.parametrize("scale", SCALES)
def test_figure5_compares_equal_temperatures_with_half_of_it(scale):
    one, two, three = (group.config for group in EXPERIMENTS["figure5"].groups(scale))
    assert (one.batch_size, two.batch_size, three.batch_size) == (60, 30, 60)
    assert one.lr == 2 * two.lr == 2 * three.lr
    assert (one.lr == 2e-4) == (scale == "paper")
    assert one.momentum == 0.0
    temperatures = [config.thermostat.temperature() for config in (one, two, three)]
    assert temperatures[1] == pytest.approx(temperatures[0], rel=0.01)
    assert temperatures[2] == pytest.approx(0.5 * temperatures[0], rel=1e-12)


def test_figure6_pairs_have_equal_temperatures():
    groups = EXPERIMENTS["figure6"].groups("paper")
    cnn, vgg = [g.config for g in groups[:2]], [g.config for g in groups[2:]]
    assert [(c.batch_size, c.momentum, c.lr) for c in cnn] == [(60, 0.75, 0.0025), (30, 0.5, 0.0025)]
    assert [(c.batch_size, c.momentum, c.lr) for c in vgg] == [(128, 0.9, 2.5e-4), (256, 0.9, 5e-4)]
    for pair in (cnn, vgg):
        hot, same = (config.thermostat.temperature() for config in pair)
        assert hot == pytest.approx(same, rel=0.005)


@pytest.mark.parametrize("scale", SCALES)
def test_fair_controls_have_the_temperature_of_the_random_runs(scale):
    groups = {(g.part, g.label): g.config for g in EXPERIMENTS["fair-control"].groups(scale)}
    for part in {part for part, _ in groups}:
        for random, control in (("random", "constant, T of random"), ("random update", "constant, T of update")):
            hot, cold = groups[part, random], groups[part, control]
            assert cold.thermostat.temperature() == pytest.approx(hot.thermostat.temperature(), rel=1e-12)
            assert str(cold.protocol) == "constant"
        assert groups[part, "constant, T of random"].lr == pytest.approx(4 / 3 * groups[part, "random"].lr)


def test_laws_have_equal_variance():
    variances = [config.law.variance for config in EXPERIMENTS["laws"].configs("paper")]
    assert variances == pytest.approx([1 / 3] * len(variances))
    assert len({str(config.law) for config in EXPERIMENTS["laws"].configs("paper")}) == 4


@pytest.mark.parametrize("scale", SCALES)
def test_extensions_share_the_runs_of_the_first_figure(scale):
    known = {config.run for config in EXPERIMENTS["figure1"].configs(scale)}
    for name in ("figure3", "fair-control", "coupling", "delta", "period"):
        shared = known & {config.run for config in EXPERIMENTS[name].configs(scale)}
        assert len(shared) >= 2 * len(known) // 5  # random and constant at least


@pytest.mark.parametrize("scale", ["smoke", "laptop"])
def test_small_scales_train_the_perceptron_on_embedded_data_alone(scale):
    configs = [config for experiment in EXPERIMENTS.values() for config in experiment.configs(scale)]
    assert {(config.model, config.dataset) for config in configs} == {("mlp", "mnist5k")}
    assert not EXPERIMENTS["figure4"].exists(scale)
    assert EXPERIMENTS["temperature"].exists(scale)


def test_seeds_can_be_asked_for():
    configs = EXPERIMENTS["figure1"].configs("laptop", seeds=3)
    assert sorted({config.seed for config in configs}) == [0, 1, 2]
    assert len(configs) == 15


@pytest.mark.parametrize("name", RUN_BASED)
def test_an_empty_store_says_what_is_missing(name):
    figure = EXPERIMENTS[name].figure({}, "paper")
    assert set(outcomes(figure)) == {"undecided"}
    assert len(figure.missing) == len(EXPERIMENTS[name].groups("paper")) + 1
    assert figure.missing[-1] == f"'heatbath reproduce {name} --scale paper' runs what is missing."
    figure = EXPERIMENTS[name].figure({}, "paper", seeds=12)
    assert figure.missing[-1] == f"'heatbath reproduce {name} --scale paper --seeds 12' runs what is missing."


@pytest.mark.parametrize("name", ["figure2", "figure4", "figure6"])
def test_a_scale_too_small_for_a_figure_is_said(name):
    figure = EXPERIMENTS[name].figure({}, "laptop")
    assert figure.panels == figure.verdicts == ()
    assert "needs the scale paper" in figure.missing[0]


@pytest.mark.parametrize("name", RUN_BASED)
def test_one_seed_is_drawn_and_decides_nothing(name):
    records = make_records([c for c in EXPERIMENTS[name].configs("paper") if c.seed == 0])
    figure = EXPERIMENTS[name].figure(records, "paper")
    assert set(outcomes(figure)) == {"undecided"}
    assert all(panel.series for panel in figure.panels)
    assert "runs are not finished; what there is, is drawn." in figure.missing[0]


@pytest.mark.parametrize("name", RUN_BASED)
def test_a_full_store_lacks_nothing_and_is_told_in_words(name):
    experiment = EXPERIMENTS[name]
    figure = experiment.figure(make_records(experiment.configs("paper")), "paper")
    assert figure.missing == ()
    assert figure.settings["scale"] == "paper"
    assert figure.settings["epochs"] == "180"
    assert "accuracies are equal within 0.00" in figure.settings["margins"]
    assert all(isinstance(value, str) for value in figure.settings.values())
    assert figure.errata
    for panel in figure.panels:
        for series in panel.series:
            assert all(y is not None for y in series.y)


def test_diverged_runs_are_counted_and_left_out():
    experiment = EXPERIMENTS["figure1"]
    records = make_records(experiment.configs("laptop"), accuracy=0.9)
    bad = next(
        config for config in experiment.configs("laptop") if str(config.protocol) == "random" and config.seed == 3
    )
    records[bad.run] = make_record(bad, accuracy=0.1, status="diverged", epochs=2)
    figure = experiment.figure(records, "laptop")
    assert figure.missing == ("random: 1 of 6 runs diverged (seed 3) and are in no mean.",)
    random = next(series for series in figure.panels[2].series if series.name == "random")
    assert len(random.x) == 60
    assert random.y[-1] == pytest.approx(0.9, abs=0.01)


def test_a_run_that_is_not_finished_is_missing():
    experiment = EXPERIMENTS["figure1"]
    records = make_records(experiment.configs("laptop"))
    for config in experiment.configs("laptop"):
        if str(config.protocol) == "cyclic:6" and config.seed < 2:
            records[config.run] = make_record(config, status="running", epochs=4)
    figure = experiment.figure(records, "laptop")
    assert figure.missing[0] == "cyclic:6: 2 of 6 runs are not finished; what there is, is drawn."


def test_seeds_are_complete_where_every_group_has_them():
    figure = EXPERIMENTS["figure1"]
    records = make_records(figure.configs("smoke", 4), status="diverged")
    assert figure.complete_seeds(records, "smoke") == 4
    assert figure.complete_seeds(records, "laptop") == EXPERIMENTS["theory"].complete_seeds(records, "smoke") == 0
    config = figure.groups("smoke")[3].config.with_(seed=2)
    assert figure.complete_seeds(records | make_records([config], status="stopped"), "smoke") == 2


def test_results_are_runs_that_have_ended_and_calculations():
    figure, theory = EXPERIMENTS["figure1"], EXPERIMENTS["theory"]
    last = figure.configs("smoke", 3)[-1]
    assert not figure.has_results(make_records([last]), "smoke")
    assert figure.has_results(make_records([last]), "smoke", 3)
    assert not figure.has_results(make_records([last], status="stopped"), "smoke", 3)
    assert not theory.has_results({}, "smoke")
    assert theory.has_results({}, "smoke", results={theory.calculations("smoke")[1].name: {}})


def test_a_calculation_is_named_by_its_settings():
    def same(**changes):
        return Calculation("x", {"rate": 0.1, "steps": 5, **changes}, lambda settings, **_: dict(settings)).name

    assert same() == Calculation("y", {"steps": 5, "rate": 0.1}, lambda _settings, **_: {}).name
    assert same() != same(steps=6)
    names = [c.name for scale in SCALES for e in EXPERIMENTS.values() for c in e.calculations(scale)]
    assert len(names) - len(set(names)) == 2  # the theory is the same at laptop's and the paper's scale
    json.dumps([dict(c.settings) for e in EXPERIMENTS.values() for c in e.calculations("paper")])


def test_configs_are_complete():
    for experiment in EXPERIMENTS.values():
        for config in experiment.configs("paper", seeds=1):
            assert RunConfig.from_dict(config.to_dict()).run == config.run


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("figure1", "epochs"),
        ("figure2", "epochs"),
        ("figure3", "Nesterov"),
        ("figure4", "Nesterov"),
        ("figure5", "how many"),
        ("figure6", "weight decay and epochs"),
    ],
)
def test_what_the_paper_leaves_open_is_said_to_be_our_choice(name, words):
    figure = EXPERIMENTS[name].figure({}, "paper")
    assert words in figure.settings["not said in the paper"]
