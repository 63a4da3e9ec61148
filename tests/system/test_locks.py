import subprocess
import sys

from heatbath.system.locks import Owner, is_alive, tidy


def test_an_owner_is_alive_until_it_is_closed(tmp_path):
    first, second = Owner(tmp_path), Owner(tmp_path)
    assert first.name != second.name
    assert is_alive(tmp_path, first.name)
    assert is_alive(tmp_path, second.name)
    first.close()
    first.close()
    assert not is_alive(tmp_path, first.name)
    assert is_alive(tmp_path, second.name)
    second.close()
    assert list(tmp_path.iterdir()) == []


def test_an_owner_dies_with_its_process(tmp_path):
    program = (
        f"from pathlib import Path; from heatbath.system.locks import Owner\nowner = Owner(Path({str(tmp_path)!r}))\n"
    )
    program += "print(owner.name, flush=True); input()"
    process = subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1, text=True)
    name = process.stdout.readline().strip()
    assert is_alive(tmp_path, name)
    process.kill()
    process.communicate()
    assert not is_alive(tmp_path, name)
    mine = Owner(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    tidy(tmp_path)
    assert [file.stem for file in tmp_path.iterdir()] == [mine.name]
    mine.close()


def test_a_name_with_a_path_leads_nowhere(tmp_path):
    mine = Owner(tmp_path / "owners")
    (tmp_path / "other").mkdir()
    assert is_alive(tmp_path / "other", f"../owners/{mine.name}") is False
    mine.close()
