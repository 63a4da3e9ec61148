"""What a machine can carry: which runs share a stack, how many of them, in which precision, in how many processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from heatbath.runs.configs import RunConfig
from heatbath.system.machine import available_memory, free_gpu_memory


def stack_key(config: RunConfig) -> tuple[Any, ...]:
    """Return what runs must agree in to share a stack: whatever decides a shape, a data set or an arithmetic."""
    names = ("model", "dataset", "task", "batch_size", "precision", "weights", "validation", "epochs", "optimizer")
    return tuple(getattr(config, name) for name in names)


def resolve_precision(config: RunConfig, device: torch.device) -> str:
    """Return the precision in which a network is computed on this device."""
    if device.type == "cpu" and config.precision in ("auto", "tf32"):  # a CPU has no tf32
        return "fp32"
    if config.precision != "auto":
        return config.precision
    return config.network.precision if config.task is None else "tf32"


def plan_stacks(configs: Sequence[RunConfig], device: torch.device | str, free_bytes: int | None = None) -> int:
    """Return how many replicas of such runs to train in one stack.

    On a CPU it is one: processes share its cores better than a batched product does. On a GPU it is what fills it, as
    long as it fits into four fifths of the free memory, which is asked for by default.
    """
    device = torch.device(device)
    if device.type == "cpu":
        return 1
    if free_bytes is None:
        free_bytes = free_gpu_memory(str(device)) or 0
    room = int(0.8 * free_bytes - _SHARED_BYTES) // replica_bytes(configs[0])
    return max(1, min(len(configs), configs[0].cost.most, room))


def replica_bytes(config: RunConfig) -> int:
    """Return about how much GPU memory one more replica takes: weights, activations and the order of its images."""
    cost = config.cost
    kinds = 5 if config.optimizer == "adamw" else 4  # parameters, moments, gradients, and as much as one to spare
    weights = cost.weights * 4 * kinds
    return weights + config.batch_size * cost.activation_bytes + 40 * config.training_images


def evaluation_size(config: RunConfig, device: torch.device) -> int:
    """Return how many samples are evaluated at once: a fixed number, as the last bits depend on it.

    At most 500. On a CPU about 8 MiB of activations, which its caches can hold, but at least 32 samples, over which the
    cost of a call is spread.
    """
    each = max(1, config.cost.activation_bytes)
    most = max(32, 2**23 // each) if device.type == "cpu" else 500
    return max(1, min(500, most, 2**28 // each))


def pays_to_compile(configs: Sequence[RunConfig], device: torch.device | str) -> bool:
    """Return whether a stack trains long enough on a GPU to make up for the half minute that compiling takes."""
    config = configs[0]
    together = config.task is not None or config.network.stacked.stacks
    steps = config.steps * (1 if together else len(configs))
    return torch.device(device).type == "cuda" and steps >= config.cost.compiled_steps


def cpu_workers(config: RunConfig, cores: int) -> tuple[int, int]:
    """Return how many processes to train such runs with, and how many threads in each: measured, see benchmarks.

    There are no more processes than fit into the memory; the threads, on which the last bits of sums depend, stay.
    """
    cost = config.cost
    if cost.process_bytes is None:
        return 1, cores
    size = cost.process_bytes + config.batch_size * cost.activation_bytes
    return max(1, min(cores, available_memory() // size)), 1


_SHARED_BYTES = 4 * 2**30  # images, libraries' workspaces, evaluation
