"""A damaged store is saved as far as its digests hold."""

import os
import random
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from heatbath.runs.configs import RunConfig, sweep
from heatbath.runs.repair import repair
from heatbath.runs.store import Store, Update
from heatbath.system.locks import Owner
from measured import ORIGIN, an_epoch

CONFIGS = sweep(RunConfig(epochs=8), seed=range(40))
RUNS = [config.run for config in CONFIGS]


def epochs(seed):
    return [an_epoch(0.1, 1.0 / (seed + k + 1), 0.3, seed + k / 3, 0.9, origin=ORIGIN) for k in range(8)]


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path) as store:
        store.add(CONFIGS)
        owner = Owner(store.owners)
        store.claim(RUNS[:36], owner)
        store.save(owner, [Update(run, 0, epochs(k), "finished", 1.5, ORIGIN) for k, run in enumerate(RUNS[:30])])
        store.save(owner, [Update(run, 0, epochs(k)[:4]) for k, run in enumerate(RUNS[30:36], start=30)])
        store.release(owner)
        owner.close()
    return Store(tmp_path, read_only=True)


def test_a_sound_store_stays_as_it_is(store):
    before = (store.path / Store.FILE).read_bytes()
    found = repair(store.path)
    assert (found.whole, found.mended, found.lost, found.damaged) == (40, {}, (), None)
    assert (store.path / Store.FILE).read_bytes() == before
    assert sorted(os.listdir(store.path)) == [Store.FILE, "owners"]


@pytest.mark.parametrize("seed", range(12))
def test_a_torn_page_costs_no_run_that_is_not_on_it(store, seed):
    """Random bytes in the place of a page, be it the root of a tree."""
    file, rng = store.path / Store.FILE, random.Random(seed)
    whole = {record.run: record for record in store.records()}
    content = bytearray(file.read_bytes())
    page = rng.randrange(len(content) // 4096)
    content[page * 4096 : (page + 1) * 4096] = rng.randbytes(4096)
    file.write_bytes(content)
    with suppress(OSError):
        if store.records() == list(whole.values()):
            return  # the page was not in use
    found = repair(store.path)
    assert found.damaged.read_bytes() == content
    with Store(store.path) as mended:
        records = mended.records()
        assert {record.run for record in records} | set(found.lost) <= set(RUNS)
        for record in records:
            same = whole[record.run]
            assert record.config == same.config
            assert record.epochs == same.epochs[: len(record.epochs)], "no number is other than it was"
            assert record.status in (same.status, "pending")
        assert found.whole == sum(record == whole[record.run] for record in records)
        assert found.whole >= 14, "a page has about 6 runs, or the epochs of about 5"
        assert mended.add(CONFIGS) == {}
        assert len(mended.records()) == 40
    assert repair(store.path).damaged is None


def test_a_run_with_a_damaged_epoch_keeps_those_before(store):
    with closing(sqlite3.connect(store.path / Store.FILE)) as connection, connection:
        connection.execute("UPDATE epochs SET numbers = zeroblob(48) WHERE run = ? AND epoch = 6", RUNS[:1])
        connection.execute("UPDATE runs SET config = '{}' WHERE run = ?", RUNS[1:2])
        connection.execute("UPDATE runs SET seconds = 7.0 WHERE run = ?", RUNS[2:3])
        connection.execute("DELETE FROM runs WHERE run = ?", RUNS[3:4])
    found = repair(store.path)
    assert (found.whole, found.mended, found.lost) == (36, {RUNS[0]: 5, RUNS[2]: 8}, tuple(sorted((RUNS[1], RUNS[3]))))
    with Store(store.path, read_only=True) as mended:
        records = {record.run: record for record in mended.records()}
    assert (records[RUNS[0]].status, records[RUNS[0]].epochs) == ("pending", tuple(epochs(0)[:5]))
    assert records[RUNS[0]].origins == [(5, ORIGIN)]
    assert (records[RUNS[2]].status, records[RUNS[2]].epochs) == ("finished", tuple(epochs(2)))
    assert records[RUNS[2]].origins == [(8, {})], "no digest vouches for where they were made any more"
    assert list(records) == [run for run in RUNS if run not in found.lost], "in the same order"


def test_what_is_in_the_log_alone_is_saved_too(store):
    with Store(store.path) as open_one:
        open_one.add([CONFIGS[0].with_(seed=77)])
        content = {name: (store.path / name).read_bytes() for name in os.listdir(store.path) if "sqlite" in name}
    for name, each in content.items():
        (store.path / name).write_bytes(each)
    (store.path / f"{Store.FILE}-shm").unlink()
    database = bytearray(content[Store.FILE])
    database[-4096:] = bytes(4096)
    (store.path / Store.FILE).write_bytes(database)
    found = repair(store.path)
    with Store(store.path, read_only=True) as mended:
        assert CONFIGS[0].with_(seed=77) in [record.config for record in mended.records()]
    assert Path(f"{found.damaged}-wal").read_bytes() == content[f"{Store.FILE}-wal"]


def test_what_cannot_be_repaired_is_told(store, tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no store in"):
        repair(tmp_path / "nowhere")
    owner = Owner(store.owners)
    with pytest.raises(OSError, match=r"a process is at work in .*: end it first"):
        repair(store.path)
    owner.close()
    old = tmp_path / "old"
    old.mkdir()
    with closing(sqlite3.connect(old / Store.FILE)) as connection:
        connection.executescript((Path(__file__).parent / "heatbath-0.1.0" / "store.sql").read_text())
    with pytest.raises(OSError, match=r"is of heatbath 0\.1\.0, which kept no digests: put back a copy of it"):
        repair(old)


@pytest.mark.parametrize("content", [b"", b"text", bytes(5000)])
def test_a_file_without_a_row_gives_an_empty_store(tmp_path, content):
    (tmp_path / Store.FILE).write_bytes(content)
    found = repair(tmp_path)
    assert (found.whole, found.mended, found.lost) == (0, {}, ())
    assert found.damaged.read_bytes() == content
    with Store(tmp_path, read_only=True) as store:
        assert store.records() == []
