"""The history drafter against a search through all texts, and what it learns and leaves alone."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.drafters import history
from edgedec.drafters.base import Want
from edgedec.drafters.contexts import DEPTH, Contexts
from edgedec.drafters.evidence import score
from edgedec.drafters.history import N_LEARN, HistoryDrafter
from edgedec.drafters.store import TAIL_LIMIT, Document, Store
from edgedec.errors import UsageError
from edgedec.types import Candidates

Options = HistoryDrafter.Options


class Held(Store):
    """Texts in memory: those of all parts but the last are older."""

    def __init__(self, *parts: Sequence[Sequence[int]]) -> None:
        super().__init__(Path("nowhere"))
        self._parts = [Contexts.of([np.array(text, np.uint32) for text in part]) for part in parts]

    def contexts(self) -> list[Contexts]:
        return self._parts[::-1]


def reader(store: Store, **options: float) -> HistoryDrafter:
    return HistoryDrafter(Options(store, learn=False, **options))


def draft(drafter: HistoryDrafter, prompt: Sequence[int], n_max: int = 32, depth_max: int = 32) -> Candidates:
    drafter.begin(0, prompt)
    (out,) = drafter.draft([Want(0, n_max, depth_max)])
    return out


def paths(out: Candidates) -> dict[tuple[int, ...], tuple[float, tuple[float, ...]]]:
    """Score and features of each node by the tokens that lead to it."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(out.tokens, out.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return dict(zip(found, zip(out.scores, out.features, strict=True), strict=True))


def searched(texts: Sequence[Sequence[int]], prompt: Sequence[int], match_min: int, p_min: float, depth_max: int):
    """All nodes that are likely enough, by looking through the texts (oldest first)."""
    places = [(text, i) for text in texts for i in range(1, len(text))][::-1]
    common = {(id(text), i): n_common(text[:i], prompt) for text, i in places}
    lengths = [n for n in sorted(set(common.values()), reverse=True)[:2] if n >= match_min]

    def children(at: list[tuple[Sequence[int], int]], match_len: int, depth: int):
        following: dict[int, list[tuple[Sequence[int], int]]] = {}
        for text, i in at:
            if i < len(text):
                following.setdefault(text[i], []).append((text, i + 1))
        n_seen = sum(map(len, following.values()))
        for number, (token, there) in enumerate(following.items()):
            share = len(there) / n_seen
            features = (float(match_len), share, float(n_seen), float(number == 0), float(depth))
            yield token, score(match_len, len(there), n_seen), features, there

    starts = [([at for at in places if common[id(at[0]), at[1]] >= n], n) for n in lengths]
    if not starts:
        return {}
    start, match_len = max(starts, key=lambda s: next(children(*s, 1))[1])
    nodes = {}

    def expand(at: list[tuple[Sequence[int], int]], path: tuple[int, ...], likely: float) -> None:
        if len(path) < depth_max:
            for token, p, features, there in children(at, match_len + len(path), len(path) + 1):
                if likely * p >= p_min:
                    nodes[*path, token] = (p, features)
                    expand(there, (*path, token), likely * p)

    expand(start, (), 1.0)
    return nodes


def n_common(before: Sequence[int], prompt: Sequence[int]) -> int:
    n = 0
    while n < min(len(before), len(prompt), DEPTH) and before[-n - 1] == prompt[-n - 1]:
        n += 1
    return n


short = st.lists(st.integers(0, 3), max_size=12)


@settings(deadline=None, max_examples=200)
@given(st.lists(short, max_size=2), st.lists(short, max_size=2), short, st.integers(1, 3), st.integers(0, 5))
def test_the_tree_is_what_a_search_finds(
    old: list[list[int]], new: list[list[int]], prompt: list[int], match_min: int, depth_max: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "N_SAMPLE", 1000)
        out = draft(reader(Held(old, new), match_min=match_min), prompt, 1000, depth_max)
    found, expected = paths(out), searched([*old, *new], prompt, match_min, 0.02, depth_max)
    assert found.keys() == expected.keys()
    for path, (p, features) in expected.items():
        assert found[path][0] == pytest.approx(p)
        assert found[path][1] == pytest.approx(features)


