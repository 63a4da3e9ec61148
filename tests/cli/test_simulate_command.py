"""`heatbath simulate`: SGD on a landscape, in pictures."""

import json

import pytest

FILES = ["density.gif", "density.png", "marginal.png", "summary.json", "trajectories.png"]


def test_it_draws_what_the_knobs_make(heatbath, tmp_path):
    knobs = ("--lr", 0.002, "--batch-size", 10, "--momentum", 0.8, "--law", "uniform:0.6", "--coupling", "update")
    size = ("--dataset-size", 19, "--diffusion", 8.0, "--steps", 4, "--trajectories", 50)
    status, out, err = heatbath("simulate", "--landscape", "quadratic:2", *knobs, "--nesterov", *size, "--out", "drawn")
    assert (status, err) == (0, "")
    assert sorted(path.name for path in (tmp_path / "drawn").iterdir()) == FILES
    assert [line for line in out.splitlines() if line.startswith("wrote")] == [f"wrote drawn/{name}" for name in FILES]
    summary = json.loads((tmp_path / "drawn" / "summary.json").read_text())
    assert summary["knobs"] == {
        "lr": 0.002,
        "batch_size": 10,
        "momentum": 0.8,
        "nesterov": True,
        "law": "uniform:0.6",
        "coupling": "update",
        "dataset_size": 19,
        "sampling": "replacement",
        "diffusion": 8.0,
        "seed": 0,
    }
    # 1 + s2 (1 - mu)(1 + 2 mu - 2 mu^3) / (1 + mu) with s2 = 0.12, and half the noise: 19 - 10 of 19 - 1 samples.
    factor = 1.0 + 0.12 * 0.2 * (1.0 + 1.6 - 2.0 * 0.512) / 1.8
    assert summary["temperature"] == pytest.approx(0.002 * 8.0 / (2 * 10 * 0.2) * 0.5 * factor)


def test_json_has_the_numbers_and_the_files(heatbath, tmp_path):
    size = ("--landscape", "quadratic:2", "--steps", 4, "--trajectories", 50)
    status, out, err = heatbath("simulate", *size, "--out", "drawn", "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert found.pop("files") == [f"drawn/{name}" for name in FILES]
    assert found == json.loads((tmp_path / "drawn" / "summary.json").read_text())


def test_in_the_plane_it_draws_the_same_files(heatbath, tmp_path):
    size = ("--steps", 4, "--trajectories", 100)
    status, out, err = heatbath("simulate", "--landscape", "rosenbrock", *size, "--out", "drawn")
    assert (status, err) == (0, "")
    assert sorted(path.name for path in (tmp_path / "drawn").iterdir()) == FILES
    assert [line for line in out.splitlines() if line.startswith("wrote")] == [f"wrote drawn/{name}" for name in FILES]
    summary = json.loads((tmp_path / "drawn" / "summary.json").read_text())
    assert summary["temperature"] == pytest.approx(0.2)
    assert (summary["knobs"]["lr"], summary["knobs"]["diffusion"], summary["steps"]) == (0.0002, 1200.0, 4)
    assert out.startswith("Rosenbrock(narrowness=10.0) at temperature 0.2, after 4 steps\n")
    rows = [line.split() for line in out.splitlines() if line.startswith("mean of y")]
    assert rows[0][3:] == [f"{summary['position_mean'][kind][1]:.4f}" for kind in ("sgd", "langevin", "boltzmann")]
    assert "SGD against the equation: distance" in out
    assert "SGD against Boltzmann: distance" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--landscape", "anisotropic-quadratic:1:2:3"],
            "--landscape anisotropic-quadratic:1:2:3 has 3 dimensions: pictures need one or two",
        ),
        (["--landscape", "rosenbrock", "--lr", "0.005"], "1.82 times the largest stable rate, 0.00274"),
        (["--landscape", "volcano"], "unknown landscape 'volcano': choose one of"),
        (["--lr", "3"], "lr = 3 is 17.2 times the largest stable rate, 0.174107, at curvature 1.6"),
        (["--dataset-size", "16"], "batch_size=16 is the whole data set, which has no noise"),
        (["--dataset-size", "15"], "batch_size must be at most dataset_size=15, got 16"),
        (["--diffusion", "1e-3"], "raise the temperature or lower the barrier"),
        (["--out", "/dev/null"], "--out /dev/null: /dev/null is a file; name a folder"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_any_work(refused, arguments, words):
    assert words in refused("simulate", *arguments)
