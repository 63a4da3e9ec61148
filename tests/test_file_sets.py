import pytest

from heatbath.file_sets import write_together


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
