"""What is refused when rows are read back; that they come back as they were is in test_store."""

import math

import pytest

from heatbath.configs import RunConfig, sweep
from heatbath.owners import Owner
from heatbath.records import Epoch
from heatbath.store import Store, Update

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
    "seed": ("UPDATE runs SET config = replace(config, '\"seed\": 0', '\"seed\": 7')", "its config is [0-9a-f]{16}"),
    "versions": ("UPDATE runs SET versions = '[]'", r"its versions are \[\]"),
    "null": ("UPDATE runs SET versions = 'null'", "its versions are None"),
    "status": ("UPDATE runs SET status = 'best'", "unknown status 'best'"),
    "seconds": ("UPDATE runs SET seconds = 'long'", "its seconds are 'long'"),
    "middle": ("DELETE FROM epochs WHERE epoch = 2", "its epoch 2 is missing"),
    "last": ("DELETE FROM epochs WHERE epoch = 3", "it has 2 epochs, its config 3"),
    "number": ("UPDATE epochs SET test_loss = 'low'", "its test_loss is not all numbers"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_row_is_named_and_harms_no_other(store, owner, damage):
    change, reason = DAMAGES[damage]
    store.claim(RUNS, owner)
    store.save(owner, [Update(run, 0, EPOCHS, "finished") for run in RUNS])
    store._connection.execute(f"{change} {'AND' if 'WHERE' in change else 'WHERE'} run = ?", RUNS[:1])
    words = rf"^run {RUNS[0]} in .*store/heatbath.sqlite is damaged \({reason}.*\): delete its rows .* train it again"
    for read in (store.records, lambda: store.find(RUNS[0]), lambda: store.export_csv(store.path / "a.csv")):
        with pytest.raises(OSError, match=words):
            read()
    with Store(store.path, read_only=True) as reader, pytest.raises(OSError, match=words):
        reader.records()
    assert len(store.find(RUNS[1]).epochs) == 3


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
    store.export(store.path / "lines", runs=[config.run])
    with Store(tmp_path / "other") as other:
        assert other.merge(store.path / "lines").added == 1
