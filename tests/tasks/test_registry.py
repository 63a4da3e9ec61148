"""Everything known of a network is in its file, and nothing needs torch but to build and compute it."""

import subprocess
import sys

import pytest
import torch

import heatbath as hb
from heatbath.tasks import networks as folder
from heatbath.tasks import registry
from heatbath.tasks.registry import check_images, find_network, networks

LINEAR = """
from heatbath.tasks.registry import Cost, Network


def layers():
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def rows():
    from heatbath.tasks.stacked_networks import StackedNetwork, weights_and_biases

    return StackedNetwork(weights_and_biases(["1"]), (1.0, 1.0), logits, stacks=False, at_once=1000)


def logits(params, images, dropout):
    weight, bias = (param.squeeze(0) for param in params)
    return (images.flatten(-3).squeeze(0) @ weight.T + bias)[None]


NETWORK = Network(
    "linear", "a linear classifier", (1, 28, 28), "mnist5k", {}, "fp32", Cost(1e-6, 2**29, 7850, 0, 1, 1), layers, rows
)
"""


@pytest.fixture
def fourth(tmp_path, monkeypatch):
    """A network of one new file."""
    (tmp_path / "linear_classifier.py").write_text(LINEAR)
    monkeypatch.setattr(folder, "__path__", [*folder.__path__, str(tmp_path)])
    networks.cache_clear()
    yield "linear"
    networks.cache_clear()
    sys.modules.pop("heatbath.tasks.networks.linear_classifier", None)


def test_a_fourth_network_needs_one_file(fourth, tmp_path):
    assert [*networks()] == ["linear", "mlp", "cnn", "vgg16"]
    with pytest.raises(ValueError, match="choose one of linear, mlp, cnn, vgg16"):
        hb.RunConfig(model="resnet")
    configs = hb.sweep(hb.RunConfig(model=fourth, epochs=2, lr=0.02), seed=range(2), protocol=("constant", "random"))
    records = hb.run(configs, tmp_path / "store", "cpu", workers=1)
    assert all(record.status == "finished" and record.final("test_accuracy") > 0.7 for record in records)
    assert len({record.final("test_loss") for record in records}) == 4
    assert [record.run for record in hb.load(tmp_path / "store")] == [config.run for config in configs]


def test_facts_need_no_torch():
    program = """
import sys
from heatbath.runs.configs import RunConfig
from heatbath.tasks.registry import networks
for network in networks().values():
    RunConfig(model=network.name, dataset=network.dataset).network.margins, network.title, network.cost
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("name", ["mlp", "cnn", "vgg16"])
def test_facts_are_those_of_the_layers(name):
    network = find_network(name)
    assert network.dataset in network.datasets
    assert set(network.margins) <= set(network.datasets)
    with torch.device("meta"):
        layers = network.layers()
        assert layers(torch.zeros(2, *network.input_shape)).shape == (2, 10)
        packed = network.stacked.pack(layers)
    assert sum(tensor.numel() for tensor in packed) == network.cost.weights
    assert set(network.stacked.names) == set(dict(layers.named_parameters()))


@pytest.mark.parametrize("name", ["mlp", "cnn", "vgg16"])
def test_a_stack_can_be_traced_by_the_compiler(name):
    """Imports inside the functions do not stop it; the products are those that are not compiled."""
    network = find_network(name)
    generator = torch.Generator().manual_seed(0)
    with torch.device("meta"):
        shapes = [tensor.shape for tensor in network.stacked.pack(network.layers())]
    params = [0.05 * torch.randn(1, *shape, generator=generator) for shape in shapes]
    images = torch.randn(1, 2, *network.input_shape, generator=generator)
    traced = torch.compile(network.stacked.logits, backend="eager", fullgraph=True)
    torch.testing.assert_close(traced(params, images, None), network.stacked.logits(params, images, None))


def test_unknown_networks_and_images():
    with pytest.raises(ValueError, match="unknown model 'resnet': choose one of mlp, cnn, vgg16"):
        check_images("resnet", "mnist")
    with pytest.raises(ValueError, match=r"unknown dataset 'svhn': choose one of mnist5k, mnist, cifar10$"):
        check_images("mlp", "svhn")
    with pytest.raises(ValueError, match="cnn takes images of 1 x 28 x 28, those of mnist5k or mnist; cifar10's are"):
        check_images("cnn", "cifar10")
    assert check_images("vgg16", "cifar10") is registry.networks()["vgg16"]
