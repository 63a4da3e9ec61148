"""The noise that a thermometer finds in halves of a batch, micro-batches and ranks, against each of their gradients."""

import contextlib
import json
import math
import tempfile
from collections import UserDict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import heatbath as hb
from heatbath.thermometry.thermometer import Thermometer
from noise_problems import Named
from ranks import member
from thermometer_runs import assert_alike, batch, gradient, small_network, step

pytestmark = pytest.mark.usefixtures("one_thread")


def test_halves():
    model = small_network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    thermometer = Thermometer(model, optimizer, interval=1)
    inputs, targets = batch(0, 9)  # the ninth is left out
    one, two = gradient(model, inputs[:4], targets[:4]), gradient(model, inputs[4:8], targets[4:8])
    step(model, optimizer, thermometer, inputs, targets, cross_entropy)
    (reading,) = thermometer.history
    assert reading["trace"] == pytest.approx(2 * (one - two).square().sum().item(), rel=1e-10)
    assert reading["gradient_norm_squared"] == pytest.approx((one @ two).item(), rel=1e-10)
    assert reading["temperature"] == pytest.approx(0.1 * reading["trace"] / (2 * 9 * len(one)), rel=1e-10)


class Saving(nn.Sequential):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


@pytest.mark.parametrize("kind", [nn.Sequential, Saving])
def test_statistics_of_a_layer_of_two_names_are_left_as_they_were(kind):
    """Also where it runs in the backward pass a second time."""
    layer = nn.BatchNorm1d(5).double()
    model = nn.Sequential(kind(nn.Linear(5, 5).double(), layer, layer), small_network())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    mean, before = layer.running_mean, layer.running_mean.clone()
    Thermometer(model, optimizer, interval=1).observe(cross_entropy, *batch(0))
    assert layer.running_mean is mean
    assert torch.equal(mean, before)
    assert layer.num_batches_tracked == 0


@pytest.mark.parametrize("divides", [True, False])
@pytest.mark.parametrize("scaled", [None, False, True], ids=["plain", "scaler", "fused scaler"])
def test_micro_batches_need_no_extra_pass(divides, scaled):
    model = small_network()
    optimizer = hb.RandomSGD(model.parameters(), 0.1, momentum=0.5, fused=bool(scaled))
    scaler = None if scaled is None else torch.amp.GradScaler("cpu", init_scale=64.0)
    thermometer = Thermometer(model, optimizer, interval=2, batch_size=12, decay=0.0, scaler=scaler)
    passes, scale = [], 1.0 if divides else 3.0
    model.register_forward_hook(lambda *_: passes.append(1))
    for k in range(4):
        optimizer.zero_grad()
        inputs, targets = batch(k, 12)
        parts = torch.stack([scale * gradient(model, inputs[i : i + 4], targets[i : i + 4]) for i in (0, 4, 8)])
        passes.clear()
        for i in (0, 4, 8):
            loss = cross_entropy(model(inputs[i : i + 4]), targets[i : i + 4]) * scale / 3
            (loss if scaler is None else scaler.scale(loss)).backward()
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        assert len(passes) == 3
    small, whole = parts.square().sum(dim=1).mean().item(), parts.mean(dim=0).square().sum().item()
    reading = thermometer.history[-1]
    assert len(thermometer.history) == 2
    assert reading["trace"] == pytest.approx(12 * (small - whole) / 2, rel=1e-9)
    assert reading["gradient_norm_squared"] == pytest.approx((3 * whole - small) / 2, rel=1e-9)


