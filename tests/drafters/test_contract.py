"""What every drafter in the registry must keep to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.drafters import create, drafter_class, names
from edgedec.drafters.base import Drafter, Walked, Want
from edgedec.drafters.history import HistoryDrafter
from edgedec.drafters.store import Document, Store
from edgedec.types import Candidates

every_drafter = pytest.mark.parametrize("name", names())
without_memory = pytest.mark.parametrize("name", [name for name in names() if not drafter_class(name).remembers])

N_VOCAB = 6
texts = st.lists(st.integers(0, 3), max_size=30)
steps = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), max_size=12)
sizes = st.one_of(st.integers(0, 2), st.integers(3, 40))


OPTIONS: dict[str, Drafter.Options] = {}
"""Of drafters that would have nothing to say by default."""


@pytest.fixture(scope="module", autouse=True)
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A store that is only read: what it holds stays the same whatever is told to its readers."""
    store = Store(tmp_path_factory.mktemp("corpus"))
    for i, kind in enumerate(("document", "answer", "answer")):
        store.append(Document(kind, np.random.default_rng(i).integers(0, 4, 60).astype(np.uint32)))
        if i == 1:
            store.merge(1)
    OPTIONS["history"] = HistoryDrafter.Options(store=store, learn=False)
    yield
    OPTIONS.clear()


def make(name: str) -> Drafter:
    (drafter,) = create([name], OPTIONS)
    return drafter


class Told:
    """A sequence as the engine tells it to a drafter. The target's rows prefer what is said next."""

    def __init__(self, drafter: Drafter, seq_id: int, prompt: Sequence[int]) -> None:
        self._drafter = drafter
        self._seq_id = seq_id
        self._text = list(prompt)
        drafter.begin(seq_id, prompt)
        drafter.expect(seq_id, [*prompt[::2], 3, 1, 2])

    def say(self, tokens: Sequence[int], used: bool = True) -> None:
        if "logits" in self._drafter.needs and self._text:
            before = self._text[-2] if len(self._text) > 1 else -1
            passed = (self._text[-1], *tokens[:-1])
            rows = np.zeros((len(tokens), N_VOCAB), np.float32)
            for row, token, following in zip(rows, passed, tokens, strict=True):
                row[:] = np.arange(N_VOCAB)[::-1] + (np.arange(N_VOCAB) == (3 * token) % 5)
                row[following] += 4
            self._drafter.process(self._seq_id, Walked(before, passed, lambda i: rows[i]))
            rows[:] = np.nan
        self._drafter.accept(self._seq_id, tokens, used)
        self._text.extend(tokens)


def play(drafter: Drafter, seq_id: int, prompt: list[int], accepted: list[list[int]]) -> Told:
    told = Told(drafter, seq_id, prompt)
    for i, tokens in enumerate(accepted):
        told.say(tokens, used=i % 2 == 0)
    return told


def interleave(drafter: Drafter, parts: dict[int, tuple[list[int], list[list[int]]]]) -> None:
    """Several sequences (prompt, tokens of each step) under their ids, step by step in turn."""
    told = {seq_id: Told(drafter, seq_id, prompt) for seq_id, (prompt, _) in parts.items()}
    for i in range(max(len(accepted) for _, accepted in parts.values())):
        for seq_id, (_, accepted) in parts.items():
            if i < len(accepted):
                told[seq_id].say(accepted[i], used=i % 2 == 0)


def draft(drafter: Drafter, seq_id: int = 0, n_max: int = 16, depth_max: int = 8) -> Candidates:
    (out,) = drafter.draft([Want(seq_id, n_max, depth_max)])
    return out


def check(out: Candidates, drafter: Drafter, n_max: int, depth_max: int) -> None:
    assert out.source == drafter.name
    assert len(out.tokens) == len(out.parents) == len(out.scores) == len(out.features) <= n_max
    depths: list[int] = []
    for i, parent in enumerate(out.parents):
        assert -1 <= parent < i
        depths.append(1 if parent < 0 else depths[parent] + 1)
        assert depths[-1] <= depth_max
    assert len(set(zip(out.parents, out.tokens, strict=True))) == len(out), "siblings have different tokens"
    assert all(type(token) is int and token >= 0 for token in out.tokens)
    assert all(0 < score <= 1 for score in out.scores)
    for row in out.features:
        assert len(row) == len(drafter.feature_names)
        assert all(type(number) is float for number in row)


@every_drafter
def test_class_attributes(name: str) -> None:
    cls = drafter_class(name)
    assert issubclass(cls, Drafter)
    assert cls.name == name
    assert len(set(cls.feature_names)) == len(cls.feature_names)
    assert cls.needs <= {"logits"}
    assert dataclasses.is_dataclass(cls.Options)
    assert cls.Options.__dataclass_params__.frozen
    assert cls.Options() == cls().options


