import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import heatbath
from heatbath.system import machine


@pytest.mark.parametrize("name", ["auto", "cpu", "cuda", "cuda:3"])
def test_devices_that_may_be_asked_for(name):
    machine.check_device(name)


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "mps", "", "cpu ", None])
def test_devices_that_may_not(name):
    with pytest.raises(ValueError, match="device must be auto, cpu, cuda or cuda:N"):
        machine.check_device(name)


@pytest.mark.parametrize(("seen", "auto"), [(0, "cpu"), (2, "cuda")])
def test_auto_takes_what_is_there(monkeypatch, seen, auto):
    monkeypatch.setattr("torch.cuda.is_available", lambda: seen > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: seen)
    assert machine.choose_device("auto") == auto
    assert machine.choose_device("cpu") == "cpu"
    with pytest.raises(ValueError, match="cuda:2: torch sees"):
        machine.choose_device("cuda:2")


def test_cores_are_those_the_process_may_use():
    assert 1 <= machine.available_cores() <= os.cpu_count()


def test_a_record_names_the_machine():
    assert machine.describe_device("cpu").startswith("CPU (")
    origin = machine.describe_origin("cpu")
    assert list(origin) == ["heatbath", "torch", "python", "device"]
    assert origin["heatbath"].startswith(heatbath.__version__)


def test_an_origin_on_a_gpu_names_the_driver(monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_name", lambda _device: "H200")
    origin = machine.describe_origin("cuda")
    assert origin["device"] == "H200"
    assert re.fullmatch(r"(NVIDIA [\d.]+|unknown driver), CUDA .*", origin["driver"])


def checkout(folder):
    """A copy of the package in a repository of its own, and what it says its version is."""
    source = Path(heatbath.__file__).parent
    shutil.copytree(source / "system", folder / "src" / "heatbath" / "system")
    (folder / "src" / "heatbath" / "__init__.py").write_text('__version__ = "1.2.3"\n')
    program = "import heatbath; from heatbath.system.machine import code_version; print(code_version())"

    def ask(**environment):
        variables = {**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1", **environment}
        command = [sys.executable, "-c", program]
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout.strip()

    return ask


def test_the_version_of_a_checkout_has_its_commit_and_a_mark_for_changes(tmp_path):
    def git(*words):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        found = subprocess.run(["git", "-C", tmp_path, *identity, *words], capture_output=True, text=True, check=True)
        return found.stdout.strip()

    if shutil.which("git") is None:
        pytest.skip("no git here")
    version = checkout(tmp_path)
    assert version() == "1.2.3"
    git("init", "-q")
    assert version() == "1.2.3", "there is no commit yet"
    git("add", "src")
    git("commit", "-qm", "first")
    commit = git("rev-parse", "--short=12", "HEAD")
    assert version() == f"1.2.3+g{commit}"
    assert version(GIT_DIR="/nonexistent") == f"1.2.3+g{commit}", "as inside a hook of another repository"
    assert version(PATH="/nonexistent") == "1.2.3", "no git"
    (tmp_path / "notes.txt").write_text("not of the source")
    assert version() == f"1.2.3+g{commit}"
    (tmp_path / "src" / "heatbath" / "new.py").touch()
    assert version() == f"1.2.3+g{commit}.dirty"


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or float(platform.libc_ver()[1]) < 2.35,
    reason="other C libraries stay as they are, and older ones give pieces of more than 32 MiB back",
)
@pytest.mark.parametrize(("keep", "few"), [("pass", False), ("keep_freed_memory()", True)])
def test_a_worker_finds_the_memory_that_it_freed(keep, few):
    """Without that, each of these tensors comes page by page from the system."""
    program = f"""
import resource, torch
from heatbath.system.machine import keep_freed_memory
{keep}
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(100 << 18)  # 100 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (int(told.stdout) < 100) is few
