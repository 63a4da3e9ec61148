"""The preregistered experiments: what they conclude from results whose truth is known, and that a small one runs."""

import re
from pathlib import Path
from random import Random
from statistics import fmean

import pytest
from synthetic_records import make_records

from heatbath.paper import (
    EXPERIMENTS,
    PLANNED,
    find_experiments,
    gaussian_noise,
    generic,
    network_temperature,
    plain_loop,
    reshuffling,
    small_regularisation,
)
from heatbath.paper.temperature import late_balance

PAGE = (Path(__file__).parents[2] / "docs/preregistration.md").read_text()


def outcomes(figure):
    return [verdict.outcome for verdict in figure.verdicts]


def test_planned_experiments_are_found_by_name_and_on_the_page():
    assert not set(PLANNED) & set(EXPERIMENTS)
    assert [experiment.name for experiment in find_experiments(["Plain_Loop", "figure1"])] == ["figure1", "plain-loop"]
    assert not [experiment for experiment in find_experiments() if experiment.name in PLANNED]
    assert set(re.findall(r"heatbath reproduce (\S+) --scale paper", PAGE)) == set(PLANNED)
    for number, experiment in (
        (2, "reshuffling"),
        (3, "regularisation"),
        (4, "gaussian-noise"),
        (5, "plain-loop"),
        (6, "adamw-batch"),
        (7, "generic"),
        (8, "small-regularisation"),
        (9, "network-temperature"),
        (10, "open-claims"),
    ):
        section = PAGE.partition(f"## Experiment {number}:")[2].partition("\n## ")[0]
        assert f"paper/{experiment.replace('-', '_')}.py" in section


def losses(found, law, minimum=0.3):
    """Results of all calculations in which the excess of an arm is its prediction times ``law(settings)``."""
    *trainings, prediction = reshuffling.EXPERIMENT.calculations("paper")
    excess = dict(zip([(s, a) for s in reshuffling.SAMPLINGS for a in reshuffling.ARMS], found, strict=True))
    results = {prediction.name: {"minimum": minimum, "excess": list(found)}}
    for calculation in trainings:
        _, sampling, arm = calculation.label.split(", ", 2)
        random, level = Random(calculation.name), minimum + excess[sampling, arm] * law(calculation)
        rows = [[level + random.gauss(0.0, 3e-4) for _ in range(2)] for _ in range(calculation.settings["seeds"])]
        results[calculation.name] = {"losses": rows}
    return results


HOT = {"constant 4/3 l": 4 / 3, "constant 2l": 2.0, "random": 4 / 3, "random update": 1.02}
PREDICTED = [0.006 * HOT.get(arm, 1.0) for arm in reshuffling.ARMS]
PREDICTED += [0.002 * HOT.get(arm, 1.0) + 0.002 * (arm == "random") for arm in reshuffling.ARMS]


def test_reshuffling_confirms_the_theory_where_it_holds():
    figure = reshuffling.EXPERIMENT.figure({}, "paper", results=losses(PREDICTED, lambda _: 1.0))
    assert outcomes(figure) == ["confirmed"] * 11
    assert [panel.title.split(", ")[1] for panel in figure.panels] == ["replacement", "shuffled"] * 2
    assert [len(panel.series) for panel in figure.panels] == [2] * 4
    assert figure.missing == ()


def test_reshuffling_contradicts_it_where_the_random_rate_does_not_heat():
    def as_cold_as_constant(calculation):
        random = calculation.settings["law"] != "constant" and calculation.settings["coupling"] == "gradient"
        return 0.5 if random and calculation.settings["sampling"] == "shuffled" else 1.0

    found = reshuffling.EXPERIMENT.figure({}, "paper", results=losses(PREDICTED, as_cold_as_constant))
    assert outcomes(found)[:3] == ["confirmed", "contradicted", "confirmed"]
    assert outcomes(found)[3:5] == ["contradicted", "contradicted"]


def test_the_arms_have_the_temperatures_that_the_plan_says():
    knobs = {
        calculation.label.split(", ", 2)[2]: reshuffling.arm_knobs(calculation.settings).temperature()
        for calculation in reshuffling.EXPERIMENT.calculations("paper")[: len(reshuffling.ARMS)]
    }
    base = knobs["constant l"]
    expected = [1.0, 4 / 3, 1.0, 1.0, 2.0, 4 / 3, 1.0 + 1 / 57]
    assert [value / base for value in knobs.values()] == pytest.approx(expected)