@settings(deadline=None, max_examples=50)
@given(st.lists(short, max_size=3), short, st.integers(0, 20))
def test_fewer_nodes_are_the_likeliest_ones(held: list[list[int]], prompt: list[int], n_max: int) -> None:
    drafter = reader(Held(held))
    everything, few = draft(drafter, prompt, 1000), draft(drafter, prompt, n_max)
    assert few.tokens == everything.tokens[:n_max]
    likely: list[float] = []
    for p, parent in zip(everything.scores, everything.parents, strict=True):
        likely.append(p * (likely[parent] if parent >= 0 else 1.0))
    assert likely == sorted(likely, reverse=True)


def test_a_text_goes_on_as_it_did() -> None:
    page = list(range(100, 160))
    out = draft(reader(Held([page])), page[:20], n_max=100, depth_max=100)
    assert out.tokens == page[20:]
    assert out.parents == list(range(-1, len(out) - 1))
    assert out.features[0] == (20.0, 1.0, 1.0, 1.0, 1.0)
    assert out.features[-1] == (59.0, 1.0, 1.0, 1.0, 40.0)
    assert out.source == "history"


def test_long_matches_count_up_to_a_limit() -> None:
    page = list(range(100, 190))
    drafter = reader(Held([page]))
    assert draft(drafter, page[:50]).features[0][0] == DEPTH
    drafter.accept(0, page[50:85], used=True)
    (out,) = drafter.draft([Want(0, 9, 9)])
    assert (out.tokens, out.features[0][0]) == (page[85:], DEPTH)


def test_where_texts_part_the_tree_branches() -> None:
    drafter = reader(Held([[1, 2, 3, 4, 5], [1, 2, 3, 6, 7]], [[1, 2, 3, 4, 8]]))
    found = paths(draft(drafter, [1, 2, 3]))
    assert found.keys() == {(4,), (4, 5), (4, 8), (6,), (6, 7)}
    assert found[4,][1] == (3.0, pytest.approx(2 / 3), 3.0, 1.0, 1.0)
    assert found[4, 5][1] == (4.0, 0.5, 2.0, 0.0, 2.0)
    assert found[4, 8][1] == (4.0, 0.5, 2.0, 1.0, 2.0)
    assert found[6,][1] == (3.0, pytest.approx(1 / 3), 3.0, 0.0, 1.0)


def test_a_common_shorter_context_beats_a_single_longer_one() -> None:
    texts = [[1, 2, 3, 40], *[[other, 2, 3, 50] for other in range(10, 20)]]
    assert draft(reader(Held(texts)), [1, 2, 3]).tokens[0] == 50
    assert draft(reader(Held(texts)), [7, 1, 2, 3], n_max=1).features[0] == (
        2.0,
        pytest.approx(10 / 11),
        11.0,
        1.0,
        1.0,
    )


def test_of_very_many_occurrences_a_sample_is_counted() -> None:
    texts = [[1, 2, 3 if i % 4 else 4] for i in range(4000)]
    out = draft(reader(Held(texts)), [1, 2])
    assert out.tokens[:2] == [3, 4]
    assert out.features[0][1] == pytest.approx(0.75, abs=0.15)
    assert out.features[0][2] == pytest.approx(4000)
    assert sum(row[1] for row in out.features) == pytest.approx(1)


def test_the_answer_so_far_is_part_of_the_context() -> None:
    drafter = reader(Held([[1, 2, 3, 4, 5, 6]]))
    drafter.begin(0, [9, 1])
    drafter.begin(1, [4])
    drafter.accept(0, [2, 3], used=True)
    drafter.accept(1, [5], used=False)
    first, second = drafter.draft([Want(0, 1, 8), Want(1, 8, 1)])
    assert (first.tokens, second.tokens) == ([4], [6])


