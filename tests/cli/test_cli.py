from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest

import heatbath
from heatbath import cli
from heatbath.cli import measure, thermostat

PAPER = ["thermostat", "--lr", "5e-4", "--batch-size", "256", "--momentum", "0.9"]


def run(capsys, *arguments):
    status = cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_a_measurement_that_diverges_is_an_exit_status(heatbath):
    status, out, err = heatbath("measure", "--lr", 1e6, "--epochs", 1, "--samples", 8, "--device", "cpu")
    assert (status, out) == (3, "")
    assert err.startswith("heatbath: the loss is ")


def test_version_and_help(capsys):
    assert run(capsys, "--version") == (0, f"heatbath {heatbath.__version__}\n", "")
    for arguments in ([], ["--help"]):
        status, out, err = run(capsys, *arguments)
        assert (status, err) == (0, "")
        assert "thermostat" in out


def test_table(capsys):
    status, out, err = run(capsys, *PAPER, "--law", "uniform:1", "--at-batch-size", 1024)
    assert (status, err) == (0, "")
    assert "1.30208e-05" in out
    assert "1.33333" in out
    rows = {line[:12].strip(): line.split() for line in out.splitlines()}
    assert rows["asked"][1:] == ["0.002", "1024", "0.9", "uniform:1.0", "1.30208e-05", "1"]
    assert rows["fair control"][2:] == ["0.000666667", "256", "0.9", "constant", "1.30208e-05", "1"]
    assert "Warning" not in out
    assert "--curvature" in out


def test_json_and_the_papers_pairs(capsys):
    status, out, _ = run(capsys, *PAPER, "--at-lr", "2.5e-4", "--json")
    report = json.loads(out)
    asked = report["alternatives"][0]
    assert (status, asked["label"], asked["batch_size"]) == (0, "asked", 128)
    assert asked["temperature"] == pytest.approx(report["temperature"])
    pair = ("thermostat", "--lr", 1e-4, "--batch-size", 30, "--momentum", 0.5)
    asked = json.loads(run(capsys, *pair, "--at-batch-size", 60, "--solve", "momentum", "--json")[1])["alternatives"][0]
    assert asked["momentum"] == pytest.approx(0.75)


def test_rounding_of_the_batch_size_shows(capsys):
    _, out, _ = run(capsys, "thermostat", "--lr", 1e-3, "--batch-size", 3, "--at-lr", 1.2e-3)
    asked = next(line.split() for line in out.splitlines() if line.startswith("asked"))
    assert asked[2] == "4"
    assert asked[-1] == "0.9"


def test_offers_without_solution_are_left_out(capsys):
    report = json.loads(run(capsys, "thermostat", "--lr", 1, "--batch-size", 1, "--dataset-size", 1, "--json")[1])
    assert report["temperature"] == 0
    assert report["alternatives"] == []
    assert run(capsys, "thermostat", "--lr", 1, "--batch-size", 1, "--dataset-size", 1)[0] == 0


@pytest.mark.parametrize(
    ("curvature", "warning"),
    [
        (40, None),
        (50, "curvature 50 is 1.11 times that limit, and the exact temperature there 0.8911 times"),
        (2000, "unstable at curvature 2000"),
    ],
)
def test_warning_outside_the_small_rate_regime(capsys, curvature, warning):
    arguments = [*PAPER, "--nesterov", "--law", "uniform:1", "--curvature", curvature]
    _, out, _ = run(capsys, *arguments)
    regime = json.loads(run(capsys, *arguments, "--json")[1])["small_rate_regime"]
    assert regime["limit"] == pytest.approx(45.14, abs=0.01)
    assert ("Warning" in out) == (warning is not None)
    assert warning is None or (warning in out and warning in regime["warning"])


