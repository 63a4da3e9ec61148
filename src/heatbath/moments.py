"""Second and fourth moments of the rows of a matrix that does not fit into memory at once."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor


class Rows(Protocol):
    """The rows of a matrix, which are computed whenever they are asked for."""

    count: int
    chunk: int

    def block(self, low: int, high: int) -> list[Tensor]:
        """Return the rows from ``low`` to ``high``, a matrix for each layer."""


class Moments(NamedTuple):
    """Sums over the deviations ``d_k = y_k - y_mean`` of the rows."""

    norms: np.ndarray[Any, Any]  # |d_k|^2 in each layer: rows x layers
    projections: np.ndarray[Any, Any]  # d_k . u: rows x directions
    gram: np.ndarray[Any, Any]  # d_j . d_k for the first rows


def central_moments(
    rows: Rows,
    mean: list[Tensor],
    units: dict[str, list[Tensor]],
    gram_rows: int,
    held_rows: int,
) -> Moments:
    """Go through the rows with at most ``held_rows`` and a chunk of them in memory at a time.

    The first passage sees all rows. Further ones fill the Gram matrix where its rows do not fit at once: block by
    block is held, and multiplied with the rows that follow it.
    """
    norms = np.empty((rows.count, len(mean)))
    projections = np.empty((rows.count, len(units)))
    gram = np.empty((gram_rows, gram_rows))
    held_rows = max(held_rows // rows.chunk, 1) * rows.chunk
    for start in range(0, gram_rows, held_rows):
        held: list[tuple[int, int, list[Tensor]]] = []
        bounds = [*range(start, gram_rows, rows.chunk), gram_rows]
        if start == 0:
            bounds += [*range(gram_rows + rows.chunk, rows.count, rows.chunk), rows.count]
        for low, high in itertools.pairwise(bounds):
            if low == high:
                continue
            deviations = [y - m.reshape(1, -1) for y, m in zip(rows.block(low, high), mean, strict=True)]
            if start == 0:
                norms[low:high] = torch.stack([squares(d) for d in deviations], dim=1).cpu().numpy()
                if not np.isfinite(norms[low:high]).all():
                    raise ValueError("a gradient is not finite (NaN or infinite): check weights and data")
                for k, unit in enumerate(units.values()):
                    products = [(d @ u).cpu().double() for d, u in zip(deviations, unit, strict=True)]
                    projections[low:high, k] = sum(products[1:], products[0]).numpy()
            if low < min(start + held_rows, gram_rows):
                held.append((low, high, deviations))
            for first, last, others in held if low < gram_rows else ():
                product = sum((d @ o.T).cpu().double() for d, o in zip(deviations, others, strict=True))
                assert isinstance(product, Tensor)
                gram[low:high, first:last] = product.numpy()
                gram[first:last, low:high] = product.numpy().T
            del deviations  # before the next chunk is computed
    return Moments(norms, projections, gram)


def participation_ratio(squared_trace: float, gram: np.ndarray[Any, Any]) -> float:
    """``(tr S)^2 / tr S^2`` with the estimate of ``tr S^2`` that no bias of the sample covariance enters.

    For ``n`` independent rows of any law, ``tr S^2`` is estimated without bias (Himeno and Yamada, 2014) by
    ``(n-1) / (n (n-2) (n-3)) [(n-1)(n-2) tr Z^2 + (tr Z)^2 - n Q]``, where ``Z`` is the sample covariance and
    ``Q = sum_k |d_k|^4 / (n-1)``. ``gram`` is ``d_j . d_k / (n-1)``, which has the traces of ``Z``.
    """
    n = len(gram)
    if n < 4:
        return math.nan
    diagonal = np.diag(gram)
    bracket = (n - 1) * (n - 2) * np.sum(gram**2) + diagonal.sum() ** 2 - n * (n - 1) * np.sum(diagonal**2)
    square = float(bracket) * (n - 1) / (n * (n - 2) * (n - 3))
    if squared_trace == 0.0:
        return math.nan
    return max(1.0, squared_trace / square) if square > 0.0 else math.inf


def squares(matrix: Tensor) -> Tensor:
    """The squared length of each row, in at least single precision."""
    return matrix.square().sum(dim=1, dtype=None if matrix.dtype == torch.float64 else torch.float32)
