"""Following an expected text through all kinds of deviations."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.drafters.base import Want
from edgedec.drafters.predicted import N_CERTAIN, N_NEAR, PredictedDrafter
from edgedec.errors import UsageError
from edgedec.types import Candidates

NEW = 10_000
"""From here on: tokens that no prediction has."""


def drafter_of(prediction: Sequence[int], p_min: float = 0.02) -> PredictedDrafter:
    drafter = PredictedDrafter(PredictedDrafter.Options(p_min=p_min))
    drafter.begin(0, [5, 6])
    drafter.expect(0, prediction)
    return drafter


def draft(drafter: PredictedDrafter, n_max: int = 16, depth_max: int = 64) -> Candidates:
    (out,) = drafter.draft([Want(0, n_max, depth_max)])
    return out


def say(drafter: PredictedDrafter, *tokens: int) -> None:
    drafter.accept(0, tokens, used=True)


def misses(prediction: Sequence[int], answer: Sequence[int]) -> list[int]:
    """Positions of the answer that the likeliest first token would not have been."""
    drafter = drafter_of(prediction)
    missed = []
    for i, token in enumerate(answer):
        if draft(drafter, 1).tokens != [token]:
            missed.append(i)
        say(drafter, token)
    return missed


@dataclass(frozen=True)
class Edit:
    """``n_new`` tokens that were not there take the place of ``n_old`` at ``start``."""

    start: int
    n_old: int
    n_new: int


@st.composite
def edited(draw: st.DrawFn) -> tuple[list[int], list[int], list[Edit]]:
    """A text without repetition, what became of it, and why. Between edits there is enough to be certain again."""
    prediction, answer, edits = [], [], []
    n_new = 0
    for _ in range(draw(st.integers(1, 6))):
        kept = draw(st.integers(N_CERTAIN + 1, 40))
        edit = Edit(len(prediction) + kept, draw(st.integers(0, N_NEAR - 2)), draw(st.integers(0, 20)))
        answer += range(len(prediction), edit.start)
        answer += range(NEW + n_new, NEW + n_new + edit.n_new)
        n_new += edit.n_new
        prediction += range(len(prediction), edit.start + edit.n_old)
        edits.append(edit)
    n_tail = draw(st.integers(0, 30))
    answer += range(len(prediction), len(prediction) + n_tail)
    prediction += range(len(prediction), len(prediction) + n_tail)
    return prediction, answer, edits


@settings(deadline=None)
@given(edited())
def test_an_edit_costs_its_new_tokens_and_one_to_find_back(
    case: tuple[list[int], list[int], list[Edit]],
) -> None:
    prediction, answer, edits = case
    missed = misses(prediction, answer)
    assert [answer[i] for i in missed if answer[i] >= NEW] == [token for token in answer if token >= NEW]
    lost = [answer[i] for i in missed if answer[i] < NEW]
    assert set(lost) <= {edit.start + edit.n_old for edit in edits}, (
        "only the first token after an edit is not foreseen"
    )


@pytest.mark.parametrize("every", [3, 5, 8])
def test_words_exchanged_all_over_the_text(every: int) -> None:
    """So often that no place is ever certain."""
    prediction = list(range(200))
    answer = [NEW + token if token % every == every - 1 else token for token in prediction]
    assert misses(prediction, answer) == [i for i, token in enumerate(answer) if token >= NEW]


@pytest.mark.parametrize("n_old", [1, 5, N_NEAR + 100])
def test_after_a_long_deletion_two_tokens_find_back(n_old: int) -> None:
    prediction = list(range(600))
    answer = prediction[:50] + prediction[50 + n_old :]
    assert misses(prediction, answer) == ([50] if n_old < N_NEAR else [50, 51])


def test_one_token_replaced_by_another_costs_only_itself() -> None:
    prediction = list(range(100))
    assert misses(prediction, [*range(50), NEW, *range(51, 100)]) == [50]
    assert misses(prediction, [NEW, *range(1, 100)]) == [0]


def test_other_tokens_where_text_was_cut_differently() -> None:
    """At a seam the same characters may be other tokens: one for three, or three for one."""
    prediction = list(range(60))
    answer = [NEW, *range(3, 30), NEW + 1, NEW + 2, NEW + 3, *range(31, 60)]
    assert misses(prediction, answer) == [0, 1, 28, 29, 30, 31]


def test_words_before_the_expected_text() -> None:
    prediction = list(range(100))
    answer = [*range(NEW, NEW + 20), *prediction]
    assert misses(prediction, answer) == list(range(21))


@pytest.mark.parametrize("order", [(0, 2, 1), (2, 1, 0), (0, 1, 1, 2), (1, 1, 1), (0, 2)])
def test_parts_moved_and_doubled(order: tuple[int, ...]) -> None:
    prediction = list(range(300))
    answer = [token for part in order for token in range(100 * part, 100 * part + 100)]
    n_seams = sum(part != before + 1 for before, part in zip((-1, *order), order, strict=False))
    assert len(misses(prediction, answer)) <= 2 * n_seams


@pytest.mark.parametrize("seed", range(5))
def test_a_replaced_stretch_in_text_that_repeats_itself(seed: int) -> None:
    rng = random.Random(seed)
    words = rng.choices(range(300), weights=[1 / (i + 1) for i in range(300)], k=1000)
    answer = [*words[:500], *rng.choices(range(300), k=15), *words[520:]]
    missed = misses(words, answer)
    assert len(missed) <= 15 + 3
    assert max(missed) < 500 + 15 + 4  # two tokens find back, unless this pair of words stands elsewhere as well


@pytest.mark.parametrize("seed", range(3))
def test_rows_alike_but_for_a_number(seed: int) -> None:
    """Where a table was cut the next row looks like the one that went: only its number tells."""
    rng = random.Random(seed)
    rows = [[1, 2, 100 + i, 3, *rng.choices(range(20, 30), k=2), 4] for i in range(60)]
    prediction = [token for row in rows for token in row]
    answer = [token for row in rows[:20] + rows[25:] for token in row]
    assert len(misses(prediction, answer)) <= 2


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), max_size=80), st.lists(st.integers(1, 9), max_size=40), st.integers(1, 40))
def test_all_is_right_when_the_answer_is_the_expected_one(text: list[int], steps: list[int], n_max: int) -> None:
    drafter = drafter_of(text, p_min=0.0)
    said = 0
    for n in [*steps, len(text)]:
        out = draft(drafter, n_max)
        assert out.tokens == text[said : said + n_max]
        assert out.parents == list(range(-1, len(out) - 1))
        assert [features[0] for features in out.features] == list(range(said, said + len(out)))
        assert all(features[1:3] == (said, 0) for features in out.features)
        say(drafter, *text[said : said + n])
        said = min(said + n, len(text))
    assert len(draft(drafter)) == 0


def test_nothing_expected_nothing_proposed() -> None:
    drafter = PredictedDrafter()
    drafter.begin(0, [1, 2, 1, 2])
    assert len(draft(drafter)) == 0
    say(drafter, 1, 2, 1)
    assert len(draft(drafter)) == 0
    drafter.expect(0, [])
    say(drafter, 1)
    assert len(draft(drafter)) == 0


def test_the_text_goes_on_after_its_end() -> None:
    drafter = drafter_of(range(20))
    say(drafter, *range(20), NEW)
    assert len(draft(drafter)) == 0
    say(drafter, 3, 4)
    assert draft(drafter, 3).tokens == [5, 6, 7]
    assert draft(drafter, 1).features[0][0] == 2.0


def test_an_uncertain_place_is_one_of_several_branches() -> None:
    drafter = drafter_of([*range(20), 7, 30, 31])
    say(drafter, *range(15))
    say(drafter, 7)  # instead of 15: put there, or taken from behind
    out = draft(drafter)
    children = [i for i, parent in enumerate(out.parents) if parent < 0]
    assert [out.tokens[i] for i in children] == [30, 16]
    assert [out.features[i] for i in children] == [(1.0, 0.0, 1.0, 1.0), (0.0, 0.0, 1.0, 1.0)]
    assert out.scores[children[0]] > out.scores[children[1]]
    say(drafter, 16)
    assert draft(drafter, 1).tokens == [17]
    assert draft(drafter, 1).features == [(1.0, 0.0, 2.0, 1.0)]
    say(drafter, *range(17, 17 + 3))
    assert draft(drafter, 3).tokens == [7, 30, 31]


def test_the_nearest_place_ahead_comes_first() -> None:
    drafter = drafter_of([70, 71, 80, *range(20), 70, 71, 81, *range(20, 40), 70, 71, 82])
    say(drafter, 70, 71, 80, *range(10), NEW, 70)
    assert draft(drafter, 1).tokens == [71]
    say(drafter, 71)
    assert draft(drafter, 1).tokens == [81]
    say(drafter, 81, *range(20, 40), 70, 71, 82, NEW, 70, 71)
    assert draft(drafter, 1).tokens == [82], "with none ahead, the last one before"


def test_a_single_token_is_a_place_only_ahead_and_near() -> None:
    prediction = [7, 50, *range(100, 400)]
    drafter = drafter_of(prediction)
    say(drafter, 7, 50, *range(100, 120))
    for token, found in ((7, False), (120 + N_NEAR - 2, True), (120 + N_NEAR, False)):
        drafter = drafter_of(prediction)
        say(drafter, 7, 50, *range(100, 120), token)
        following = prediction[prediction.index(token) + 1]
        assert (following in draft(drafter).tokens) == found


def test_branches_that_begin_alike_share_their_nodes() -> None:
    drafter = drafter_of([*range(20), 7, 16, 40])
    say(drafter, *range(15), 7)
    out = draft(drafter)
    assert [out.tokens[i] for i, parent in enumerate(out.parents) if parent < 0] == [16]
    assert sorted(out.tokens[i] for i, parent in enumerate(out.parents) if parent == 0) == [17, 40]


def test_scores_rise_with_what_has_matched() -> None:
    drafter = drafter_of(range(100))
    say(drafter, *range(10), NEW, 20)
    scores, lengths = [], []
    for token in range(21, 60):
        out = draft(drafter, 1)
        scores.append(out.scores[0])
        lengths.append(out.features[0][0])
        say(drafter, token)
    assert scores == sorted(scores)
    assert scores[0] < 0.5 < 0.9 < scores[-1]
    assert lengths == list(range(1, 40))
    out = draft(drafter, 30)
    assert out.tokens == list(range(60, 90))
    assert [features[3] for features in out.features] == list(range(1, 31))


def test_a_weak_branch_ends_early() -> None:
    drafter = drafter_of(range(100), p_min=0.05)
    say(drafter, *range(10), NEW)
    assert 1 <= len(draft(drafter, 64)) < 5
    say(drafter, *range(11, 40))
    assert len(draft(drafter, 64)) > 40


def test_sequences_keep_to_themselves() -> None:
    assert draft(drafter_of(range(5)), 1).scores[0] > 0.5, "until something else is said the caller is believed"
    drafter = PredictedDrafter()
    for seq_id, prediction in ((0, [1, 2, 3]), (1, [7, 8, 9])):
        drafter.begin(seq_id, [5])
        drafter.expect(seq_id, prediction)
    say(drafter, 1)
    first, second = drafter.draft([Want(0, 8, 1), Want(1, 1, 8)])
    assert (first.tokens, second.tokens) == ([2], [7])
    drafter.end(0)
    drafter.begin(0, [5])
    assert len(draft(drafter)) == 0


@pytest.mark.parametrize("p_min", [-0.1, 1.5, float("nan")])
def test_impossible_options(p_min: float) -> None:
    with pytest.raises(UsageError, match="p_min"):
        PredictedDrafter.Options(p_min=p_min)
