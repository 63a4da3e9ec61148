"""What is refused when rows are read back; that they come back as they were is in test_store."""

import re
import sqlite3
from contextlib import closing

import pytest

from heatbath.runs.configs import RunConfig, sweep
from heatbath.runs.export import write_lines
from heatbath.runs.store import Store, Update
from heatbath.system.locks import Owner
from measured import ORIGIN, VERSIONS, an_epoch

CONFIGS = sweep(RunConfig(epochs=3), seed=range(2))
RUNS = [config.run for config in CONFIGS]
EPOCHS = [an_epoch(0.1, 1.0 / number, 0.3, number / 3, 0.9, origin=ORIGIN) for number in (1, 2, 3)]


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store") as store:
        store.add(CONFIGS)
        yield store


def change_rows(store, statement, values=()):
    """Do something to the database that no store does."""
    with closing(sqlite3.connect(store.path / Store.FILE)) as connection, connection:
        connection.execute(statement, values)


@pytest.fixture
def owner(store):
    owner = Owner(store.owners)
    yield owner
    owner.close()


NO_FIT = "its digest does not fit"
DAMAGES = {
    "config": ("UPDATE runs SET config = replace(config, '\"seed\"', '\"sead\"')", NO_FIT),
    "status": ("UPDATE runs SET status = 'diverged'", NO_FIT),
    "seconds": ("UPDATE runs SET seconds = 2.5", NO_FIT),
    "kind": ("UPDATE runs SET seconds = x'00'", NO_FIT),
    "count": ("UPDATE runs SET epochs = 2", NO_FIT),
    "names": ("UPDATE runs SET metrics = replace(metrics, 'test_loss', 'tess_loss')", NO_FIT),
    "origin": ("UPDATE runs SET origins = replace(origins, 'fp32', 'fp64')", NO_FIT),
    "text": ("UPDATE runs SET origins = CAST(x'43d0' AS TEXT)", NO_FIT),
    "added": ("UPDATE runs SET created = created + 1", NO_FIT),
    "digest": ("UPDATE runs SET digest = zeroblob(16)", NO_FIT),
    "middle": ("DELETE FROM epochs WHERE epoch = 2", "its epoch 2 is missing"),
    "last": ("DELETE FROM epochs WHERE epoch = 3", "its epoch 3 is missing"),
    "number": (f"UPDATE epochs SET numbers = x'{'00' * 48}' WHERE epoch = 2", "its epoch 2 is damaged"),
    "short": ("UPDATE epochs SET numbers = substr(numbers, 9) WHERE epoch = 3", "its epoch 3 is damaged"),
    "text of that length": (
        "UPDATE epochs SET numbers = substr(hex(zeroblob(48)), 1, 48) WHERE epoch = 2",
        "its epoch 2 is damaged",
    ),
    "words": ("UPDATE epochs SET numbers = 'low' WHERE epoch = 1", "its epoch 1 is damaged"),
}
UNREADABLE = ("config",)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_row_is_named_and_harms_no_other(store, owner, damage):
    change, reason = DAMAGES[damage]
    store.claim(RUNS, owner)
    store.save(owner, [Update(run, 0, EPOCHS, "finished") for run in RUNS])
    change_rows(store, f"{change} {'AND' if 'WHERE' in change else 'WHERE'} run = ?", RUNS[:1])
    way_out = "" if damage in UNREADABLE else "'heatbath runs resume' trains it again, "
    words = rf"^run {RUNS[0]} in .*store/heatbath.sqlite is damaged \({reason}.*\): {way_out}'heatbath runs repair'"
    for read in (store.records, lambda: store.find(RUNS[0])):
        with pytest.raises(OSError, match=words):
            read()
    with Store(store.path, read_only=True) as reader, pytest.raises(OSError, match=words):
        reader.records()
    assert len(store.find(RUNS[1]).epochs) == 3


