"""The suffix automaton and its drafter against what a search through the whole text finds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.drafters.base import Want
from edgedec.drafters.suffix import N_CLIMB, ROOT, SuffixAutomaton, SuffixDrafter
from edgedec.errors import UsageError
from edgedec.types import Candidates

PRIORS = {1: 0.12, 2: 0.3, 3: 0.5, 5: 0.7, 8: 0.85, 16: 0.9, 32: 0.95}

# Few different tokens make much repetition. A path of links is never longer than the text: in texts of fewer than
# N_CLIMB tokens every count is exact.
short_texts = st.lists(st.integers(0, 2), max_size=20)
long_texts = st.one_of(
    st.lists(st.integers(0, 1), max_size=120),
    st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=5), st.integers(1, 30)).map(lambda t: t[0] * t[1]),
    st.lists(st.sampled_from([(7, 8, 9, 7, 8), (7, 8, 9), (7,), (5, 5, 5)]), max_size=30).map(
        lambda parts: [token for part in parts for token in part]
    ),
)


def ends(text: list[int], string: list[int]) -> list[int]:
    """Positions of the last token of every occurrence."""
    n = len(string)
    return [end for end in range(n - 1, len(text)) if text[end - n + 1 : end + 1] == string]


def known_ends(text: list[int], string: list[int]) -> list[int]:
    """Occurrences whose next token is known."""
    return [end for end in ends(text, string) if end < len(text) - 1]


def longest_match(text: list[int]) -> list[int]:
    """The longest suffix that occurs earlier in the text."""
    return next((text[i:] for i in range(1, len(text)) if known_ends(text, text[i:])), [])


def next_shorter(text: list[int], string: list[int]) -> list[int]:
    """The longest suffix of ``string`` that also ends where ``string`` does not."""
    tails = [string[i:] for i in range(1, len(string))]
    return next((tail for tail in tails if ends(text, tail) != ends(text, string)), [])


def state_of(known: SuffixAutomaton, string: list[int]) -> int:
    state = ROOT
    for token in string:
        state = known.step(state, token)
        if state < 0:
            return -1
    return state


def probability(match_len: int, n_hits: int, n_seen: int) -> float:
    prior = next(prior for length, prior in reversed(PRIORS.items()) if length <= match_len)
    return (n_hits - 1 + prior) / n_seen


def expected_chain(text: list[int], n_max: int, p_min: float) -> list[tuple[int, float, tuple[float, ...]]]:
    """(token, score, features) of each node, by searching the text."""

    def evidence(context: list[int], token: int) -> tuple[int, int]:
        found = known_ends(text, context)
        return sum(text[end + 1] == token for end in found), len(found)

    def first_score(context: list[int]) -> float:
        return probability(len(context), *evidence(context, text[known_ends(text, context)[-1] + 1]))

    start = longest_match(text)
    if not start:
        return []
    shorter = next_shorter(text, start)
    if shorter and first_score(shorter) > first_score(start):
        start = shorter
    first = known_ends(text, start)[-1] + 1
    copied = text[first:]
    chain: list[tuple[int, float, tuple[float, ...]]] = []
    path = 1.0
    for depth in range(1, n_max + 1):
        done = (depth - 1) % len(copied)
        n_hits, n_seen = evidence(start + copied[:done], copied[done])
        match_len = len(start) + depth - 1
        score = probability(match_len, n_hits, n_seen)
        path *= score
        if path < p_min:
            break
        chain.append((copied[done], score, (match_len, n_hits / n_seen, n_seen, 1.0, depth)))
    return chain


def draft(text: list[int], n_max: int = 16, p_min: float = 0.02) -> Candidates:
    drafter = SuffixDrafter(SuffixDrafter.Options(p_min=p_min))
    drafter.begin(0, text)
    (out,) = drafter.draft([Want(0, n_max, n_max)])
    return out


@settings(deadline=None)
@given(short_texts)
def test_every_substring_has_its_occurrences(text: list[int]) -> None:
    known = SuffixAutomaton(text)
    for i in range(len(text)):
        for j in range(i + 1, len(text) + 1):
            string = text[i:j]
            state = state_of(known, string)
            found = known_ends(text, string)
            assert state > ROOT
            assert known.length[state] >= len(string)
            assert known.count[state] == len(found)
            assert known.end[state] == (found[-1] if found else -1)


@settings(deadline=None)
@given(short_texts, st.lists(st.integers(0, 3), max_size=4))
def test_it_knows_nothing_else(text: list[int], string: list[int]) -> None:
    assert (state_of(SuffixAutomaton(text), string) >= 0) == (string == [] or bool(ends(text, string)))


@settings(deadline=None)
@given(long_texts)
def test_longest_earlier_match(text: list[int]) -> None:
    known = SuffixAutomaton(text)
    match = max(known.link[known.last], ROOT)
    assert known.length[match] == len(longest_match(text))
    assert known.length[max(known.link[match], ROOT)] == len(next_shorter(text, longest_match(text)))


@settings(deadline=None)
@given(long_texts)
def test_the_climb_limit_only_loses_occurrences(text: list[int]) -> None:
    known = SuffixAutomaton(text)
    state, longest = known.link[known.last], longest_match(text)
    while state > ROOT:
        found = known_ends(text, longest[len(longest) - known.length[state] :])
        assert 1 <= known.count[state] <= len(found)
        assert known.end[state] in found
        state = known.link[state]


def test_the_climb_limit_leaves_the_longest_strings_exact() -> None:
    known = SuffixAutomaton([4] * 500)
    state = known.link[known.last]
    for n in range(1, N_CLIMB):
        assert (known.length[state], known.count[state], known.end[state]) == (500 - n, n, 498)
        state = known.link[state]


def test_the_climb_limit_keeps_shares_possible() -> None:
    # Left uncounted here is a context more often than its continuation.
    out = draft([0, 0] + [1] * 30 + [0] * 40 + [1] * 40 + [0, 1, 1], n_max=20, p_min=0.0)
    assert len(out) == 20
    assert all(0 < score <= 1 for score in out.scores)
    assert all(0 < share <= 1 for _, share, _, _, _ in out.features)


@settings(deadline=None)
@given(long_texts)
def test_size_is_linear(text: list[int]) -> None:
    assert len(SuffixAutomaton(text).length) <= 2 * len(text) + 1


@settings(deadline=None)
@given(short_texts, st.integers(0, 30), st.sampled_from([0.0, 0.02, 0.3]))
def test_chain_is_what_a_search_finds(text: list[int], n_max: int, p_min: float) -> None:
    out = draft(text, n_max, p_min)
    expected = expected_chain(text, n_max, p_min)
    assert out.tokens == [token for token, _, _ in expected]
    assert out.parents == [i - 1 for i in range(len(expected))]
    assert out.scores == pytest.approx([score for _, score, _ in expected])
    assert out.features == [features for _, _, features in expected]


def test_most_recent_occurrence_first() -> None:
    out = draft([1, 2, 3, 9, 1, 2, 3, 8, 1, 2])
    assert out.tokens == [3, 8, 1, 2, 3]
    assert out.scores == pytest.approx([1.3 / 2, 0.5 / 2, 0.5, 0.7, 1.7 / 2])
    assert out.features[:2] == [(2.0, 1.0, 2.0, 1.0, 1.0), (3.0, 0.5, 2.0, 1.0, 2.0)]


def test_nothing_to_say() -> None:
    for text in ([], [5], [1, 2, 3, 4], [1, 1, 2]):
        assert len(draft(text)) == 0


def test_weak_evidence_is_proposed_with_a_low_score() -> None:
    out = draft([7, 1, 5, 7])
    assert out.tokens[0] == 1
    assert out.scores[0] == pytest.approx(0.12)


def test_a_common_shorter_context_beats_a_single_longer_one() -> None:
    text = [1, 2, 30]
    for other in range(10, 18):
        text += [other, 2, 40]
    out = draft([*text, 1, 2])
    assert out.tokens[0] == 40
    assert out.features[0] == (1.0, 8 / 9, 9.0, 1.0, 1.0)
    assert draft([*text, 1, 2, 30, 1, 2]).tokens[0] == 30


@pytest.mark.parametrize("period", [[6], [1, 2, 3], [1, 1, 2]])
def test_periodic_text_goes_on(period: list[int]) -> None:
    n_max = 40
    for n_spoken in range(2 * len(period), 6 * len(period)):
        text = (period * 6)[:n_spoken]
        assert draft(text, n_max, p_min=0.0).tokens == (period * 60)[n_spoken : n_spoken + n_max]


def test_draft_grows_with_the_evidence() -> None:
    def n_drafted(n_copied: int) -> int:
        page = list(range(100, 200))
        return len(draft([*page, *page[:n_copied]], n_max=64))

    grown = [n_drafted(n) for n in (0, 1, 2, 4, 8, 16, 32)]
    assert grown == sorted(set(grown))
    assert grown[0] == 0
    assert grown[-1] > 50


def test_score_of_a_single_occurrence_is_the_prior_of_its_length() -> None:
    page = list(range(100, 200))
    out = draft([*page, *page[:1]], n_max=40, p_min=0.0)
    assert out.scores == pytest.approx([probability(n, 1, 1) for n in range(1, 41)])


def test_repetition_raises_the_score() -> None:
    def first_score(times: int) -> float:
        spoken = [token for i in range(times) for token in (1, 2, 3, 60 + i)]
        return draft([*spoken, 1, 2]).scores[0]

    scores = [first_score(times) for times in range(1, 6)]
    assert scores == sorted(set(scores))


def test_sequences_keep_to_themselves() -> None:
    drafter = SuffixDrafter()
    drafter.begin(0, [1, 2, 3])
    drafter.begin(1, [1, 7, 8])
    drafter.accept(0, [1], used=True)
    drafter.accept(1, [1], used=False)
    first, second = drafter.draft([Want(0, 1, 8), Want(1, 8, 1)])
    assert (first.tokens, second.tokens) == ([2], [7])


def test_begin_starts_over_and_end_forgets() -> None:
    drafter = SuffixDrafter()
    drafter.begin(0, [1, 2, 9])
    drafter.begin(0, [5, 1])
    assert drafter.draft([Want(0, 1, 1)])[0].tokens == []
    drafter.end(0)
    with pytest.raises(KeyError):
        drafter.draft([Want(0, 1, 1)])


@pytest.mark.parametrize("p_min", [-0.1, 1.5, float("nan")])
def test_impossible_options(p_min: float) -> None:
    with pytest.raises(UsageError, match="p_min"):
        SuffixDrafter.Options(p_min=p_min)