@pytest.mark.parametrize(("slope", "expected"), [(0.004, "confirmed"), (-0.004, "contradicted"), (0.0, "undecided")])
def test_regularisation_is_the_slope_over_the_temperature(slope, expected):
    experiment = PLANNED["regularisation"]
    configs = experiment.configs("paper")
    assert {config.epochs / config.batch_size for config in configs} == {180 / 256}
    rise = {128: slope, 256: 0.0, 512: -slope}
    figure = experiment.figure(make_records(configs, accuracy=lambda c: 0.75 + rise[c.batch_size]), "paper")
    assert outcomes(figure) == [expected] * 2
    assert not experiment.exists("laptop")


@pytest.mark.parametrize(("gain", "expected"), [(0.01, "confirmed"), (-0.02, "contradicted")])
@pytest.mark.parametrize(("name", "claims"), [("figure4-constant", 1), ("figure4-open", 6)])
def test_what_figure_4_left_open_waits_for_all_its_runs(name, claims, gain, expected):
    experiment = PLANNED[name]
    configs = experiment.configs("paper")
    records = make_records(configs, accuracy=lambda c: 0.75 + gain * (c.protocol.kind == "random"))
    figure = experiment.figure(records, "paper")
    assert outcomes(figure) == [expected] * claims
    assert experiment.has_results(records, "paper")
    *_, late = (config.run for config in configs if config.weights is None)
    early = experiment.figure({run: record for run, record in records.items() if run != late}, "paper")
    assert len(early.verdicts) == {1: 0, 6: 4}[claims]
    assert not experiment.has_results(make_records(configs[:20]), "paper")
    assert not experiment.exists("laptop")


@pytest.mark.parametrize(("shift", "expected"), [(0.0, "confirmed"), (0.02, "contradicted")])
def test_the_plain_loop_is_compared_with_the_engine(shift, expected):
    experiment = PLANNED["plain-loop"]
    records = make_records(experiment.configs("paper"), accuracy=0.9, noise=1e-4)
    level = next(iter(records.values())).final("test_accuracy") + shift
    results = {}
    for one in experiment.calculations("paper"):
        random, kind = Random(one.name), one.settings["kind"]
        several = [level - shift * (kind == "generic") + random.gauss(0.0, 1e-4) for _ in range(9)]
        by_kind = {"plain loop": several[0], "plain loop of a task": several, "generic": {"constant": several}}
        results[one.name] = {"test_accuracy": by_kind[kind]}
    figure = experiment.figure(records, "paper", results=results)
    assert outcomes(figure) == [expected] * 6
    titles = ["perceptron, constant", "CNN, constant"]
    titles += [f"VGG16 from ImageNet, {protocol}" for protocol in ("constant", "cyclic:18")]
    titles += ["perceptron, MNIST, 5,000 images", "CNN, MNIST, 5,000 images"]
    assert [panel.title for panel in figure.panels] == titles
    one_seed, *_ = results
    early = experiment.figure(records, "paper", results={n: r for n, r in results.items() if n != one_seed})
    assert [panel.title for panel in early.panels] == titles[1:]
    assert outcomes(early) == [expected] * 5


def test_a_plain_run_learns_and_leaves_the_global_state_alone():
    import torch

    (one, _) = plain_loop.EXPERIMENT.calculations("smoke")
    before = torch.get_rng_state()
    found = plain_loop.train_plainly(one.settings, device="cpu", data_dir=None, progress=lambda done, what: None)
    assert found == plain_loop.train_plainly(one.settings, device="cpu", data_dir=None, progress=lambda *_: None)
    assert 0.6 < found["test_accuracy"] < 1.0
    assert torch.equal(torch.get_rng_state(), before)


def test_plain_loops_of_a_task_start_where_the_engine_does():
    (engine, plain) = plain_loop._small("perceptron")
    where = {"device": "cpu", "data_dir": None, "progress": lambda done, what: None}
    shorter = {"task": "table", "train": 455, "test": 114, "epochs": 0, "seeds": 3}
    found = plain.compute({**plain.settings, **shorter}, **where)["test_accuracy"]
    assert len(set(found)) > 1  # seeds have weights of their own
    shorter |= {"epochs": 20, "lr": 0.01}
    found = plain.compute({**plain.settings, **shorter}, **where)["test_accuracy"]
    theirs = engine.compute({**engine.settings, **shorter}, **where)["test_accuracy"]["constant"]
    assert found == pytest.approx(theirs, abs=0.03)
    assert min(found) > 0.9