SOUND = {
    "middle": 1,
    "last": 2,
    "number": 1,
    "short": 2,
    "words": 0,
    "text of that length": 1,
}  # epochs before the damage; all three elsewhere


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_sound_epochs_of_a_damaged_run_are_kept(store, owner, tmp_path, damage):
    """By asking for the run again, or by a merge, which brings the others."""
    change, reason = DAMAGES[damage]
    store.claim(RUNS, owner)
    store.save(owner, [Update(run, 0, EPOCHS, "finished") for run in RUNS])
    write_lines(store.records(), tmp_path / "lines.jsonl")
    before = store.records()
    spoil = f"{change} {'AND' if 'WHERE' in change else 'WHERE'} run = ?"
    kept = SOUND.get(damage, 3)

    change_rows(store, spoil, RUNS[:1])
    assert [record.run for record in store.survey()[0]] == RUNS[1:]
    ((run, damaged),) = store.add(CONFIGS).items()
    assert run == RUNS[0]
    assert re.match(reason, damaged.reason)
    records = store.records()
    assert [(record.run, record.status) for record in records] == [
        (RUNS[0], "finished" if kept == 3 else "pending"),
        (RUNS[1], "finished"),
    ]
    assert records[0].epochs == before[0].epochs[:kept]
    assert records[0].versions == ({} if reason == NO_FIT or not kept else VERSIONS), "the row vouched for its origin"
    assert store.add(CONFIGS) == {}
    assert store.merge(tmp_path / "lines.jsonl").improved == (kept < 3)

    change_rows(store, spoil, RUNS[:1])
    merged = store.merge(tmp_path / "lines.jsonl")
    assert (merged.added, merged.improved, merged.known) == (0, int(kept < 3), 1 + int(kept == 3))
    assert {record.run: record.status for record in store.records()} == {record.run: "finished" for record in before}


def test_a_damaged_run_that_is_being_trained_is_left_to_its_owner(store, owner):
    store.claim(RUNS[:1], owner)
    change_rows(store, "UPDATE runs SET seconds = 'long' WHERE run = ?", RUNS[:1])
    with pytest.raises(OSError, match=f"run {RUNS[0]} in .* is damaged"):
        store.add(CONFIGS)
    assert len(store.statuses()) == 2
    owner.close()
    assert list(store.add(CONFIGS)) == RUNS[:1]


def test_a_row_with_a_sound_digest_is_still_checked(store, owner):
    """Whoever writes the digest may write nonsense: an accuracy of 5 is no accuracy."""
    store.claim(RUNS, owner)
    store.save(owner, [Update(RUNS[0], 0, [an_epoch(0.1, 1.0, 5.0, 1.0, 0.5)] * 3, "finished")])
    with pytest.raises(OSError, match=rf"run {RUNS[0]} in .* is damaged \(its train_accuracy is 5 somewhere, which"):
        store.records()


def test_two_epochs_that_changed_places_are_noticed(store, owner):
    store.claim(RUNS, owner)
    store.save(owner, [Update(run, 0, EPOCHS, "finished") for run in RUNS])
    swap = "UPDATE epochs SET epoch = CASE epoch WHEN 1 THEN -1 WHEN 2 THEN 1 ELSE 2 END WHERE run = ? AND epoch IN "
    change_rows(store, f"{swap} (1, 2)", RUNS[:1])
    change_rows(store, "UPDATE epochs SET epoch = 2 WHERE epoch = -1")
    with pytest.raises(OSError, match="its epoch 1 is damaged"):
        store.find(RUNS[0])


def test_a_run_whose_row_is_gone_is_missed(store):
    change_rows(store, "DELETE FROM runs WHERE run = ?", RUNS[:1])
    with pytest.raises(OSError, match="the store is damaged: it lists 2 runs and has 1"):
        store.records()
    assert len(store.records(RUNS[1:])) == 1


def test_a_damaged_row_is_not_given_a_new_digest(store, owner):
    """Neither by a claim nor by a save, which change only a part of it."""
    store.claim(RUNS[:1], owner)
    change_rows(store, "UPDATE runs SET seconds = 9.0")
    for change in (lambda: store.claim(RUNS, owner), lambda: store.save(owner, [Update(RUNS[0], 0, EPOCHS)])):
        with pytest.raises(OSError, match=rf"run '{RUNS[0]}' is damaged in .*heatbath.sqlite: 'heatbath runs resume'"):
            change()
    store.release(owner)
    assert list(store.survey()[1]) == RUNS


def test_epochs_must_follow_each_other(store, owner):
    store.claim(RUNS[:1], owner)
    with pytest.raises(ValueError, match="has 0 epochs; number 2 cannot follow"):
        store.save(owner, [Update(RUNS[0], 1, EPOCHS[:1])])
    store.save(owner, [Update(RUNS[0], 0, EPOCHS[:1])])
    with pytest.raises(ValueError, match=r"the metrics .* follow"):
        store.save(owner, [Update(RUNS[0], 1, [an_epoch(0.1, 1.0, 0.9)])])
    with pytest.raises(ValueError, match="epoch 3 has the metrics train_loss, train_accuracy, not"):
        store.save(owner, [Update(RUNS[0], 1, [EPOCHS[1], an_epoch(0.1, 1.0, 0.9)])])
    assert store.find(RUNS[0]).epochs == tuple(EPOCHS[:1])
