"""Several processes on one machine, over gloo: the ranks agree on every draw without a message about it."""

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import heatbath as hb
from heatbath.rehearsals import is_rehearsal

SETTINGS = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01, "law": hb.LogNormal(0.4), "seed": 13}
STEPS = 8


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()


def batch(k, rank, size):
    """This rank's share of the ``k``-th batch of 24 rows."""
    whole = torch.randn(24, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(k))
    return whole.chunk(size)[rank]


def alone():
    """The same training in one process."""
    model = make_model()
    optimizer = hb.RandomSGD(model.parameters(), 0.05, **SETTINGS)
    for k in range(STEPS):
        optimizer.zero_grad()
        model(batch(k, 0, 1)).pow(2).mean().backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


@contextmanager
def member(rank, size, folder):
    """Be one of several processes, to the end of this one; an error inside is left to `mp.spawn`."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    yield
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # in an orderly exit a thread of gloo's that is still there may abort the process


def train(rank, size, folder, parallelize):
    with member(rank, size, folder):
        torch.set_num_threads(1)
        model = make_model()
        parallel = parallelize(model)
        optimizer = hb.RandomSGD(parallel.parameters(), 0.05, **SETTINGS)
        rates = []
        for k in range(STEPS):
            optimizer.zero_grad()
            parallel(batch(k, rank, size)).pow(2).mean().backward()
            optimizer.step()
            rates.append(optimizer.param_groups[0]["rate"])
        weights = [p.full_tensor() if hasattr(p, "full_tensor") else p.detach() for p in parallel.parameters()]
        torch.save({"rates": rates, "weights": [w.detach() for w in weights]}, f"{folder}/rank{rank}.pt")


def shard(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))


@pytest.mark.parametrize(
    ("parallelize", "size"), [(DistributedDataParallel, 2), (DistributedDataParallel, 3), (shard, 2)]
)
def test_every_rank_draws_alike_and_the_weights_stay_identical(parallelize, size):
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, args=(size, folder, parallelize), nprocs=size)
        results = [torch.load(Path(folder) / f"rank{rank}.pt", weights_only=True) for rank in range(size)]
    expected = hb.draw(SETTINGS["law"], SETTINGS["seed"], 0, STEPS).tolist()
    assert all(result["rates"] == expected for result in results)
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result["weights"], results[0]["weights"], strict=True))
    for ours, reference in zip(results[0]["weights"], alone(), strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-12, atol=1e-13)


def rehearse(rank, folder):
    with member(rank, 2, folder):
        model = shard(make_model())
        optimizer = hb.RandomSGD(model.parameters(), 0.0, **SETTINGS)
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        answers = [is_rehearsal(optimizer)]
        next(iter(model.parameters())).grad.to_local().fill_(float(rank))
        answers.append(is_rehearsal(optimizer))
        torch.save(answers, f"{folder}/rank{rank}.pt")


def test_ranks_agree_on_a_rehearsal_though_their_shards_differ():
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rehearse, args=(folder,), nprocs=2)
        answers = [torch.load(Path(folder) / f"rank{rank}.pt", weights_only=True) for rank in range(2)]
    assert answers == [[True, False], [True, False]]