@every_drafter
@settings(deadline=None)
@given(texts, steps, sizes, sizes)
def test_proposals_are_a_forest_within_limits(
    name: str, prompt: list[int], accepted: list[list[int]], n_max: int, depth_max: int
) -> None:
    drafter = make(name)
    told = Told(drafter, 0, prompt)
    check(draft(drafter, 0, n_max, depth_max), drafter, n_max, depth_max)
    for tokens in accepted:
        told.say(tokens)
        check(draft(drafter, 0, n_max, depth_max), drafter, n_max, depth_max)


@every_drafter
@pytest.mark.parametrize(("n_max", "depth_max"), [(0, 0), (0, 4), (4, 0), (1, 1), (1, 4), (4, 1)])
def test_small_limits(name: str, n_max: int, depth_max: int) -> None:
    drafter = make(name)
    play(drafter, 0, [1, 2, 3, 1, 2, 4] * 10, [[1, 2], [3, 1]])
    assert len(draft(drafter)) > 0
    check(draft(drafter, 0, n_max, depth_max), drafter, n_max, depth_max)


@every_drafter
@pytest.mark.parametrize("prompt", [[], [3]])
def test_tiny_prompts(name: str, prompt: list[int]) -> None:
    drafter = make(name)
    drafter.begin(0, prompt)
    check(draft(drafter), drafter, 16, 8)
    assert len(draft(drafter)) == 0, "nothing was said or expected"
    drafter.accept(0, [3, 3, 3], used=False)
    check(draft(drafter), drafter, 16, 8)


@every_drafter
@settings(deadline=None)
@given(texts, steps)
def test_step_by_step_equals_a_fresh_replay(name: str, prompt: list[int], accepted: list[list[int]]) -> None:
    live = make(name)
    told = Told(live, 0, prompt)
    for i, tokens in enumerate(accepted):
        draft(live)
        told.say(tokens, used=i % 2 == 0)
        replayed = make(name)
        play(replayed, 0, prompt, accepted[: i + 1])
        assert draft(live) == draft(replayed)


@every_drafter
@settings(deadline=None)
@given(texts, steps)
def test_drafting_twice_gives_the_same(name: str, prompt: list[int], accepted: list[list[int]]) -> None:
    drafter = make(name)
    play(drafter, 0, prompt, accepted)
    first, second = draft(drafter), draft(drafter)
    assert first == second
    first.tokens.append(0)
    assert draft(drafter) == second, "a caller owns what it was given"


@without_memory
@settings(deadline=None)
@given(texts, steps, texts, steps)
def test_two_sequences_do_not_mix(
    name: str, prompt: list[int], accepted: list[list[int]], other_prompt: list[int], other_accepted: list[list[int]]
) -> None:
    both, one, other = make(name), make(name), make(name)
    play(one, 3, prompt, accepted)
    play(other, 5, other_prompt, other_accepted)
    interleave(both, {5: (other_prompt, other_accepted), 3: (prompt, accepted)})
    together = both.draft([Want(5, 16, 8), Want(3, 4, 4)])
    assert together == [draft(other, 5), draft(one, 3, 4, 4)]


@every_drafter
@settings(deadline=None)
@given(texts, steps, texts, steps)
def test_ids_are_only_names(
    name: str, prompt: list[int], accepted: list[list[int]], other_prompt: list[int], other_accepted: list[list[int]]
) -> None:
    one, other = make(name), make(name)
    interleave(one, {3: (prompt, accepted), 5: (other_prompt, other_accepted)})
    interleave(other, {5: (prompt, accepted), 0: (other_prompt, other_accepted)})
    assert one.draft([Want(3, 16, 8), Want(5, 4, 4)]) == other.draft([Want(5, 16, 8), Want(0, 4, 4)])


@every_drafter
@settings(deadline=None)
@given(texts, steps, texts, steps)
def test_ids_are_reusable_after_end(
    name: str, prompt: list[int], accepted: list[list[int]], old_prompt: list[int], old_accepted: list[list[int]]
) -> None:
    reused, fresh = make(name), make(name)
    play(reused, 0, old_prompt, old_accepted)
    if fresh.remembers:
        play(fresh, 7, old_prompt, old_accepted)
    reused.end(0)
    play(reused, 0, prompt, accepted)
    play(fresh, 0, prompt, accepted)
    assert draft(reused) == draft(fresh)


@every_drafter
def test_ending_an_unknown_sequence_is_ignored(name: str) -> None:
    drafter = make(name)
    drafter.end(7)
    drafter.begin(0, [1, 2, 1])
    before = draft(drafter)
    drafter.end(7)
    assert draft(drafter) == before
    drafter.end(0)
    drafter.end(0)


@every_drafter
def test_no_wants_no_proposals(name: str) -> None:
    drafter = make(name)
    drafter.begin(0, [1, 2, 1])
    assert drafter.draft([]) == []


@every_drafter
def test_close_twice(name: str) -> None:
    drafter = make(name)
    drafter.begin(0, [1, 2, 1])
    drafter.close()
    drafter.close()
