import errno
import fcntl
import os
import signal
import subprocess
import sys

import pytest

from heatbath.system import locks
from heatbath.system.locks import Owner, is_alive, tidy

STRANGER = "12-0123456789abcdef"  # a name that an owner might have


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


def start(folder, then):
    """A process that owns something in a folder, says its name, and does something more."""
    imports = "import os\nfrom pathlib import Path\nfrom heatbath.system.locks import Owner\n"
    program = f"{imports}owner = Owner(Path({str(folder)!r}))\nprint(owner.name, flush=True)\n{then}"
    process = subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1, text=True)
    return process, process.stdout.readline().strip()


def test_an_owner_dies_with_its_process(tmp_path):
    process, name = start(tmp_path, "input()")
    assert is_alive(tmp_path, name)
    process.kill()
    process.communicate()
    assert not is_alive(tmp_path, name)
    mine = Owner(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    tidy(tmp_path)
    assert [file.stem for file in tmp_path.iterdir()] == [mine.name]
    mine.close()


def test_a_forked_child_does_not_keep_its_parents_claim(tmp_path):
    """Such as a worker of a data loader that outlives a killed training."""
    process, name = start(tmp_path, "if not os.fork():\n    print(os.getpid(), flush=True)\ninput()")
    with process:
        child = int(process.stdout.readline())
        try:
            assert is_alive(tmp_path, name)
            process.kill()
            process.wait()
            os.kill(child, 0)
            assert not is_alive(tmp_path, name)
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_forked_child_does_not_end_its_parents_claim(tmp_path):
    mine = Owner(tmp_path)
    child = os.fork()
    if child == 0:
        mine.close()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert is_alive(tmp_path, mine.name)
    mine.close()


def test_a_name_with_a_path_leads_nowhere(tmp_path):
    mine = Owner(tmp_path / "owners")
    (tmp_path / "other").mkdir()
    assert is_alive(tmp_path / "other", f"../owners/{mine.name}") is False
    mine.close()


def test_only_locks_of_owners_are_tidied_away(tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("x")
    (tmp_path / "other.lock").touch()
    (tmp_path / f"{STRANGER}.lock").write_text("something")
    (tmp_path / "13-0123456789abcdef.lock").symlink_to(kept)
    os.mkfifo(tmp_path / "14-0123456789abcdef.lock")
    (tmp_path / "15-0123456789abcdef.lock").mkdir()
    (tmp_path / "16-0123456789abcdef.lock").touch()
    before = set(os.listdir(tmp_path))
    tidy(tmp_path)
    assert before - set(os.listdir(tmp_path)) == {"16-0123456789abcdef.lock"}
    assert not any(is_alive(tmp_path, f"{number}-0123456789abcdef") for number in (12, 13, 14, 15, 16))


def test_somebody_whose_lock_may_not_be_read_is_taken_to_be_alive(tmp_path, monkeypatch):
    (tmp_path / f"{STRANGER}.lock").touch()

    def forbid(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(locks.os, "open", forbid)
    assert is_alive(tmp_path, STRANGER)
    tidy(tmp_path)
    assert (tmp_path / f"{STRANGER}.lock").exists()


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(OSError, match=rf"^{tmp_path} cannot be locked \(No locks available\): give --store on a local"):
        Owner(tmp_path)
    assert list(tmp_path.iterdir()) == []
