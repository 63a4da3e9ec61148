import json
import os
import shutil
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from heatbath.runs.configs import RunConfig, sweep
from heatbath.runs.export import write_lines
from heatbath.runs.store import Store, Traces, Update
from heatbath.system.locks import Owner
from measured import ORIGIN, VERSIONS, an_epoch, signed_line

CONFIGS = sweep(RunConfig(epochs=3), seed=range(4))
RUNS = [config.run for config in CONFIGS]


def epochs(seed, first, count):
    return [
        an_epoch(0.1, 1.0 / (seed + number + 1), 0.3, seed + number / 3, 0.9) for number in range(first, first + count)
    ]


@pytest.fixture
def owner(tmp_path):
    owner = Owner(tmp_path / "store" / "owners")
    yield owner
    owner.close()


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store") as store:
        store.add(CONFIGS)
        yield store


def train(store, owner, seed, count, status=None):
    status = status or ("finished" if count == CONFIGS[seed].epochs else "running")
    store.claim([RUNS[seed]], owner)
    store.save(owner, [Update(RUNS[seed], 0, epochs(seed, 0, count), status, 1.5, ORIGIN)])


def everything(path):
    """Files, their bytes and their times: all that writing would change."""
    return {
        str(file): (file.stat().st_mtime_ns, file.read_bytes() if file.is_file() else b"")
        for file in [path, *path.rglob("*")]
    }


def test_records_come_back_in_the_order_they_were_asked_for(store, owner):
    assert [record.run for record in store.records()] == RUNS
    store.add(reversed(CONFIGS))
    train(store, owner, 2, 3)
    store.claim([RUNS[1]], owner)
    store.save(
        owner, [Update(RUNS[1], 0, epochs(1, 0, 1), seconds=0.5), Update(RUNS[1], 1, epochs(1, 1, 1), seconds=0.25)]
    )
    records = store.records()
    assert [record.run for record in records] == RUNS
    assert [record.status for record in records] == ["pending", "running", "finished", "pending"]
    assert list(records[2].epochs) == epochs(2, 0, 3)
    assert list(records[1].epochs) == epochs(1, 0, 2)
    assert records[1].seconds == 0.75
    assert (records[2].device, records[2].precision, records[2].versions) == ("CPU (a)", "fp32", VERSIONS)
    assert [record.config for record in records] == CONFIGS
    assert [record.run for record in store.records([RUNS[3], RUNS[0], "unknown"])] == [RUNS[0], RUNS[3]]
    assert [record.run for record in store.records() if record.status == "pending"] == [RUNS[0], RUNS[3]]
    assert [record.run for record in store.records(where=lambda config: config.seed > 1)] == RUNS[2:]


def test_a_run_is_found_by_the_start_of_its_name(store):
    assert store.find(RUNS[0][:9]).config == CONFIGS[0]
    with pytest.raises(ValueError, match=r"no run zz in .*store"):
        store.find("zz")
    with pytest.raises(ValueError, match="4 runs begin with"):
        store.find("")


def test_a_run_leaves_traces(store, owner, monkeypatch):
    """Every step has its time; a state is named while the run goes on and its file is there."""
    clock = iter(range(2_000, 3_000))
    monkeypatch.setattr("heatbath.runs.store.time.time", lambda: float(next(clock)))
    config = CONFIGS[0].with_(seed=9)
    store.add([config])
    assert store.traces(config.run) == Traces(2000.0, 2000.0, None)
    store.claim([config.run], owner)
    assert store.traces(config.run) == Traces(2000.0, 2001.0, None)
    store.checkpoints.mkdir()
    (store.checkpoints / "a.checkpoint").touch()
    for name, found in (("a.checkpoint", "a.checkpoint"), ("/else/where/a.checkpoint", "a.checkpoint"), ("b", None)):
        store.save(owner, [Update(config.run, 0, epochs(0, 0, 1), checkpoint=name)])
        assert store.traces(config.run).checkpoint == found
    store.save(owner, [Update(config.run, 1, epochs(0, 1, 2), "finished", checkpoint="a.checkpoint")])
    assert store.traces(config.run) == Traces(2000.0, 2005.0, None)
    with pytest.raises(ValueError, match="no run nothing in "):
        store.traces("nothing")


