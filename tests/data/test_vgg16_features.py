"""VGG16's ImageNet features: every format, found, verified, and refused when damaged."""

import hashlib
import os
import pickle
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from heatbath.data import vgg16_features
from heatbath.data.formats import DataError
from heatbath.data.vgg16_features import (
    feature_shapes,
    find_vgg16_features,
    half_precision_digest,
    load_vgg16_features,
    read_vgg16_features,
)
from heatbath.tasks.models import build_model


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.delenv("HEATBATH_DATA", raising=False)


@pytest.fixture
def features(monkeypatch):
    """A network two channels wide, whose checksum is the expected one."""
    monkeypatch.setattr(
        vgg16_features, "VGG16_LAYOUT", tuple(w if w == "pool" else 2 for w in vgg16_features.VGG16_LAYOUT)
    )
    generator = torch.Generator().manual_seed(0)
    made = {name: torch.randn(shape, generator=generator) for name, shape in feature_shapes().items()}
    monkeypatch.setattr(vgg16_features, "HALF_PRECISION_SHA256", half_precision_digest(made))
    return made


def write_npz(path, features, dtype=np.float32):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{name: value.numpy().astype(dtype) for name, value in features.items()})


def test_half_and_single_precision_npz(features, tmp_path):
    write_npz(tmp_path / "single.npz", features)
    write_npz(tmp_path / "half.npz", features, np.float16)
    for name, value in read_vgg16_features(tmp_path / "single.npz").items():
        assert torch.equal(value, features[name])
    for name, value in read_vgg16_features(tmp_path / "half.npz").items():
        assert torch.equal(value, features[name].half().float())
        assert value.dtype == torch.float32


@pytest.mark.parametrize("zipped", [True, False])
def test_file_of_torchvision(features, tmp_path, monkeypatch, zipped):
    """Its classifier is left out; the old serialisation is what the published file has."""
    state = {**features, "classifier.0.weight": torch.zeros(3, 3)}
    path = tmp_path / "vgg16-397923af.pth"
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    if not zipped:  # nothing of that form is read but the published file, byte for byte
        content = path.read_bytes()
        published = replace(vgg16_features.REMOTE, size=len(content), sha256=hashlib.sha256(content).hexdigest())
        monkeypatch.setattr(vgg16_features, "REMOTE", published)
    found = load_vgg16_features(data_dir=tmp_path)
    assert list(found) == list(features)
    assert all(torch.equal(found[name], features[name]) for name in features)


def test_search_order(features, tmp_path, monkeypatch):
    assert find_vgg16_features(tmp_path / "a") is None
    places = [tmp_path / "torch" / "hub" / "checkpoints", tmp_path / "cache" / "heatbath"]
    places += [tmp_path / "b" / "vgg16", tmp_path / "a" / "vgg16"]
    monkeypatch.setenv("HEATBATH_DATA", str(tmp_path / "b"))
    for place in places:  # each goes before the ones already there
        place.mkdir(parents=True)
        torch.save(features, place / "vgg16-397923af.pth")
        assert find_vgg16_features(tmp_path / "a") == place / "vgg16-397923af.pth"
    write_npz(tmp_path / "a" / "vgg16" / "vgg16_features_imagenet.npz", features)
    assert find_vgg16_features(tmp_path / "a").suffix == ".npz"


def test_missing_is_one_line(tmp_path):
    with pytest.raises(DataError, match=r"vgg16-397923af.pth not found in .*; get https://.* and put it in") as caught:
        load_vgg16_features(data_dir=tmp_path, download_missing=False)
    assert "\n" not in str(caught.value)


def damage_value(features, path):
    write_npz(path, {**features, "features.5.bias": features["features.5.bias"] + 0.01})


def damage_shape(features, path):
    write_npz(path, {**features, "features.5.bias": torch.zeros(7)})


def damage_name(features, path):
    write_npz(path, {name: value for name, value in features.items() if name != "features.28.bias"})


def damage_finite(features, path):
    write_npz(path, {**features, "features.0.bias": torch.full((2,), torch.nan)})


def damage_end(features, path):
    write_npz(path, features)
    path.write_bytes(path.read_bytes()[:-400])


