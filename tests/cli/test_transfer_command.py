"""`heatbath transfer`: a rule with what it assumes, and a proof where one is asked for."""

import json

import pytest

SGD = ("transfer", "--lr", 0.02, "--batch-size", 64, "--momentum", 0.5)
PROOF = ("--prove", "mlp/mnist5k", "--epochs", 1, "--margin", 0.5, "--device", "cpu", "--workers", 1, "--quiet")


def test_a_rule_without_a_proof_says_so(heatbath):
    status, out, err = heatbath(*SGD, "--to-batch-size", 128)
    assert (status, err) == (0, "")
    assert out.startswith("SGD: equal temperature")
    assert next(line.split() for line in out.splitlines() if line.startswith("moved"))[1:4] == ["0.04", "128", "0.5"]
    assert "Nothing of this has been tested" in out
    assert "Proved" not in out
    other = ("transfer", "--optimizer", "adamw", "--lr", 1e-3, "--batch-size", 64, "--to-batch-size", 256, "--json")
    adam = json.loads(heatbath(*other)[1])
    assert adam["moved"]["lr"] == pytest.approx(2e-3)
    assert adam["moved"]["momentum"] == pytest.approx(0.9**4)
    assert adam["proof"] is None


def test_a_proof_trains_both(heatbath, engine):
    status, out, err = heatbath(*SGD, "--to-batch-size", 128, *PROOF, "--metric", "test_accuracy", "--max-seeds", 5)
    assert (status, err) == (0, "")
    assert "on mlp/mnist5k: " in out
    assert "Nothing of this has been tested" not in out
    assert len({run for run, _ in engine.trained}) == 10
    report = json.loads(heatbath(*SGD, "--to-batch-size", 128, *PROOF, "--max-seeds", 5, "--json")[1])
    assert report["proof"]["seeds"] == {"moved": 5, "original": 5}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (SGD, "nothing to transfer to"),
        ((*SGD, "--to-optimizer", "adamw"), "the theory has no rule from sgd to adamw"),
        ((*SGD, "--to-optimizer", "lion"), "--to-optimizer must be sgd or adamw, got 'lion'"),
        ((*SGD, "--optimizer", "adamw", "--to-batch-size", 10**9), "batch_size 1000000000 is too far from"),
        ((*SGD, "--optimizer", "lion", "--to-batch-size", 2), "optimizer must be sgd or adamw, got 'lion'"),
        ((*SGD, "--to-batch-size", 128, "--prove", "mlp/mnist5k"), "--prove needs a --margin"),
        ((*SGD, "--to-batch-size", 128, "--prove", "mlp", "--margin", 1), "--prove must be model/dataset"),
        ((*SGD, "--to-batch-size", 128, "--prove", "mlp/cifar100", "--margin", 1), "cifar100"),
    ],
)
def test_errors_are_one_line(refused, arguments, words):
    assert words in refused(*arguments)
