"""T(n): between and beyond the measured widths, kept true by real steps, and how it is measured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.errors import DecodeError
from edgedec.llama.base import ContextParams, MemoryKind
from edgedec.llama.fake import FakeContext, FakeModel
from edgedec.speculation.cost import WIDTHS, CostCurve, measure
from tests.speculation.world import CURVES, cost_of

BASE = {1: 10.0, 2: 15.0, 4: 20.0, 8: 60.0, 16: 64.0}


def grounded(base: dict[int, float], plain_ms: float) -> CostCurve:
    curve = CostCurve(base)
    for _ in range(3):
        curve.observe(1, plain_ms)
    return curve


# ---- the table


def test_measured_widths_and_between() -> None:
    curve = CostCurve(BASE)
    assert [curve.predict(n) for n in BASE] == list(BASE.values())
    assert curve.predict(3) == pytest.approx(17.5)
    assert curve.predict(6) == pytest.approx(40.0)
    assert curve.predict(12) == pytest.approx(62.0)


def test_beyond_the_last_point_with_the_steepest_slope() -> None:
    curve = CostCurve(BASE)  # 10 ms a row between 4 and 8
    assert curve.predict(17) == pytest.approx(74.0)
    assert curve.predict(40) == pytest.approx(64.0 + 24 * 10)
    assert CostCurve({1: 3.0}).predict(5) == pytest.approx(15.0)


@pytest.mark.parametrize("base", [{}, {2: 5.0}, {1: 0.0}, {1: -1.0}])
def test_needs_the_time_of_one_row(base: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="one row"):
        CostCurve(base)


def test_a_stretched_measurement_does_not_stand_against_a_wider_one() -> None:
    curve = CostCurve({1: 10.0, 2: 50.0, 4: 20.0, 8: 30.0})
    assert curve.predict(2) == curve.predict(3) == curve.predict(4) == 20.0


def test_no_width_is_cheaper_than_one_row() -> None:
    curve = grounded({1: 10.0, 2: 12.0, 4: 30.0}, 10.0)
    for _ in range(5):
        curve.observe(2, 7.0)
    assert curve.predict(2) == 10.0
    assert curve.plain_ms == curve.predict(1) == 10.0


steps = st.lists(st.tuples(st.integers(1, 20), st.floats(0.1, 100)), max_size=60)
bases = st.dictionaries(st.integers(2, 16), st.floats(0.1, 100), max_size=8).flatmap(
    lambda found: st.floats(0.1, 100).map(lambda plain: {1: plain, **found})
)


@settings(deadline=None)
@given(bases, steps)
def test_more_rows_never_cost_less(base: dict[int, float], seen: list[tuple[int, float]]) -> None:
    curve = CostCurve(base)
    for n, ms in seen:
        curve.observe(n, ms)
    table = [curve.predict(n) for n in range(1, 41)]
    assert all(a <= b * (1 + 1e-9) for a, b in itertools.pairwise(table))
    assert all(math.isfinite(ms) and ms > 0 for ms in table)
    assert table[0] == curve.plain_ms


# ---- kept true


def test_observations_replace_the_measurement_from_the_third_on() -> None:
    curve = grounded(BASE, 10.0)
    for expected in (20.0, 20.0, 26.0):
        curve.observe(4, 26.0)
        assert curve.predict(4) == pytest.approx(expected)
    assert curve.predict(3) == pytest.approx(20.5)
    assert curve.predict(8) == 60.0


def test_a_width_never_measured_is_learnt() -> None:
    curve = grounded(BASE, 10.0)
    for _ in range(3):
        curve.observe(5, 58.0)
    assert curve.predict(5) == pytest.approx(58.0)
    assert curve.predict(6) == pytest.approx(58.0 + 2 / 3)


def test_one_outlier_of_a_width_changes_nothing() -> None:
    curve = grounded(BASE, 10.0)
    for ms in (21.0, 21.0, 500.0, 21.0):
        curve.observe(4, ms)
    assert curve.predict(4) == 21.0


def test_plain_steps_shift_the_whole_curve() -> None:
    curve = grounded(BASE, 15.0)
    assert curve.plain_ms == pytest.approx(15.0)
    assert [curve.predict(n) for n in (2, 3, 16)] == pytest.approx([22.5, 26.25, 96.0])


def test_plain_level_is_the_mean_without_outliers() -> None:
    curve = CostCurve(BASE)
    assert not curve.is_grounded
    assert curve.plain_ms == 10.0
    curve.observe(1, 50.0)
    assert (curve.is_grounded, curve.plain_ms) == (False, 10.0)
    curve.observe(1, 11.0)
    assert (curve.is_grounded, curve.plain_ms) == (True, 11.0)
    curve.observe(1, 12.0)
    assert curve.plain_ms == pytest.approx(11.5)


def test_of_two_plain_steps_that_disagree_the_longer_was_disturbed() -> None:
    curve = CostCurve(BASE)
    curve.observe(1, 24.0)
    curve.observe(1, 10.0)
    assert curve.plain_ms == 10.0


def test_what_was_seen_long_ago_is_forgotten() -> None:
    curve = grounded(BASE, 10.0)
    for _ in range(9):
        curve.observe(2, 90.0)  # somebody else was busy
    assert curve.predict(2) > 15.0
    for _ in range(300):
        curve.observe(1, 10.0)
    assert curve.predict(2) == pytest.approx(15.0)


def test_a_baseline_seen_long_ago_is_no_baseline() -> None:
    curve = grounded(BASE, 10.0)
    for _ in range(300):
        curve.observe(4, 20.0)
    assert not curve.is_grounded


def test_a_new_answer_measures_plain_steps_anew_and_keeps_ratios() -> None:
    curve = grounded(BASE, 10.0)
    for _ in range(40):
        curve.observe(1, 20.0)  # the context has grown meanwhile
    for _ in range(9):
        curve.observe(4, 50.0)
    curve.restart()
    assert not curve.is_grounded
    assert curve.plain_ms == pytest.approx(20.0)
    for _ in range(2):
        curve.observe(1, 10.0)
    assert curve.is_grounded
    assert curve.plain_ms == pytest.approx(10.0)
    assert curve.predict(4) == pytest.approx(25.0)
    assert curve.predict(2) == pytest.approx(15.0)


def test_disturbance_is_what_exceeds_the_like() -> None:
    curve = grounded(BASE, 10.0)
    assert curve.disturbance(4, 500.0) == 0.0  # nothing to compare it with
    for ms in (20.0, 22.0, 21.0):
        curve.observe(4, ms)
    assert curve.disturbance(4, 30.0) == 0.0
    assert curve.disturbance(4, 100.0) == pytest.approx(79.0)


# ---- measuring


def context_of(
    cost: Callable[[int], float], kind: MemoryKind = MemoryKind.FULL, n_rs_seq: int = 0, **params: Any
) -> tuple[FakeContext, Callable[[], float]]:
    """A context whose decodes take ``cost(rows)`` milliseconds, and its clock."""
    model = FakeModel(kind, n_rs_seq=n_rs_seq, delay=lambda n_rows, n_past: cost(n_rows) / 1e3)
    sizes = {"n_ctx": 256, "n_batch": 64, "n_ubatch": 64, "n_outputs_max": 33}
    return model.new_context(ContextParams(**{**sizes, **params})), model.clock.now


def is_empty(context: FakeContext) -> bool:
    return context.seq_pos_max(0) == -1


@pytest.mark.parametrize("name", sorted(CURVES))
def test_measures_every_width(name: str) -> None:
    cost = cost_of(CURVES[name], 2.0)
    context, clock = context_of(cost)
    assert measure(context, clock=clock) == pytest.approx({n: cost(n) for n in WIDTHS})
    assert is_empty(context)


@pytest.mark.parametrize("kind", [MemoryKind.FULL, MemoryKind.WINDOW])
def test_what_was_in_memory_is_gone(kind: MemoryKind) -> None:
    context, clock = context_of(lambda n: 1.0, kind)
    measure(context, clock=clock)
    measure(context, clock=clock)
    assert is_empty(context)


@settings(deadline=None)
@given(st.sampled_from(sorted({*CURVES} - {"cuda"})), st.floats(0.5, 400), st.floats(0.01, 3.0))
def test_budget(name: str, plain_ms: float, budget_s: float) -> None:
    """Kept (by 1 %) wherever a row costs no more in a wider step, so not at a cliff."""
    cost = cost_of(CURVES[name], plain_ms)
    context, clock = context_of(cost)
    found = measure(context, budget_s=budget_s, clock=clock)
    assert {1, 2} <= found.keys()
    needed_s = (2 * cost(1) + cost(2)) / 1e3
    assert clock() <= 1.01 * max(needed_s, budget_s)
    if budget_s > (2 * cost(1) + 3 * cost(2)) / 1e3:
        assert 4 in found


def test_interleaved_and_the_shortest_counts() -> None:
    calls = itertools.count(-1)  # one decode comes before the first round
    # Only the second of three rounds is undisturbed.
    context, clock = context_of(lambda n: n * (1.0 if next(calls) // len(WIDTHS) == 1 else 10.0))
    assert measure(context, budget_s=60, clock=clock) == pytest.approx({n: float(n) for n in WIDTHS})


@pytest.mark.parametrize(
    ("params", "widest"),
    [
        ({"n_batch": 8, "n_ubatch": 8}, 8),
        ({"n_outputs_max": 5}, 5),
        ({"n_ctx": 8, "n_batch": 8, "n_ubatch": 8}, 6),
        ({"n_batch": 1, "n_ubatch": 1}, 1),
        ({"kind": MemoryKind.HYBRID, "n_rs_seq": 4}, 4),
    ],
)
def test_never_wider_than_the_context_allows(params: dict[str, Any], widest: int) -> None:
    context, clock = context_of(lambda n: 1.0, **params)
    assert set(measure(context, clock=clock)) == {n for n in WIDTHS if n <= widest}
    assert is_empty(context)


def test_memory_without_rollback() -> None:
    context, clock = context_of(lambda n: 1.0, MemoryKind.RECURRENT)
    with pytest.raises(DecodeError, match="tail"):
        measure(context, clock=clock)
    assert is_empty(context)


def test_refused_rollback() -> None:
    context, clock = context_of(lambda n: 1.0)
    context.refuse_seq_rm(1)
    with pytest.raises(DecodeError, match="tail"):
        measure(context, clock=clock)
    assert is_empty(context)


def test_failed_decode_leaves_the_memory_empty() -> None:
    context, clock = context_of(lambda n: 1.0)
    calls = itertools.count()
    decode = context.decode

    def failing(rows: Any) -> None:
        if next(calls) == 3:
            raise DecodeError("no")
        decode(rows)

    context.decode = failing  # type: ignore[method-assign]
    with pytest.raises(DecodeError, match="no"):
        measure(context, clock=clock)
    assert is_empty(context)
