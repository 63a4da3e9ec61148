"""Experiment 6: its arms are what the theory says, its claims tell temperature from summed rate, and it runs."""

import math
from random import Random

import pytest
import torch

import heatbath as hb
from heatbath.paper import adamw_batch
from heatbath.studies.transfer import Recipe, transfer

ARMS = adamw_batch.ARMS


def verdicts(loss, noise=1e-3):
    """Outcomes of the claims where an arm's test loss is ``loss(arm)`` but for noise."""
    results = {}
    for one in adamw_batch.EXPERIMENT.calculations("paper"):
        random = Random(one.name)
        results[one.name] = {"test_loss": {name: loss(arm) + random.gauss(0.0, noise) for name, arm in ARMS.items()}}
    figure = adamw_batch.EXPERIMENT.figure({}, "paper", results=results)
    assert [len(panel.series) for panel in figure.panels] == [4, 4]
    return [verdict.outcome for verdict in figure.verdicts]


@pytest.mark.parametrize(
    ("decides", "by_heat", "by_sum", "colder"),
    [
        ("temperature", "confirmed", "contradicted", "contradicted"),
        ("summed_rate", "contradicted", "confirmed", "confirmed"),
    ],
)
def test_the_claims_tell_temperature_from_summed_rate(decides, by_heat, by_sum, colder):
    found = verdicts(lambda arm: 2.4 - 0.25 * math.log(getattr(arm, decides)))
    rules = ["confirmed", "contradicted", "contradicted", "confirmed"]
    assert found == [*rules, by_heat, by_sum, "confirmed", colder]


def test_a_diverged_arm_leaves_its_claims_open():
    found = verdicts(lambda arm: math.nan if arm is ARMS["x4, linear"] else 2.4)
    assert len(found) == 6  # without the two that compare it


def test_the_square_root_arm_is_the_rule_that_transfer_has():
    base = {name: adamw_batch.BASE[name] for name in ("lr", "batch_size", "momentum", "beta2", "weight_decay")}
    moved = transfer(Recipe("adamw", **base), batch_size=32).moved
    arm = adamw_batch.BASE | ARMS["x4, square root"].changes
    assert {name: getattr(moved, name) for name in base} == pytest.approx({name: arm[name] for name in base})


def test_the_step_factor_is_the_thermostat_s():
    knobs = hb.Thermostat(1e-3, 8, 0.9, law="uniform:1.0", coupling="update")
    assert ARMS["random on the step"].temperature == pytest.approx(knobs.law_factor)


@pytest.mark.parametrize("name", ["random on the gradient", "random on the step"])
def test_temperature_and_summed_rate_of_a_random_rate_are_adamw_s(name):
    """Mobility and diffusion of many parameters whose gradients are noise around a small mean."""
    steps, count, pull = 4000, 1000, 0.05

    def drift_and_diffusion(law):
        generator = torch.Generator().manual_seed(1)
        x = torch.zeros(count, requires_grad=True)
        optimizer = torch.optim.AdamW([x], 1.0, betas=(0.9, 0.99), weight_decay=0.0)
        hb.randomize(optimizer, law, coupling=ARMS[name].changes.get("coupling", "gradient"))
        for _ in range(steps):
            x.grad = pull + torch.randn(count, generator=generator)
            optimizer.step()
        return -x.mean().item(), x.var().item()

    (drift, diffusion), (usual, spread) = map(drift_and_diffusion, ("uniform:1.0", "constant"))
    assert drift / usual == pytest.approx(ARMS[name].summed_rate, abs=0.03)
    assert (diffusion / drift) / (spread / usual) == pytest.approx(ARMS[name].temperature, abs=0.08)


def test_the_arms_of_a_seed_are_trained_on_as_many_windows(tmp_path):
    (tmp_path / "text").mkdir()
    words = b"the quick brown fox jumps over the lazy dog and runs away\n"
    (tmp_path / "text/linux-doc.txt").write_bytes(words * (2_100_000 // len(words)))
    one = adamw_batch.EXPERIMENT.calculations("paper")[0]
    small = {"width": 16, "layers": 1, "train": 640, "test": 20}
    chosen = {name: one.settings["arms"][name] for name in ("base", "random on the gradient", "x4, square root")}
    settings = {**one.settings, **small, "arms": chosen}
    found = one.compute(settings, device="cpu", data_dir=tmp_path, progress=lambda done, what: None)
    assert list(found["test_loss"]) == list(chosen)
    assert len(set(found["test_loss"].values())) == 3
    assert all(2.0 < loss < math.log(128) for loss in found["test_loss"].values())
    steps = {knobs["batch_size"] * knobs["warmup"] for knobs in one.settings["arms"].values()}
    assert steps == {320}
