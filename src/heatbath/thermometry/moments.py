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


def participation_ratio(gram: np.ndarray[Any, Any]) -> tuple[float, float]:
    """``R = (tr S)^2 / tr S^2`` of the covariance of independent rows of any law, and its standard error.

    For ``n`` rows with ``a_i = |d_i|^2`` and ``G_ij = d_i . d_j``, both from the same rows so that what is large in one
    is large in the other, ``R = A / B`` with

        A = T^2 - V,  T = sum_i a_i / (n-1),  V the jackknife's variance of T;
        B = [sum G_ij^2]_2 - 2 [sum G_ij G_jk]_3 + [sum G_ij G_kl]_4.

    ``[sum ...]_p`` is the mean over all choices of ``p`` distinct rows. ``B`` is the U-statistic of the kernel
    ``[(y_i - y_j) . (y_k - y_l)]^2 / 4``, not below zero and without bias (Himeno and Yamada, 2014, write it in traces
    of the sample covariance); the bias of ``A`` is about ``-2 tr S^2 / n^2``. The error is the jackknife's, where
    ``R_k`` is the ratio without row ``k``:

        error^2 = (n-1) / n sum_k (R_k - mean R_k)^2.

    Args:
        gram: ``d_j . d_k`` for deviations from their own mean, in any unit.

    Returns:
        The ratio, at least 1; infinite where ``B`` is zero, NaN for fewer than 4 rows or where none deviates. And its
        error; NaN for fewer than 5 rows, or where the ratio without one of them is not finite.
    """
    n, total = len(gram), float(np.trace(gram))
    if n < 4 or total <= 0.0:
        return math.nan, math.nan
    gram = gram * (n / total)  # of order 1, so that no fourth power of a small gradient underflows
    norms = np.diag(gram).copy()
    np.fill_diagonal(gram, 0.0)
    squared = _squared_trace(n, norms.sum(), np.square(norms).sum())
    pairs, sums = np.square(gram).sum(axis=1), gram.sum(axis=1)
    paths = np.square(sums) - pairs  # those with the row in the middle
    square = _square_trace(n, pairs.sum(), paths.sum(), sums.sum())
    rounding = 1e-12 * pairs.sum() / (n * (n - 1))  # what is left of terms that cancel
    if square <= rounding:
        return math.inf, math.nan
    ratio = max(1.0, float(squared / square))
    if n == 4:
        return ratio, math.nan
    ends = 2.0 * (gram @ sums - pairs)  # the paths that begin or end with the row
    remaining = pairs.sum() - 2.0 * pairs, paths.sum() - paths - ends, sums.sum() - 2.0 * sums
    square_without = _square_trace(n - 1, *remaining)
    if square_without.min() <= rounding:
        return ratio, math.nan
    # Without row k the mean moves by -d_k / (n-1): column k holds |d_i + d_k / (n-1)|^2, and nothing for row k itself.
    gram *= 2.0 / (n - 1)
    gram += norms[:, None] + norms / (n - 1) ** 2
    np.fill_diagonal(gram, 0.0)
    squared_without = _squared_trace(n - 1, gram.sum(axis=0), np.square(gram).sum(axis=0))
    return ratio, math.sqrt((n - 1) * float(np.var(squared_without / square_without)))


def _squared_trace(n: int, norms: Any, squared_norms: Any) -> Any:
    """``A`` of `participation_ratio` from ``sum a_i`` and ``sum a_i^2``."""
    variance = squared_norms / n - (norms / n) ** 2
    return (norms / (n - 1)) ** 2 - n**2 / ((n - 1) * (n - 2) ** 2) * variance


def _square_trace(n: int, pairs: Any, paths: Any, total: Any) -> Any:
    """``B`` of `participation_ratio` from the sums of ``G_ij^2``, ``G_ij G_jk`` and ``G_ij`` over distinct rows."""
    disjoint = total**2 - 4.0 * paths - 2.0 * pairs
    return (pairs + (disjoint / (n - 3) - 2.0 * paths) / (n - 2)) / (n * (n - 1))


def squares(matrix: Tensor) -> Tensor:
    """The squared length of each row, in at least single precision."""
    return widened(matrix).square().sum(dim=1)


def widened(tensor: Tensor) -> Tensor:
    """The tensor itself in single or double precision; in half precision the square of a small gradient is zero."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
