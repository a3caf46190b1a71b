"""The largest entries of a long row without sorting it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.floating[Any]]

_LOWEST = float(np.finfo(np.float32).min)


def largest(row: Row, k: int) -> npt.NDArray[np.intp]:
    """Indices of the ``k`` largest finite entries of ``row`` [n], best first; of equals the lowest index first.

    Fewer than ``k`` if fewer entries are above -inf. ``k >= 1``; the row has no NaN.
    """
    bound = kth_largest_bound(row, k) if k < row.size else _LOWEST
    indices = np.flatnonzero(row >= max(bound, _LOWEST))
    order = (-row[indices]).argsort(kind="stable")
    return indices[order[:k]]


def kth_largest_bound(row: Row, k: int) -> float:
    """A lower bound of the ``k``-th largest entry of ``row`` [n], 1 ≤ k ≤ n, close to it, in little more than one pass.

    The row is dealt into blocks. The k largest block maxima are k different entries, so at least k entries reach
    the smallest of them. A block is a column of the row written as a matrix: maxima of columns are vector operations.
    Entries after the last full line are left out: without them it is a lower bound all the same.
    """
    n = row.size
    n_blocks = max(n // 64, 8 * k)
    n_rows = n // n_blocks
    if n_rows < 2:
        return float(np.partition(row, n - k)[n - k])
    maxima = row[: n_rows * n_blocks].reshape(n_rows, n_blocks).max(axis=0)
    maxima.partition(n_blocks - k)
    return float(maxima[n_blocks - k])
