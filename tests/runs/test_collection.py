"""Records in hand: filtered by settings, grouped, and shown in a few lines."""

import sys

import pytest
import torch

import heatbath as hb
from heatbath.runs.collection import Records, varying
from heatbath.runs.records import Record
from heatbath.tasks.facts import PARTS, TaskFacts
from measured import an_epoch


def record(accuracy, status="finished", **settings):
    config = hb.RunConfig(epochs=2, **settings)
    epochs = tuple(an_epoch(0.1, 0.5, 0.7, 0.6, accuracy - 0.01 * (2 - k)) for k in (1, 2))
    return Record(config, status, epochs if status == "finished" else epochs[:1])


RECORDS = Records(
    [
        *(record(0.8 + 0.01 * seed, protocol="constant", lr=0.1, seed=seed) for seed in range(3)),
        *(record(0.9 + 0.01 * seed, protocol="random", lr=0.2, seed=seed) for seed in range(3)),
        record(0.1, "diverged", protocol="random", lr=0.2, seed=3),
    ]
)


def test_where_takes_values_collections_and_functions():
    assert len(RECORDS.where(protocol="random")) == 4
    assert len(RECORDS.where(protocol="random", status="finished")) == 3
    assert [one.config.seed for one in RECORDS.where(seed=(0, 2), lr=0.1)] == [0, 2]
    assert len(RECORDS.where(seed=range(2))) == 4
    assert len(RECORDS.where(lr=lambda value: value > 0.15)) == 4
    assert RECORDS.where(run=RECORDS[0].run) == [RECORDS[0]]
    assert isinstance(RECORDS.where(lr=3), Records)
    assert isinstance(RECORDS[:2], Records)
    assert isinstance(RECORDS[0], Record)
    with pytest.raises(ValueError, match="'colour' is not a setting of a run: choose one of run, status, model"):
        RECORDS.where(colour="red")


def test_tasks_are_told_apart_by_themselves():
    small, large = (
        TaskFacts(name, 5000, 100, ("loss", "accuracy"), dict.fromkeys(PARTS, name)) for name in ("small", "large")
    )
    records = Records(record(0.9, task=task, seed=seed) for task in (small, large) for seed in range(2))
    assert records.where(task=large) == records[2:]
    assert records.where(task=(small, large)) == records
    assert list(records.groups()) == [small.label, large.label]
    mixed = Records([*records, record(0.9)])
    assert list(mixed.groups("model")) == ["small", "large", "mlp"]


def test_groups_agree_in_all_but_the_seed():
    assert {name: len(group) for name, group in RECORDS.groups().items()} == {
        "constant, lr 0.1": 3,
        "random, lr 0.2": 4,
    }
    assert [*RECORDS.groups("protocol")] == ["constant", "random"]
    assert [*RECORDS.groups(["lr", "nesterov"])] == ["lr 0.1, nesterov True", "lr 0.2, nesterov True"]
    assert [*RECORDS[:3].groups()] == ["all runs"]
    assert varying([one.config for one in RECORDS]) == ["protocol", "lr", "seed"]


def test_a_task_does_not_differ_from_what_a_store_knows_of_it():
    task = hb.Task(
        lambda: torch.nn.Linear(2, 2),
        (torch.randn(8, 2), torch.arange(8) % 2),
        (torch.randn(4, 2), torch.zeros(4).long()),
    )
    live = hb.RunConfig(task=task, batch_size=4)
    assert varying([live, live.with_(task=task.facts), live.with_(seed=1)]) == ["seed"]
    assert Records().groups() == {}


def test_a_few_lines_say_what_there_is():
    lines = repr(RECORDS).splitlines()
    assert lines[0] == "7 records of mlp on mnist5k"
    assert lines[2].split()[:4] == ["constant,", "lr", "0.1", "3"]
    assert "0.81 ± 0.025" in lines[2]
    assert "4, 1 diverged" in lines[3]
    assert len(repr(RECORDS)) < 1000
    assert repr(Records()) == "0 records"
    html = RECORDS._repr_html_()
    assert html.count("<tr>") == 3
    assert "0.81 ± 0.025" in html
    many = Records(record(0.5, lr=0.01 * (k + 1)) for k in range(50))
    assert repr(many).splitlines()[-1] == "and 30 more"
    assert len(repr(RECORDS[0])) < 200
    assert repr(RECORDS[0]).startswith(f"Record({RECORDS[0].run}: mlp on mnist5k, seed 0, finished, 2 of 2 epochs, ")
    assert repr(hb.RunConfig(lr=0.1, seed=3)) == "RunConfig(lr=0.1, seed=3)"
    assert repr(hb.RunConfig()) == "RunConfig()"


def test_a_data_frame_has_a_row_for_each_epoch(monkeypatch):
    pytest.importorskip("pandas")
    frame = RECORDS.to_pandas()
    assert len(frame) == 6 * 2 + 1
    assert frame[frame.run == RECORDS[0].run].test_accuracy.tolist() == RECORDS[0].curve("test_accuracy")
    assert {"protocol", "lr", "seed", "epoch", "rate", "test_loss"} <= {*frame.columns}
    assert len(Records().to_pandas()) == 0
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'heatbath\[notebooks\]'"):
        RECORDS.to_pandas()


def test_curves_are_drawn_for_each_group():
    pytest.importorskip("matplotlib")
    axes = RECORDS.plot()
    assert axes.get_ylabel() == "test accuracy"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["constant, lr 0.1", "random, lr 0.2"]
    assert RECORDS.plot("train_loss", by="protocol", ax=axes) is axes
    with pytest.raises(ValueError, match="no run has a metric 'f1': choose one of rate, "):
        RECORDS.plot("f1")
    with pytest.raises(ValueError, match="there is nothing to draw"):
        Records().plot()