def test_nothing_to_say() -> None:
    assert len(draft(HistoryDrafter(), [1, 2, 3])) == 0
    for held in ([], [[1, 2]], [[1, 3, 2, 3]]):
        assert len(draft(reader(Held(held)), [1, 2])) == 0
    assert len(draft(reader(Held([[1, 2, 3]]), match_min=3), [1, 2])) == 0


# ---- learning


def learner(store: Store, **options: str) -> HistoryDrafter:
    return HistoryDrafter(Options(store, **options))


def say(drafter: HistoryDrafter, answer: Sequence[int], prompt: Sequence[int] = (7, 8, 9)) -> None:
    drafter.begin(0, prompt)
    for i in range(0, len(answer), 3):
        drafter.accept(0, answer[i : i + 3], used=True)
    drafter.end(0)


def answers(store: Store) -> list[list[int]]:
    return [d.tokens.tolist() for d in store.documents() if d.kind == "answer"]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


LONG = list(range(100, 100 + N_LEARN))


def test_an_answer_is_there_next_time(store: Store) -> None:
    drafter = learner(store, model="tiny")
    say(drafter, LONG)
    assert answers(Store(store.folder)) == [LONG], "the answer and not the prompt"
    assert [d.model for d in store.documents()] == ["tiny"]
    assert draft(drafter, LONG[:6]).tokens == LONG[6:]
    assert draft(learner(Store(store.folder)), LONG[:6]).tokens == LONG[6:]


def test_what_another_process_learnt_is_seen_with_the_next_answer(store: Store) -> None:
    drafter = learner(Store(store.folder))
    assert len(draft(drafter, LONG[:6])) == 0
    say(learner(store), LONG)
    assert len(drafter.draft([Want(0, 8, 8)])[0]) == 0
    assert draft(drafter, LONG[:6]).tokens == LONG[6:]


def test_short_answers_and_interrupted_ones_are_not_kept(store: Store) -> None:
    drafter = learner(store)
    say(drafter, LONG[:-1])
    drafter.begin(1, LONG)
    drafter.end(1)
    drafter.end(2)
    assert not store.folder.exists()


def test_learning_can_be_declined(store: Store) -> None:
    say(HistoryDrafter(Options(store, learn=False)), LONG)
    say(HistoryDrafter(), LONG)
    assert not store.folder.exists()


def test_closing_merges_what_has_grown(store: Store) -> None:
    drafter = learner(store)
    say(drafter, LONG)
    drafter.close()
    assert sorted(path.name for path in store.folder.iterdir()) == ["lock", "tail-0"]
    drafter = learner(store)
    say(drafter, list(range(TAIL_LIMIT)))
    assert not (store.folder / "index-1").exists()
    drafter.close()
    drafter.close()
    assert (store.folder / "index-1").exists()
    assert len(answers(store)) == 2


def test_a_process_that_does_not_end_merges_at_last(store: Store) -> None:
    drafter = learner(store)
    say(drafter, list(range(4 * TAIL_LIMIT)))
    assert (store.folder / "index-1").exists()


def test_a_failing_disk_is_no_reason_to_fail(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    store.append(Document("answer", np.array(LONG, np.uint32)))
    drafter = learner(store)
    monkeypatch.setattr(Store, "append", fail)
    for _ in range(3):
        say(drafter, LONG)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "No space left" in caplog.text
    assert draft(drafter, LONG[:6]).tokens == LONG[6:], "what is there serves on"


def test_a_damaged_store_is_left_alone(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.add([Document("document", np.array(LONG, np.uint32), "a")])
    (store.folder / "index-1").write_bytes(b"damaged")
    drafter = learner(Store(store.folder))
    for _ in range(3):
        assert len(draft(drafter, LONG[:6])) == 0
        say(drafter, LONG)
    drafter.close()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert (store.folder / "index-1").read_bytes() == b"damaged"


@pytest.mark.parametrize(
    "options", [{"match_min": 0}, {"match_min": DEPTH + 1}, {"p_min": -0.1}, {"p_min": float("nan")}]
)
def test_impossible_options(options: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        Options(**options)
