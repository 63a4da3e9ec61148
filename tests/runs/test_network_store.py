"""A store on a network disk, where SQLite has no WAL and no folder can be locked."""

import fcntl
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from heatbath.runs.configs import RunConfig, sweep
from heatbath.runs.repair import repair
from heatbath.runs.store import Store, Update
from heatbath.system import disks
from heatbath.system.locks import Owner
from measured import ORIGIN, an_epoch
from network_disk import PRETEND, flock_of_nfs, no_flock, pretend, write_table

CONFIGS = sweep(RunConfig(epochs=20), seed=range(4))
RUNS = [config.run for config in CONFIGS]
WRITE = """
from heatbath.runs.configs import RunConfig, sweep
from heatbath.runs.store import Store
with Store(sys.argv[2]) as store:
    print("open", flush=True)
    for seed in range(int(sys.argv[3]), int(sys.argv[3]) + 40):
        store.add([RunConfig(epochs=20, seed=seed)])
"""
DIE = """
import os, signal
from heatbath.runs.store import Store
store = Store(sys.argv[2])
with store.transaction() as connection:
    connection.execute("PRAGMA cache_size = 1")  # pages go to the file before the end
    connection.execute("UPDATE runs SET config = config || ?", ("x" * 40000,))
    os.kill(os.getpid(), signal.SIGKILL)
"""
HOLD = """
from heatbath.runs.store import Store
with Store(sys.argv[2]) as store:
    store.statuses()
    with store.transaction():
        pass
    print("open", flush=True)
    input()
"""


@pytest.fixture
def table(tmp_path):
    return write_table(tmp_path / "mounts", tmp_path / "home")


@pytest.fixture
def home(tmp_path, table, monkeypatch):
    pretend(monkeypatch, table)
    return tmp_path / "home"


def journal(path):
    with closing(sqlite3.connect(path / Store.FILE)) as connection:
        return connection.execute("PRAGMA journal_mode").fetchone()[0]


def train(path):
    owner = Owner(path / "owners")
    with Store(path) as store:
        store.add(CONFIGS)
        store.claim(RUNS[:1], owner)
        epochs = [an_epoch(0.1, 1.0 / (number + 1), 0.3, number / 3, 0.9) for number in range(3)]
        store.save(owner, [Update(RUNS[0], 0, epochs, origin=ORIGIN)])
    owner.close()


def lengths(path):
    with Store(path, read_only=True) as reader:
        return [len(record.epochs) for record in reader.records()]


@contextmanager
def process(program, table, *arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    command = [sys.executable, "-c", PRETEND + program, str(table), *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stdin=pipe, text=True, env=environment) as started:
        yield started


def test_a_store_has_a_rollback_journal_there_and_a_wal_elsewhere(home, tmp_path):
    train(home)
    train(tmp_path / "here")
    assert (journal(home), journal(tmp_path / "here")) == ("delete", "wal")
    assert lengths(home) == lengths(tmp_path / "here") == [3, 0, 0, 0]
    assert not [name for name in os.listdir(home) if name.startswith(Store.FILE + "-")]
    shutil.copytree(home, tmp_path / "moved")  # to a local disk
    with Store(tmp_path / "moved") as store:
        store.add(sweep(RunConfig(epochs=20), seed=range(5)))
        assert len(store.records()) == 5


def test_two_processes_write_and_a_third_reads(home, table):
    Store(home).add(CONFIGS)
    with process(WRITE, table, home, 100) as one, process(WRITE, table, home, 200) as two:
        seen = []
        while one.poll() is None or two.poll() is None:
            seen.append(len(lengths(home)))
    assert one.returncode == two.returncode == 0
    assert seen == sorted(seen)
    assert len(lengths(home)) == 84


def test_what_a_killed_process_left_is_rolled_back_by_readers_and_writers(home, table, tmp_path):
    train(home)
    with process(DIE, table, home) as dead:
        pass
    assert dead.returncode == -signal.SIGKILL
    assert (home / f"{Store.FILE}-journal").stat().st_size > 512
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    assert lengths(home) == [3, 0, 0, 0]
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before
    shutil.copytree(home, tmp_path / "home" / "copy")
    assert repair(home / "copy").whole == 4
    assert lengths(home / "copy") == [3, 0, 0, 0]
    with Store(home) as store:
        assert store.add(CONFIGS) == {}
    assert not (home / f"{Store.FILE}-journal").exists()


def test_a_store_with_a_wal_that_comes_to_a_network_disk(home, table, tmp_path, monkeypatch):
    monkeypatch.setattr(disks, "MOUNTS", tmp_path / "none")
    with Store(tmp_path / "here") as store:
        train(tmp_path / "here")
        store.add(CONFIGS)
        shutil.copytree(tmp_path / "here", home)  # as if it had been killed: the WAL is there
    monkeypatch.setattr(disks, "MOUNTS", table)
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    assert lengths(home) == [3, 0, 0, 0]
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before
    assert journal(home) == "wal"
    with Store(home) as store:
        store.add(CONFIGS)
    assert journal(home) == "delete"
    assert lengths(home) == [3, 0, 0, 0]


def test_a_wal_that_somebody_has_open_is_not_taken_away(home, table, tmp_path, monkeypatch):
    none = tmp_path / "none"
    none.touch()
    with process(HOLD, none, home) as holder:
        holder.stdout.readline()
        monkeypatch.setattr("heatbath.system.sqlite_files._WAIT", 0.05)
        with pytest.raises(OSError, match=r"must get another journal, but another process has it open: end that first"):
            Store(home).add(CONFIGS)
        holder.communicate("\n")
    Store(home).add(CONFIGS)
    assert journal(home) == "delete"


def test_a_disk_whose_locks_fail_is_read_and_not_written_to(home, monkeypatch):
    train(home)
    monkeypatch.setattr(fcntl, "flock", no_flock)
    before = set(home.rglob("*"))
    assert lengths(home) == [3, 0, 0, 0]
    words = r"is on a network disk \(nfs4\) that gives no locks \(No locks available\): give --store on a"
    with pytest.raises(OSError, match=words), Store(home) as store:
        store.add(sweep(RunConfig(epochs=20), seed=range(9)))
    with pytest.raises(OSError, match=words), Store(home / "new") as store:
        store.add(CONFIGS)
    assert set(home.rglob("*")) == before
    monkeypatch.setattr(fcntl, "flock", flock_of_nfs)
    assert lengths(home) == [3, 0, 0, 0]
