"""Stores, exports and checkpoints of heatbath 0.1.0, made by that version, are read and turned into today's."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from heatbath.data.image_sets import OLD_SPLIT
from heatbath.runs import export, old_rows
from heatbath.runs.checkpoints import Shelf
from heatbath.runs.configs import RunConfig
from heatbath.runs.store import Store, Update
from heatbath.system.locks import Owner
from measured import ORIGIN

OLD = Path(__file__).parent / "heatbath-0.1.0"
BASE = RunConfig(dataset=OLD_SPLIT, epochs=3)  # as mnist5k was split in that version
CONFIGS = [
    *(BASE, BASE.with_(seed=1, lr=0.02), BASE.with_(seed=2, validation=100)),
    *(BASE.with_(seed=3, protocol="constant"), BASE.with_(seed=4)),
]
RUNS = [config.run for config in CONFIGS]
MADE = {"heatbath": "0.1.0", "torch": "2.13.0", "python": "3.12.1", "device": "CPU (a)", "precision": "fp32"}


@pytest.fixture
def folder(tmp_path):
    """A store of that version: two finished runs, a diverged one, one that was stopped, one that was not begun."""
    with sqlite3.connect(tmp_path / Store.FILE) as connection:
        connection.executescript((OLD / "store.sql").read_text())
        connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    (tmp_path / "checkpoints").mkdir()
    shutil.copy(OLD / "123-abc.0.0.checkpoint", tmp_path / "checkpoints")
    return tmp_path


def look(folder, statement):
    """Ask the database, or change it, as no store does; the rows that come back."""
    with closing(sqlite3.connect(folder / Store.FILE)) as connection, connection:
        return connection.execute(statement).fetchall()


def check(records, *, verified):
    assert [record.config for record in records] == CONFIGS
    assert [record.status for record in records] == ["finished", "diverged", "finished", "pending", "pending"]
    assert [len(record.epochs) for record in records] == [3, 1, 3, 2, 0]
    assert [record.seconds for record in records] == [1.25, 0.5, 1.5, 0.75, 0.0]
    assert records[0].curve("test_loss") == [1.1, 0.55, 1.1 / 3]
    assert records[2].curve("validation_accuracy") == [0.75] * 3
    assert records[0].curves == ("rate", "train_loss", "train_accuracy", "test_loss", "test_accuracy")
    assert [record.origins for record in records] == [[(3, MADE)], [(1, MADE)], [(3, MADE)], [(2, MADE)], []]
    assert [record.verified for record in records] == [verified] * 5


def test_an_old_store_is_read_as_it_is(folder):
    before = (folder / Store.FILE).read_bytes()
    with Store(folder, read_only=True) as store:
        check(store.records(), verified=False)
        assert store.find(RUNS[2][:8]).config == CONFIGS[2]
        assert store.traces(RUNS[3]).checkpoint == "123-abc.0.0.checkpoint"
        assert store.traces(RUNS[0]).added == 1750000000.0
    assert (folder / Store.FILE).read_bytes() == before
    assert sorted(os.listdir(folder)) == ["checkpoints", Store.FILE]


def test_an_old_store_becomes_one_of_today_when_it_is_written_to(folder):
    with Store(folder) as store:
        check(store.records(), verified=False)
        store.add([])
        check(store.records(), verified=True)
        assert store.traces(RUNS[3]).checkpoint == "123-abc.0.0.checkpoint"
        assert store.traces(RUNS[0]).added == 1750000000.0
        owner = Owner(store.owners)
        assert store.claim(RUNS, owner) == {RUNS[3]: 2, RUNS[4]: 0}
        restored = Shelf(store.checkpoints).read(store.checkpoints / "123-abc.0.0.checkpoint", RUNS[3])
        assert restored.epochs == store.find(RUNS[3]).epochs
        assert restored.state["unit"].tolist() == [0.0, 1.0, 2.0]
        store.save(owner, [Update(RUNS[3], 2, restored.epochs[:1], "finished", 0.25, ORIGIN)])
        owner.close()
        assert store.find(RUNS[3]).origins == [(2, MADE), (1, {}), (0, ORIGIN)]
    with Store(folder) as again:
        assert again.find(RUNS[3]).status == "finished"
    tables = look(folder, "SELECT name FROM sqlite_master WHERE type = 'table'")
    assert {name for (name,) in tables} == {"runs", "epochs", "manifest"}


def test_a_copy_of_the_log_alone_tells_the_version(folder, tmp_path):
    """The new tables are in the WAL, and the first bytes of the file still those of the old schema."""
    with Store(folder) as store:
        store.add([])
        before = (folder / Store.FILE).read_bytes()
        look(folder, "PRAGMA user_version = 3")
        assert (folder / Store.FILE).read_bytes() == before
        with Store(folder, read_only=True) as reader, pytest.raises(OSError, match="made by a later heatbath"):
            reader.records()
        with pytest.raises(OSError, match=r"made by a later heatbath \(schema 3, not 2\): update heatbath"):
            store.add(CONFIGS)


def test_what_fails_half_way_leaves_the_old_store(folder, monkeypatch):
    before = (folder / Store.FILE).read_bytes()
    full = sqlite3.OperationalError("database or disk is full")
    monkeypatch.setattr(old_rows.rows, "insert_epochs", lambda *_: (_ for _ in ()).throw(full))
    with Store(folder) as store:
        for _ in range(2):
            with pytest.raises(OSError, match="cannot be used: database or disk is full"):
                store.add([])
    assert (folder / Store.FILE).read_bytes() == before
    monkeypatch.undo()
    with Store(folder, read_only=True) as store:
        check(store.records(), verified=False)


def test_an_older_heatbath_at_work_is_left_alone(folder):
    owner = Owner(folder / "owners")
    look(folder, f"UPDATE runs SET status = 'running', owner = '{owner.name}' WHERE run = '{RUNS[4]}'")
    with (
        pytest.raises(OSError, match=f"an older heatbath is training run {RUNS[4]} in this store: wait until it has"),
        Store(folder) as other,
    ):
        other.add([])
    with Store(folder, read_only=True) as store:
        assert store.find(RUNS[4]).status == "running"
    owner.close()
    with Store(folder) as store:
        store.add([])
        check(store.records(), verified=True)


DAMAGES = {
    "field": ("runs SET config = replace(config, '\"seed\"', '\"sead\"')", "not the fields of a RunConfig: sead"),
    "depth": ("runs SET config = replace(hex(zeroblob(50000)), '0', '[')", ".*while decoding a JSON array"),
    "seed": ("runs SET config = replace(config, '\"seed\": 0', '\"seed\": 7')", "it is named [0-9a-f]{16}, but"),
    "versions": ("runs SET versions = 'null'", "its versions are None"),
    "status": ("runs SET status = 'best'", "unknown status 'best'"),
    "seconds": ("runs SET seconds = 'long'", "its seconds are 'long'"),
    "middle": ("epochs SET epoch = 9 WHERE epoch = 2", "its epoch 2 is missing"),
    "number": ("epochs SET test_loss = 'low' WHERE epoch = 3", "its test_loss is not all numbers"),
    "range": ("epochs SET test_loss = -1.0 WHERE epoch = 3", "its test_loss is -1 somewhere"),
    "text": ("runs SET device = CAST(x'43d0' AS TEXT)", r"'C\\udcd0' cannot be printed"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_stays_damaged(folder, damage):
    """Its config is kept as it is; a new digest does not vouch for what was damaged before."""
    change, reason = DAMAGES[damage]
    look(folder, f"UPDATE {change} {'AND' if 'WHERE' in change else 'WHERE'} run = '{RUNS[0]}'")
    with Store(folder, read_only=True) as store, pytest.raises(OSError, match=rf"{RUNS[0]} .* is damaged \({reason}"):
        store.records()
    with Store(folder) as store:
        store.add([])
        records, damaged = store.survey()
        assert [record.run for record in records] == RUNS[1:]
        assert list(damaged) == RUNS[:1]
        assert list(store.add(CONFIGS)) == RUNS[:1]
        begun = damage in ("middle", "number", "range")
        assert store.find(RUNS[0]).status == ("pending" if begun else "finished")


@pytest.mark.parametrize(("status", "read"), [("finished", "diverged"), ("pending", "pending")])
def test_a_held_out_loss_that_was_no_number_is_where_the_run_diverged(folder, status, read):
    """SQLite keeps NaN as NULL."""
    look(folder, f"UPDATE runs SET status = '{status}' WHERE run = '{RUNS[2]}'")
    look(folder, f"UPDATE epochs SET validation_loss = NULL WHERE run = '{RUNS[2]}' AND epoch = 2")
    for _ in range(2):
        with Store(folder) as store:
            record = store.find(RUNS[2])
            assert (record.status, record.curve("validation_loss")) == (read, [0.5])
            store.add([])


def test_an_old_export_is_read_and_merged(folder, tmp_path):
    records = sorted(export.read_lines(OLD / "export.jsonl"), key=lambda record: RUNS.index(record.run))
    assert [record.verified for record in records] == [False] * 5
    assert [record.origins for record in records][:2] == [[(3, MADE)], [(1, MADE)]]
    with Store(tmp_path / "new") as store:
        assert store.merge(OLD / "export.jsonl").added == 5
        assert store.merge(folder).known == 5
        assert all(record.verified for record in store.records())
