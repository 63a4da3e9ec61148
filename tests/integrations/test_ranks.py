"""The callbacks under data parallelism: two real processes over gloo."""

import json
import subprocess
import sys
from pathlib import Path

import torch
from hosts import BATCH_SIZE, Samples, batches
from plain_loops import assert_close, measure_plainly


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


def test_two_ranks_read_what_two_micro_batches_do(tmp_path):
    """One launch for both hosts: most of its time is imports."""
    program = Path(__file__).with_name("rank_training.py")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", program, tmp_path]
    done = subprocess.run(launch, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-5000:]
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    assert first == second
    (log,) = tmp_path.glob("*.csv")  # of one of the ranks
    assert [line.split(",")[0] for line in log.read_text().splitlines()] == ["step", "1", "2", "3"]
    for host, deal in (("lightning", dealt_one_by_one), ("transformers", dealt_in_batches)):
        history, weights = measure_plainly(interval=1, steps=deal(), are_ranks=True)
        torch.testing.assert_close(torch.tensor(first[host]["weights"]), weights, rtol=1e-5, atol=1e-7)
        assert len(history) == 3
        assert first[host]["history"][-1]["loss"] > 0
        assert_close(first[host]["history"], history)
