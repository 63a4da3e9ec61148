"""A folder of data that is not there is told before anything else is done."""

import pytest

import heatbath as hb
from heatbath.engine.trainer import Trainer
from heatbath.system.whole_files import check_data_dir

CONFIG = hb.RunConfig(epochs=1)


@pytest.mark.parametrize("as_path", [False, True], ids=["text", "path"])
def test_nothing_is_trained_without_the_named_folder(tmp_path, monkeypatch, as_path):
    monkeypatch.setattr(Trainer, "dataset", lambda *_: pytest.fail("looked for the data"))
    place = tmp_path / "no" / "such"
    with pytest.raises(ValueError, match=f"^data_dir {place} is not a folder$"):
        hb.run([CONFIG], tmp_path / "store", "cpu", data_dir=place if as_path else str(place))
    assert not list(tmp_path.iterdir())


def test_a_file_is_no_folder_and_the_option_has_its_own_name(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ValueError, match=f"^data_dir {file} is not a folder$"):
        check_data_dir(file)
    with pytest.raises(ValueError, match=f"^--data-dir {file} is not a folder$"):
        check_data_dir(file, "--data-dir")


def test_a_folder_of_the_home_is_found_as_the_data_is(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "data").mkdir()
    check_data_dir("~/data")
    check_data_dir(None)
    with pytest.raises(ValueError, match=r"^data_dir ~/other is not a folder$"):
        check_data_dir("~/other")
