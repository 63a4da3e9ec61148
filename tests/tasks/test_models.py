"""The three networks: sizes, initial weights as PyTorch's and torchvision's, a pure function of the seed."""

import math
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn

from heatbath.data.vgg16_features import feature_shapes
from heatbath.tasks.models import build_model, weights_generator
from heatbath.tasks.registry import networks

KNOWN = {"mlp": 79_510, "cnn": 418_122, "vgg16": 134_301_514}


@pytest.fixture(scope="module")
def vgg():
    return build_model("vgg16", seed=5)


@pytest.mark.parametrize("name", KNOWN)
def test_parameter_counts(name):
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in networks()[name].layers().parameters()) == KNOWN[name]


def test_the_image_shrinks_as_the_last_layer_needs():
    sizes = []
    model = build_model("cnn")
    for layer in model.features:
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            layer.register_forward_hook(lambda _layer, _inputs, output: sizes.append(tuple(output.shape[1:])))
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    widths = [64, 64, 64, 128, 128, 128, 128]
    assert sizes == [(width, side, side) for width, side in zip(widths, [26, 24, 12, 10, 8, 6, 3], strict=True)]


def test_the_perceptron_is_its_formula():
    model = build_model("mlp", seed=1)
    images = torch.randn(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    hidden = (images.reshape(3, 784) @ model.hidden.weight.T + model.hidden.bias).clamp(min=0)
    torch.testing.assert_close(model(images), hidden @ model.output.weight.T + model.output.bias)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_starts_as_pytorch_does(name):
    """From the same generator state, exactly what the layers' own initialisation draws."""
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(weights_generator(11).get_state())
        plain = networks()[name].layers()
    for ours, theirs in zip(build_model(name, seed=11).parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_vgg16_starts_as_torchvision_does(vgg):
    """Convolutions normal with variance 2 / fan-out, linear layers normal with deviation 0.01, biases 0."""
    for name, parameter in vgg.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
            continue
        sample = parameter.detach().flatten()[:1_000_000].double()
        deviation = 0.01 if name.startswith("classifier") else math.sqrt(2.0 / (parameter.shape[0] * 9))
        count = sample.numel()
        assert abs(sample.mean()) < 5 * deviation / math.sqrt(count), name
        assert abs(sample.std() / deviation - 1.0) < 5 / math.sqrt(2 * count), name
        kurtosis = (sample**4).mean() / deviation**4
        assert abs(kurtosis - 3.0) < 5 * math.sqrt(96 / count), name


def test_vgg16_has_the_names_of_torchvision(vgg):
    convolutions = [f"features.{index}" for index in (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)]
    layers = [*convolutions, "classifier.0", "classifier.3", "classifier.6"]
    state = vgg.state_dict()
    assert list(state) == [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
    assert {name: tuple(state[name].shape) for name in state if "features" in name} == feature_shapes()
    assert [layer.p for layer in vgg.modules() if isinstance(layer, nn.Dropout)] == [0.5, 0.5]


def test_vgg16_runs_on_small_images(vgg):
    vgg.eval()
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = vgg(images)
        pixel = vgg.features(images)
        assert pixel.shape == (2, 512, 1, 1)
        torch.testing.assert_close(logits, vgg.classifier(pixel.expand(2, 512, 7, 7).flatten(1)))
    assert logits.shape == (2, 10)


@contextmanager
def untouched_global_state():
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002 - the global state is what is tested
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    yield
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(numpy_before, np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_weights_are_a_function_of_the_seed_alone(name):
    first = build_model(name, seed=5)
    torch.rand(7)
    usual = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        with untouched_global_state():
            second = build_model(name, seed=5)
    finally:
        torch.set_default_dtype(usual)
    for one, two in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, two)


def test_seeds_differ():
    """Also those that torch's generator, which takes 32 bits of a seed, would confuse."""
    seeds = [0, 1, 2, 2**32, 2**32 + 1, 2**63, 2**64 - 1]
    firsts = {build_model("mlp", seed=seed).hidden.weight[0, 0].item() for seed in seeds}
    assert len(firsts) == len(seeds)
    plain = torch.empty(100, 784).uniform_(-1 / 28, 1 / 28, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(build_model("mlp", seed=0).hidden.weight, plain)


def test_given_features_leave_the_classifier_to_the_seed(vgg):
    generator = torch.Generator().manual_seed(3)
    features = {name: torch.randn(shape, generator=generator) for name, shape in feature_shapes().items()}
    with untouched_global_state():
        model = build_model("vgg16", seed=5, weights=features)
    for name, value in model.state_dict().items():
        assert torch.equal(value, features[name] if name in features else vgg.state_dict()[name]), name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "resnet"}, "unknown model 'resnet': choose one of mlp, cnn, vgg16"),
        ({"name": "mlp", "weights": "imagenet"}, "weights 'imagenet' are for vgg16"),
        ({"name": "mlp", "seed": -1}, "seed must be an integer"),
        ({"name": "vgg16", "weights": {"features.0.weight": torch.zeros(64, 3, 3, 3)}}, "it lacks features.0.bias"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        build_model(**arguments)
