import os

import pytest

from heatbath.system.whole_files import whole_file, write_together


def test_a_file_appears_when_it_is_whole_with_the_rights_of_a_new_one(tmp_path):
    before = os.umask(0o077)
    try:
        with whole_file(tmp_path / "one") as file:
            file.write(b"1")
            assert not (tmp_path / "one").exists()
    finally:
        os.umask(before)
    assert (tmp_path / "one").read_bytes() == b"1"
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o600

    def fail(error):
        with whole_file(tmp_path / "one") as file:
            file.write(b"half")
            raise error

    for error in (KeyboardInterrupt, OSError):
        with pytest.raises(error):
            fail(error)
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    assert (tmp_path / "one").read_bytes() == b"1"


def test_an_error_names_the_file_that_was_asked_for(tmp_path):
    missing, folder = tmp_path / "nowhere" / "file", tmp_path / "folder"
    folder.mkdir()
    for path in (missing, folder):
        with pytest.raises(OSError, match=path.name) as caught, whole_file(path):
            pass
        assert caught.value.filename == str(path)
    assert list(tmp_path.iterdir()) == [folder]


def test_files_appear_when_all_are_complete(tmp_path):
    folder = tmp_path / "a" / "b"

    def draw(pending):
        (pending / "two").write_text("2")
        assert list(folder.iterdir()) == [pending]
        (pending / "one").write_text("1")

    assert write_together(folder, draw) == [folder / "one", folder / "two"]
    assert sorted(path.name for path in folder.iterdir()) == ["one", "two"]


def test_an_error_leaves_what_was_there(tmp_path):
    def fail(pending):
        (pending / "one").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_together(tmp_path / "new", fail)
    assert not (tmp_path / "new").exists()
    (tmp_path / "one").write_text("before")
    with pytest.raises(KeyboardInterrupt):
        write_together(tmp_path, fail)
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    assert (tmp_path / "one").read_text() == "before"