def test_warning_without_a_curvature_supposes_one(capsys):
    _, out, _ = run(capsys, "thermostat", "--lr", 0.5, "--batch-size", 8)
    assert "Warning: not a small rate: a curvature of only 1" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*PAPER, "--bogus"], "--bogus"),
        (["bogus"], "bogus"),
        (["thermostat", "--lr", "1"], "--batch-size"),
        (["thermostat", "--lr", "x", "--batch-size", "4"], "--lr"),
        (["thermostat", "--lr", "-1", "--batch-size", "4"], "lr must be a finite number with lr > 0, got -1.0"),
        ([*PAPER, "--law", "uniform:3"], "delta"),
        ([*PAPER, "--coupling", "none"], "coupling must be 'gradient' or 'update'"),
        ([*PAPER, "--at-lr", "1e-9"], "no batch_size gives temperature"),
        ([*PAPER, "--at-lr", "1e-3", "--solve", "lr"], "lr is both given"),
        ([*PAPER, "--curvature", "-1"], "curvature must be positive"),
        ([*PAPER, "--diffusion", "-1"], "diffusion"),
        (["simulate", "--diffusion", "-1"], "diffusion must be a finite number with diffusion > 0, got -1.0"),
        (["simulate", "--diffusion", "nan"], "diffusion > 0, got nan"),
        (["measure", "--samples", "4001", "--epochs", "1"], "samples = 4001 is more than the 4000 training images"),
        (["measure", "--dataset", "cifar10"], "mlp takes images of 1 x 28 x 28"),
    ],
)
def test_errors_are_one_line(capsys, arguments, words):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("heatbath: ")
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(28, "No space left on device"), 2, "heatbath: no space left on device\n"),
        (OSError(13, "Permission denied", "runs/x"), 2, "heatbath: runs/x: permission denied\n"),
        (ModuleNotFoundError("No module named 'mlxtend'", name="mlxtend"), 2, "pip install 'heatbath[paper]'"),
    ],
)
def test_what_a_command_raises(capsys, monkeypatch, error, status, words):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(thermostat, "Thermostat", fail)
    got, out, err = run(capsys, *PAPER)
    assert (got, out) == (status, "")
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux only")
@pytest.mark.parametrize("arguments", [PAPER, [*PAPER, "--json"]])
def test_a_full_disk_of_the_output_is_told_as_such(arguments):
    with open("/dev/full", "w") as full:
        program = [sys.executable, "-m", "heatbath", *arguments]
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "heatbath: the output: no space left on device\n")


def test_a_defect_keeps_its_traceback(monkeypatch):
    def fail(*arguments):
        raise ZeroDivisionError

    monkeypatch.setattr(thermostat, "Thermostat", fail)
    with pytest.raises(ZeroDivisionError):
        cli.main(PAPER)


def test_module_and_narrow_pipe():
    environment = {"COLUMNS": "30", "PATH": ""}
    program = [sys.executable, "-m", "heatbath", *PAPER, "--law", "lognormal:0.25"]
    out = subprocess.run(program, env=environment, capture_output=True, text=True, check=True).stdout
    assert "\x1b" not in out
    assert "…" not in out
    assert any(line.startswith("fair control") and line.split()[-1] == "1" for line in out.splitlines())


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (118.083, 1.0973, "118.1 ± 1.1"),
        (73.39, 13.2, "73 ± 13"),
        (123456.7, 1234.5, "123457 ± 1234"),
        (2.5e-7, 3.1e-9, "0.0000002500 ± 0.0000000031"),
        (12.345678, math.nan, "12.35"),
        (math.inf, math.nan, "inf"),
    ],
)
def test_a_number_has_the_digits_that_are_known(value, error, words):
    assert measure._with_error(value, error) == words


def test_what_has_no_error_of_its_own_has_two_digits():
    numbers = (2853.4, 99.7, 0.00204, 16.4, math.inf, 0.0, -0.0312)
    assert [measure._two_digits(x) for x in numbers] == ["2900", "100", "0.002", "16", "inf", "0", "-0.031"]
