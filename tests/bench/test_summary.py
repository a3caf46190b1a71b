from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.bench.forks import Fork
from edgedec.bench.record import Answer
from edgedec.bench.summary import add_counts, by_category, pair_ratios, rate_of, summarise
from edgedec.types import DrafterCounts
from tests.bench.lab import answer, measured, plain

COUNTS = DrafterCounts(7, 4, 0.25, [3, 2, 2], [2, 1, 1])


def test_plain_over_plain_is_one() -> None:
    found = summarise([measured(plain=plain(10)), measured(1, plain=plain(30))], "plain")
    assert found.speedup == found.speedup_median == 1.0
    assert found.speedup_quartiles == found.speedup_range == (1.0, 1.0)
    assert found.tokens_per_second == pytest.approx(100.0)
    assert found.tokens_per_step == 1.0
    assert (found.drafted, found.accepted, found.acceptance_rate, found.acceptance_per_pos) == (0, 0, 0.0, ())
    assert (found.forks, found.near_ties, found.largest_gap) == (0, 0, None)
    assert found.n_answers == 2


def test_sums_and_pairs_answer_two_questions() -> None:
    """A short answer three times as fast, and two long ones no faster."""
    cases = [
        measured(0, plain=plain(9), fast=answer([(4, 3)] * 3)),
        measured(1, plain=plain(90), fast=plain(90)),
        measured(2, plain=plain(90), fast=plain(90)),
    ]
    found = summarise(cases, "fast")
    assert found.speedup == pytest.approx(189 / 183)
    assert found.speedup_median == 1.0
    assert found.speedup_range == (1.0, pytest.approx(3.0))
    assert found.speedup_quartiles == (1.0, pytest.approx(2.0))
    assert found.tokens_per_step == pytest.approx(189 / 183)


def test_texts_of_different_length_are_compared_by_rate() -> None:
    found = summarise([measured(plain=plain(100), short=plain(10, ms=5.0))], "short")
    assert found.speedup == found.speedup_median == pytest.approx(2.0)


def test_answers_without_a_counted_token_do_not_count() -> None:
    empty = answer([])
    cases = [measured(plain=plain(10), fast=empty), measured(1, plain=empty, fast=plain(10))]
    assert pair_ratios(cases, "fast") == []
    found = summarise(cases, "fast")
    assert (found.speedup_median, found.speedup_range, found.speedup_quartiles) == (0.0, (0.0, 0.0), (0.0, 0.0))
    nothing = summarise([measured(plain=empty, fast=empty)], "fast")
    assert (nothing.speedup, nothing.tokens_per_second, nothing.tokens_per_step) == (0.0, 0.0, None)
    assert (nothing.drafting_share, nothing.outside_ms) == (None, None)
    assert rate_of([]) == 0.0


def test_acceptance_by_position_and_by_drafter() -> None:
    fast = answer([(4, 2)] * 3, drafters={"suffix": COUNTS, "recycle": DrafterCounts(2, 0, 0.5, [2], [])})
    found = summarise([measured(plain=plain(6), fast=fast), measured(1, plain=plain(6), fast=fast)], "fast")
    assert (found.drafted, found.accepted) == (18, 8)
    assert found.acceptance_rate == pytest.approx(8 / 18)
    assert found.acceptance_per_pos == (pytest.approx(4 / 10), pytest.approx(2 / 4), pytest.approx(2 / 4))
    assert found.drafters["suffix"] == DrafterCounts(14, 8, 0.5, [6, 4, 4], [4, 2, 2])
    assert found.drafters["recycle"] == DrafterCounts(4, 0, 1.0, [4], [])


def test_where_the_time_of_a_step_goes() -> None:
    fast = answer([(1, 1)] * 3, ms=10.0, decode_ms=8.0, draft_ms=1.0)
    slow = answer([(1, 1)], ms=100.0, decode_ms=40.0, draft_ms=3.0)
    found = summarise([measured(plain=plain(3), fast=fast), measured(1, plain=plain(3), fast=slow)], "fast")
    assert found.drafting_share == pytest.approx(6 / 130)
    assert found.outside_ms == pytest.approx(2.0), "the median"


def test_a_server_has_no_steps() -> None:
    server = Answer("text", None, "length", 20, 0.1, drafters={"server": DrafterCounts(8, 4)})
    found = summarise([measured(plain=plain(10), server=server)], "server")
    assert found.speedup == pytest.approx(2.0)
    assert (found.tokens_per_step, found.drafting_share, found.outside_ms) == (None, None, None)
    assert (found.drafted, found.accepted, found.acceptance_rate) == (8, 4, 0.5)


def test_forks_are_counted() -> None:
    cases = [measured(i, plain=plain(3), fast=plain(3)) for i in range(5)]
    cases[0].forks["fast"] = Fork(3, 0.25, True)
    cases[1].forks["fast"] = Fork(0, 1.5, False)
    cases[2].forks["fast"] = Fork(None)
    cases[3].forks["slow"] = Fork(0, 9.0, False)
    found = summarise(cases, "fast")
    assert (found.forks, found.near_ties, found.largest_gap) == (3, 1, 1.5)


def test_categories_keep_their_order() -> None:
    cases = [measured(i, category) for i, category in enumerate(["story", "math", "story", "list"])]
    groups = by_category(cases)
    assert list(groups) == ["story", "math", "list"]
    assert groups["story"] == [cases[0], cases[2]]


per_pos = st.lists(st.integers(0, 5), max_size=4)
counts = st.builds(DrafterCounts, st.integers(0, 9), st.integers(0, 9), st.just(0.0), per_pos, per_pos)


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("ab"), counts), max_size=5))
def test_nothing_is_lost_in_sums(parts: list[dict[str, DrafterCounts]]) -> None:
    total = add_counts(parts)
    for name in "ab":
        own = [part[name] for part in parts if name in part]
        assert (name in total) == bool(own)
        if own:
            assert total[name].drafted == sum(c.drafted for c in own)
            assert sum(total[name].drafted_per_pos) == sum(sum(c.drafted_per_pos) for c in own)
            assert len(total[name].accepted_per_pos) == max(len(c.accepted_per_pos) for c in own)


@settings(deadline=None)
@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=9))
def test_quartiles_lie_around_the_median(ratios: list[float]) -> None:
    cases = [measured(i, plain=plain(10), fast=plain(10, ms=10.0 / ratio)) for i, ratio in enumerate(ratios)]
    found = summarise(cases, "fast")
    low, high = found.speedup_quartiles
    smallest, largest = found.speedup_range
    assert smallest - 1e-9 <= low <= found.speedup_median + 1e-9
    assert found.speedup_median - 1e-9 <= high <= largest + 1e-9
    assert smallest - 1e-9 <= found.speedup <= largest + 1e-9
    assert math.isclose(largest, max(ratios), rel_tol=1e-9)