def test_what_is_observed_is_the_noise_whatever_the_passes():
    """Equal samples have none, also where the loss is taken in two passes or another pass comes before."""
    model = small_network()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    thermometer = Thermometer(model, optimizer, interval=1, batch_size=8)
    inputs, targets = batch(0)[0][:1].repeat(8, 1), torch.zeros(8, dtype=torch.long)
    for _ in range(3):
        optimizer.zero_grad()
        thermometer.observe(lambda a, b: cross_entropy(a, b) + 0.1 * a.square().mean(), inputs, targets)
        outputs = model(inputs)
        cross_entropy(outputs, targets).backward(retain_graph=True)
        (0.1 * outputs.square().mean()).backward()
        optimizer.step()
    assert [reading["trace"] for reading in thermometer.history] == pytest.approx([0.0, 0.0, 0.0], abs=1e-25)
    assert thermometer.history[-1]["gradient_norm_squared"] > 0.01


@pytest.mark.parametrize("to_none", [True, False])
def test_passes_that_are_zeroed_are_no_part_of_the_step(to_none):
    """An adversarial pass, then micro-batches or one batch; a parameter whose gradient is always zero is no sign."""
    model = small_network()
    model[2].bias.register_hook(lambda grad: 0.0 * grad)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    thermometer = Thermometer(model, optimizer, interval=1, batch_size=8, decay=0.0)
    for k, pieces in enumerate((1, 2, 4)):
        inputs, targets = batch(k)
        optimizer.zero_grad(set_to_none=to_none)
        cross_entropy(model(inputs + 1), targets).backward()
        optimizer.zero_grad(set_to_none=to_none)
        rows = list(zip(inputs.chunk(pieces), targets.chunk(pieces), strict=True))
        parts = torch.stack([gradient(model, *row) for row in rows])
        for row in rows:
            (cross_entropy(model(row[0]), row[1]) / pieces).backward()
        optimizer.step()
        trace = thermometer.history[-1]["trace"]
        if pieces == 1:
            assert trace is None
        else:
            exact = 8 * (parts.square().sum(dim=1).mean() - parts.mean(dim=0).square().sum()) / (pieces - 1)
            assert trace == pytest.approx(exact.item(), rel=1e-9)


class Failing(torch.autograd.Function):
    """Raises in the backward pass, as an accelerator whose memory is full."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("out of memory")


def test_a_backward_pass_that_raised_and_was_taken_again_hides_no_clipping():
    readings = []
    for fails in (False, True):
        model = small_network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        thermometer = Thermometer(model, optimizer, interval=1, batch_size=8)
        inputs, targets = batch(0)
        if fails:
            with pytest.raises(RuntimeError, match="out of memory"):
                cross_entropy(model[2:](Failing.apply(model[:2](inputs))), targets).backward()
            assert model[2].weight.grad is not None
            assert model[0].weight.grad is None
            optimizer.zero_grad()
        for i in (0, 4):
            (cross_entropy(model(inputs[i : i + 4]), targets[i : i + 4]) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        with pytest.warns(RuntimeWarning, match="clipped"):
            optimizer.step()
        readings += thermometer.history
    assert readings[0]["clipping"] < 0.5
    assert_alike(readings[:1], readings[1:])


def test_layer_in_two_reentrant_checkpoints():
    """One backward pass reaches it twice: two parts of its gradient that are no micro-batches."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.shared, self.head = nn.Linear(5, 5).double(), nn.Linear(5, 3).double()

        def forward(self, x):
            x = x.clone().requires_grad_()
            for _ in range(2):
                x = checkpoint(self.shared, x, use_reentrant=True).tanh()
            return self.head(x)

    model = Twice()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    thermometer = Thermometer(model, optimizer, interval=1, batch_size=8)
    cross_entropy(model(batch(0)[0]), batch(0)[1]).backward()
    optimizer.step()
    assert thermometer.history[-1]["trace"] is None
    assert thermometer.history[-1]["kinetic_temperature"] > 0


