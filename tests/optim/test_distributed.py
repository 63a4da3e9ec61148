"""Several processes on one machine, over gloo: the ranks agree on every draw without a message about it."""

import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import heatbath as hb
from heatbath.optim.step_hooks import is_rehearsal
from ranks import member

SETTINGS = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01, "law": hb.LogNormal(0.4), "seed": 13}
STEPS = 8
RANKS = 3


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


def shard(model, process_group):
    return fully_shard(model, mesh=DeviceMesh.from_group(process_group, "cpu"))


TRAININGS = {
    "DDP, 2 ranks": (DistributedDataParallel, 2),
    "DDP, 3 ranks": (DistributedDataParallel, 3),
    "FSDP2, 2 ranks": (shard, 2),
}


def train(parallel, rank, size):
    """Return the rates that this rank drew, and the whole weights at the end."""
    optimizer = hb.RandomSGD(parallel.parameters(), 0.05, **SETTINGS)
    rates = []
    for k in range(STEPS):
        optimizer.zero_grad()
        parallel(batch(k, rank, size)).pow(2).mean().backward()
        optimizer.step()
        rates.append(optimizer.param_groups[0]["multiplier"])
    weights = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in parallel.parameters()]
    return {"rates": rates, "weights": [w.detach() for w in weights]}


def rehearse(model, rank):
    """Return what a rank takes for a rehearsal: gradients that are zero everywhere, and then on rank 0 alone."""
    optimizer = hb.RandomSGD(model.parameters(), 0.0, **SETTINGS)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    answers = [is_rehearsal(optimizer)]
    next(iter(model.parameters())).grad.to_local().fill_(float(rank))
    return [*answers, is_rehearsal(optimizer)]


def take_part(rank, folder):
    with member(rank, RANKS, folder):
        groups = {size: dist.new_group(range(size)) for size in (2, 3)}
        results = {
            name: train(parallelize(make_model(), process_group=groups[size]), rank, size)
            for name, (parallelize, size) in TRAININGS.items()
            if rank < size
        }
        if rank < 2:  # as ranks of a pipeline, of which each holds its own stage
            results["rehearsals"] = rehearse(shard(make_model(), groups[2]), rank)
        torch.save(results, f"{folder}/rank{rank}.pt")


@pytest.fixture(scope="module")
def results():
    """What each rank found, all of it in one meeting: most of the time goes into starting the processes."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(take_part, args=(folder,), nprocs=RANKS)
        return [torch.load(Path(folder) / f"rank{rank}.pt", weights_only=True) for rank in range(RANKS)]


@pytest.mark.parametrize("name", TRAININGS)
def test_every_rank_draws_alike_and_the_weights_stay_identical(name, results):
    trained = [result[name] for result in results if name in result]
    assert len(trained) == TRAININGS[name][1]
    expected = hb.draw(SETTINGS["law"], SETTINGS["seed"], 0, STEPS).tolist()
    assert all(result["rates"] == expected for result in trained)
    for result in trained[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result["weights"], trained[0]["weights"], strict=True))
    for ours, reference in zip(trained[0]["weights"], alone(), strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-12, atol=1e-13)


def test_ranks_agree_on_a_rehearsal_though_their_shards_differ(results):
    assert [result["rehearsals"] for result in results[:2]] == [[True, False], [True, False]]