def test_an_arm_and_the_prediction_run():
    training, *_, prediction = reshuffling.EXPERIMENT.calculations("smoke")
    where = {"device": "cpu", "data_dir": None, "progress": lambda done, what: None}
    settings = {**training.settings, "seeds": 2, "summed_rate": 2.0}
    (first, _), _ = training.compute(settings, **where)["losses"]
    found = prediction.compute({**prediction.settings, "arms": prediction.settings["arms"][:1]}, **where)
    assert first > found["minimum"] > 0.0
    assert 0.0 < found["excess"][0] < 0.1


@pytest.mark.parametrize(("gain", "expected"), [(0.05, ["confirmed", "confirmed", "contradicted"]),
                                                (0.0, ["undecided", "undecided", "confirmed"]),
                                                (-0.05, ["contradicted", "contradicted", "contradicted"])])  # fmt: skip
def test_random_is_compared_with_constant_and_with_every_cyclic_protocol(gain, expected):
    results = {}
    for one in generic.EXPERIMENT.calculations("paper"):
        random = Random(one.name)
        level = {"test_loss": 0.4 * (1.0 - gain), "test_accuracy": 0.8 + gain}
        results[one.name] = {
            metric: {
                protocol: [
                    (at if protocol == "random" else {"test_loss": 0.4, "test_accuracy": 0.8}[metric])
                    + random.gauss(0.0, 1e-3)
                    for _ in range(one.settings["seeds"])
                ]
                for protocol in one.settings["protocols"]
            }
            for metric, at in level.items()
        }
    figure = generic.EXPERIMENT.figure({}, "paper", results=results)
    assert outcomes(figure) == expected * 12
    assert [len(panel.series) for panel in figure.panels] == [5, 5]
    unseen = generic.EXPERIMENT.figure({}, "paper", results={})
    assert (outcomes(unseen), unseen.missing[0]) == ([], "36 of 36 claims wait for their runs.")


def test_protocols_of_a_task_are_trained():
    one = generic.EXPERIMENT.calculations("smoke")[0]
    settings = {**one.settings, "epochs": 2, "protocols": ["constant", "random"]}
    found = one.compute(settings, device="cpu", data_dir=None, progress=lambda done, what: None)
    assert all(0.0 < value < 1.0 for value in found["test_accuracy"]["random"])
    assert found["test_loss"]["constant"] != found["test_loss"]["random"]


@pytest.mark.parametrize("name", ["cnn", "residual", "gpt"])
def test_models_of_the_larger_tasks_learn_one_batch(name):
    import torch

    from heatbath.paper import generic_tasks

    torch.manual_seed(0)
    model = generic_tasks._MODELS[name]()
    shapes = {"cnn": (8, 1, 28, 28), "residual": (8, 3, 32, 32)}
    text = torch.randint(128, (8, 65))
    inputs, targets = (text[:, :-1], text[:, 1:]) if name == "gpt" else (torch.randn(shapes[name]), torch.arange(8))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        losses.append(torch.nn.functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten()))
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.7 * losses[0]


def test_the_shape_of_the_noise_is_measured_before_and_after_a_training():
    (one,) = gaussian_noise.EXPERIMENT.calculations("smoke")
    settings = {**one.settings, "samples": 100, "steps": 4, "random": 2, "largest": 1, "batches": 50}
    found = one.compute(settings, device="cpu", data_dir=None, progress=lambda done, what: None)
    assert list(found) == ["random, start", "largest, start", "random, trained", "largest, trained"]
    assert [len(shapes["tail"]) for shapes in found.values()] == [2, 1, 2, 1]


