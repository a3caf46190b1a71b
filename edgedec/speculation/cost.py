"""T(n): milliseconds of one step with n rows, measured on this machine and kept true by every real step.

The curve is a staircase with cliffs (tiles on CPU, kernel switches on GPU), so it is a table, not a line: what was
not measured lies between its neighbours, and beyond the last point it goes on with the steepest slope seen, which
errs on the side of not guessing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from statistics import median

from edgedec.errors import DecodeError
from edgedec.llama.base import Context, Rows

WIDTHS = (1, 2, 4, 8, 3, 6, 16, 12, 5)
"""Rows to measure, most telling first: a slow machine may not get through all of them in time."""

_RECENT = 9  # steps per width that the running median sees
_TRUSTED = 3  # steps of a width that outweigh its measurement at load
_PLAIN_RECENT = 32


class CostCurve:
    """T(n) as a table of measured widths, refined online.

    ``base``: rows → milliseconds, as measured at load; must contain 1.
    """

    def __init__(self, base: Mapping[int, float]) -> None:
        if base.get(1, 0) <= 0:
            raise ValueError("a cost curve needs the time of one row")
        self._base = dict(sorted(base.items()))
        self._seen: dict[int, deque[float]] = {}
        self._plain: deque[float] = deque(maxlen=_PLAIN_RECENT)
        self._plain_ms = 0.0  # 0: to be computed again
        self._table: list[float] = []

    @property
    def base(self) -> dict[int, float]:
        """The measurement at load, rows → milliseconds."""
        return dict(self._base)

    @property
    def plain_ms(self) -> float:
        """T(1) now: the mean of recent plain steps without outliers; the measurement at load before there were any."""
        if self._plain_ms == 0.0:
            self._plain_ms = _level(self._plain) if self.is_grounded else self._base[1]
        return self._plain_ms

    @property
    def is_grounded(self) -> bool:
        """Whether `plain_ms` rests on real steps. Before that it is good for a ratio, not for keeping accounts."""
        return len(self._plain) >= _TRUSTED

    def observe(self, n_rows: int, ms: float) -> None:
        """One real step of ``n_rows`` took ``ms``."""
        if n_rows == 1:
            self._plain.append(ms)
            self._plain_ms = 0.0
        else:
            self._seen.setdefault(n_rows, deque(maxlen=_RECENT)).append(ms)
        self._table = []

    def predict(self, n_rows: int) -> float:
        """Milliseconds of a step of ``n_rows`` ≥ 1 rows."""
        if n_rows >= len(self._table):
            self._table = self._build(max(n_rows, 32))
        return self._table[n_rows]

    def _build(self, n_max: int) -> list[float]:
        drift = self.plain_ms / self._base[1]  # longer context, heat, neighbours: what slows one row slows many
        points = {n: ms * drift for n, ms in self._base.items()}
        points |= {n: median(seen) for n, seen in self._seen.items() if len(seen) >= _TRUSTED}
        points[1] = self.plain_ms
        widths = sorted(points)
        for a, b in pairwise(widths):
            points[b] = max(points[a], points[b])  # more rows never cost less: a dip is noise
        slopes = [(points[b] - points[a]) / (b - a) for a, b in pairwise(widths)]
        steepest = max(slopes, default=points[1])
        table = [0.0] * (n_max + 1)
        for n in range(1, n_max + 1):
            if n in points:
                table[n] = points[n]
                continue
            above = [w for w in widths if w > n]
            below = max(w for w in widths if w < n)
            slope = (points[above[0]] - points[below]) / (above[0] - below) if above else steepest
            table[n] = points[below] + slope * (n - below)
        return table


def _level(times: Iterable[float]) -> float:
    """Mean of what is not an outlier: steps that a neighbour or the system stretched would pass for slow plain ones."""
    found = list(times)
    limit = 1.5 * median(found)
    usual = [ms for ms in found if ms <= limit]
    return sum(usual) / len(usual)


def measure(
    context: Context,
    *,
    budget_s: float = 1.5,
    repeats: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[int, float]:
    """Time decodes of 1…16 rows at real positions behind 16 cells, interleaved; the median of up to ``repeats`` rounds.

    Stops when ``budget_s`` is spent, but never before T(1) and T(2) are known. Leaves the memory empty. Needs a memory
    that can remove its tail.
    """
    n_before = 16
    limit = min(context.n_batch, context.n_outputs_max, context.n_ctx - n_before)
    widths = [n for n in WIDTHS if n <= limit]
    times: dict[int, list[float]] = {n: [] for n in widths}
    context.clear()
    start = clock()
    try:
        context.decode(Rows((0,) * n_before, range(n_before), ((0,),) * n_before, (False,) * n_before))
        for _ in range(repeats):
            for n in widths:
                if clock() - start > budget_s and len(times[1]) > 0 and (n > 2 or len(times[min(2, limit)]) > 0):
                    continue
                rows = Rows((0,) * n, range(n_before, n_before + n), ((0,),) * n, (True,) * n)
                began = clock()
                context.decode(rows)
                times[n].append((clock() - began) * 1e3)
                if not context.seq_rm(0, n_before, -1):
                    raise DecodeError("The memory cannot remove its tail, so the cost of guessing cannot be measured.")
    finally:
        context.clear()
    return {n: median(found) for n, found in times.items() if found}