@pytest.mark.parametrize("skips", ["scaler", "continue"])
@pytest.mark.parametrize("order", ["observe first", "backward first"])
@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("pieces", [1, 2])
def test_skipped_steps_do_not_end_the_readings(skips, order, to_none, pieces):
    """Whoever calls observe for each micro-batch has observed a whole step, and no more than that."""
    model = small_network()
    optimizer = hb.RandomSGD(model.parameters(), 0.05, momentum=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    thermometer = Thermometer(model, optimizer, interval=1, decay=0.0, scaler=scaler)
    for k in range(6):
        optimizer.zero_grad(set_to_none=to_none)
        is_skipped = k in (0, 1, 3)
        for x, y in zip(batch(k)[0].chunk(pieces), batch(k)[1].chunk(pieces), strict=True):
            if order == "observe first":
                thermometer.observe(cross_entropy, x, y)
            loss = cross_entropy(model(x), y) / pieces
            scaler.scale(loss * math.inf if is_skipped and skips == "scaler" else loss).backward()
            if order == "backward first":
                thermometer.observe(cross_entropy, x, y)
        if is_skipped and skips == "continue":
            continue
        scaler.step(optimizer)
        scaler.update()
    assert len(thermometer.history) == 3
    for reading in thermometer.history:
        knobs = hb.Thermostat(0.05, 8, 0.5, law="uniform:1")  # 8 samples are in each step
        assert reading["temperature"] == pytest.approx(knobs.temperature(reading["trace"] / 57), rel=1e-12)


@dataclass
class Scores:
    logits: torch.Tensor


WRAPPINGS = {
    "dataclass": (Scores, lambda outputs: outputs.logits),
    "dict": (lambda scores: Named(logits=scores), lambda outputs: outputs.logits),
    "flat": (lambda scores: scores.flatten(0, 1), lambda outputs: outputs),
    "with None": (lambda scores: (scores, None), lambda outputs: outputs[0]),
}


@pytest.mark.parametrize("kind", WRAPPINGS)
def test_outputs_of_any_type(kind):
    wrap, unwrap = WRAPPINGS[kind]

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = small_network()

        def forward(self, x):
            return wrap(self.body(x))

    def loss_fn(outputs, targets):
        return cross_entropy(unwrap(outputs).reshape(-1, 3), targets.flatten())

    model = Wrapped()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    thermometer = Thermometer(model, optimizer, interval=1)
    inputs, targets = batch(0, 16)
    one, two = (gradient(model.body, inputs[part], targets[part]) for part in (slice(0, 8), slice(8, 16)))
    step(model, optimizer, thermometer, inputs.reshape(8, 2, 5), targets.reshape(8, 2), loss_fn)
    assert thermometer.trace == pytest.approx(2 * (one - two).square().sum().item(), rel=1e-9)


@pytest.mark.parametrize("with_buffers", [True, False])
@pytest.mark.parametrize("kind", [tuple, dict, UserDict, Named], ids=lambda kind: kind.__name__)
def test_models_of_several_arguments(kind, with_buffers):
    """They are called as by `measure_noise`."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = small_network()
            if with_buffers:
                self.register_buffer("seen", torch.zeros(()))

        def forward(self, x, scale):
            return self.body(x * scale[:, None])

    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    thermometer = Thermometer(model, optimizer, interval=1)
    (inputs, targets), scale = batch(0, 8), torch.linspace(0.5, 2.0, 8, dtype=torch.float64)
    together = (inputs, scale) if kind is tuple else kind(scale=scale, x=inputs)
    thermometer.observe(lambda outputs, wrapped: cross_entropy(outputs, wrapped.y), together, Named(y=targets))
    scaled = inputs * scale[:, None]
    one, two = (gradient(model.body, scaled[part], targets[part]) for part in (slice(0, 4), slice(4, 8)))
    cross_entropy(model(inputs, scale), targets).backward()
    optimizer.step()
    assert thermometer.trace == pytest.approx(2 * (one - two).square().sum().item(), rel=1e-9)


@pytest.mark.parametrize("weighs_samples", [False, True])
def test_micro_batches_of_several_sizes_are_unbiased(weighs_samples):
    """At fixed weights, over many steps; the temperature is that of the variance of the step's gradient."""
    model, (inputs, targets) = small_network(), batch(0, 200)
    each = torch.stack([gradient(model, inputs[i : i + 1], targets[i : i + 1]) for i in range(200)])
    exact = each.var(dim=0, correction=0).sum().item(), each.mean(dim=0).square().sum().item()
    optimizer = torch.optim.SGD(model.parameters(), 1e-12)
    thermometer = Thermometer(model, optimizer, interval=1, decay=0.0)
    generator, sizes, whole = torch.Generator().manual_seed(3), (6, 3, 1), []
    for index in torch.randint(200, (700, 10), generator=generator):
        optimizer.zero_grad()
        for part in index.split(sizes):
            loss = cross_entropy(model(inputs[part]), targets[part])
            (loss * (len(part) / 10 if weighs_samples else 1 / 3)).backward()
            thermometer.count(len(part), weighs_samples=weighs_samples)
        whole.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        optimizer.step()
    for key, value in zip(("trace", "gradient_norm_squared"), exact, strict=True):
        values = np.array([reading[key] for reading in thermometer.history])
        assert abs(values.mean() - value) < 4 * values.std() / math.sqrt(len(values)), key
        assert values.std() / math.sqrt(len(values)) < 0.1 * value
    spread = torch.stack(whole).var(dim=0).sum().item()
    size = 10 if weighs_samples else 9 / (1 / 6 + 1 / 3 + 1)
    assert spread == pytest.approx(exact[0] / size, rel=0.1)
    temperatures = [reading["temperature"] for reading in thermometer.history]
    noises = [1e-12 * max(reading["trace"], 0.0) / size / (2 * 57) for reading in thermometer.history]
    assert temperatures == pytest.approx(noises, rel=1e-9)


def test_readings_begin_anew_when_the_batch_size_becomes_known():
    """Micro-batches without a batch size give tr(S1)/C; the average must not mix it with tr(S1)."""
    model = small_network()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    thermometer = Thermometer(model, optimizer, interval=1, decay=0.9)
    for k in range(3):
        optimizer.zero_grad()
        for x, y in zip(batch(k)[0].chunk(2), batch(k)[1].chunk(2), strict=True):
            (cross_entropy(model(x), y) / 2).backward()
        optimizer.step()
    assert thermometer.history[-1]["trace"] is None
    step(model, optimizer, thermometer, *batch(3), cross_entropy)
    one, two = (gradient(model, x, y) for x, y in zip(batch(3)[0].chunk(2), batch(3)[1].chunk(2), strict=True))
    assert thermometer.history[-1]["trace"] == pytest.approx(2 * (one - two).square().sum().item(), rel=1e-9)


def test_without_a_batch_size_there_is_a_temperature_but_no_trace():
    temperatures = []
    for size in (None, 8):
        model = small_network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        thermometer = Thermometer(model, optimizer, interval=1, batch_size=size)
        for part in zip(batch(0)[0].chunk(2), batch(0)[1].chunk(2), strict=True):
            (cross_entropy(model(part[0]), part[1]) / 2).backward()
        optimizer.step()
        temperatures.append(thermometer.temperature)
        assert (thermometer.history[0]["trace"] is None) == (size is None)
    assert temperatures[0] == pytest.approx(temperatures[1], rel=1e-12)
    assert temperatures[0] > 0


@pytest.mark.parametrize("observes", [True, False])
def test_clipping(observes):
    """Gradients are looked at before they are clipped, and the clipping is told."""
    traces = []
    for limit in (math.inf, 1e-3):
        model = small_network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        thermometer = Thermometer(model, optimizer, interval=1, batch_size=8)
        if observes:
            thermometer.observe(cross_entropy, *batch(0))
        for part in zip(batch(0)[0].chunk(2), batch(0)[1].chunk(2), strict=True):
            (cross_entropy(model(part[0]), part[1]) / 2).backward()
        length = nn.utils.clip_grad_norm_(model.parameters(), limit).item()
        with pytest.warns(RuntimeWarning, match="clipped") if limit < 1 else contextlib.nullcontext():
            optimizer.step()
        traces.append((thermometer.trace, thermometer.history[0]["gradient_norm_squared"]))
        scale = min(1.0, limit / length)
        assert thermometer.history[0]["clipping"] == pytest.approx(scale, rel=1e-3)
        expected = scale * 0.1 * thermometer.trace / (2 * 8 * 0.1 * 57)
        assert thermometer.temperature == pytest.approx(expected, rel=1e-3)
    assert traces[0] == pytest.approx(traces[1], rel=1e-12)
    assert thermometer.kinetic_temperature < 1e-6  # which sees the clipping


def test_unbiased():
    """At fixed weights, over many batches, from halves: both numbers have the mean they should."""
    model, (inputs, targets) = small_network(), batch(0, 200)
    each = torch.stack([gradient(model, inputs[i : i + 1], targets[i : i + 1]) for i in range(200)])
    exact = each.var(dim=0, correction=0).sum().item(), each.mean(dim=0).square().sum().item()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    thermometer = Thermometer(model, optimizer, interval=1, decay=0.0)
    generator = torch.Generator().manual_seed(3)
    for index in torch.randint(200, (600, 10), generator=generator):
        step(model, optimizer, thermometer, inputs[index], targets[index], cross_entropy)
    for key, value in zip(("trace", "gradient_norm_squared"), exact, strict=True):
        values = np.array([reading[key] for reading in thermometer.history])
        assert abs(values.mean() - value) < 4 * values.std() / math.sqrt(len(values))
        assert values.std() / math.sqrt(len(values)) < 0.1 * value
    assert thermometer.temperature == 0.0


def test_sampling_without_replacement():
    temperatures = []
    for size in (None, 40):
        model = small_network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        thermometer = Thermometer(model, optimizer, interval=1, dataset_size=size)
        step(model, optimizer, thermometer, *batch(0), cross_entropy)
        temperatures.append(thermometer.temperature)
    assert temperatures[1] == pytest.approx(temperatures[0] * (1 - 8 / 40), rel=1e-12)


def test_the_size_of_the_data_needs_that_of_a_batch():
    model = small_network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    thermometer = Thermometer(model, optimizer, interval=1, dataset_size=40)
    for part in zip(batch(0)[0].chunk(2), batch(0)[1].chunk(2), strict=True):
        (cross_entropy(model(part[0]), part[1]) / 2).backward()
    with pytest.warns(RuntimeWarning, match="dataset_size needs batch_size"):
        optimizer.step()
    assert math.isnan(thermometer.temperature)


@pytest.mark.parametrize("pieces", [1, 2])
def test_sparse_gradients_read_as_dense_ones(pieces):
    histories = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(7, 4, sparse=sparse), nn.Flatten(), nn.Linear(12, 3)).double()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.5)
        thermometer = Thermometer(model, optimizer, interval=1, batch_size=8)
        for k in range(4):
            optimizer.zero_grad()
            words = torch.randint(7, (8, 3), generator=torch.Generator().manual_seed(k))
            if pieces == 1:
                thermometer.observe(cross_entropy, words, batch(k)[1])
            for x, y in zip(words.chunk(pieces), batch(k)[1].chunk(pieces), strict=True):
                (cross_entropy(model(x), y) / pieces).backward()
            optimizer.step()
        histories.append(thermometer.history)
    assert_alike(*histories)
    assert histories[0][-1]["trace"] > 0


