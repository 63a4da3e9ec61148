import tempfile
from pathlib import Path

import pytest

from heatbath.system.whole_files import check_folder


def test_a_folder_that_can_be_made_is_not_made(tmp_path):
    check_folder(tmp_path, "--out")
    check_folder(tmp_path / "a" / "b", "--out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("file", "file is a file; name a folder"),
        ("file/below", "file is a file; name a folder"),
        ("link", "link is a link to a folder that is not there: make that folder, or remove the link"),
        ("link/below", "link is a link to a folder that is not there: make that folder, or remove the link"),
        ("long" * 100, "cannot be written to (File name too long)"),
    ],
    ids=lambda value: value[:10],
)
def test_what_is_in_the_way_is_named(tmp_path, monkeypatch, name, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(ValueError, match=f"^--out {name}: ") as caught:
        check_folder(Path(name), "--out")
    assert str(caught.value).endswith(words)


def test_why_a_folder_cannot_be_written_to_is_told(tmp_path, monkeypatch):
    def fail(**_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", fail)
    with pytest.raises(ValueError, match=r"cannot be written to \(Read-only file system\)$"):
        check_folder(tmp_path / "out", "--out")
