"""What derives from the curves of a run."""

import math
from dataclasses import replace

import pytest

from heatbath.runs.configs import RunConfig
from heatbath.runs.records import Epoch, Record, check_record


def record(accuracies, **more):
    epochs = tuple(Epoch(0.1, 1.0 - a, a + 0.05, 2.0 - a, a, **more) for a in accuracies)
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
    epochs = tuple(Epoch(0.1, 1.0, 0.9, 1.0, test, 1.0, validation) for validation, test in rows)
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
    assert Epoch(0.1, 1.0, 0.5, 1.0, 0.5).is_finite
    assert not Epoch(0.1, math.nan, 0.5, 1.0, 0.5).is_finite
    assert not Epoch(0.1, 1.0, 0.5, math.inf, 0.5).is_finite
    assert Epoch(0.1, 1.0, 0.5, 1.0, 0.5, 1.0, 0.5).is_finite
    assert not Epoch(0.1, 1.0, 0.5, 1.0, 0.5, math.nan, 0.5).is_finite


@pytest.mark.parametrize("at", [0, 1, 2])
def test_what_is_not_measured_after_each_epoch_has_no_summary(at):
    epochs = [Epoch(0.1, 1.0, 0.9, 1.0, 0.8, 1.0 + k, 0.5) for k in range(3)]
    epochs[at] = replace(epochs[at], validation_loss=None)
    found = Record(RunConfig(validation=10), "finished", tuple(epochs))
    for derive in (found.final, found.best, found.tail):
        assert derive("validation_loss") is None
        assert derive("validation_accuracy") == 0.5


SOUND = Record(RunConfig(epochs=2), "finished", (Epoch(0.1, 1.0, 0.9, 1.0, 0.8),) * 2, "CPU", {"torch": "2"}, 1.5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"status": "best"}, "unknown status 'best'"),
        ({"epochs": (Epoch(0.1, math.inf, 0.9, 1.0, 0.8),) * 2}, "its train_loss is not all numbers"),
        ({"epochs": (Epoch(0.1, 1.0, None, 1.0, 0.8),) * 2}, "its train_accuracy is not all numbers"),
        ({"epochs": (Epoch(0.1, 1.0, 0.9, 1.0, 0.8, 1.0),) * 2}, "its validation_loss is not all null"),
        ({"epochs": SOUND.epochs[:1]}, "it has 1 epochs, its config 2"),
        ({"seconds": math.nan}, "its seconds are nan"),
        ({"seconds": -1.0}, "its seconds are -1.0"),
        ({"versions": []}, r"its versions are \[\]"),
        ({"versions": {"torch": 2}}, "2 is in the place of a device, precision or version"),
        ({"device": None}, "None is in the place of"),
        ({"device": "\ud800"}, "surrogates not allowed"),
    ],
)
def test_what_no_run_leaves_behind_is_refused(change, message):
    check_record(SOUND)
    check_record(replace(SOUND, status="pending", epochs=SOUND.epochs[:1]))
    with pytest.raises(ValueError, match=message):
        check_record(replace(SOUND, **change))
