"""`KvSlot` against the cells of the fake: what it says is in memory is there, whatever the memory refuses."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.engine.kv import KvSlot, common_prefix
from edgedec.errors import AbortedError
from edgedec.llama.base import Rows
from edgedec.llama.fake import FakeContext
from tests.engine.lab import MEMORIES, Chain, check_memory, new_context, new_model

every_memory = pytest.mark.parametrize("memory", MEMORIES)
with_cells = pytest.mark.parametrize("memory", ["full", "window"])
with_snapshots = pytest.mark.parametrize("memory", ["hybrid with snapshots", "recurrent with snapshots"])


class Slot(KvSlot):
    """Decodes what it is extended by, and checks itself."""

    def __init__(self, memory: str) -> None:
        self.context: FakeContext = new_context(new_model(memory), n_ctx=128)
        super().__init__(self.context)
        self._kv = self  # as `check_memory` finds it in an engine

    def decode(self, tokens: Sequence[int]) -> None:
        n, at = len(tokens), len(self)
        self.context.decode(Rows(tuple(tokens), range(at, at + n), ((0,),) * n, (False,) * n))

    def add(self, tokens: Sequence[int]) -> None:
        self.decode(tokens)
        self.extend(tokens)
        self.check()

    def check(self) -> None:
        check_memory(self, self.context, Chain())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("a", "b", "n"),
    [("", "", 0), ("abc", "", 0), ("abc", "abd", 2), ("ab", "abc", 2), ("abc", "abc", 3), ("x", "y", 0)],
)
def test_common_prefix(a: str, b: str, n: int) -> None:
    assert common_prefix(a.encode(), b.encode()) == n
    assert common_prefix(list(b.encode()), tuple(a.encode())) == n


@with_cells
def test_trim(memory: str) -> None:
    slot = Slot(memory)
    slot.add(b"abcdefgh")
    for n in (8, 9):
        assert slot.trim(n)
        assert bytes(slot.tokens) == b"abcdefgh"
    assert slot.trim(5)
    slot.check()
    assert bytes(slot.tokens) == b"abcde"
    slot.add(b"xyz")
    assert slot.trim(0)
    slot.check()
    assert len(slot) == 0
    slot.add(b"abc")


@with_cells
def test_reuse(memory: str) -> None:
    """The last token of the prompt is always evaluated: its logits are needed."""
    for prompt, n_kept in ((b"abcdefgh", 7), (b"abcdefghij", 8), (b"abcd", 3), (b"abXdefgh", 2), (b"X", 0), (b"a", 0)):
        slot = Slot(memory)
        slot.add(b"abcdefgh")
        assert slot.reuse(prompt) == n_kept
        assert bytes(slot.tokens) == prompt[:n_kept]
        slot.check()
    assert Slot(memory).reuse(b"abc") == 0


@every_memory
def test_a_prompt_that_goes_on_keeps_everything(memory: str) -> None:
    slot = Slot(memory)
    slot.add(b"abcdefgh")
    slot.add(b"i")
    assert slot.reuse(b"abcdefghij") == 9
    slot.check()


@every_memory
def test_a_refused_removal_empties_the_memory(memory: str) -> None:
    slot = Slot(memory)
    slot.add(b"abcdefgh")
    slot.context.refuse_seq_rm()
    assert not slot.trim(6)
    assert len(slot) == 0
    slot.check()
    slot.add(b"abcdefgh")
    slot.context.refuse_seq_rm()
    assert slot.reuse(b"abc") == 0
    slot.check()


@with_cells
def test_a_removal_without_effect_empties_the_memory(memory: str) -> None:
    slot = Slot(memory)
    slot.add(b"abcdefgh")
    slot.context.seq_rm = lambda seq_id, p0, p1: True  # type: ignore[method-assign]
    assert not slot.trim(6)
    assert len(slot) == 0
    slot.check()


def test_a_window_that_has_moved_on() -> None:
    """16 tokens in 40 cells: what was overwritten cannot be gone back to."""
    slot = Slot("window")
    for start in range(0, 100, 10):
        slot.add(range(start, start + 10))
    oldest = slot.context.seq_pos_min(0)
    assert 0 < oldest <= 84
    nearest = oldest + 16
    assert slot.trim(nearest)
    slot.check()
    slot.add(range(200, 202))
    assert not slot.trim(nearest - 1)
    assert len(slot) == 0
    slot.check()
    slot.add(range(24))
    assert slot.trim(3), "nothing has been overwritten yet"
    slot.check()


@with_snapshots
def test_a_state_goes_back_inside_the_last_batch(memory: str) -> None:
    """By at most 5 tokens, and once; anything else would be granted and be wrong."""
    for n_out, is_kept in ((1, True), (5, True), (6, False), (7, False), (9, False)):
        slot = Slot(memory)
        slot.add(b"abcd")
        slot.add(b"efghijkl")
        assert slot.trim(12 - n_out) == is_kept
        slot.check()
    slot = Slot(memory)
    slot.add(b"abcdefgh")
    slot.add(b"ij")
    assert not slot.trim(8), "of the state before the last batch there is no snapshot"
    slot.check()
    slot.add(b"abcdefgh")
    assert slot.trim(6)
    assert not slot.trim(5)
    slot.check()
    slot.add(b"abcdefgh")
    assert slot.trim(6)
    slot.add(b"xyz")
    assert slot.trim(7)
    slot.check()


@pytest.mark.parametrize("memory", ["hybrid", "recurrent"])
def test_a_state_without_snapshots_never_goes_back(memory: str) -> None:
    slot = Slot(memory)
    slot.add(b"abcd")
    assert not slot.trim(3)
    slot.check()
    assert slot.trim(0)


@every_memory
@pytest.mark.parametrize("n_rows", [1, 3, 30])
@pytest.mark.parametrize("n_before", [0, 1, 10, 60])
def test_resync_after_an_abort(memory: str, n_rows: int, n_before: int) -> None:
    """30 rows are two pieces, and the first of them may have come into the memory."""
    for aborted_piece in range(-(-n_rows // 24)):
        slot = Slot(memory)
        for start in range(0, n_before, 20):
            slot.add([97 + i % 9 for i in range(start, min(start + 20, n_before))])
        pieces_left = [aborted_piece]

        def delay(n_rows: int, n_past: int, left: list[int] = pieces_left, slot: Slot = slot) -> float:
            if left[0] == 0:
                slot.context.abort()
            left[0] -= 1
            return 0.0

        slot.context._model.delay = delay
        with pytest.raises(AbortedError):
            slot.decode([120] * n_rows)
        slot.context.clear_abort()
        slot.resync()
        slot.check()
        assert len(slot) in (0, n_before)
        if memory == "full":
            assert len(slot) == n_before
        slot.add(b"go on")


@every_memory
def test_resync_when_nothing_happened(memory: str) -> None:
    slot = Slot(memory)
    slot.resync()
    slot.check()
    slot.add(b"abc")
    slot.resync()
    slot.check()
    assert len(slot) == (3 if memory in ("full", "window") else 0), "nobody can tell what a state has seen"


@with_cells
def test_resync_when_the_memory_refuses(memory: str) -> None:
    slot = Slot(memory)
    slot.add(b"abc")
    slot.decode(b"de")
    slot.context.refuse_seq_rm()
    slot.resync()
    slot.check()
    assert len(slot) == 0


@with_cells
def test_resync_when_something_is_missing(memory: str) -> None:
    slot = Slot(memory)
    slot.add(b"abcdef")
    slot.context.seq_rm(0, 4, -1)
    slot.resync()
    slot.check()
    assert len(slot) == 0


@settings(deadline=None)
@given(
    memory=st.sampled_from(sorted(MEMORIES)),
    moves=st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(1, 24)),
            st.tuples(st.just("trim"), st.integers(0, 12)),
            st.tuples(st.just("reuse"), st.integers(0, 60)),
            st.tuples(st.just("refuse"), st.just(0)),
        ),
        max_size=12,
    ),
)
def test_any_life_of_a_slot(memory: str, moves: list[tuple[str, int]]) -> None:
    slot = Slot(memory)
    said: list[int] = []
    for i, (move, n) in enumerate(moves):
        if move == "add" and len(slot) + n <= 120:
            slot.add([97 + (i + j) % 7 for j in range(n)])
            said = list(slot.tokens)
        elif move == "trim":
            before = list(slot.tokens)
            wanted = max(0, len(slot) - n)
            done = slot.trim(wanted)
            assert slot.tokens == (before[:wanted] if done else [])
        elif move == "reuse":
            prompt = [*said[:n], 97]
            assert slot.reuse(prompt) == len(slot) < len(prompt)
            assert slot.tokens == prompt[: len(slot)]
        elif move == "refuse":
            slot.context.refuse_seq_rm()
        slot.check()