@pytest.mark.parametrize(("kurtosis", "expected"), [(0.01, "confirmed"), (2.0, "contradicted")])
def test_gaussian_noise_is_judged_by_its_kurtosis(kurtosis, expected):
    shapes = {"sample_kurtosis": [1.0] * 8, "tail": [0.0027 + k * 1e-5 for k in range(8)]}
    shapes["batch_kurtosis"] = [kurtosis + 1e-3 * k for k in range(8)]
    kinds = [f"{kind}, {when}" for kind in ("random", "largest") for when in ("start", "trained")]
    results = {one.name: dict.fromkeys(kinds, shapes) for one in gaussian_noise.EXPERIMENT.calculations("paper")}
    figure = gaussian_noise.EXPERIMENT.figure({}, "paper", results=results)
    assert outcomes(figure) == [expected, "confirmed"] * 6


@pytest.mark.parametrize(("gain", "expected"), [(0.01, "confirmed"), (-0.01, "contradicted"), (0.0, "undecided")])
def test_small_networks_are_judged_by_the_slope_over_the_temperature(gain, expected):
    results = {}
    for one in small_regularisation.EXPERIMENT.calculations("paper"):
        random, heat = Random(one.name), 64 / one.settings["batch_size"]
        accuracies = [0.9 + gain * heat + random.gauss(0.0, 1e-3) for _ in range(one.settings["seeds"])]
        losses = [1.0 - value for value in accuracies]
        results[one.name] = {"test_accuracy": {"constant": accuracies}, "test_loss": {"constant": losses}}
    figure = small_regularisation.EXPERIMENT.figure({}, "paper", results=results)
    assert outcomes(figure) == [expected] * 6
    assert len(figure.panels) == 3


def test_small_networks_have_equal_summed_rates_in_all_arms():
    arms = [one.settings for one in small_regularisation.EXPERIMENT.calculations("paper")]
    steps = [5000 // arm["batch_size"] * arm["epochs"] * arm["lr"] for arm in arms]
    for network in range(3):
        hot, _, cold = steps[3 * network : 3 * network + 3]
        assert cold == pytest.approx(hot, rel=0.01)


@pytest.mark.parametrize(("motion", "expected"), [(1.0, "confirmed"), (1.5, "contradicted")])
def test_a_network_is_as_hot_as_its_velocities(motion, expected):
    results, random = {}, Random(0)
    for one in network_temperature.EXPERIMENT.calculations("paper"):
        noise = 2.0 if one.settings["law"] == "constant" else 3.0
        ratio = motion + random.gauss(0.0, 0.001)
        numbers = {"temperature": noise, "kinetic_temperature": motion * noise * random.gauss(1.0, 0.001)}
        numbers |= {"equilibrium_ratio": ratio, "dissipation": ratio, "fluctuation": 1.0}
        results[one.name] = {"readings": [numbers | {"step": step} for step in range(60)]}
    figure = network_temperature.EXPERIMENT.figure({}, "paper", results=results)
    verdicts = {verdict.claim: verdict.outcome for verdict in figure.verdicts}
    assert len(verdicts) == 12
    assert {outcome for claim, outcome in verdicts.items() if "hotter" not in claim} == {expected}
    assert {outcome for claim, outcome in verdicts.items() if "hotter" in claim} == {"confirmed"}
    assert len(figure.panels) == 6


def test_the_balance_at_the_end_forgets_how_it_began():
    """The readings tell means over a window of 50."""
    random = Random(0)
    sides = [(random.gauss(9.0 if k < 45 else 1.1, 0.01), random.gauss(1.0, 0.01)) for k in range(120)]
    readings = [{"dissipation": None, "fluctuation": None}]
    for k in range(1, len(sides) + 1):
        released, driven = zip(*sides[max(0, k - 50) : k], strict=True)
        readings.append({"dissipation": fmean(released), "fluctuation": fmean(driven)})
    for count in (60, 121):
        released, driven = zip(*sides[: count - 1][-(count // 4) :], strict=True)
        assert late_balance(readings[:count]) == pytest.approx(sum(released) / sum(driven))


def test_the_readings_of_a_network_feel_its_weight_decay():
    one = network_temperature.calculation("cnn", "random", 0)
    small = {**one.settings, "model": "mlp", "dataset": "mnist5k", "epochs": 1, "readings": 3}
    where = {"device": "cpu", "data_dir": None, "progress": lambda _fraction, _what: None}
    found = [one.compute({**small, "weight_decay": decay}, **where)["readings"] for decay in (0.0, 5e-3)]
    assert len(found[0]) == len(found[1]) >= 3
    assert found[0][-1]["kinetic_temperature"] != found[1][-1]["kinetic_temperature"]
