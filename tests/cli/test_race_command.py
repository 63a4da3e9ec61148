"""`heatbath race`, with networks that are trained by a model of the engine."""

import json

import pytest

RACE = ("race", "--arm", "lr=0.1", "--arm", "lr=0.9,momentum=0.5", "--set", "epochs=2", "--metric", "test_loss")
HERE = ("--device", "cpu", "--workers", 1, "--max-seeds", 10, "--quiet")


def test_a_race_ends_with_a_sentence(heatbath, engine):
    status, out, err = heatbath(*RACE, *HERE)
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    out = " ".join(out.split())
    assert "of 2 (" in out
    assert "look " in out
    assert len({run for run, _ in engine.trained}) in (10, 20)
    engine.trained.clear()
    report = json.loads(heatbath(*RACE, *HERE, "--json")[1])
    assert report["sentence"] in out
    assert set(report["seeds"]) == {"lr=0.1", "lr=0.9,momentum=0.5"}
    assert not engine.trained


def test_a_race_tells_by_its_status_that_runs_diverged(heatbath):
    arms = ("race", "--arm", "lr=1e38", "--arm", "lr=0.01", "--set", "batch_size=32", "--set", "epochs=1")
    some = (*HERE[:4], "-q", "--looks", 2, "--task", "own_task:rings")
    assert heatbath(*arms, *some)[0] == 3
    recipe = ("transfer", "--lr", 1e38, "--batch-size", 16, "--to-batch-size", 32, "--prove", "own_task:rings")
    assert heatbath(*recipe, "--margin", "0.5", "--epochs", 1, "--max-seeds", 2, *HERE[:4], "-q")[0] == 3


def test_an_interrupted_race_goes_on(heatbath, engine):
    _, whole, _ = heatbath(*RACE, *HERE, "--store", "whole")
    engine.stop_at = engine.trained[5]
    engine.trained.clear()
    status, out, err = heatbath(*RACE, *HERE, "--store", "store")
    assert (status, out) == (130, "")
    assert "run the same command again to go on" in err
    assert heatbath(*RACE, *HERE, "--store", "store") == (0, whole, "")


def test_a_race_on_a_task_of_ones_own(heatbath, tmp_path):
    arguments = ("--arm", "lr=0.01", "--arm", "lr=0.1", "--set", "batch_size=32", "--set", "epochs=3")
    page = ("--max-seeds", 5, *HERE[:4], "-q", "--out", "page")
    status, out, err = heatbath("race", "--task", "own_task:rings", *arguments, *page)
    assert (status, err) == (0, "")
    assert "of 2 (" in out
    assert "The page: page/report.html" in out
    assert "test accuracy: lr=0.01 against lr=0.1" in (tmp_path / "page" / "report.html").read_text()
    proof = ("--prove", "own_task:rings", "--margin", "0.5", "--epochs", 2, "--max-seeds", 5, *HERE[:4], "-q")
    status, out, err = heatbath("transfer", "--lr", 0.01, "--batch-size", 16, "--to-batch-size", 32, *proof)
    assert (status, err) == (0, "")
    assert "roved on own_task:rings: " in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("race", "--arm", "lr=0.1"), "a race needs two arms or more, got 1"),
        (("race", "--arm", "lr=0.1", "--arm", "lr=0.10"), "arms lr=0.1 and lr=0.10 are the same"),
        (("race", "--arm", "lr=0.1", "--arm", "lr=0.1"), "--arm lr=0.1 is there twice"),
        (("race", "--arm", "lr=0.1", "--arm", "rate=1"), "--arm must be KEY=VALUE with a KEY of model, dataset"),
        (("race", "--arm", "lr=0.1", "--arm", "lr=x"), "lr must be a finite number with lr > 0, got 'x'"),
        ((*RACE, "--set", "seed=1"), "--set must be KEY=VALUE"),
        ((*RACE, "--budget", "soon"), "budget must be a number of runs or a time such as '30 min', got 'soon'"),
        ((*RACE, "--margin", "-1"), "margin must be a positive finite number, got -1.0"),
        ((*RACE, "--looks", "5,20", "--max-seeds", 10), "looks must not go beyond max_seeds = 10, got (5, 20)"),
        ((*RACE, "--looks", "9,3"), "looks must be rising numbers of seeds"),
    ],
)
def test_errors_are_one_line(refused, arguments, words):
    assert words in refused(*arguments)
