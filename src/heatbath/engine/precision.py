"""How products are computed while a network is trained, whatever the caller has set torch to.

Torch has two ways to set whether products of single precision are rounded (to TF32 on a GPU): one for all libraries at
once, and since 2.9 one for each. The first cannot be asked for what the second has set, but overrules it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def arithmetic(precision: str, device: torch.device, *, search: bool = True) -> Iterator[None]:
    """Products of this precision inside; outside, what was set before. A CPU never rounds single precision.

    With ``search`` cuDNN looks for the algorithm that is fastest alone, else it takes the one that it expects to be.
    """
    cudnn: Any = torch.backends.cudnn
    rounds = device.type == "cuda" and precision != "fp32"
    with (
        torch.autocast(device.type, enabled=False),
        _single_precision(rounds),
        cudnn.flags(enabled=True, benchmark=search, deterministic=False, allow_tf32=rounds),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")  # the compiler's advice against fp32
        yield


@contextmanager
def _single_precision(rounds: bool) -> Iterator[None]:
    """Products of single precision are rounded inside, or not, by the first way; both are put back as they were."""
    cudnn: Any = torch.backends.cudnn
    before = [(library, library.fp32_precision) for library in _libraries()]
    products = _or_none(torch.get_float32_matmul_precision)
    convolutions = _or_none(lambda: cudnn.allow_tf32)
    backends: Any = torch.backends
    unfrozen = backends.__allow_nonbracketed_mutation  # torch may forbid all but contexts to change its settings
    try:
        with unfrozen():
            for library, _ in before:
                library.fp32_precision = "none"  # as the one above it, and in the end as the first way says
            torch.set_float32_matmul_precision("high" if rounds else "highest")
            cudnn.allow_tf32 = rounds
        yield
    finally:
        with unfrozen():
            if products is not None:
                torch.set_float32_matmul_precision(products)
            if convolutions is not None:
                cudnn.allow_tf32 = convolutions
            for library, value in before:
                library.fp32_precision = value


def _libraries() -> list[Any]:
    """What has a setting of the second kind, the general before the special."""
    backends: Any = torch.backends
    found = [backends, backends.cudnn, backends.mkldnn, backends.cuda.matmul]
    for library in (backends.cudnn, backends.mkldnn):
        found += [getattr(library, name, None) for name in ("conv", "rnn", "matmul")]
    return [library for library in found if hasattr(library, "fp32_precision")]


def _or_none(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except RuntimeError:  # torch cannot tell, see above
        return None
