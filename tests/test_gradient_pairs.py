"""The noise that a thermometer finds in halves of a batch, micro-batches and ranks, against each of their gradients."""

import json
import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import heatbath as hb
from heatbath.thermometer import Thermometer
from thermometer_runs import batch, gradient, small_network, step

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
            thermometer.observe(cross_entropy, inputs[i : i + 4], targets[i : i + 4]) if k == 3 else None
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


def test_clipping():
    """observe() without arguments, before the clipping, sees the gradients as they came."""
    traces = []
    for clips in (False, True):
        model = small_network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        thermometer = Thermometer(model, optimizer, interval=1, batch_size=8)
        for part in zip(batch(0)[0].chunk(2), batch(0)[1].chunk(2), strict=True):
            (cross_entropy(model(part[0]), part[1]) / 2).backward()
        thermometer.observe()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
        traces.append(thermometer.history[0]["trace"])
        velocity = thermometer.kinetic_temperature
    assert traces[0] == traces[1] > 0
    assert velocity < 1e-6  # which sees the clipping


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


def train_on_rank(rank, size, folder, accumulates):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    try:
        torch.set_num_threads(1)
        model = small_network()
        passes = []
        model.register_forward_hook(lambda *_: passes.append(1))
        parallel = DistributedDataParallel(model)
        optimizer = hb.RandomSGD(parallel.parameters(), 0.05, momentum=0.8)
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
            thermometer.observe(cross_entropy, inputs.chunk(size)[rank], targets.chunk(size)[rank])
            optimizer.step()
            taken += len(passes) - len(mine)
        result = {"history": thermometer.history, "expected": expected[1::2], "extra": taken}
        Path(f"{folder}/rank{rank}.json").write_text(json.dumps(result))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("accumulates", [False, True])
def test_ranks_give_the_noise_without_an_extra_pass(accumulates):
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train_on_rank, args=(2, folder, accumulates), nprocs=2)
        one, two = (json.loads((Path(folder) / f"rank{rank}.json").read_text()) for rank in range(2))
    assert one["history"] == two["history"]
    assert one["extra"] == two["extra"] == 0
    readings = [[reading["trace"], reading["gradient_norm_squared"]] for reading in one["history"]]
    np.testing.assert_allclose(readings, one["expected"], rtol=1e-9)
    assert min(trace for trace, _ in readings) > 0
