"""Races on recipes whose results are drawn from known laws: they err as rarely as they say, and can be interrupted."""

import json
from datetime import timedelta

import numpy as np
import pytest

from heatbath.runs.configs import RunConfig
from heatbath.runs.records import Record
from heatbath.studies.race import race
from measured import an_epoch
from own_task import rings
from samples import check_rate_at_most

ARMS = {"slow": RunConfig(lr=0.005, epochs=1), "fast": RunConfig(lr=0.01, epochs=1)}


class Laboratory:
    """Trains nothing: a run's accuracy is normal, with a mean of its own for each rate."""

    def __init__(self, means, sd=0.01, trial=0, status="finished"):
        self.means, self.sd, self.trial, self.status = means, sd, trial, status
        self.trained = set()
        self.stop_after = None

    def __call__(self, configs):
        records = []
        for config in configs:
            if config.run not in self.trained:
                if self.stop_after is not None and len(self.trained) >= self.stop_after:
                    self.stop_after = None
                    raise KeyboardInterrupt
                self.trained.add(config.run)
            seed = np.random.SeedSequence([self.trial, config.seed, round(config.lr * 1e6)])
            accuracy = self.means[config.lr] + self.sd * np.random.default_rng(seed).standard_normal()
            status = "diverged" if config.lr >= 1.0 else "finished"
            records.append(Record(config, status, (an_epoch(config.lr, 1.0, 0.5, 1.0, float(accuracy)),)))
        return records


def test_a_clear_winner_is_found_early():
    laboratory = Laboratory({0.005: 0.90, 0.01: 0.99})
    found = race(ARMS, margin=0.002, train=laboratory)
    assert found.best == ("fast",)
    assert found.ended == "decided"
    assert found.seeds == {"slow": 5, "fast": 5}
    assert len(laboratory.trained) == found.runs == 10
    assert found.sentence == "fast is the best of 2 (10 runs instead of 80)."
    assert found.comparisons[0].look.number == 1
    assert json.dumps(found.to_dict(), allow_nan=False)
    assert "fast is the best" in found._repr_html_()


def test_equal_arms_are_told():
    found = race(ARMS, margin=0.02, train=Laboratory({0.005: 0.9, 0.01: 0.9}))
    assert found.best == ("slow", "fast")
    assert found.ended == "decided"
    assert found.sentence.startswith("slow and fast are equal and the best of 2 (")


def test_what_stays_open_ends_with_the_seeds():
    found = race(ARMS, margin=0.0001, max_seeds=12, train=Laboratory({0.005: 0.9, 0.01: 0.9}))
    assert (found.ended, found.seeds) == ("seeds", {"slow": 12, "fast": 12})
    assert found.sentence == "Undecided between slow and fast, of 2 (all planned seeds are trained; 24 runs)."


@pytest.mark.parametrize(("budget", "runs"), [(25, 20), ("25", 20), (9, 0), ("0 s", 0), (timedelta(0), 0)])
def test_the_budget_is_kept(budget, runs):
    laboratory = Laboratory({0.005: 0.9, 0.01: 0.9})
    found = race(ARMS, margin=0.0001, budget=budget, train=laboratory)
    assert (found.ended, found.runs, len(laboratory.trained)) == ("budget", runs, runs)
    assert "the budget is spent" in found.sentence


def test_beaten_arms_stop():
    arms = {f"lr {lr}": RunConfig(lr=lr, epochs=1) for lr in (0.001, 0.002, 0.003)}
    laboratory = Laboratory({0.001: 0.80, 0.002: 0.9, 0.003: 0.9001})
    found = race(arms, margin=0.001, max_seeds=20, train=laboratory)
    assert found.seeds["lr 0.001"] == 5
    assert found.seeds["lr 0.002"] == found.seeds["lr 0.003"] == 20
    assert found.best == ("lr 0.002", "lr 0.003")


def test_diverged_arms_lose():
    arms = {"sane": RunConfig(lr=0.01, epochs=1), "mad": RunConfig(lr=2.0, epochs=1)}
    found = race(arms, train=Laboratory({0.01: 0.9, 2.0: 0.9}), max_seeds=5)
    assert found.best == ("sane",)
    assert "mad has no number for seeds 0, 1, 2, 3, 4" in found.comparisons[0].sentence


@pytest.mark.parametrize("diverged", ["worst", "exclude", "tell"])
def test_an_arm_that_diverged_wholly_loses_whatever_the_margin(tmp_path, diverged):
    arms = {"sane": RunConfig(lr=0.01, epochs=1), "mad": RunConfig(lr=2.0, epochs=1)}
    found = race(arms, margin=0.5, diverged=diverged, train=Laboratory({0.01: 0.9, 2.0: 0.9}))
    assert (found.best, found.lost, found.seeds) == (("sane",), ("mad",), {"sane": 5, "mad": 5})
    assert found.sentence == "sane is the best of 2 (10 runs instead of 80). All runs of mad diverged."
    assert "equal" not in {one.verdict for one in found.comparisons}
    assert json.loads(json.dumps(found.to_dict()))["diverged"] == ["mad"]
    assert "All runs of mad diverged" in found.write_page(tmp_path).read_text()


