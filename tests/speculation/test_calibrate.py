"""What is learnt from which outcome."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.speculation.calibrate import Calibrator, depths
from edgedec.types import Candidates
from tests.speculation.world import chain

WRONG = -100


def one(score: float = 0.5, match_len: float = 3.0, source: str = "a") -> Candidates:
    return chain(0, 1, 1, score=score, match_len=match_len, source=source)


@settings(deadline=None)
@given(st.floats(0.01, 1.0), st.integers(1, 40), st.floats(0, 100))
def test_before_any_outcome_the_score_counts(score: float, depth: int, match_len: float) -> None:
    assert Calibrator().probability("a", depth, match_len, score) == pytest.approx(score)


def test_outcomes_move_the_probability() -> None:
    known = Calibrator()
    known.learn(one(), [0])
    up = known.probability("a", 1, 3.0, 0.5)
    known.learn(one(), [WRONG])
    known.learn(one(), [WRONG])
    assert up > 0.5 > known.probability("a", 1, 3.0, 0.5)


@pytest.mark.parametrize(
    ("emitted", "labelled"),
    [
        ([WRONG], {1}),  # wrong at once: nobody knows about the others
        ([0], {1}),  # a plain step says nothing about what comes later
        ([0, WRONG], {1, 2}),
        ([0, 1, WRONG], {1, 2, 3}),  # a right node reaches its child
        ([], set()),
    ],
)
def test_only_reached_nodes_are_labels(emitted: list[int], labelled: set[int]) -> None:
    known = Calibrator()
    known.learn(chain(0, 3, 3, score=0.5), emitted)
    assert {depth for depth in (1, 2, 3, 4) if known.probability("a", depth, 5.0, 0.5) != 0.5} == labelled


def test_siblings_are_labels_together() -> None:
    tree = Candidates("a", [0, 7, 8], [-1, -1, 1], [0.5, 0.3, 0.9], [(5.0,)] * 3)
    known = Calibrator()
    known.learn(tree, [0, 8])
    assert known.probability("a", 1, 5.0, 0.5) > 0.5
    assert known.probability("a", 1, 5.0, 0.3) < 0.3
    assert known.probability("a", 2, 5.0, 0.9) == pytest.approx(0.9)  # below a wrong node


def test_buckets_and_sources_are_apart() -> None:
    known = Calibrator()
    for _ in range(50):
        known.learn(one(score=0.9, match_len=2), [WRONG])
    assert known.probability("a", 1, 2, 0.9) < 0.3
    assert known.probability("b", 1, 2, 0.9) == pytest.approx(0.9)
    assert known.probability("a", 1, 40, 0.9) == pytest.approx(0.9)
    assert known.probability("a", 1, 2, 0.5) == pytest.approx(0.5)
    assert known.probability("a", 2, 2, 0.9) == pytest.approx(0.9)


def test_drafter_without_features() -> None:
    known = Calibrator()
    proposal = Candidates("a", [0], [-1], [0.5], [()])
    known.learn(proposal, [0])
    assert known.probabilities(proposal)[0] > 0.5


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.6, 0.95])
@pytest.mark.parametrize("score", [0.3, 0.9])
def test_converges_to_the_true_rate(rate: float, score: float) -> None:
    known, chance = Calibrator(), random.Random(1)
    found = []
    for i in range(3000):
        known.learn(one(score), [0 if chance.random() < rate else WRONG])
        if i > 200:
            found.append(known.probability("a", 1, 3.0, score))
    # The score keeps the weight of its 8 observations beside the 50 that are remembered.
    assert sum(found) / len(found) == pytest.approx((50 * rate + 8 * score) / 58, abs=0.02)
    assert sum(abs(p - sum(found) / len(found)) for p in found) / len(found) < 0.06


def test_a_change_of_text_is_noticed() -> None:
    known = Calibrator()
    for _ in range(300):
        known.learn(one(0.9), [WRONG])
    assert known.probability("a", 1, 3.0, 0.9) < 0.15
    for _ in range(50):
        known.learn(one(0.9), [0])
    assert known.probability("a", 1, 3.0, 0.9) > 0.6


def test_probabilities_are_in_the_order_of_the_nodes() -> None:
    tree = Candidates("a", [0, 7, 1, 2], [-1, -1, 0, 2], [0.5, 0.3, 0.9, 0.7], [(2.0,), (3.0,), (9.0,), (17.0,)])
    known = Calibrator()
    for _ in range(20):
        known.learn(tree, [0, 1, WRONG])
    expected = [
        known.probability("a", depth, features[0], score)
        for depth, features, score in zip([1, 1, 2, 3], tree.features, tree.scores, strict=True)
    ]
    assert known.probabilities(tree) == expected
    assert len(set(expected)) == 4


def test_depths() -> None:
    assert depths(Candidates("a", [0, 7, 1, 2, 3], [-1, -1, 0, 2, 1])) == [1, 1, 2, 3, 2]


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 1.0), st.integers(0, 4), st.integers(1, 6)), max_size=60))
def test_always_a_probability(outcomes: list[tuple[float, int, int]]) -> None:
    known = Calibrator()
    for score, n_right, n in outcomes:
        proposal = chain(0, n_right, n, score=score)
        assert all(0 < p <= 1 for p in known.probabilities(proposal))
        known.learn(proposal, [*range(min(n_right, n)), WRONG])
