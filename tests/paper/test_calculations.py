"""Temperature along the training, and the theory against the algorithm."""

import json
import shutil
from contextlib import closing
from dataclasses import replace

import pytest
import torch
from torch import nn

import heatbath as hb
from heatbath.engine.options import Options
from heatbath.paper import EXPERIMENTS, Calculation, theory_checks
from heatbath.paper.calculations import compute as compute_all
from heatbath.paper.calculations import copy_results, damaged_results
from heatbath.runs.store import Store
from heatbath.stats import wording
from heatbath.system.locks import Owner


def readings(temperature, ratio, motion):
    return {
        "readings": [
            {
                "step": 10 * k,
                "temperature": temperature * (1 + 0.01 * k),
                "kinetic_temperature": None if k == 0 else motion * temperature,
                "dissipation": None if k < 2 else 3.0 * (ratio + 0.001 * k),
                "fluctuation": None if k < 2 else 3.0,
            }
            for k in range(8)
        ]
    }


WELLS = {
    "x": [-1.0, 1.0],
    "fokker_planck": [0.5, 0.5],
    "boltzmann": [0.5, 0.5],
    "histogram_x": [-1.0, 1.0],
    "histogram": [0.4, 0.6],
    "variance_ratio": [0.99, 1.0, 1.02, 1.01],
    "steps": 150,
}


def measured(ratio, hotter, motion=1.0):
    found = {}
    for calculation in EXPERIMENTS["temperature"].calculations("laptop"):
        kind, seed = calculation.label.split(", seed ")
        factor = hotter if kind == "random" else 1.0
        found[calculation.name] = readings(
            1e-7 * factor * (1 + 0.01 * int(seed)), ratio + 0.002 * int(seed), motion + 0.002 * int(seed)
        )
    return found


@pytest.mark.parametrize(("ratio", "outcome"), [(1.0, "confirmed"), (-9.0, "contradicted")])
def test_equilibrium_is_judged_by_the_ratio(ratio, outcome):
    figure = EXPERIMENTS["temperature"].figure({}, "laptop", None, measured(ratio, 4 / 3))
    assert [verdict.outcome for verdict in figure.verdicts[3:]] == [outcome] * 3 + ["confirmed"]
    noise, kinetic, equilibrium = figure.panels
    assert [len(series.x) for series in noise.series] == [8, 8, 8]
    assert [len(series.x) for series in kinetic.series] == [7, 7, 7]
    assert [len(series.x) for series in equilibrium.series] == [3, 3, 3, 2]
    assert figure.missing == ()


@pytest.mark.parametrize(("motion", "outcome"), [(1.05, "confirmed"), (2.0, "contradicted")])
def test_two_thermometers_are_compared(motion, outcome):
    figure = EXPERIMENTS["temperature"].figure({}, "laptop", None, measured(1.0, 4 / 3, motion))
    assert [verdict.outcome for verdict in figure.verdicts[:3]] == [outcome] * 3


def test_readings_without_noise_are_not_compared():
    found = measured(1.0, 4 / 3)
    for result in found.values():
        result["readings"][3]["temperature"], result["readings"][5]["temperature"] = None, 0.0
    figure = EXPERIMENTS["temperature"].figure({}, "laptop", None, found)
    assert [verdict.outcome for verdict in figure.verdicts[:3]] == ["confirmed"] * 3


@pytest.mark.parametrize("name", ["temperature", "theory"])
def test_what_is_not_computed_is_missing(name):
    figure = EXPERIMENTS[name].figure({}, "laptop")
    assert len(figure.missing) == len(EXPERIMENTS[name].calculations("laptop")) + 1
    assert {verdict.outcome for verdict in figure.verdicts} <= {"undecided"}


def compute(calculation: Calculation, **changes):
    settings = {**calculation.settings, **changes}
    return calculation.compute(settings, device="cpu", data_dir=None, progress=lambda _fraction, _what: None)


@pytest.fixture(scope="module")
def factors_found():
    return compute(EXPERIMENTS["theory"].calculations("smoke")[0])


def test_the_theory_of_the_factors_is_that_of_the_algorithm(factors_found):
    factors, wells = EXPERIMENTS["theory"].calculations("smoke")
    results = {factors.name: factors_found}
    figure = EXPERIMENTS["theory"].figure({}, "smoke", None, results)
    assert [verdict.outcome for verdict in figure.verdicts] == ["confirmed", "undecided"]
    assert figure.missing[0] == f"{wells.label}: not computed."
    forms = results[factors.name]["forms"]
    at = results[factors.name]["momenta"].index(0.9)
    expected = {"constant": 1.0, "gradient": 4 / 3, "update": 1 + 0.1 / 1.9 / 3, "update, Nesterov": 1.0235}
    assert {label: form["leading"][at] for label, form in forms.items()} == pytest.approx(expected, abs=2e-4)
    for form in forms.values():
        assert form["exact"] == pytest.approx(form["leading"], rel=0.02)