def test_a_claimed_run_is_nobody_elses_until_its_owner_is_gone(store, owner):
    other = Owner(store.owners)
    assert set(store.claim(RUNS[:3], owner)) == set(RUNS[:3])
    assert set(store.claim(RUNS, other)) == {RUNS[3]}
    assert set(store.claim(RUNS, owner)) == set(RUNS[:3])
    train(store, owner, 0, 2)
    with pytest.raises(OSError, match=f"run {RUNS[0]} in .* has been taken over"):
        store.save(other, [Update(RUNS[3], 0, epochs(3, 0, 1)), Update(RUNS[0], 2, epochs(0, 2, 1), "finished")])
    assert [len(record.epochs) for record in store.records()] == [2, 0, 0, 0], "one transaction or nothing"
    owner.close()
    assert [record.status for record in store.records()] == ["pending"] * 3 + ["running"]
    assert store.claim(RUNS[:2], other) == {RUNS[0]: 2, RUNS[1]: 0}
    other.close()


def test_ended_runs_are_not_claimed_again(store, owner):
    train(store, owner, 0, 3)
    train(store, owner, 1, 1, "diverged")
    assert set(store.claim(RUNS, owner)) == set(RUNS[2:])
    with pytest.raises(OSError, match="has been taken over"):
        store.save(owner, [Update(RUNS[0], 0, epochs(0, 0, 1))])


def test_release_gives_back_what_has_not_ended(store, owner):
    train(store, owner, 0, 3)
    train(store, owner, 1, 2)
    store.release(owner)
    assert [record.status for record in store.records()] == ["finished", "pending", "pending", "pending"]
    assert [len(record.epochs) for record in store.records()] == [3, 2, 0, 0]


def test_a_run_that_ends_earlier_than_before_keeps_no_old_epochs(store, owner):
    train(store, owner, 0, 2)
    train(store, owner, 0, 1, "diverged")
    assert list(store.records(RUNS[:1])[0].epochs) == epochs(0, 0, 1)


def test_many_threads_and_one_store(store, owner):
    """Each run is claimed once, by whichever process comes first."""

    def work(_):
        with Store(store.path) as mine:
            me = Owner(store.owners)
            got = list(mine.claim(RUNS, me))
            mine.save(me, [Update(run, 0, epochs(RUNS.index(run), 0, 3), "finished") for run in got])
            me.close()
            return got

    with ThreadPoolExecutor(8) as pool:
        claims = [run for got in pool.map(work, range(8)) for run in got]
    assert sorted(claims) == sorted(RUNS)
    assert {record.status for record in store.records()} == {"finished"}


def test_reading_writes_nothing(store, owner, tmp_path):
    train(store, owner, 0, 3)
    store.close()
    before = everything(store.path)
    with Store(store.path, read_only=True) as reader:
        assert [len(record.epochs) for record in reader.records()] == [3, 0, 0, 0]
        with pytest.raises(ValueError, match="read only"):
            reader.add(CONFIGS)
    assert everything(store.path) == before
    with pytest.raises(FileNotFoundError, match="there is no store in"):
        Store(tmp_path / "nothing", read_only=True)
    assert not (tmp_path / "nothing").exists()


def test_reading_while_a_transaction_is_open(store, owner):
    train(store, owner, 0, 3)
    with Store(store.path, read_only=True) as reader, store.transaction() as connection:
        connection.execute("DELETE FROM epochs")
        assert len(reader.records()[0].epochs) == 3


def test_a_copy_of_a_working_store_is_readable(store, owner, tmp_path):
    """The WAL has it all, and there is no index beside it; so it is where the folder cannot be written to."""
    train(store, owner, 0, 3)
    shutil.copytree(store.path, tmp_path / "copy")
    (tmp_path / "copy" / "heatbath.sqlite-shm").unlink()
    assert (tmp_path / "copy" / "heatbath.sqlite-wal").stat().st_size > 0
    before = everything(tmp_path / "copy")
    with Store(tmp_path / "copy", read_only=True) as reader:
        assert [len(record.epochs) for record in reader.records()] == [3, 0, 0, 0]
    assert everything(tmp_path / "copy") == before


