"""T(n): milliseconds of one step with n rows, measured on this machine and kept true by every real step.

The curve is a staircase with cliffs (tiles on CPU, kernel switches on GPU), so it is a table, not a line: what was
not measured lies between its neighbours, and beyond the last point it goes on with the steepest slope seen, which
errs on the side of not guessing.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from statistics import median, median_low

from edgedec.errors import DecodeError
from edgedec.llama.base import Context, Rows

WIDTHS = (1, 2, 4, 8, 16, 32, 3, 6, 12, 5)
"""Rows to measure, most telling first: a slow machine may not get through all of them in time."""

_RECENT = 9  # steps per width that the running median sees
_TRUSTED = 3  # steps of a width that outweigh its measurement at load
_PLAIN_RECENT = 32
_PLAIN_TRUSTED = 2  # each answer pays for these before it may guess
_USUAL = 1.5  # times the median: what took longer was disturbed
_FRESH = 256  # steps for which an observation counts: then heat, neighbours and the context's length have moved on

_NO_ROLLBACK = "The memory cannot remove its tail, so the cost of guessing cannot be measured."

Seen = deque[tuple[int, float]]
"""(number of the step, milliseconds)"""


class CostCurve:
    """T(n) as a table of measured widths, refined online. What steps took is believed for a while only: a width that
    the estimates keep out of use would otherwise never get another chance.

    ``base``: rows → milliseconds, as measured at load; must contain 1.
    """

    def __init__(self, base: Mapping[int, float]) -> None:
        if base.get(1, 0) <= 0:
            raise ValueError("a cost curve needs the time of one row")
        self._base = dict(sorted(base.items()))
        for a, b in reversed(list(pairwise(self._base))):
            # More rows never cost less, and a disturbance only ever stretches: if two disagree, the longer is wrong.
            self._base[a] = min(self._base[a], self._base[b])
        self._n_steps = 0
        self._plain: Seen = deque(maxlen=_PLAIN_RECENT)
        self._wider: dict[int, Seen] = {}
        self._before_ms = self._base[1]  # T(1) before this answer
        self._is_new = True  # T(1) of this answer is not known yet
        self._plain_ms: float | None = None
        self._table: list[float] = []
        self._steepest = 0.0  # milliseconds per row

    def restart(self) -> None:
        """A new answer: its context has another length. Plain steps are measured anew; wider ones keep their ratio."""
        self._before_ms = self.plain_ms
        self._plain.clear()
        self._is_new = True
        self._forget_derived()

    @property
    def plain_ms(self) -> float:
        """T(1) now: the mean of recent plain steps without outliers; the measurement at load before there were any."""
        if self._plain_ms is None:
            self._plain_ms = _level(ms for _, ms in self._plain) if self.is_grounded else self._before_ms
        return self._plain_ms

    @property
    def is_grounded(self) -> bool:
        """Whether `plain_ms` rests on recent steps. Before that it is good for a ratio, not for keeping accounts."""
        return len(self._plain) >= _PLAIN_TRUSTED

    def observe(self, n_rows: int, ms: float) -> None:
        """One real step of ``n_rows`` took ``ms``."""
        self._n_steps += 1
        self._forget_derived()
        seen = self._plain if n_rows == 1 else self._wider.setdefault(n_rows, deque(maxlen=_RECENT))
        seen.append((self._n_steps, ms))
        for seen in (self._plain, *self._wider.values()):
            while seen and seen[0][0] <= self._n_steps - _FRESH:
                seen.popleft()
        if self._is_new and self.is_grounded:
            self._is_new = False
            self._rescale(self.plain_ms / self._before_ms)

    def disturbance(self, n_rows: int, ms: float) -> float:
        """How much of a step's time went to the neighbours: all above the median of its like, if that is more than half
        as much again. 0 while its like is not known well."""
        seen = self._wider.get(n_rows, ())
        if len(seen) < _TRUSTED:
            return 0.0
        usual = median(took for _, took in seen)
        return ms - usual if ms > _USUAL * usual else 0.0

    def predict(self, n_rows: int) -> float:
        """Milliseconds of a step of ``n_rows`` ≥ 1 rows."""
        if not self._table:
            self._build()
        last = len(self._table) - 1
        return self._table[n_rows] if n_rows <= last else self._table[last] + self._steepest * (n_rows - last)

    def _rescale(self, factor: float) -> None:
        for n, seen in self._wider.items():
            self._wider[n] = deque(((step, ms * factor) for step, ms in seen), maxlen=_RECENT)

    def _forget_derived(self) -> None:
        self._plain_ms = None
        self._table = []

    def _build(self) -> None:
        drift = self.plain_ms / self._base[1]  # longer context, heat, neighbours: what slows one row slows many
        points = {n: ms * drift for n, ms in self._base.items()}
        for n, seen in self._wider.items():
            if len(seen) >= _TRUSTED:
                points[n] = median(ms for _, ms in seen)
        points[1] = self.plain_ms
        widths = sorted(points)
        for a, b in pairwise(widths):
            points[b] = max(points[a], points[b])  # more rows never cost less
        self._table, slopes = [0.0, points[1]], []
        for a, b in pairwise(widths):
            slope = (points[b] - points[a]) / (b - a)
            self._table.extend(points[a] + slope * k for k in range(1, b - a))
            self._table.append(points[b])
            slopes.append(slope)
        self._steepest = max(slopes, default=points[1])


def _level(times: Iterable[float]) -> float:
    """Mean of what is not an outlier: steps that a neighbour or the system stretched would pass for slow plain ones."""
    found = list(times)
    limit = _USUAL * median_low(found)
    usual = [ms for ms in found if ms <= limit]
    return sum(usual) / len(usual)


def measure(
    context: Context,
    *,
    budget_s: float = 1.5,
    repeats: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[int, float]:
    """Time decodes of 1…32 rows behind one cell, as far as context and memory allow: ``repeats`` rounds, interleaved.
    The shortest time of each width counts, for whatever disturbs a step stretches it.

    What would not end within ``budget_s`` is left out, but T(1) and T(2) never. Leaves the memory empty.

    Raises:
        DecodeError: the memory cannot remove its tail.
    """
    limit = min(context.n_batch, context.n_outputs_max, context.n_ctx - 1)
    if context.traits.n_rollback >= 0:
        limit = min(limit, context.traits.n_rollback)
    widths = [n for n in WIDTHS if n <= limit]
    if not widths:
        raise DecodeError(_NO_ROLLBACK)
    times: dict[int, float] = {}
    context.clear()
    start = clock()
    try:
        context.decode(Rows((0,), (0,), ((0,),), (False,)))
        for _ in range(repeats):
            for n in widths:
                if (n > 2 or n in times) and clock() - start + _expected_s(times, n) > budget_s:
                    continue
                began = clock()
                context.decode(Rows((0,) * n, range(1, 1 + n), ((0,),) * n, (True,) * n))
                times[n] = min(times.get(n, math.inf), clock() - began)
                if not context.seq_rm(0, 1, -1):
                    raise DecodeError(_NO_ROLLBACK)
    finally:
        context.clear()
    return {n: seconds * 1e3 for n, seconds in times.items()}


def _expected_s(times: Mapping[int, float], n_rows: int) -> float:
    """What a decode will take at most, if a row costs no more in it than in the nearest width that is not wider."""
    nearest = max(n for n in times if n <= n_rows)
    return times[nearest] * n_rows / nearest