def test_a_wrong_factor_would_be_seen(factors_found):
    """The numbers of the gradient's coupling against those of the constant rate are a third too hot."""
    factors, _ = EXPERIMENTS["theory"].calculations("smoke")
    result = json.loads(json.dumps(factors_found))
    result["forms"]["update"]["measured"] = [1.333 * value for value in result["forms"]["update"]["measured"]]
    figure = EXPERIMENTS["theory"].figure({}, "smoke", None, {factors.name: result})
    assert figure.verdicts[0].outcome == "contradicted"


def test_the_double_well_is_drawn_from_three_sides():
    _, wells = EXPERIMENTS["theory"].calculations("smoke")
    result = compute(wells)
    figure = EXPERIMENTS["theory"].figure({}, "smoke", None, {wells.name: result})
    sgd, fokker_planck, boltzmann = figure.panels[0].series
    width = sgd.x[1] - sgd.x[0]
    assert sum(sgd.y) * width == pytest.approx(1.0, abs=0.01)
    for density in (fokker_planck, boltzmann):
        assert sum(density.y) * (density.x[1] - density.x[0]) == pytest.approx(1.0, abs=1e-6)
    assert len(result["variance_ratio"]) == theory_checks._BATCHES
    assert sum(result["variance_ratio"]) / 8 == pytest.approx(1.0, abs=0.1)


def test_what_is_not_computed_yet_counts_in_the_family(factors_found):
    """So that the first verdict is the same before and after the second calculation."""
    factors, wells = EXPERIMENTS["theory"].calculations("smoke")
    before, after = (
        EXPERIMENTS["theory"].figure({}, "smoke", None, results).verdicts
        for results in (
            {factors.name: factors_found},
            {factors.name: factors_found, wells.name: WELLS},
        )
    )
    assert before[0] == after[0]
    assert before[1].claim == after[1].claim
    assert wording.detail(before[1]).startswith("nothing to compare yet")


def test_a_process_that_trains_the_same_may_be_done_first(tmp_path):
    """It waits for the other's last run when the other writes the result and removes the store that both work in."""
    task = hb.Task(lambda: nn.Linear(2, 2), (torch.eye(2), [0, 1]), (torch.eye(2), [0, 1]), name="two points")
    runs = [hb.RunConfig(task=task, batch_size=1, epochs=1)]

    def train(_settings, *, store, **_):
        with Store(store) as opened, closing(Owner(opened.owners)) as other:
            opened.add(runs)
            opened.claim([runs[0].run], other)

            def be_done(_progress):
                copy_results(tmp_path / "other", tmp_path)
                shutil.rmtree(store)

            return {"runs": len(hb.run(runs, store, "cpu", progress=be_done))}

    one = Calculation("two points", {"kind": "test"}, train, trains=True)
    alone = replace(one, compute=lambda *_, **__: {"runs": 1}, trains=False)
    options = Options(device="cpu")
    expected = compute_all([alone], tmp_path / "other", options, lambda *_: None)
    assert compute_all([one], tmp_path, options, lambda *_: None) == expected == {one.name: {"runs": 1}}


def test_a_flipped_bit_in_a_result_is_noticed(tmp_path):
    """A file of heatbath 0.1.0 has no digest, and gets one when it is copied."""
    (tmp_path / "old" / "calculations").mkdir(parents=True)
    content = {"settings": {"seed": 1}, "result": {"steps": 150, "x": [0.5, -1.25e-3], "label": "wells"}}
    (tmp_path / "old" / "calculations" / "0123.json").write_text(json.dumps(content))
    assert copy_results(tmp_path / "old", tmp_path / "new") == 1
    file = tmp_path / "new" / "calculations" / "0123.json"
    sound = file.read_bytes()
    assert {**json.loads(sound), "digest": None} == {**content, "digest": None}
    for at in range(len(sound)):
        file.write_bytes(sound[:at] + bytes([sound[at] ^ (1 << at % 7)]) + sound[at + 1 :])
        told = damaged_results(tmp_path / "new") == [file]
        read = None if told else json.loads(file.read_bytes())
        assert told or (read["settings"], read["result"]) == (content["settings"], content["result"])