@pytest.mark.parametrize("killed", [True, False])
def test_a_folder_that_cannot_be_written_to_is_readable(store, owner, tmp_path, killed):
    train(store, owner, 0, 3)
    place = shutil.copytree(store.path, tmp_path / "copy") if killed else store.path
    if not killed:
        store.close()
    program = (
        f"from heatbath.runs.store import Store; print(len(Store({str(place)!r}, read_only=True).records()[0].epochs))"
    )
    bind = f"mount --bind {place} {place} && mount -o remount,bind,ro {place} && ! touch {place}/x 2>/dev/null"
    command = ["unshare", "-rm", "sh", "-c", f'{bind} && exec {sys.executable} -c "$1"', "sh", program]
    try:
        probe = subprocess.run([*command[:4], bind], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if probe.returncode:
        pytest.skip("may not mount anything here")
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "3\n"


def test_another_database_is_refused_and_untouched(tmp_path):
    database = tmp_path / "heatbath.sqlite"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE runs (x)")
    connection.close()
    for content in (database.read_bytes(), b"some text", b""):
        database.write_bytes(content)
        before = everything(tmp_path)
        for read_only in (True, False):
            with pytest.raises(OSError, match="is not a store of heatbath; choose another folder"):
                Store(tmp_path, read_only=read_only)
        assert everything(tmp_path) == before
    with pytest.raises(NotADirectoryError, match="is a file; a store is a folder"):
        Store(database)


def test_a_later_schema_is_refused(store):
    with store.transaction() as connection:
        connection.execute("PRAGMA user_version = 3")
    store.close()
    before = everything(store.path)
    with pytest.raises(OSError, match=r"made by a later heatbath \(schema 3, not 2\): update heatbath"):
        Store(store.path)
    assert everything(store.path) == before


def test_a_broken_database_gives_one_line(store):
    store.close()
    database = store.path / "heatbath.sqlite"
    database.write_bytes(database.read_bytes()[:100] + b"\xff" * 8000)
    words = r"the store in .* cannot be used: .*; it is damaged: 'heatbath runs repair' saves what can be saved; or put"
    with pytest.raises(OSError, match=words), Store(store.path) as other:
        other.add(CONFIGS)
    with pytest.raises(OSError, match=words):
        Store(store.path, read_only=True).records()


def test_a_damaged_schema_gives_one_line(store):
    store.close()
    database = store.path / "heatbath.sqlite"
    database.write_bytes(database.read_bytes().replace(b"checkpoint TEXT", b"check\xff(int TEXT"))
    with (
        pytest.raises(OSError, match=r"malformed database schema .*'heatbath runs repair' saves what can be saved"),
        Store(store.path) as other,
    ):
        other.add(CONFIGS)


def test_a_store_stays_where_it_was_opened(store, owner, tmp_path, monkeypatch):
    store.claim(RUNS[:1], owner)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with Store("store") as relative, Store("store", read_only=True) as reader:
        monkeypatch.chdir(tmp_path / "elsewhere")
        other = Owner(relative.owners)
        assert set(relative.claim(RUNS, other)) == set(RUNS[1:]), "the first is being trained"
        assert [record.status for record in reader.records()] == ["running"] * 4
        assert relative.checkpoints == store.checkpoints
        other.close()


def test_a_name_need_not_be_utf8(store, owner, tmp_path):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/bad\xffname %3f?")
    with Store(folder) as results:
        assert results.merge(store.path).added == 4
    with Store(folder, read_only=True) as reader:
        assert [record.run for record in reader.records()] == RUNS
    shutil.copytree(store.path, f"{folder}-copy")
    os.unlink(f"{folder}-copy/heatbath.sqlite-shm")
    with Store(f"{folder}-copy", read_only=True) as reader:
        assert len(reader.records()) == 4


@pytest.mark.parametrize("place", ["link", "link/below"])
def test_a_link_to_nowhere_is_named(tmp_path, place):
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError, match="link is a link to a folder that is not there: make that folder, or"):
        Store(tmp_path / place).add([])


def test_a_full_disk_changes_nothing(store, owner):
    train(store, owner, 0, 3)
    with store.transaction() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    store.claim(RUNS, owner)
    before = store.records()
    with pytest.raises(OSError, match=r"^no space left in .*; what was finished is safe; free space and run again$"):
        store.save(owner, [Update(RUNS[1], 0, epochs(1, 0, 3000))])
    assert store.records() == before
    with store.transaction() as connection:
        connection.execute("PRAGMA max_page_count = 100000")
    train(store, owner, 1, 3)
    with store.transaction() as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.fixture
