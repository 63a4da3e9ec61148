"""Data is loaded where a run needs it, and once."""

from heatbath.engine import trainer
from heatbath.engine.options import Options
from heatbath.runs.configs import RunConfig

MLP = RunConfig(dataset="mnist")
VGG16 = RunConfig(model="vgg16", dataset="cifar10")


def test_data_is_loaded_once_and_only_if_a_run_needs_it(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(trainer, "load_dataset", lambda name, **_: asked.append(name) or name)
    features = "heatbath.data.vgg16_features.load_vgg16_features"
    monkeypatch.setattr(features, lambda name, **_: asked.append("features") or name)
    here = trainer.Trainer(Options(device="cpu"), tmp_path)
    here.prepare([])
    assert asked == []
    here.prepare([VGG16, VGG16.with_(seed=1), MLP])
    assert asked == ["cifar10", "mnist"]
    pretrained = VGG16.with_(weights="imagenet")
    here.prepare([VGG16, pretrained, pretrained.with_(seed=1)])
    assert asked == ["cifar10", "mnist", "cifar10", "features"], "normalised as ImageNet is, so another data set"
    assert here.dataset(pretrained) == "cifar10"
    assert here.features(pretrained) == "imagenet"
    assert here.features(VGG16) is None
    assert len(asked) == 4
    here.forget()
    here.dataset(MLP)
    assert asked[4:] == ["mnist"]
