"""Token recycling against what a list of all rows would say, and the tree against all paths through it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.drafters.base import Walked, Want
from edgedec.drafters.recycle import Memory, RecycleDrafter, best_of
from edgedec.errors import UsageError
from edgedec.ranking import largest
from edgedec.types import Candidates

N_VOCAB = 50
K = 3

Row = Mapping[int, float]
"""Probabilities of the tokens that are possible."""

rows = st.dictionaries(st.integers(0, 9), st.integers(1, 1000), min_size=1, max_size=6)
walks = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), rows), min_size=1, max_size=15)


def logits(row: Row) -> np.ndarray:
    out = np.full(N_VOCAB, -np.inf, np.float32)
    for token, probability in row.items():
        out[token] = np.log(np.float32(probability)) + 3.0
    return out


def drafter_of(**options: float) -> RecycleDrafter:
    return RecycleDrafter(RecycleDrafter.Options(**{"k": K, "p_min": 0.0, **options}))  # type: ignore[arg-type]


def teach(drafter: RecycleDrafter, before: int, token: int, row: Row, seq_id: int = 0) -> None:
    drafter.process(seq_id, Walked(before, (token,), lambda i: logits(row)))


def draft(drafter: RecycleDrafter, n_max: int = 16, depth_max: int = 8, seq_id: int = 0) -> Candidates:
    (out,) = drafter.draft([Want(seq_id, n_max, depth_max)])
    return out


def at(prompt: Sequence[int], **options: float) -> RecycleDrafter:
    drafter = drafter_of(**options)
    drafter.begin(0, prompt)
    return drafter


def shares_of(row: Row) -> dict[int, float]:
    """The K best, ties to the lower id, as shares of their sum."""
    best = sorted(row, key=lambda token: (-row[token], token))[:K]
    return {token: row[token] / sum(row[t] for t in best) for token in best}


def paths(out: Candidates) -> list[tuple[tuple[int, ...], float]]:
    """Tokens from the root, and path probability, of each node."""
    found: list[tuple[tuple[int, ...], float]] = []
    for token, parent, score in zip(out.tokens, out.parents, out.scores, strict=True):
        above, path = found[parent] if parent >= 0 else ((), 1.0)
        found.append(((*above, token), path * score))
    return found


def test_nothing_before_anything_was_seen() -> None:
    assert len(draft(at([]))) == len(draft(at([1]))) == len(draft(at([1, 2, 3]))) == 0


def test_the_runners_up_come_again() -> None:
    drafter = at([7, 8])
    teach(drafter, 7, 8, {1: 60, 2: 30, 3: 10, 4: 5})
    out = draft(drafter)
    assert out.tokens == [1, 2, 3]
    assert out.parents == [-1, -1, -1]
    assert [features[0] for features in out.features] == [2.0] * 3
    assert [features[1] for features in out.features] == pytest.approx([0.6, 0.3, 0.1])
    assert [features[2:] for features in out.features] == [(r, 0.0, 1.0, 1.0) for r in (0.0, 1.0, 2.0)]
    assert out.scores == sorted(set(out.scores), reverse=True)


def test_a_pair_is_known_better_than_its_second_token() -> None:
    drafter = at([7, 8])
    teach(drafter, 7, 8, {1: 1})
    teach(drafter, 6, 8, {2: 1})
    assert draft(drafter).tokens == [1]
    drafter.accept(0, [5, 8], used=False)
    weaker = draft(drafter)
    assert weaker.tokens == [2, 1]
    assert [features[0] for features in weaker.features] == [1.0, 1.0]
    drafter.accept(0, [6, 8], used=False)
    better = draft(drafter)
    assert better.tokens == [2]
    assert better.features[0][0] == 2.0
    assert better.scores[0] > weaker.scores[0]


def test_the_first_token_of_a_text_has_none_before_it() -> None:
    drafter = at([8])
    teach(drafter, -1, 8, {1: 1})
    out = draft(drafter)
    assert (out.tokens, out.features) == ([1], [(1.0, 1.0, 0.0, 0.0, 1.0, 1.0)])
    drafter.accept(0, [0, 8], used=False)
    assert draft(drafter).features[0][0] == 1.0, "a pair with nothing is no pair with token 0"


def test_children_follow_the_pair_of_parent_and_node() -> None:
    drafter = at([1, 2])
    drafter.process(0, Walked(1, (2, 3, 4), [logits({t: 1}) for t in (3, 4, 5)].__getitem__))
    out = draft(drafter)
    assert [path for path, _ in paths(out)] == [(3,), (3, 4), (3, 4, 5)]
    assert [features[5] for features in out.features] == [1.0, 2.0, 3.0]
    assert [features[0] for features in out.features] == [2.0] * 3


def test_a_walk_is_one_row_after_the_other() -> None:
    at_once, singly = at([1, 2]), at([1, 2])
    table = [logits({3: 5, 4: 2}), logits({6: 1}), logits({7: 5, 3: 1, 1: 2, 0: 1})]
    at_once.process(0, Walked(1, (2, 3, 6), table.__getitem__))
    for before, token, row in ((1, 2, table[0]), (2, 3, table[1]), (3, 6, table[2])):
        singly.process(0, Walked(before, (token,), [row].__getitem__))
    assert draft(at_once) == draft(singly)
    assert len(draft(at_once)) > 3


def test_impossible_tokens_are_not_proposed() -> None:
    drafter = at([7, 8])
    teach(drafter, 7, 8, {4: 1})
    assert draft(drafter).tokens == [4]
    assert draft(drafter).features[0][1] == 1.0
    drafter.process(0, Walked(7, (8,), lambda i: np.full(N_VOCAB, -np.inf, np.float32)))
    assert draft(drafter).tokens == [4]


def test_rows_are_averaged() -> None:
    drafter = at([7, 8])
    teach(drafter, 7, 8, {1: 80, 2: 20})
    teach(drafter, 7, 8, {3: 50, 2: 50})
    out = draft(drafter)
    assert out.tokens == [1, 2, 3]
    assert [features[1] for features in out.features] == pytest.approx([0.4, 0.35, 0.25])


def test_being_confirmed_raises_the_score() -> None:
    drafter = at([7, 8])
    scores, others, counts = [], set(), []
    for _ in range(4):
        teach(drafter, 7, 8, {1: 2, 2: 1})
        out = draft(drafter)
        scores.append(out.scores[0])
        others.add(out.scores[1])
        counts.append([features[3] for features in out.features])
    assert scores == sorted(set(scores))
    assert len(others) == 1
    assert counts == [[float(n), 0.0] for n in range(4)]
    teach(drafter, 7, 8, {2: 3, 1: 2})
    assert draft(drafter).features[0][3] == 0.0


def test_other_sequences_profit_and_know_that_it_is_old() -> None:
    drafter = at([7, 8])
    teach(drafter, 7, 8, {1: 2, 2: 1})
    own = draft(drafter)
    drafter.end(0)
    for seq_id in (0, 1):
        drafter.begin(seq_id, [7, 8])
        other = draft(drafter, seq_id=seq_id)
        assert other.tokens == own.tokens
        assert [features[4] for features in other.features] == [0.0, 0.0]
        assert other.scores[0] < own.scores[0]
    teach(drafter, 7, 8, {1: 2, 2: 1}, seq_id=1)
    assert draft(drafter, seq_id=1).features[0][4] == 1.0
    assert draft(drafter, seq_id=0).features[0][4] == 0.0


def test_close_forgets() -> None:
    drafter = at([7, 8])
    teach(drafter, 7, 8, {1: 1})
    drafter.close()
    drafter.begin(0, [7, 8])
    assert len(draft(drafter)) == 0


@settings(deadline=None)
@given(st.lists(st.sampled_from([-np.inf, -1.5, 0.0, 2.0, 2.5, 1e30]), min_size=1, max_size=80), st.integers(1, 12))
def test_best_of_a_row(values: list[float], k: int) -> None:
    row = np.array(values, np.float32)
    tokens, logits_of_them = best_of(row, k)
    assert tokens == largest(row, k).tolist()
    assert logits_of_them == row[tokens].tolist()
    assert row.tolist() == np.array(values, np.float32).tolist(), "the row is the target's"


@settings(deadline=None)
@given(walks)
def test_the_memory_is_the_average_of_what_was_seen(walk: list[tuple[int, int, Row]]) -> None:
    expected: dict[tuple[int, int], dict[int, float]] = {}
    memory = Memory(K, 1000)
    for before, token, row in walk:
        new = shares_of(row)
        for context in ((before, token), (-1, token)):
            memory.learn(*context, list(new), list(new.values()), 1)
            old = expected.get(context)
            if old is not None:
                mixed = {t: (new.get(t, 0.0) + old.get(t, 0.0)) / 2 for t in {**new, **old}}
                kept = sorted(mixed.values(), reverse=True)[:K]
                expected[context] = {t: share for t, share in mixed.items() if share >= kept[-1]}
            else:
                expected[context] = new
            known = memory.get(*context)
            assert known is not None
            assert len(known.tokens) == min(K, len(expected[context]))
            assert list(known.shares) == sorted(known.shares, reverse=True)
            for t, share in zip(known.tokens, known.shares, strict=True):
                assert share == pytest.approx(expected[context][t], rel=1e-5)
            expected[context] = dict(zip(known.tokens, known.shares, strict=True))  # ties may leave either
    assert len(memory) == len(expected)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 3)), max_size=60), st.integers(1, 8))
def test_what_was_not_seen_for_longest_makes_room(seen: list[tuple[int, int]], n_contexts: int) -> None:
    memory = Memory(K, n_contexts)
    recent: list[tuple[int, int]] = []
    for i, context in enumerate(seen):
        memory.learn(*context, [i], [1.0], i)
        recent = [other for other in recent if other != context][1 - n_contexts :] if n_contexts > 1 else []
        recent.append(context)
        assert len(memory) == len(recent)
        for before in range(-1, 4):
            for token in range(4):
                known = memory.get(before, token)
                assert (known is not None) == ((before, token) in recent)
        newest = memory.get(*context)
        assert newest is not None
        assert newest.writer == i
        assert i in newest.tokens


@settings(deadline=None)
@given(walks, st.integers(0, 30), st.integers(0, 4), st.sampled_from([0.0, 0.02, 0.2]))
def test_the_tree_is_the_likeliest_part_of_all_paths(
    walk: list[tuple[int, int, Row]], n_max: int, depth_max: int, p_min: float
) -> None:
    drafter, complete = at([0, 1], p_min=p_min), at([0, 1])
    for before, token, row in walk:
        teach(drafter, before, token, row)
        teach(complete, before, token, row)
    everything = paths(draft(complete, 10**6, depth_max))
    probabilities = [probability for _, probability in everything]
    assert probabilities == sorted(probabilities, reverse=True)
    likely = [(path, probability) for path, probability in everything if probability >= p_min]
    assert paths(draft(drafter, n_max, depth_max)) == likely[:n_max]
    for path in [(), *(path for path, _ in everything)]:
        text = [0, 1, *path]
        known = complete._memory.get(text[-2], text[-1]) or complete._memory.get(-1, text[-1])
        children = [other[-1] for other, _ in everything if other[:-1] == path and other]
        assert children == ([] if known is None or len(path) == depth_max else known.tokens)


def test_a_loop_ends_at_the_depth_limit() -> None:
    drafter = at([1, 1])
    teach(drafter, 1, 1, {1: 1})
    out = draft(drafter, n_max=100, depth_max=12)
    assert out.tokens == [1] * 12
    assert out.parents == list(range(-1, 11))


@pytest.mark.parametrize(
    ("options", "name"),
    [({"k": 0}, "k is 0"), ({"k": 33}, "k is 33"), ({"n_contexts": 0}, "n_contexts"), ({"p_min": 1.5}, "p_min"),
     ({"p_min": float("nan")}, "p_min")],
)  # fmt: skip
def test_impossible_options(options: dict[str, float], name: str) -> None:
    with pytest.raises(UsageError, match=name):
        RecycleDrafter.Options(**options)  # type: ignore[arg-type]
