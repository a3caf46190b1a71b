from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.ranking import kth_largest_bound, largest


@st.composite
def rows(draw: st.DrawFn) -> np.ndarray:
    n = draw(st.one_of(st.integers(1, 40), st.sampled_from([64, 129, 1000, 1023, 5000])))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    row = rng.normal(size=n) * draw(st.sampled_from([0, 1, 50]))
    if draw(st.booleans()):
        row = row.round()
    if draw(st.booleans()):
        row.sort()
    row[rng.random(n) < draw(st.sampled_from([0.0, 0.5, 0.99, 1.0]))] = -np.inf
    return row.astype(np.float32)


@given(row=rows(), k=st.one_of(st.integers(1, 70), st.sampled_from([999, 1000, 5000, 10**9])))
@settings(deadline=None, max_examples=400)
def test_largest_are_the_first_of_the_sorted_row(row: np.ndarray, k: int) -> None:
    expected = sorted(np.flatnonzero(row > -np.inf).tolist(), key=lambda i: (-row[i], i))[:k]
    assert largest(row, k).tolist() == expected


@given(row=rows(), data=st.data())
@settings(deadline=None, max_examples=200)
def test_the_bound_is_reached_by_at_least_k(row: np.ndarray, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, row.size))
    assert np.count_nonzero(row >= kth_largest_bound(row, k)) >= k


@pytest.mark.parametrize("k", [1, 40, 1000])
def test_the_bound_lets_few_others_pass(k: int) -> None:
    row = np.random.default_rng(0).normal(size=50_000).astype(np.float32)
    assert np.count_nonzero(row >= kth_largest_bound(row, k)) < 1.2 * k + 5