def train_on_rank(rank, size, folder, accumulates, wraps_later):
    with member(rank, size, folder):
        model = small_network()
        passes = []
        model.register_forward_hook(lambda *_: passes.append(1))
        optimizer = hb.RandomSGD(model.parameters(), 0.05, momentum=0.8)
        if wraps_later:  # as frameworks do, after they asked for the optimizers
            thermometer = Thermometer(model, optimizer, interval=2, decay=0.0)
            parallel = DistributedDataParallel(model)
        else:
            parallel = DistributedDataParallel(model)
            thermometer = Thermometer(parallel, optimizer, interval=2, batch_size=16, decay=0.0)
        expected, taken = [], 0
        for k in range(6):
            inputs, targets = batch(k, 16)
            pieces = 2 * size if accumulates else size
            rows = zip(inputs.chunk(pieces), targets.chunk(pieces), strict=True)
            parts = torch.stack([gradient(model, *row) for row in rows])
            small, whole = parts.square().sum(dim=1).mean().item(), parts.mean(dim=0).square().sum().item()
            trace = 16 * (small - whole) / (pieces - 1)
            expected.append([trace, (pieces * whole - small) / (pieces - 1)])
            passes.clear()
            optimizer.zero_grad()
            mine = [data.chunk(size)[rank].chunk(pieces // size) for data in (inputs, targets)]
            mine = list(zip(*mine, strict=True))
            for i, row in enumerate(mine):
                if i < len(mine) - 1:
                    with parallel.no_sync():
                        (cross_entropy(parallel(row[0]), row[1]) / len(mine)).backward()
                else:
                    (cross_entropy(parallel(row[0]), row[1]) / len(mine)).backward()
                thermometer.observe(cross_entropy, *row)
            thermometer.note_loss(rank + k)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            taken += len(passes) - len(mine)
        result = {"history": thermometer.history, "expected": expected[1::2], "extra": taken}
        Path(f"{folder}/rank{rank}.json").write_text(json.dumps(result))


@pytest.mark.parametrize("accumulates", [False, True])
@pytest.mark.parametrize("wraps_later", [False, True])
def test_ranks_give_the_noise_without_an_extra_pass(accumulates, wraps_later):
    """All ranks read the same, of the whole batch, before the averaged gradients are clipped."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train_on_rank, args=(2, folder, accumulates, wraps_later), nprocs=2)
        one, two = (json.loads((Path(folder) / f"rank{rank}.json").read_text()) for rank in range(2))
    assert one["history"] == two["history"]
    assert one["extra"] == two["extra"] == 0
    readings = [[reading["trace"], reading["gradient_norm_squared"]] for reading in one["history"]]
    np.testing.assert_allclose(readings, one["expected"], rtol=1e-9)
    assert min(trace for trace, _ in readings) > 0
    assert all(0.0 < reading["clipping"] < 1.0 for reading in one["history"])
    assert [reading["loss"] for reading in one["history"]] == [1.5, 3.5, 5.5]
    temperatures = [
        reading["clipping"] * hb.Thermostat(0.05, 16, 0.8, law="uniform:1").temperature(reading["trace"] / 57)
        for reading in one["history"]
    ]
    assert [reading["temperature"] for reading in one["history"]] == pytest.approx(temperatures, rel=1e-9)


def train_apart(rank, size, folder):
    with member(rank, size, folder):
        model = small_network(rank)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        thermometer = Thermometer(model, optimizer, interval=1, decay=0.0)
        with pytest.warns(RuntimeWarning, match="2 processes are running, but the model is in no Distributed"):
            step(model, optimizer, thermometer, *batch(rank), cross_entropy)
        Path(f"{folder}/rank{rank}.json").write_text(json.dumps(thermometer.history[-1]["trace"]))


def test_processes_that_do_not_average_their_gradients_are_told_apart():
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train_apart, args=(2, folder), nprocs=2)
        traces = [json.loads((Path(folder) / f"rank{rank}.json").read_text()) for rank in range(2)]
    for rank, trace in enumerate(traces):
        halves = zip(batch(rank)[0].chunk(2), batch(rank)[1].chunk(2), strict=True)
        one, two = (gradient(small_network(rank), *half) for half in halves)
        assert trace == pytest.approx(2 * (one - two).square().sum().item(), rel=1e-9)
