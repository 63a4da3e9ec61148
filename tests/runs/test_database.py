"""What is refused before anything is written, and what is noticed while a store is in use."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from heatbath.runs.configs import RunConfig
from heatbath.runs.store import Store

CONFIGS = [RunConfig(epochs=3)]
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS run, x AS status FROM n"


def everything(folder):
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize("name", ["checkpoints/best.checkpoint", "checkpoints/d.partial", "owners/other.lock"])
def test_a_folder_with_files_of_somebody_else_is_refused(tmp_path, name):
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text("x")
    before = everything(tmp_path)
    with pytest.raises(OSError, match=rf"{name} is not heatbath's: choose another folder for the store"):
        Store(tmp_path).add(CONFIGS)
    assert everything(tmp_path) == before


@pytest.mark.parametrize("name", ["checkpoints", "owners"])
@pytest.mark.parametrize("there", [True, False])
def test_a_link_in_the_place_of_a_folder_is_refused(tmp_path, name, there):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / name).symlink_to(tmp_path / "elsewhere" if there else tmp_path / "nowhere")
    with pytest.raises(OSError, match=rf"store/{name} is a link or a file, where a store has a folder"):
        Store(tmp_path / "store").add(CONFIGS)


def test_a_store_that_was_removed_while_it_was_in_use_takes_nothing_more(tmp_path):
    words = r"heatbath.sqlite was removed or replaced while it was in use; what was trained since is in the checkpoints"
    with Store(tmp_path) as store, Store(tmp_path) as other:
        store.add(CONFIGS)
        other.add(CONFIGS)
        os.rename(tmp_path / Store.FILE, tmp_path / "away")
        with pytest.raises(OSError, match=words):
            store.add(CONFIGS)
        with Store(tmp_path) as new:
            new.add([])
        with pytest.raises(OSError, match=words):
            other.add(CONFIGS)
        os.rename(tmp_path / "away", tmp_path / Store.FILE)
        assert store.add(CONFIGS) == {}


def test_a_view_without_end_is_no_table(tmp_path):
    with Store(tmp_path / "new") as store:
        store.add(CONFIGS)
    old = Path(__file__).parent / "heatbath-0.1.0" / "store.sql"
    (tmp_path / "old").mkdir()
    with closing(sqlite3.connect(tmp_path / "old" / Store.FILE)) as connection:
        connection.executescript(old.read_text())
    for name in ("new", "old"):
        with closing(sqlite3.connect(tmp_path / name / Store.FILE)) as connection:
            connection.executescript(f"DROP TABLE runs; CREATE VIEW runs AS {ENDLESS}")
        store = Store(tmp_path / name)
        for read in (store.records, store.statuses, lambda: store.traces("a"), lambda: store.add([])):  # noqa: B023
            with pytest.raises(OSError, match="does not have the tables of a store: 'heatbath runs repair' saves"):
                read()


def test_a_pipe_is_no_database(tmp_path):
    os.mkfifo(tmp_path / Store.FILE)
    for read_only in (True, False):
        with pytest.raises(OSError, match="is not a store of heatbath"):
            Store(tmp_path, read_only=read_only)
