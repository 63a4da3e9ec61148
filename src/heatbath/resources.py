"""What a machine can carry: which runs share a stack, how many of them, in which arithmetic, in how many processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from heatbath.configs import RunConfig


def stack_key(config: RunConfig) -> tuple[Any, ...]:
    """Return what runs must agree in to share a stack: whatever decides a shape, a data set or an arithmetic."""
    names = ("model", "dataset", "batch_size", "precision", "weights", "validation", "epochs")
    return tuple(getattr(config, name) for name in names)


def resolve_precision(config: RunConfig, device: torch.device) -> str:
    """Return the precision that ``auto`` is for this network on this device."""
    if config.precision != "auto":
        return config.precision
    if device.type == "cpu":
        return "fp32"
    return "tf32" if config.model == "mlp" else "bf16"


@contextmanager
def arithmetic(precision: str, device: torch.device) -> Iterator[None]:
    """Products of this precision inside; outside, what was set before."""
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    cudnn: Any = torch.backends.cudnn
    try:
        torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
        with cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=precision != "fp32"):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
