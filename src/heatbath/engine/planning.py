"""What a machine can carry: which runs share a stack, how many of them, in which precision, in how many processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from heatbath.runs.configs import RunConfig
from heatbath.system.machine import available_memory

CPU_SECONDS = {"mlp": 1e-5, "cnn": 5e-3, "vgg16": 45e-3}
"""Of one core, for one image in one epoch, with evaluation; rough, from the steps in ``benchmarks/results``."""


def stack_key(config: RunConfig) -> tuple[Any, ...]:
    """Return what runs must agree in to share a stack: whatever decides a shape, a data set or an arithmetic."""
    names = ("model", "dataset", "batch_size", "precision", "weights", "validation", "epochs")
    return tuple(getattr(config, name) for name in names)


def resolve_precision(config: RunConfig, device: torch.device) -> str:
    """Return the precision in which a network is computed on this device."""
    if device.type == "cpu" and config.precision in ("auto", "tf32"):  # a CPU has no tf32
        return "fp32"
    if config.precision != "auto":
        return config.precision
    return "tf32" if config.model == "mlp" else "bf16"


def plan_stacks(configs: Sequence[RunConfig], device: torch.device | str, free_bytes: int | None = None) -> int:
    """Return how many replicas of such runs to train in one stack.

    On a CPU it is one: processes share its cores better than a batched product does. On a GPU it is what fills it, as
    long as it fits into four fifths of the free memory.

    Args:
        configs: runs that agree in `stack_key`.
        device: where they are to be trained.
        free_bytes: the memory there; asked for by default.
    """
    device = torch.device(device)
    if device.type == "cpu":
        return 1
    if free_bytes is None:
        free_bytes, _ = torch.cuda.mem_get_info(device)
    room = int(0.8 * free_bytes - _SHARED_BYTES) // replica_bytes(configs[0])
    return max(1, min(len(configs), _MOST[configs[0].model], room))


def replica_bytes(config: RunConfig) -> int:
    """Return about how much GPU memory one more replica takes: weights, activations and the order of its images."""
    weights = _WEIGHTS[config.model] * 4 * 4  # parameters, velocities, gradients, and as much as one of them to spare
    return weights + config.batch_size * _ACTIVATIONS[config.model] + 40 * config.training_images


def pays_to_compile(configs: Sequence[RunConfig], device: torch.device | str) -> bool:
    """Return whether a stack trains long enough on a GPU to make up for the half minute that compiling takes."""
    config = configs[0]
    steps = config.steps_per_epoch * config.epochs * (1 if config.model == "mlp" else len(configs))
    return torch.device(device).type == "cuda" and steps >= _COMPILED_STEPS[config.model]


def cpu_workers(model: str, cores: int) -> tuple[int, int]:
    """Return how many processes to train a network with, and how many threads in each: measured, see benchmarks.

    There are no more processes than fit into the memory; the threads, on which the last bits of sums depend, stay.
    """
    if model == "vgg16":
        return 1, cores
    return max(1, min(cores, available_memory() // _PROCESS_BYTES[model])), 1


_PROCESS_BYTES = {"mlp": 500 * 2**20, "cnn": 1500 * 2**20}
_SHARED_BYTES = 4 * 2**30  # images, libraries' workspaces, evaluation
_WEIGHTS = {"mlp": 79_510, "cnn": 418_122, "vgg16": 33_638_218}  # VGG16's are folded
_ACTIVATIONS = {"mlp": 10_000, "cnn": 1_000_000, "vgg16": 5_000_000}  # bytes for each image of a batch
_MOST = {"mlp": 1024, "cnn": 6, "vgg16": 5}  # more is hardly faster
_COMPILED_STEPS = {"mlp": 10_000, "cnn": 100_000, "vgg16": 20_000}
