"""`heatbath thermostat` at the ends of its range; the rest is in test_cli.py."""

import json

import pytest


@pytest.mark.parametrize("lr", [1e-300, 5e-324])
def test_the_smallest_rates_are_right_and_warn_of_nothing(heatbath, lr):
    knobs = ("--lr", lr, "--batch-size", 4, "--momentum", 0.9, "--law", "uniform:1")
    assert heatbath("thermostat", *knobs)[::2] == (0, "")
    status, out, err = heatbath("thermostat", *knobs, "--curvature", 2, "--json")
    assert (status, err) == (0, "")
    assert json.loads(out)["small_rate_regime"]["exact_over_leading"] == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["table", "json"])
def test_a_temperature_that_overflows_is_refused(heatbath, form):
    status, out, err = heatbath("thermostat", "--lr", 1e308, "--batch-size", 1, "--momentum", 0.9, *form)
    assert (status, out) == (2, "")
    assert "--lr 1e+308 with --diffusion 1 gives a temperature beyond what a float can hold" in err


def test_a_momentum_below_1_never_looks_like_1(heatbath):
    _, out, _ = heatbath("thermostat", "--lr", 0.1, "--batch-size", 4, "--momentum", 0.9999999999999999)
    rows = [line.split() for line in out.splitlines() if line.startswith(("given", "batch"))]
    assert len(rows) == 3
    assert all("0.9999999999999999" in row for row in rows)
    _, out, _ = heatbath("thermostat", "--lr", 0.1, "--batch-size", 4, "--momentum", 0.123456789)
    assert "0.123457" in out


def test_reshuffled_epochs_have_a_second_temperature(heatbath):
    knobs = ("--lr", 0.1, "--batch-size", 4, "--momentum", 0.9, "--law", "uniform:1", "--sampling", "shuffled")
    status, out, _ = heatbath("thermostat", *knobs)
    assert status == 0
    assert "slow ones are at 0.0416667, so no constant rate is the fair control." in " ".join(out.split())
    assert not [line for line in out.splitlines() if line.startswith("fair control")]
    status, out, _ = heatbath("thermostat", *knobs, "--json")
    assert json.loads(out)["limits"] == pytest.approx({"slow": 0.1 / 24 * 10, "fast": 0.1 / 6 * 10})
    assert heatbath("thermostat", *knobs[:-1], "epochs")[0] == 2
