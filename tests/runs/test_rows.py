"""What is refused when rows are read back; that they come back as they were is in test_store."""

import math
import re

import pytest

from heatbath.runs.configs import RunConfig, sweep
from heatbath.runs.export import write_lines
from heatbath.runs.records import Epoch
from heatbath.runs.store import Store, Update
from heatbath.system.locks import Owner

CONFIGS = sweep(RunConfig(epochs=3), seed=range(2))
RUNS = [config.run for config in CONFIGS]
EPOCHS = [Epoch(0.1, 1.0 / number, 0.3, number / 3, 0.9) for number in (1, 2, 3)]


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store") as store:
        store.add(CONFIGS)
        yield store


@pytest.fixture
def owner(store):
    owner = Owner(store.owners)
    yield owner
    owner.close()


DAMAGES = {
    "field": (
        "UPDATE runs SET config = replace(config, '\"seed\"', '\"sead\"')",
        "not the fields of a RunConfig: sead",
    ),
    "json": ("UPDATE runs SET config = substr(config, 9)", "Expecting value"),
    "depth": ("UPDATE runs SET config = replace(hex(zeroblob(50000)), '0', '[')", ".*while decoding a JSON array"),
    "seed": (
        "UPDATE runs SET config = replace(config, '\"seed\": 0', '\"seed\": 7')",
        "it is named [0-9a-f]{16}, but",
    ),
    "versions": ("UPDATE runs SET versions = '[]'", r"its versions are \[\]"),
    "null": ("UPDATE runs SET versions = 'null'", "its versions are None"),
    "status": ("UPDATE runs SET status = 'best'", "unknown status 'best'"),
    "seconds": ("UPDATE runs SET seconds = 'long'", "its seconds are 'long'"),
    "middle": ("DELETE FROM epochs WHERE epoch = 2", "its epoch 2 is missing"),
    "last": ("DELETE FROM epochs WHERE epoch = 3", "it has 2 epochs, its config 3"),
    "number": ("UPDATE epochs SET test_loss = 'low'", "its test_loss is not all numbers"),
    "text": ("UPDATE runs SET device = CAST(x'43d0' AS TEXT)", "'utf-8' codec can't encode"),
}
UNREADABLE = ("field", "json", "depth", "seed")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_row_is_named_and_harms_no_other(store, owner, damage):
    change, reason = DAMAGES[damage]
    store.claim(RUNS, owner)
    store.save(owner, [Update(run, 0, EPOCHS, "finished") for run in RUNS])
    store._connection.execute(f"{change} {'AND' if 'WHERE' in change else 'WHERE'} run = ?", RUNS[:1])
    way_out = "delete its rows" if damage in UNREADABLE else "'heatbath runs resume' trains it again"
    words = (
        rf"^run {RUNS[0]} in .*store/heatbath.sqlite is damaged \({reason}.*\): {way_out}.*, or 'heatbath runs merge'"
    )
    for read in (store.records, lambda: store.find(RUNS[0])):
        with pytest.raises(OSError, match=words):
            read()
    with Store(store.path, read_only=True) as reader, pytest.raises(OSError, match=words):
        reader.records()
    assert len(store.find(RUNS[1]).epochs) == 3


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_replaced_by_asking_for_it_again_or_by_a_merge(store, owner, tmp_path, damage):
    change, reason = DAMAGES[damage]
    store.claim(RUNS, owner)
    store.save(owner, [Update(run, 0, EPOCHS, "finished") for run in RUNS])
    write_lines(store.records(), tmp_path / "lines.jsonl")
    before = store.records()
    spoil = f"{change} {'AND' if 'WHERE' in change else 'WHERE'} run = ?"

    store._connection.execute(spoil, RUNS[:1])
    assert [record.run for record in store.survey()[0]] == RUNS[1:]
    ((run, told),) = store.add(CONFIGS).items()
    assert run == RUNS[0]
    assert re.match(reason, told)
    assert {record.run: (record.status, len(record.epochs)) for record in store.records()} == {
        RUNS[0]: ("pending", 0),
        RUNS[1]: ("finished", 3),
    }
    assert store.add(CONFIGS) == {}
    assert store.merge(tmp_path / "lines.jsonl").improved == 1

    store._connection.execute(spoil, RUNS[:1])
    merged = store.merge(tmp_path / "lines.jsonl")
    assert (merged.added, merged.improved, merged.known) == (0, 1, 1)
    assert {record.run: record.status for record in store.records()} == {record.run: "finished" for record in before}


def test_a_damaged_run_that_is_being_trained_is_left_to_its_owner(store, owner):
    store.claim(RUNS[:1], owner)
    store._connection.execute("UPDATE runs SET seconds = 'long' WHERE run = ?", RUNS[:1])
    with pytest.raises(OSError, match=f"run {RUNS[0]} in .* is damaged"):
        store.add(CONFIGS)
    assert len(store.statuses()) == 2
    owner.close()
    assert list(store.add(CONFIGS)) == RUNS[:1]


@pytest.mark.parametrize(("status", "read"), [("finished", "diverged"), ("running", "pending")])
def test_a_held_out_loss_that_was_no_number_is_where_the_run_diverged(store, owner, tmp_path, status, read):
    """SQLite keeps NaN as NULL."""
    config = CONFIGS[0].with_(validation=100)
    store.add([config])
    store.claim([config.run], owner)
    losses = (0.5, math.nan, 0.4)
    store.save(owner, [Update(config.run, 0, [Epoch(0.1, 1.0, 0.5, 1.0, 0.5, loss, 0.5) for loss in losses], status)])
    store.release(owner)
    record = store.find(config.run)
    assert (record.status, record.curve("validation_loss")) == (read, [0.5])
    write_lines(store.records([config.run]), store.path / "lines")
    with Store(tmp_path / "other") as other:
        assert other.merge(store.path / "lines").added == 1
