"""Batches of any kind, for `measure_noise` from a loader and for `Thermometer.observe`."""

from collections import UserDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import heatbath as hb
from thermometer_runs import batch, gradient, small_network

pytestmark = pytest.mark.usefixtures("one_thread")
Pair = namedtuple("Pair", "x y")


@dataclass(frozen=True)
class Record:
    x: torch.Tensor
    rest: list
    name: str = "batch"


class TestLoaders:
    def test_pairs_and_mappings_are_the_data_put_together(self):
        model, (inputs, targets) = small_network(), batch(0, 40)
        exact = hb.measure_noise(model, cross_entropy, inputs[:24], targets[:24])
        pairs = DataLoader(TensorDataset(inputs, targets), 8)
        assert hb.measure_noise(model, cross_entropy, pairs, batches=3).trace == exact.trace
        assert hb.measure_noise(model, cross_entropy, pairs).samples == 40

        class Named(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = model

            def forward(self, x, labels):
                return {"loss": cross_entropy(self.body(x), labels)}

        mappings = [{"labels": y, "x": x} for x, y in zip(inputs.split(8), targets.split(8), strict=True)]
        found = hb.measure_noise(Named(), lambda outputs, _: outputs["loss"], mappings, batches=3)
        assert found.trace == pytest.approx(exact.trace, rel=1e-12)
        assert found.method == "exact"

    @pytest.mark.parametrize(
        ("loader", "error", "words"),
        [
            ([], ValueError, "no batches"),
            ([(torch.zeros(4, 5), torch.zeros(4)), (torch.zeros(4, 6), torch.zeros(4))], ValueError, "pad"),
            ([torch.zeros(4, 5)], TypeError, "pairs .* got Tensor"),
            ([(torch.zeros(4, 5), ["a"] * 4)], TypeError, "got str"),
            (torch.zeros(4, 5), TypeError, "Tensor alone"),
            (3, TypeError, "int alone"),
        ],
    )
    def test_what_is_no_loader(self, loader, error, words):
        with pytest.raises(error, match=words):
            hb.measure_noise(small_network(), cross_entropy, loader)

    def test_arguments_that_do_not_go_together(self):
        with pytest.raises(ValueError, match="batches goes with a loader"):
            hb.measure_noise(small_network(), cross_entropy, *batch(0), batches=2)
        with pytest.raises(TypeError, match="loss_fn must be a function"):
            hb.measure_noise(small_network(), None, *batch(0))
        with pytest.raises(TypeError, match="model must be"):
            hb.measure_noise(None, cross_entropy, *batch(0))


KINDS = {
    "dict": (lambda x, y: {"x": x, "labels": y}, lambda b: (b["x"], b["labels"])),
    "UserDict": (lambda x, y: UserDict(x=x, labels=y), lambda b: (b["x"], b["labels"])),
    "nested": (lambda x, y: [{"in": (x,), "name": "first"}, (y, None)], lambda b: (b[0]["in"][0], b[1][0])),
    "namedtuple": (lambda x, y: Pair(x, y), lambda b: (b.x, b.y)),
    "data class": (lambda x, y: Record(x, [y]), lambda b: (b.x, b.rest[0])),
    "with numbers": (
        lambda x, y: {"x": x, "y": y, "scale": torch.tensor(2.0), "mask": torch.ones(1, 5)},
        lambda b: (b["x"] * b["mask"], b["y"]),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_observe_takes_any_batch(kind):
    pack, unpack = KINDS[kind]
    model = small_network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    thermometer = hb.Thermometer(model, optimizer, interval=1)
    inputs, targets = batch(0, 10)
    one, two = (gradient(model, inputs[part], targets[part]) for part in (slice(0, 5), slice(5, 10)))

    def loss_of_batch(data):
        x, y = unpack(data)
        return cross_entropy(model(x), y)

    thermometer.observe(loss_of_batch, pack(inputs, targets))
    loss_of_batch(pack(inputs, targets)).backward()
    optimizer.step()
    assert thermometer.trace == pytest.approx(2.5 * (one - two).square().sum().item(), rel=1e-9)
    assert thermometer.history[0]["gradient_norm_squared"] == pytest.approx((one @ two).item(), rel=1e-9)
    assert thermometer.history[0]["loss"] == pytest.approx(cross_entropy(small_network()(inputs), targets).item())


def test_a_loss_that_divides_by_the_items_of_the_whole_batch_is_refused():
    """As causal language models do when they are given ``num_items_in_batch``: halves of it are half of a mean."""
    model = small_network()
    thermometer = hb.Thermometer(model, torch.optim.SGD(model.parameters(), 0.1), interval=1)
    data = dict(zip(("x", "y"), batch(0, 12), strict=True))

    def loss(data, items):
        return cross_entropy(model(data["x"]), data["y"], reduction="sum") / items

    with pytest.raises(ValueError, match="num_items_in_batch"):
        thermometer.observe(lambda b: loss(b, 12), data)
    thermometer.observe(lambda b: loss(b, len(b["x"])), data)
