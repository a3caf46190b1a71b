from __future__ import annotations

import pytest

from edgedec.engine.batch import decode_rows, prefill_rows
from edgedec.types import Draft

CHAIN = Draft((7, 8, 9), (-1, 0, 1), ("a",) * 3, (0.5,) * 3)


def test_prefill_asks_for_no_logits() -> None:
    rows = prefill_rows(2, [5, 6, 7], 10)
    assert list(rows.tokens) == [5, 6, 7]
    assert list(rows.positions) == [10, 11, 12]
    assert list(rows.seq_ids) == [(2,)] * 3
    assert not any(rows.outputs)


def test_a_plain_step_is_one_row() -> None:
    rows = decode_rows(0, [5], 10, Draft())
    assert (list(rows.tokens), list(rows.positions), list(rows.outputs)) == ([5], [10], [True])


def test_the_draft_follows_the_root() -> None:
    rows = decode_rows(1, [5], 10, CHAIN)
    assert list(rows.tokens) == [5, 7, 8, 9]
    assert list(rows.positions) == [10, 11, 12, 13]
    assert list(rows.seq_ids) == [(1,)] * 4
    assert list(rows.outputs) == [True] * 4


def test_what_is_missing_goes_before_the_root() -> None:
    rows = decode_rows(0, [3, 4, 5], 0, CHAIN)
    assert list(rows.tokens) == [3, 4, 5, 7, 8, 9]
    assert list(rows.positions) == [0, 1, 2, 3, 4, 5]
    assert list(rows.outputs) == [False, False, True, True, True, True]
    assert len(rows) == 6


def test_trees_need_more_than_one_sequence_id() -> None:
    tree = Draft((7, 8), (-1, -1), ("a",) * 2, (0.5,) * 2)
    with pytest.raises(ValueError, match="only chains"):
        decode_rows(0, [5], 10, tree)