def other(tmp_path):
    """Another store: seed 0 and 1 finished, 2 diverged after one epoch, 3 with two epochs; and a run of its own."""
    with Store(tmp_path / "other") as other:
        other.add([*CONFIGS, CONFIGS[0].with_(seed=9)])
        owner = Owner(other.owners)
        for seed, count, status in ((0, 3, None), (1, 3, None), (2, 1, "diverged"), (3, 2, None)):
            train(other, owner, seed, count, status)
        other.release(owner)
        owner.close()
        yield other


@pytest.mark.parametrize("form", ["store", "lines.jsonl", "lines.jsonl.gz"])
def test_merging_takes_what_is_better(store, owner, other, form):
    train(store, owner, 0, 3)
    train(store, owner, 1, 2)
    train(store, owner, 2, 2)
    train(store, owner, 3, 1)
    store.release(owner)
    if form != "store":
        write_lines(other.records(), other.path / form)
    other.close()
    before = everything(other.path)
    source = other.path if form == "store" else other.path / form
    merged = store.merge(source)
    assert (merged.added, merged.improved, merged.known) == (1, 2, 1)
    assert merged.differing == (RUNS[2],), "diverged there after the first epoch, and not here"
    assert merged.busy == ()
    records = store.records()
    assert [record.status for record in records] == ["finished", "finished", "pending", "pending", "pending"]
    assert [len(record.epochs) for record in records] == [3, 3, 2, 2, 0]
    assert records[1].curve("test_loss") == pytest.approx([epoch.test_loss for epoch in epochs(1, 0, 3)], rel=1e-5)
    again = store.merge(source)
    assert (again.added, again.improved, again.known) == (0, 0, 4)
    assert store.records() == records
    assert everything(other.path) == before


@pytest.mark.parametrize("order", ["full partial", "partial full", "full other partial"])
def test_a_file_that_has_a_run_twice_gives_the_better_one(store, owner, other, tmp_path, order):
    """In whatever order; the counts are of runs, and numbers that differ are told."""
    train(store, owner, 0, 1)
    store.release(owner)
    write_lines(store.records(RUNS[:1]), tmp_path / "partial")
    write_lines(other.records(RUNS[:1]), tmp_path / "full")
    lines = {name: (tmp_path / name).read_text() for name in ("partial", "full")}
    values = json.loads(lines["full"])
    values["curves"]["test_loss"][1] = 7.0
    lines["other"] = signed_line(values)
    (tmp_path / "both").write_text("".join(lines[name] for name in order.split()))
    for target, counts in ((tmp_path / "fresh", (1, 0, 0)), (store.path, (0, 1, 0))):
        with Store(target) as results:
            merged = results.merge(tmp_path / "both")
            assert (merged.added, merged.improved, merged.known) == counts
            assert merged.differing == (tuple(RUNS[:1]) if "other" in order else ())
            record = results.find(RUNS[0])
            assert record.status == "finished"
            assert record.curve("test_loss") == pytest.approx([epoch.test_loss for epoch in epochs(0, 0, 3)], rel=1e-5)


def test_merging_keeps_our_numbers_and_says_so(store, owner, other):
    different = [an_epoch(0.1, 9.0, 0.3, 9.0, 0.9)] * 3
    store.claim(RUNS, owner)
    store.save(owner, [Update(RUNS[0], 0, different, "finished")])
    merged = store.merge(other.path)
    assert merged.differing == (RUNS[0],)
    assert set(merged.busy) == set(RUNS[1:]), "being trained here"
    assert list(store.records()[0].epochs) == different
    store.release(owner)
    assert store.merge(other.path).improved == 3


def test_merging_refuses_what_is_no_store(store, tmp_path):
    (tmp_path / "file").write_text("hello\n")
    with pytest.raises(ValueError, match="file, line 1: not a record"):
        store.merge(tmp_path / "file")
    with pytest.raises(FileNotFoundError, match="there is no store in"):
        store.merge(tmp_path / "folder")
