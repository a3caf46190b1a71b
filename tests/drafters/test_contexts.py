"""The sorted contexts against what a search through all texts finds."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.drafters.contexts import DEPTH, SEPARATOR, Contexts, reversed_text, sorted_positions

# Few different tokens, so that much repeats; ids as large as those of real vocabularies, where fewer fit into a number.
alphabets = st.sampled_from([(0, 1), (0, 1, 2), (5, 7, 49_151), (3, 262_143), (0, 2**31 - 1)])
texts = alphabets.flatmap(
    lambda ids: st.lists(
        st.one_of(
            st.lists(st.sampled_from(ids), max_size=30),
            st.tuples(st.lists(st.sampled_from(ids), min_size=1, max_size=3), st.integers(10, 60)).map(
                lambda t: t[0] * t[1]
            ),
        ),
        max_size=5,
    )
)


def contexts_of(held: list[list[int]]) -> Contexts:
    return Contexts.of([np.array(text, np.uint32) for text in held])


def n_common(text: list[int], tail: list[int]) -> int:
    """How many tokens at the end are equal, up to `DEPTH`."""
    n = 0
    while n < min(len(text), len(tail), DEPTH) and text[-n - 1] == tail[-n - 1]:
        n += 1
    return n


def occurrences(held: list[list[int]], tail: list[int]) -> list[tuple[int, int]]:
    """(matching tokens, next token) of every place in the texts whose next token is known, the most recent first."""
    places = [(text[:i], text[i]) for text in held for i in range(1, len(text))]
    return [(n_common(before, tail), following) for before, following in reversed(places)]


@settings(deadline=None)
@given(texts)
def test_positions_are_sorted_by_context_and_then_by_age(held: list[list[int]]) -> None:
    text = reversed_text([np.array(t, np.uint32) for t in held])
    found = sorted_positions(text).tolist()
    words = text.tolist()
    known = [p for p in range(1, len(words)) if words[p] != SEPARATOR and words[p - 1] != SEPARATOR]
    assert found == sorted(known, key=lambda p: (words[p : p + DEPTH], p))


@settings(deadline=None, max_examples=200)
@given(texts, st.data())
def test_matches_are_what_a_search_finds(held: list[list[int]], data: st.DataObject) -> None:
    ids = sorted({token for text in held for token in text}) or [1]
    start = data.draw(st.sampled_from([[], *held]))
    tail = [*start[: data.draw(st.integers(0, len(start)))], *data.draw(st.lists(st.sampled_from(ids), max_size=3))]
    known = contexts_of(held)
    expected = occurrences(held, tail)
    matches = list(known.matches(tail[-DEPTH:]))
    assert [match.length for match in matches] == sorted({n for n, _ in expected if n}, reverse=True)
    for match in matches:
        found = [known.next_token(position) for position in known.sample(match, len(expected))]
        assert found == [token for n, token in expected if n >= match.length]


@given(texts)
def test_the_way_on_ends_with_the_text(held: list[list[int]]) -> None:
    known = contexts_of(held)
    whole = [text[i:] for text in held for i in range(1, len(text))]
    found = []
    for position in known.order:
        ahead: list[int] = []
        while (token := known.next_token(position - len(ahead))) != SEPARATOR:
            ahead.append(token)
        found.append(ahead)
    assert sorted(found) == sorted(whole)


def test_a_match_does_not_cross_from_one_text_to_another() -> None:
    known = contexts_of([[1, 2, 3], [4, 5, 6]])
    assert [match.length for match in known.matches([2, 3, 4])] == [1]
    assert list(known.matches([3])) == []
    assert list(known.matches([6])) == []


def test_a_sample_is_even_and_has_the_most_recent() -> None:
    known = contexts_of([[7, following] for following in range(100)])
    (match,) = known.matches([7])
    assert (match.length, match.hi - match.lo) == (1, 100)
    for n in (1, 2, 7, 50, 99):
        sample = [known.next_token(position) for position in known.sample(match, n)]
        assert sample[0] == 99
        assert sample == sorted(set(sample), reverse=True)
        assert n / 2 <= len(sample) <= n + 1
        assert all(newer - older <= 2 * 100 / n for newer, older in pairwise(sample))
    assert [known.next_token(position) for position in known.sample(match, 100)] == list(range(99, -1, -1))


def test_nothing_known() -> None:
    for held in ([], [[]], [[4]]):
        assert list(contexts_of(held).matches([4])) == []
    assert list(contexts_of([[1, 2]]).matches([])) == []
