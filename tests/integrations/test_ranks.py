"""The callbacks under data parallelism: two real processes over gloo."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hosts import BATCH_SIZE, Samples, batches
from plain_loops import assert_close, measure_plainly


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    program = Path(__file__).with_name("rank_training.py")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", program, folder]
    done = subprocess.run(launch, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-5000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def dealt_one_by_one():
    """The batches of the two ranks in each step, as a `DistributedSampler` deals them."""
    samples, steps = Samples(), []
    for start in range(0, len(samples), 2 * BATCH_SIZE):
        indices = [range(start + rank, start + 2 * BATCH_SIZE, 2) for rank in range(2)]
        steps.append([{"inputs": samples.inputs[list(i)], "labels": samples.labels[list(i)]} for i in indices])
    return steps


def dealt_in_batches():
    each = list(batches())
    return [each[i : i + 2] for i in range(0, len(each), 2)]


@pytest.mark.parametrize(("host", "deal"), [("lightning", dealt_one_by_one), ("transformers", dealt_in_batches)])
def test_two_ranks_read_what_two_micro_batches_do(ranks, host, deal):
    first, second = (rank[host] for rank in ranks)
    assert first == second
    history, weights = measure_plainly(interval=1, steps=deal(), are_ranks=True)
    torch.testing.assert_close(torch.tensor(first["weights"]), weights, rtol=1e-5, atol=1e-7)
    assert len(history) == 3
    assert first["history"][-1]["loss"] > 0
    assert_close(first["history"], history)
