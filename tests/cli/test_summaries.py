import pytest

from heatbath.cli.summaries import describe_settings, print_groups, title, varying
from heatbath.runs.configs import RunConfig
from heatbath.runs.records import Record
from measured import an_epoch

BASE = RunConfig(epochs=3)
USUAL = "mlp on mnist5k: random, law uniform:1, lr 0.005, batch size 256, Nesterov momentum 0.9, 3 epochs, seed 0"


@pytest.mark.parametrize(
    ("changes", "differing", "words"),
    [
        ({}, [], USUAL),
        ({"seed": 4}, ["seed"], USUAL.removesuffix(", seed 0")),
        ({"nesterov": False}, ["nesterov"], USUAL.replace("Nesterov ", "")),
        ({"momentum": 0.0}, ["momentum"], USUAL.replace(" 0.9", "")),
        ({"momentum": 0.0, "weight_decay": 0.1}, ["momentum", "weight_decay"], USUAL.replace(" 0.9", "")),
        ({"protocol": "constant"}, ["protocol"], USUAL.replace("random, ", "")),
        ({"coupling": "update"}, ["coupling"], USUAL),
        ({"precision": "fp32", "validation": 9}, ["precision", "validation"], USUAL),
        ({"model": "cnn"}, ["model"], USUAL.replace("mlp on ", "")),
        ({"model": "vgg16", "dataset": "cifar10"}, ["model", "dataset"], USUAL.removeprefix("mlp on mnist5k: ")),
    ],
)
def test_what_is_common_and_what_differs(changes, differing, words):
    configs = [BASE, BASE.with_(**changes)]
    assert varying(configs) == varying(configs[::-1]) == differing
    assert describe_settings(configs) == describe_settings(configs[::-1]) == words


def test_common_settings_that_are_not_the_usual_ones_are_told():
    knobs = {"law": "twopoint:0.5", "coupling": "update", "weight_decay": 0.01, "precision": "bf16", "validation": 500}
    config = RunConfig(model="vgg16", dataset="cifar10", weights="imagenet", nesterov=False, epochs=1, seed=3, **knobs)
    words = (
        "vgg16 on cifar10: random, law twopoint:0.5, coupling update, lr 0.005, batch size 256, momentum 0.9, weight "
        "decay 0.01, precision bf16, weights from imagenet, 500 images held out, 1 epoch, seed 3"
    )
    assert describe_settings([config]) == words
    assert "no momentum" in describe_settings([config.with_(momentum=0.0)])


def test_every_setting_is_told_as_a_column_or_in_words():
    values = {"model": "cnn", "dataset": "mnist", "protocol": "cyclic:3", "law": "exponential", "coupling": "update"}
    values |= {"lr": 0.1, "batch_size": 9, "momentum": 0.5, "nesterov": False, "weight_decay": 0.1, "epochs": 7}
    values |= {"precision": "bf16", "weights": "imagenet", "seed": 9, "validation": 9}
    assert list(values) == list(BASE.to_dict())
    for name, value in values.items():
        base = RunConfig(model="vgg16", dataset="cifar10") if name == "weights" else BASE
        assert name in varying([base, base.with_(**{name: value})])
        assert describe_settings([base]) != describe_settings([base.with_(**{name: value})])
        assert title(name)


@pytest.mark.parametrize(("epochs", "shown"), [(20, False), (21, True)])
def test_the_last_epochs_are_told_where_there_are_more(capsys, epochs, shown):
    measured = tuple(an_epoch(0.005, 1.0, 0.5, 1.0, 0.01 * k) for k in range(epochs))
    short = Record(BASE, "finished", measured[:3])
    print_groups([short, Record(BASE.with_(epochs=epochs), "finished", measured)])
    out = capsys.readouterr().out
    assert ("last 20 epochs" in out) == shown
    assert ("0.1050" in out) == shown
