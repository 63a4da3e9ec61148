"""What derives from the curves of a run."""

import copy
import math
import pickle
from dataclasses import replace

import pytest

from heatbath.runs.configs import RunConfig
from heatbath.runs.records import Epoch, Record, check_record
from measured import ORIGIN, an_epoch


def record(accuracies, **more):
    epochs = tuple(an_epoch(0.1, 1.0 - a, a + 0.05, 2.0 - a, a, **more) for a in accuracies)
    return Record(RunConfig(seed=4), "finished", epochs)


def test_final_best_and_tail():
    found = record([0.1 + 0.01 * i for i in range(30)] + [0.2])
    assert found.final("test_accuracy") == 0.2
    assert found.best("test_accuracy") == pytest.approx(0.39)
    assert found.best("test_loss") == pytest.approx(2.0 - 0.39)
    assert found.tail("test_accuracy") == pytest.approx((sum(0.1 + 0.01 * i for i in range(11, 30)) + 0.2) / 20)
    assert found.tail("rate") == pytest.approx(0.1)
    with pytest.raises(ValueError, match="unknown curve 'accuracy'"):
        found.curve("accuracy")


def test_a_short_run_has_the_tail_that_it_has():
    assert record([0.5, 0.7]).tail("test_accuracy") == pytest.approx(0.6)
    empty = Record(RunConfig(), "pending")
    assert [empty.final("test_loss"), empty.best("test_loss"), empty.tail("test_loss")] == [None] * 3
    assert empty.summary()["best_test_accuracy"] is None


def test_the_validation_split_chooses_the_epoch():
    rows = [(0.5, 0.6), (0.9, 0.7), (0.8, 0.8)]
    epochs = tuple(an_epoch(0.1, 1.0, 0.9, 1.0, test, 1.0, validation) for validation, test in rows)
    found = Record(RunConfig(validation=10), "finished", epochs)
    assert found.chosen_test_accuracy == 0.7
    assert found.best("test_accuracy") == 0.8
    assert record([0.5]).chosen_test_accuracy is None


def test_the_summary_has_what_the_command_line_promises():
    summary = record([0.5, 0.4]).summary()
    assert summary["run"] == RunConfig(seed=4).run
    assert (summary["seed"], summary["status"], summary["epochs"]) == (4, "finished", 2)
    assert summary["final_test_accuracy"] == 0.4
    assert summary["best_test_accuracy"] == 0.5
    assert summary["tail_test_accuracy"] == pytest.approx(0.45)
    assert summary["final_train_accuracy"] == pytest.approx(0.45)
    assert summary["final_train_loss"] == pytest.approx(0.6)


def test_a_loss_that_is_no_number_is_seen():
    assert an_epoch(0.1, 1.0, 0.5, 1.0, 0.5).is_finite
    assert not an_epoch(0.1, math.nan, 0.5, 1.0, 0.5).is_finite
    assert not an_epoch(0.1, 1.0, 0.5, math.inf, 0.5).is_finite
    assert an_epoch(0.1, 1.0, 0.5, 1.0, 0.5, 1.0, 0.5).is_finite
    assert not an_epoch(0.1, 1.0, 0.5, 1.0, 0.5, math.nan, 0.5).is_finite


@pytest.mark.parametrize("at", [0, 1, 2])
def test_what_is_not_measured_after_each_epoch_has_no_summary(at):
    epochs = [an_epoch(0.1, 1.0, 0.9, 1.0, 0.8, 1.0 + k, 0.5) for k in range(3)]
    del epochs[at].metrics["validation_loss"]
    found = Record(RunConfig(validation=10), "finished", tuple(epochs))
    for derive in (found.final, found.best, found.tail):
        assert derive("validation_loss") is None
        assert derive("validation_accuracy") == 0.5