def test_a_race_of_diverged_arms_has_no_best():
    arms = {"mad": RunConfig(lr=2.0, epochs=1), "madder": RunConfig(lr=3.0, epochs=1)}
    found = race(arms, margin=0.5, train=Laboratory({2.0: 0.9, 3.0: 0.9}))
    assert (found.best, found.runs) == ((), 10)
    assert found.sentence.startswith("There is no best of 2 (10 runs")
    assert race(arms, diverged=0.1, max_seeds=5, train=Laboratory({2.0: 0.9, 3.0: 0.9})).best == ("mad", "madder")


@pytest.mark.parametrize("difference", [0.0, 0.012])
def test_races_are_rarely_wrong(difference):
    """Equal arms are rarely told apart; arms a margin apart are rarely called equal."""
    trials, wrong, margin = 250, 0, 0.012
    for trial in range(trials):
        laboratory = Laboratory({0.005: 0.9, 0.01: 0.9 + difference}, trial=trial)
        found = race(ARMS, margin=margin, level=0.8, max_seeds=20, looks=(5, 10, 20), train=laboratory)
        (one,) = found.comparisons
        wrong += one.verdict in (("better", "worse") if difference == 0.0 else ("equal", "better"))
    check_rate_at_most(wrong, trials, 0.2)
    assert wrong > 0


@pytest.mark.parametrize("stop_after", [0, 3, 10, 13, 21, 35])
def test_interrupts_change_nothing(tmp_path, stop_after):
    means = {0.005: 0.9, 0.01: 0.903}
    whole = race(ARMS, margin=0.002, store=tmp_path / "whole", train=Laboratory(means))
    assert whole.comparisons[0].look.number > 1
    laboratory = Laboratory(means)
    laboratory.stop_after = stop_after
    with pytest.raises(KeyboardInterrupt):
        race(ARMS, margin=0.002, store=tmp_path / "store", train=laboratory)
    resumed = race(ARMS, margin=0.002, store=tmp_path / "store", train=laboratory)
    assert resumed.to_dict() == whole.to_dict()
    assert race(ARMS, margin=0.002, store=tmp_path / "store", train=laboratory).to_dict() == whole.to_dict()
    assert (tmp_path / "store" / "looks.json").read_text() == (tmp_path / "whole" / "looks.json").read_text()


def test_no_run_is_trained_twice_without_a_store(engine):
    arms = {"cold": RunConfig(lr=0.1, epochs=1), "hot": RunConfig(lr=0.1001, epochs=1)}
    found = race(arms, metric="test_loss", max_seeds=10, device="cpu", workers=1)
    assert found.seeds == {"cold": 10, "hot": 10}
    assert sorted(engine.trained) == sorted(set(engine.trained))


def test_a_race_trains_networks(engine, tmp_path):
    arms = {"cold": RunConfig(lr=0.1, epochs=2), "hot": RunConfig(lr=0.9, epochs=2)}
    found = race(arms, metric="test_loss", max_seeds=5, store=tmp_path / "store", device="cpu", workers=1)
    assert found.runs == len({run for run, _ in engine.trained}) == 10
    engine.trained.clear()
    again = race(arms, metric="test_loss", max_seeds=5, store=tmp_path / "store", device="cpu", workers=1)
    assert again.to_dict() == found.to_dict()
    assert not engine.trained


def test_two_rates_of_a_users_network_take_fewer_runs_than_planned(tmp_path):
    base = RunConfig(task=rings, protocol="constant", batch_size=32, epochs=5)
    arms = {"slow": base.with_(lr=0.01), "fast": base.with_(lr=0.1)}
    found = race(arms, margin=0.01, store=tmp_path / "store", device="cpu", workers=1)
    assert found.best == ("fast",)
    assert found.runs < found.planned == 80


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"arms": {"a": ARMS["slow"]}}, ValueError, "a race needs two arms or more, got 1"),
        ({"arms": [ARMS["slow"]]}, TypeError, "arms must be a mapping from names to RunConfigs"),
        ({"arms": {"a": ARMS["slow"], "b": 3}}, TypeError, "arm b must be a RunConfig, got 3"),
        ({"arms": {"a": ARMS["slow"], "b": ARMS["slow"].with_(seed=4)}}, ValueError, "arms a and b are the same, but"),
        ({"margin": 0.0}, ValueError, "margin must be a positive finite number, got 0.0"),
        ({"budget": 0}, ValueError, "budget must be an integer with 1 <= budget"),
        ({"budget": "soon"}, ValueError, "budget must be a number of runs or a time such as '30 min', got 'soon'"),
        ({"looks": (5, 20), "max_seeds": 10}, ValueError, r"looks must not go beyond max_seeds = 10, got \(5, 20\)"),
        ({"max_seeds": 1}, ValueError, "max_seeds must be an integer with 2 <= max_seeds"),
        ({"metric": "f1"}, ValueError, "unknown metric 'f1': choose one of"),
        ({"device": "tpu"}, ValueError, "tpu"),
    ],
)
def test_errors(change, error, message):
    with pytest.raises(error, match=message):
        race(**{"arms": ARMS, "train": Laboratory({0.005: 0.9, 0.01: 0.9}), **change})
