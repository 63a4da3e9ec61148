import os

import pytest

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
    assert set(machine.installed_versions()) == {"heatbath", "torch", "python"}