def damage_bit(features, path):
    write_npz(path, features)
    content = bytearray(path.read_bytes())
    content[content.index(features["features.2.weight"].numpy().tobytes()) + 5] ^= 1
    path.write_bytes(content)


def damage_compressed(features, path):
    np.savez_compressed(path, **{name: tensor.numpy() for name, tensor in features.items()})
    content = bytearray(path.read_bytes())
    start = 30 + int.from_bytes(content[26:28], "little") + int.from_bytes(content[28:30], "little")
    content[start] = 0xFF  # no kind of block that there is
    path.write_bytes(content)


def damage_method(features, path):
    write_npz(path, features)
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 10] = 99
    path.write_bytes(content)


def damage_claim(features, path):
    write_npz(path, {**features, "features.0.bias": torch.zeros(2000)})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_value, "does not hold VGG16's ImageNet weights; expected weights whose half-precision SHA-256 is"),
        (damage_shape, r"features.5.bias has shape \(7,\), expected \(2,\)"),
        (damage_name, "lacks features.28.bias"),
        (damage_finite, "features.0.bias is not finite"),
        (damage_end, "not an intact .npz file"),
        (damage_bit, "not an intact .npz file"),
        (damage_compressed, "not an intact .npz file"),
        (damage_method, "not an intact .npz file"),
        (damage_claim, "features.0.bias claims 8,"),
    ],
)
def test_damaged_npz(features, tmp_path, damage, message):
    path = tmp_path / "vgg16_features_imagenet.npz"
    damage(features, path)
    with pytest.raises(DataError, match=message) as caught:
        load_vgg16_features(path)
    assert str(caught.value).startswith(f"{path} is damaged: ")
    assert "get https://" in str(caught.value)


def test_objects_in_a_file_are_not_made(features, tmp_path):
    class Evil:
        def __reduce__(self):
            return Path.touch, (tmp_path / "run",)

    with (tmp_path / "evil.pth").open("wb") as file:
        pickle.dump({**features, "evil": Evil()}, file)
    np.savez(tmp_path / "evil.npz", **{"features.0.weight": np.array([Evil()], dtype=object)})
    for name in ("evil.pth", "evil.npz"):
        with pytest.raises(DataError, match="is damaged"):
            read_vgg16_features(tmp_path / name)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("name", "message"), [("weights.txt", "expected an .npz"), ("absent.npz", "No such file")])
def test_other_files(tmp_path, name, message):
    with pytest.raises(DataError, match=message):
        load_vgg16_features(tmp_path / name)


DATA = os.environ.get("HEATBATH_DATA", "")


@pytest.mark.skipif(
    not (Path(DATA) / "vgg16" / "vgg16_features_imagenet.npz").is_file(),
    reason="HEATBATH_DATA does not name a folder with vgg16/vgg16_features_imagenet.npz",
)
def test_real_features():
    model = build_model("vgg16", weights="imagenet", data_dir=DATA)
    count = sum(value.numel() for name, value in model.state_dict().items() if name.startswith("features"))
    assert count == 14_714_688
    published = torch.tensor([-0.5537, 0.1427, 0.5290])  # torchvision's first row
    torch.testing.assert_close(model.features[0].weight[0, 0, 0], published, atol=3e-4, rtol=0)


class Claim:
    """A pickle that asks for memory."""

    def __reduce__(self):
        return bytearray, (2**33,)


@pytest.mark.parametrize("kind", ["bytearray", "expanded", "compressed", "legacy"])
def test_a_small_file_of_weights_does_not_fill_the_memory(tmp_path, monkeypatch, kind):
    path = tmp_path / "weights.pth"
    content = {name: torch.zeros(1).expand(2**31) for name in feature_shapes()}
    torch.save(Claim() if kind == "bytearray" else content, path, _use_new_zipfile_serialization=kind != "legacy")
    if kind == "compressed":
        with zipfile.ZipFile(path) as archive:
            parts = {entry: archive.read(entry) for entry in archive.namelist()}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for entry, part in parts.items():
                archive.writestr(entry, part)
    assert path.stat().st_size < 100_000
    if kind != "expanded":  # whose tensors torch makes without taking memory
        monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("torch would believe it"))
    with pytest.raises(DataError, match=r"weights\.pth is damaged: it"):
        load_vgg16_features(path)
