"""Weights of single precision in two halves: the bfloat16 that a network computes with, and what it leaves over.

A step that keeps weights in fp32 and a copy in bf16 reads and writes ten bytes a weight for the two; the halves, from
which the fp32 comes back bit for bit, are four to read and four to write. With ``bits`` those of the fp32 as an int32,
the upper half is ``bits`` rounded to a multiple of 2**16, which is a bf16, and the lower half is the difference, which
fits an int16. For that to be so, a tie goes away from zero; torch's own rounding takes it to the even neighbour.

All of it is arithmetic on numbers of four bytes, which a compiler merges into the pass that makes or uses the weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

_NAN = 0x7FC00000  # of its bits the upper half keeps all; those of others may round to infinity, or wrap to zero


def split(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bf16 nearest to each fp32, and what that leaves over as an int16.

    What is not a number is none in the upper half either, and infinities stay; finite values next to them have an
    infinite upper half, as bf16 has, and come back all the same.
    """
    bits = torch.where(values.isnan(), _NAN, values.view(torch.int32))
    rounded = (bits + 0x8000) & -0x10000
    return rounded.view(torch.float32).to(torch.bfloat16), (bits - rounded).to(torch.int16)


def join(high: Tensor, low: Tensor) -> Tensor:
    """Return the fp32 that `split` took apart."""
    return (high.to(torch.float32).view(torch.int32) + low).view(torch.float32)