SOUND = Record(RunConfig(epochs=2), "finished", (an_epoch(0.1, 1.0, 0.9, 1.0, 0.8, origin=ORIGIN),) * 2, 1.5, ORIGIN)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"status": "best"}, "unknown status 'best'"),
        ({"epochs": (an_epoch(0.1, math.inf, 0.9, 1.0, 0.8),) * 2}, "its train_loss is not all numbers"),
        ({"epochs": (an_epoch(0.1, 1.0, None, 1.0, 0.8),) * 2}, "its train_accuracy is not all numbers"),
        ({"epochs": (an_epoch(0.1, 1.0, 1, 1.0, 0.8),) * 2}, "its train_accuracy is not all numbers"),
        ({"epochs": (an_epoch(math.nan, 1.0, 0.5, 1.0, 0.8),) * 2}, "its rate is not all numbers"),
        ({"epochs": (SOUND.epochs[0], an_epoch(0.1, 1.0, 5.0, 1.0, 0.8))}, "its train_accuracy is 5 somewhere"),
        ({"epochs": (SOUND.epochs[0], an_epoch(0.1, 1.0, 0.5, 1.0, -1e-9))}, "its test_accuracy is -1e-09 somewhere"),
        ({"epochs": (SOUND.epochs[0], an_epoch(0.1, 1.0, 0.9, -3.0, 0.8))}, "its test_loss is -3 somewhere"),
        ({"epochs": (SOUND.epochs[0], an_epoch(0.1, 1.0, 0.9))}, "its epochs have different metrics"),
        (
            {"epochs": (an_epoch(0.1, 1.0, 0.9, 1.0, 0.8, 1.0, 0.5),) * 2},
            "it has metrics of validation, and holds",
        ),
        ({"epochs": SOUND.epochs[:1]}, "it has 1 epochs, its config 2"),
        ({"seconds": math.nan}, "its seconds are nan"),
        ({"seconds": -1.0}, "its seconds are -1.0"),
        ({"origin": {"torch": 2}}, "2 is in the place of a device, precision or version"),
        ({"origin": {"device": None}}, "None is in the place of"),
        ({"origin": {"device": "\x1b[2J"}}, r"'\\x1b\[2J' cannot be printed"),
        ({"epochs": (Epoch(0.1, {"test_loss": 1.0, "a\x07": 0.5}),) * 2}, "its metrics are"),
        ({"origin": {"device": "\ud800"}}, "cannot be printed"),
    ],
)
def test_what_no_run_leaves_behind_is_refused(change, message):
    check_record(SOUND)
    check_record(replace(SOUND, status="pending", epochs=SOUND.epochs[:1]))
    with pytest.raises(ValueError, match=message):
        check_record(replace(SOUND, **change))


def test_held_out_images_must_have_been_measured():
    with pytest.raises(ValueError, match="it has no metrics of validation, and holds out 10 images"):
        check_record(replace(SOUND, config=SOUND.config.with_(validation=10)))


def test_any_metric_is_a_curve_and_an_attribute():
    first, second = (Epoch(0.1, {"train_loss": 2.0, "test_perplexity": value}) for value in (9.5, 4.25))
    found = Record(RunConfig(epochs=2), "finished", (first, second))
    assert found.curves == ("rate", "train_loss", "test_perplexity")
    assert found.curve("test_perplexity") == [9.5, 4.25]
    assert second.test_perplexity == found.final("test_perplexity") == 4.25
    assert second.validation_loss is None, "one of the usual metrics, and nothing is held out"
    with pytest.raises(AttributeError, match="this epoch has no perplexity; it has rate, train_loss, test_perplexity"):
        _ = second.perplexity
    with pytest.raises(ValueError, match="unknown curve 'perplexity': choose one of rate, train_loss, test_p"):
        found.curve("perplexity")
    for copied in (pickle.loads(pickle.dumps(second)), copy.deepcopy(second)):
        assert copied == second


def test_a_record_knows_what_made_each_of_its_epochs():
    here, there = ORIGIN, {**ORIGIN, "precision": "bf16", "torch": "2.14.0"}
    made = [an_epoch(0.1, 1.0, 0.9, 1.0, 0.8, origin=origin) for origin in (here, here, there)]
    found = Record(RunConfig(epochs=3), "finished", tuple(made), 1.0, there)
    assert found.origins == [(2, here), (1, there)]
    assert (found.device, found.precision, found.versions["torch"]) == ("CPU (a)", "bf16", "2.14.0")
    assert made[0] == made[2], "the numbers are the same"
    diverged = Record(RunConfig(epochs=3), "diverged", (), 0.5, here)
    assert diverged.origins == [(0, here)]
    assert Record(RunConfig(), "pending").origins == []
