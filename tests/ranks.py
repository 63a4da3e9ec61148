"""Processes of a test that meet over gloo."""

import os
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist


@contextmanager
def member(rank, size, folder):
    """Be one of ``size`` processes, to the end of this one; an error inside is left to `mp.spawn`.

    The thread that did a message of gloo's for this process frees its tensors afterwards, and needs the interpreter for
    it. If that comes late, it aborts a process that ends in order, and waits forever for one that frees the group
    meanwhile, as `destroy_process_group` and a wrapped model that goes out of scope do. So neither is done here.
    """
    meeting, patience = f"file://{folder}/meeting", timedelta(seconds=60)  # for a rank that does not come
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size, timeout=patience)
    torch.set_num_threads(1)
    yield
    dist.barrier()
    os._exit(0)
