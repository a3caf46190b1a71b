"""Node selection against brute force, merging, and the way to a draft."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.speculation.select import Trie, best_set, merge, to_draft
from edgedec.types import Candidates
from tests.speculation.world import CURVES, Cost, chain, cost_of

PROBS = st.floats(0.01, 1.0)


@st.composite
def forests(draw: st.DrawFn, n_max: int = 9) -> Trie:
    """Any shape; equal probabilities are likely, siblings sum to at most 1 (merge sees to it)."""
    n = draw(st.integers(0, n_max))
    parents = [draw(st.integers(-1, i - 1)) for i in range(n)]
    probs = draw(st.lists(PROBS | st.sampled_from([0.5, 1.0]), min_size=n, max_size=n))
    return merge([(Candidates("a", list(range(n)), parents, probs, [()] * n), probs)])


@st.composite
def costs(draw: st.DrawFn) -> Cost:
    """Staircases and lines as machines have them, and anything at all."""
    if draw(st.booleans()):
        return cost_of(CURVES[draw(st.sampled_from(sorted(CURVES)))])
    table = draw(st.lists(st.floats(0.1, 50.0), min_size=11, max_size=11))
    return lambda n: table[n]


def closed_sets(trie: Trie, n_max: int) -> Iterator[set[int]]:
    for n in range(min(n_max, len(trie.tokens)) + 1):
        for nodes in map(set, itertools.combinations(range(len(trie.tokens)), n)):
            if all(trie.parents[i] < 0 or trie.parents[i] in nodes for i in nodes):
                yield nodes


def n_leaves(trie: Trie, nodes: set[int]) -> int:
    return len(nodes - {trie.parents[i] for i in nodes})


def rate_of(trie: Trie, nodes: set[int], cost: Cost) -> float:
    return (1 + math.fsum(trie.path_probs[i] for i in nodes)) / cost(1 + len(nodes))


def is_parents_first(trie: Trie, nodes: list[int]) -> bool:
    return all(trie.parents[i] < 0 or trie.parents[i] in nodes[:k] for k, i in enumerate(nodes))


@settings(deadline=None)
@given(forests(), costs(), st.integers(0, 10))
def test_best_of_all_sets(trie: Trie, cost: Cost, n_max: int) -> None:
    nodes, rate = best_set(trie, cost, n_max=n_max, leaves_max=9)
    assert len(nodes) <= n_max
    assert is_parents_first(trie, nodes)
    assert rate == pytest.approx(rate_of(trie, set(nodes), cost), rel=1e-9)
    assert rate == pytest.approx(max(rate_of(trie, found, cost) for found in closed_sets(trie, n_max)), rel=1e-9)


@settings(deadline=None)
@given(forests(), costs(), st.integers(0, 10))
def test_best_of_all_chains(trie: Trie, cost: Cost, n_max: int) -> None:
    nodes, rate = best_set(trie, cost, n_max=n_max, leaves_max=1)
    chains = [found for found in closed_sets(trie, n_max) if n_leaves(trie, found) <= 1]
    assert len(nodes) <= n_max
    assert is_parents_first(trie, nodes)
    assert to_draft(trie, nodes).is_chain
    assert rate == pytest.approx(rate_of(trie, set(nodes), cost), rel=1e-9)
    assert rate == pytest.approx(max(rate_of(trie, found, cost) for found in chains), rel=1e-9)


@settings(deadline=None)
@given(forests(), costs(), st.integers(0, 10), st.integers(2, 4))
def test_leaf_limit(trie: Trie, cost: Cost, n_max: int, leaves_max: int) -> None:
    nodes, rate = best_set(trie, cost, n_max=n_max, leaves_max=leaves_max)
    assert len(nodes) <= n_max
    assert n_leaves(trie, set(nodes)) <= leaves_max
    assert is_parents_first(trie, nodes)
    assert rate == pytest.approx(rate_of(trie, set(nodes), cost), rel=1e-9)
    assert rate >= 1 / cost(1)


def test_likeliest_first_token_is_not_the_best_chain() -> None:
    trie = merge([(chain(0, 1, 1, source="short"), [0.5]), (chain(50, 8, 8, source="long"), [0.45] + [0.99] * 7)])
    nodes, _ = best_set(trie, lambda n: 1.0, n_max=8, leaves_max=1)
    assert [trie.tokens[i] for i in nodes] == list(range(50, 58))


def test_a_cliff_is_not_crossed_for_little() -> None:
    cuda = cost_of(CURVES["cuda"])
    trie = merge([(chain(0, 16, 16), [0.9] * 16)])
    nodes, _ = best_set(trie, cuda, n_max=16, leaves_max=1)
    assert len(nodes) == 7


def test_nothing_to_choose_from() -> None:
    assert best_set(Trie(), lambda n: 2.0, n_max=8, leaves_max=1) == ([], 0.5)
    assert best_set(merge([(chain(0, 1, 1), [1.0])]), lambda n: 2.0, n_max=0, leaves_max=1) == ([], 0.5)
    assert best_set(merge([(chain(0, 1, 1), [1.0])]), lambda n: 2.0, n_max=8, leaves_max=0) == ([], 0.5)


def test_merge_joins_equal_tokens_behind_the_same_parent() -> None:
    a = Candidates("a", [1, 2, 3], [-1, 0, 1], [0.5] * 3, [()] * 3)
    b = Candidates("b", [1, 2, 9, 2], [-1, 0, 0, -1], [0.5] * 4, [()] * 4)
    trie = merge([(a, [0.3, 0.6, 0.5]), (b, [0.4, 0.2, 0.1, 0.2])])
    assert trie.tokens == [1, 2, 3, 9, 2]
    assert trie.parents == [-1, 0, 1, 0, -1]
    assert trie.probs == [0.4, 0.6, 0.5, 0.1, 0.2]
    assert trie.sources == ["b", "a", "a", "b", "b"]
    assert trie.path_probs == pytest.approx([0.4, 0.24, 0.12, 0.04, 0.2])


def test_merge_scales_siblings_that_exceed_certainty() -> None:
    proposals = [(chain(at, 1, 1, source=name), [p]) for at, name, p in ((1, "a", 0.9), (2, "b", 0.6), (3, "c", 0.5))]
    trie = merge(proposals)
    assert trie.probs == pytest.approx([0.45, 0.3, 0.25])
    assert trie.path_probs == pytest.approx([0.45, 0.3, 0.25])


proposals = st.lists(
    st.tuples(st.sampled_from("abc"), st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 6), PROBS), max_size=8)),
    max_size=4,
)


@settings(deadline=None)
@given(proposals)
def test_merge_keeps_every_proposal(found: list[tuple[str, list[tuple[int, int, float]]]]) -> None:
    merged = []
    paths: dict[tuple[int, ...], float] = {}  # path → highest probability anyone gave its last token
    for source, nodes in found:
        out, mine = Candidates(source), []
        for token, parent, prob in nodes:
            parent = min(parent, len(mine) - 1)
            path = (*(mine[parent] if parent >= 0 else ()), token)
            if path in mine:
                continue  # siblings of one drafter have different tokens
            mine.append(path)
            out.tokens.append(token)
            out.parents.append(parent)
            out.scores.append(prob)
            out.features.append(())
            paths[path] = max(prob, paths.get(path, 0.0))
        merged.append((out, out.scores))
    trie = merge(merged)
    seen: list[tuple[int, ...]] = []
    for i, (token, parent) in enumerate(zip(trie.tokens, trie.parents, strict=True)):
        assert parent < i
        seen.append((*(seen[parent] if parent >= 0 else ()), token))
    assert sorted(seen) == sorted(paths)
    for i, path in enumerate(seen):
        siblings = [k for k, other in enumerate(seen) if other[:-1] == path[:-1]]
        wanted = sum(paths[seen[k]] for k in siblings)
        assert sum(trie.probs[k] for k in siblings) <= 1 + 1e-9
        assert trie.probs[i] == pytest.approx(paths[path] / max(1.0, wanted))
        above = trie.path_probs[trie.parents[i]] if trie.parents[i] >= 0 else 1.0
        assert trie.path_probs[i] == pytest.approx(trie.probs[i] * above)


@settings(deadline=None)
@given(forests(), costs(), st.integers(1, 4))
def test_draft_is_the_chosen_nodes(trie: Trie, cost: Cost, leaves_max: int) -> None:
    nodes, _ = best_set(trie, cost, n_max=9, leaves_max=leaves_max)
    draft = to_draft(trie, nodes)
    assert sorted(draft.tokens) == sorted(trie.tokens[i] for i in nodes)
    for i, (token, parent, prob, source) in enumerate(
        zip(draft.tokens, draft.parents, draft.probs, draft.sources, strict=True)
    ):
        node = trie.tokens.index(token)  # tokens of these forests are unique
        assert parent < i
        assert (draft.tokens[parent] if parent >= 0 else None) == (
            trie.tokens[trie.parents[node]] if trie.parents[node] >= 0 else None
        )
        assert (prob, source) == (trie.probs[node], trie.sources[node])
    # Depth first: whoever does not follow its parent opens a branch of an ancestor.
    for i in range(1, len(draft)):
        ancestors, k = set(), i - 1
        while k >= 0:
            ancestors.add(k)
            k = draft.parents[k]
        assert draft.parents[i] in ancestors | {-1}


def test_draft_of_a_chain() -> None:
    trie = merge([(chain(7, 3, 3), [0.9, 0.8, 0.7])])
    draft = to_draft(trie, [0, 1, 2])
    assert draft.is_chain
    assert draft.tokens == (7, 8, 9)
    assert draft.parents == (-1, 0, 1)
    assert draft.probs == (0.9, 0.8, 0.7)
    assert draft.sources == ("a", "a", "a")
