"""The fake memory: exact to the last bit, and as touchy about bookkeeping as llama.cpp, or more."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edgedec.errors import NoSlotError, UsageError
from edgedec.llama.base import MemoryKind, MemoryTraits, Rows
from edgedec.llama.fake import FakeModel
from tests.llama.contract import feed
from tests.llama.fakes import context_of, positions, replay

FULL, WINDOW, HYBRID, RECURRENT = MemoryKind.FULL, MemoryKind.WINDOW, MemoryKind.HYBRID, MemoryKind.RECURRENT

every_kind = pytest.mark.parametrize("kind", MemoryKind)
stateful = pytest.mark.parametrize("kind", [HYBRID, RECURRENT])
kinds = st.sampled_from(MemoryKind)
texts = st.lists(st.integers(97, 104), min_size=1, max_size=30)


# What a row sees


@settings(deadline=None)
@given(kind=kinds, text=texts, cuts=st.sets(st.integers(1, 29)), n_ubatch=st.integers(1, 9))
def test_batches_and_pieces_do_not_change_a_bit(kind: MemoryKind, text: list[int], cuts: set[int], n_ubatch: int):
    model = FakeModel(kind)
    context = context_of(model, n_ubatch=n_ubatch)
    edges = [0, *sorted(c for c in cuts if c < len(text)), len(text)]
    parts = [feed(context, text[a:b], a) for a, b in itertools.pairwise(edges)]
    assert np.array_equal(np.concatenate(parts), replay(model, text))


@settings(deadline=None)
@given(
    kind=kinds,
    n_rs_seq=st.integers(3, 5),
    steps=st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(97, 104), max_size=3)), min_size=1, max_size=8),
    seed=st.integers(0, 3),
)
def test_rollback_equals_a_fresh_replay(
    kind: MemoryKind, n_rs_seq: int, steps: list[tuple[int, list[int]]], seed: int
) -> None:
    """Like an engine: each step decodes a root and a draft, and keeps the root and some of the draft."""
    model = FakeModel(kind, n_rs_seq=n_rs_seq, seed=seed)
    context = context_of(model, n_ubatch=8)
    text = [97]
    feed(context, text)
    for i, (n_kept, draft) in enumerate(steps):
        rows = feed(context, [98 + i, *draft], len(text))
        text += [98 + i, *draft[:n_kept]]
        assert context.seq_rm(0, len(text), -1)
        assert context.seq_pos_max(0) == len(text) - 1
        n = min(n_kept, len(draft))
        assert np.array_equal(rows[: n + 1], replay(model, text)[-n - 1 :])


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Tokens and parents (-1: the root) of up to 7 nodes; siblings differ."""
    parents = [draw(st.integers(-1, i - 1)) for i in range(draw(st.integers(1, 7)))]
    return [97 + i for i in range(len(parents))], parents


@settings(deadline=None)
@given(tree=trees(), prompt=texts, choice=st.integers(0, 7), more=texts)
def test_tree_rows_equal_chain_rows(
    tree: tuple[list[int], list[int]], prompt: list[int], choice: int, more: list[int]
) -> None:
    model = FakeModel()
    context = context_of(model, n_seq_max=8)
    tokens, parents = tree
    leaves = [i for i in range(len(tokens)) if i not in parents]
    paths = {-1: [97]}  # node -> tokens from the root
    for i, parent in enumerate(parents):
        paths[i] = [*paths[parent], tokens[i]]
    ids: dict[int, tuple[int, ...]] = {-1: tuple(range(8))}
    for i in range(len(tokens)):
        below = {i}
        for j in range(i + 1, len(tokens)):
            if parents[j] in below:
                below.add(j)
        ids[i] = tuple(s for s, leaf in enumerate(leaves) if leaf in below)
    n = len(prompt)
    feed(context, prompt, 0, ids[-1])
    nodes = [-1, *range(len(tokens))]
    depths = [n + len(paths[i]) - 1 for i in nodes]
    context.decode(Rows([paths[i][-1] for i in nodes], depths, [ids[i] for i in nodes], [True] * len(nodes)))
    for row, node in enumerate(nodes):
        assert np.array_equal(context.logits(row), replay(model, prompt + paths[node])[-1])

    kept = nodes[choice % len(nodes)]
    keeper = ids[kept][0]
    assert context.seq_rm(-1, n + len(paths[kept]), -1)
    context.seq_keep(keeper)
    for s in range(8):
        context.seq_cp(keeper, s, -1, -1)
    text = prompt + paths[kept]
    assert np.array_equal(feed(context, more, len(text), ids[-1]), replay(model, text + more)[len(text) :])


@every_kind
def test_every_token_in_sight_matters(kind: MemoryKind):
    model = FakeModel(kind)
    text = list(range(97, 117))
    right = replay(model, text)[-1]
    for i in range(len(text)):
        wrong = [*text[:i], 120, *text[i + 1 :]]
        assert np.count_nonzero(replay(model, wrong)[-1] != right) > 200


@pytest.mark.parametrize("kind", [FULL, WINDOW])
def test_a_missing_cell_matters(kind: MemoryKind):
    model = FakeModel(kind)
    context = context_of(model)
    text = list(range(97, 105))
    feed(context, text)
    assert context.seq_rm(0, 3, 4)  # a hole; the ends are as before
    assert positions(context) == [(0, 7)]
    assert not np.array_equal(feed(context, [99], 8)[-1], replay(model, [*text, 99])[-1])


@pytest.mark.parametrize("kind", [FULL, WINDOW])
def test_what_was_evaluated_beside_a_stale_cell_stays_wrong(kind: MemoryKind):
    model = FakeModel(kind)
    context = context_of(model, n_seq_max=3)
    feed(context, [97, 98, 99])
    context.seq_cp(0, 2, -1, -1)
    feed(context, [97, 120], 0, (1,))
    context.seq_cp(1, 0, 1, 2)  # a second cell at position 1 of sequence 0
    feed(context, [100], 3)
    context.seq_cp(0, 2, 3, 4)  # sequence 2 has the right tokens only
    assert not np.array_equal(feed(context, [101], 4, (2,))[-1], replay(model, [97, 98, 99, 100, 101])[-1])


def test_positions_matter():
    context = context_of(FakeModel())
    first = feed(context, [97, 98])[-1]
    context.clear()
    assert not np.array_equal(feed(context, [97, 98], 1)[-1], first)


def test_ids_of_a_row_must_see_the_same():
    """In llama.cpp it depends on the C++ library which of several ids decides; here no answer is right then."""
    model = FakeModel()
    context = context_of(model, n_seq_max=2)
    feed(context, [97, 98], 0, (0,))
    feed(context, [97, 99], 0, (1,))
    shared = feed(context, [100], 2, (0, 1))[-1]
    for second in (98, 99):
        assert not np.array_equal(shared, replay(model, [97, second, 100])[-1])


def test_a_stale_cell_of_one_id_is_enough():
    model = FakeModel()
    context = context_of(model, n_seq_max=3)
    feed(context, [97, 98], 0, (0, 1))
    feed(context, [97, 120], 0, (2,))
    context.seq_cp(2, 1, 1, 2)
    assert positions(context)[:2] == [(0, 1)] * 2
    assert not np.array_equal(feed(context, [100], 2, (0, 1))[-1], replay(model, [97, 98, 100])[-1])


def test_a_row_may_belong_to_partly_overlapping_sets_as_in_llama_cpp():
    context = context_of(FakeModel(), n_seq_max=3)
    context.decode(Rows((97, 98, 99), (0, 1, 1), ((0, 1, 2), (0, 1), (1, 2)), (True,) * 3))
    assert positions(context) == [(0, 1)] * 3


def test_a_position_may_occur_twice_in_a_sequence_as_in_llama_cpp():
    model = FakeModel()
    context = context_of(model)
    context.decode(Rows((97, 98, 99), (0, 1, 1), ((0,),) * 3, (True,) * 3))
    assert not np.array_equal(context.logits(2), replay(model, [97, 99])[-1])  # both are seen


# Memory kinds


@pytest.mark.parametrize(
    ("kind", "params", "traits"),
    [
        (FULL, {}, MemoryTraits(FULL, -1)),
        (FULL, {"n_seq_max": 4}, MemoryTraits(FULL, -1, can_branch=True)),
        (WINDOW, {"n_seq_max": 4}, MemoryTraits(WINDOW, -1, n_window=16)),
        (WINDOW, {"n_seq_max": 4, "swa_full": True}, MemoryTraits(FULL, -1, can_branch=True)),
        (HYBRID, {"n_seq_max": 4}, MemoryTraits(HYBRID, 5)),
        (RECURRENT, {"n_seq_max": 4}, MemoryTraits(RECURRENT, 5)),
    ],
)
def test_traits(kind: MemoryKind, params: dict[str, Any], traits: MemoryTraits):
    assert context_of(FakeModel(kind, n_rs_seq=5), **params).traits == traits


def test_window_forgets_what_is_before_it():
    model = FakeModel(WINDOW)
    context = context_of(model, n_ubatch=8)  # 16 + 8 cells
    text = [97 + i % 7 for i in range(60)]
    rows = np.concatenate([feed(context, text[i : i + 6], i) for i in range(0, 60, 6)])
    assert np.array_equal(rows, replay(model, text))
    assert context.seq_pos_max(0) == 59
    assert 0 < context.seq_pos_min(0) <= 60 - 16


def test_window_can_go_back_by_a_piece_but_not_by_much_more():
    model = FakeModel(WINDOW)
    context = context_of(model, n_ubatch=8)
    text = [97 + i % 7 for i in range(60)]
    for i, token in enumerate(text):
        feed(context, [token], i)
    assert positions(context) == [(36, 59)]  # all 24 cells in use
    assert context.seq_rm(0, 52, -1)  # the next row needs 37…51
    assert np.array_equal(feed(context, text[52:], 52), replay(model, text)[52:])
    assert context.seq_rm(0, 50, -1)
    assert context.seq_pos_min(0) > 50 - 15
    assert not np.array_equal(feed(context, text[50:], 50)[0], replay(model, text)[50])


@settings(deadline=None)
@given(steps=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6)), min_size=6, max_size=14))
@example(steps=[*[(1, 0)] * 7, (1, 3), (1, 0), (5, 3), (1, 0)])  # cells are not in the order of their positions
def test_window_has_no_holes(steps: list[tuple[int, int]]) -> None:
    """The positions tell whether a rollback went too far."""
    model = FakeModel(WINDOW, n_window=4)
    context = context_of(model, n_ubatch=3)  # 7 cells
    text: list[int] = []
    for n, n_back in steps:
        new = [97 + len(text) + i for i in range(n)]
        rows = feed(context, new, len(text))
        text += new
        assert np.array_equal(rows, replay(model, text)[-n:])
        keep = max(0, len(text) - n_back)
        assert context.seq_rm(0, keep, -1)
        del text[keep:]
        low, high = positions(context)[0]
        if high != keep - 1 or not 0 <= low <= max(0, keep - 3):  # the next row looks back three
            context.clear()
            text.clear()


def test_window_with_a_full_cache_goes_back_anywhere():
    model = FakeModel(WINDOW)
    context = context_of(model, n_ubatch=8, swa_full=True)
    text = [97 + i % 7 for i in range(60)]
    feed(context, text)
    assert positions(context) == [(0, 59)]
    assert context.seq_rm(0, 5, -1)
    assert np.array_equal(feed(context, text[5:], 5), replay(model, text)[5:])


def test_window_never_gives_up_cells_that_sequences_share():
    context = context_of(FakeModel(WINDOW), n_ubatch=4, n_seq_max=2)  # 2 · 16 + 4 cells
    feed(context, [97] * 24, 0, (0, 1))
    with pytest.raises(NoSlotError):
        feed(context, [98] * 13, 24, (0,))
    feed(context, [98] * 12, 24, (0,))
    assert positions(context) == [(0, 35), (0, 23)]


def test_no_room_leaves_no_trace_even_after_several_pieces():
    model = FakeModel()
    context = context_of(model, n_ctx=32, n_ubatch=8)
    text = [97 + i % 7 for i in range(32)]
    feed(context, text[:10])
    with pytest.raises(NoSlotError) as caught:
        feed(context, [97] * 23, 10)
    assert caught.value.code == 1
    assert positions(context) == [(0, 9)]
    assert np.array_equal(feed(context, text[10:], 10), replay(model, text)[10:])


@stateful
def test_a_pending_rollback_is_used_once(kind: MemoryKind):
    model = FakeModel(kind, n_rs_seq=4)
    context = context_of(model)
    feed(context, [97, 98, 99, 100, 101])
    assert context.seq_rm(0, 3, -1)
    assert not context.seq_rm(0, 2, -1)
    assert context.seq_pos_max(0) == 2
    assert np.array_equal(feed(context, [110], 3)[-1], replay(model, [97, 98, 99, 110])[-1])


@stateful
def test_a_rollback_beyond_the_last_decode_is_granted_and_wrong(kind: MemoryKind):
    """Only the newest n snapshots are written by n rows; llama.cpp does not check that the others are stale."""
    model = FakeModel(kind, n_rs_seq=4)
    context = context_of(model)
    feed(context, [97, 98, 99, 100])
    feed(context, [101], 4)
    assert context.seq_rm(0, 3, -1)
    assert context.seq_pos_max(0) == 2
    assert not np.array_equal(feed(context, [110], 3)[-1], replay(model, [97, 98, 99, 110])[-1])


@stateful
def test_snapshots_survive_a_cut_near_the_end(kind: MemoryKind):
    model = FakeModel(kind, n_rs_seq=4)
    context = context_of(model, n_ubatch=8)
    text = [97 + i for i in range(17)]  # 8 + 4 + 5, not 8 + 8 + 1
    feed(context, text)
    assert context.seq_rm(0, 13, -1)
    assert np.array_equal(feed(context, text[13:], 13), replay(model, text)[13:])
    with pytest.raises(UsageError):
        context_of(model, n_ubatch=5)


@stateful
def test_a_rollback_left_pending_spoils_the_next_text(kind: MemoryKind):
    """`seq_keep` forgets a sequence, but not that it was to be rolled back; only `seq_rm` of everything does."""
    model = FakeModel(kind, n_rs_seq=4)
    context = context_of(model, n_seq_max=2)
    for is_right in (False, True):
        feed(context, [97, 98, 99, 100], 0, (1,))
        assert context.seq_rm(1, 2, -1)
        context.seq_keep(0)
        assert positions(context) == [(-1, -1)] * 2
        if is_right:
            assert context.seq_rm(1, -1, -1)
        assert np.array_equal(feed(context, [110], 0, (1,)), replay(model, [110])) == is_right
        assert context.seq_rm(1, -1, -1)


@stateful
def test_parallel_sequences_of_unequal_length(kind: MemoryKind):
    model = FakeModel(kind, n_rs_seq=2)
    context = context_of(model, n_ubatch=8, n_seq_max=3)
    parts = {0: [97 + i for i in range(11)], 1: [98, 99], 2: [100 + i for i in range(6)]}
    rows = [(t, p, (s,), True) for s, tokens in parts.items() for p, t in enumerate(tokens)]
    context.decode(Rows(*zip(*rows, strict=True)))
    found = np.array([context.logits(i) for i in range(len(rows))])
    assert np.array_equal(found, np.concatenate([replay(model, tokens) for tokens in parts.values()]))
    assert context.seq_rm(0, 9, -1)
    assert np.array_equal(feed(context, [97], 9)[-1], replay(model, [*parts[0][:9], 97])[-1])


@stateful
def test_a_refused_removal_changes_nothing(kind: MemoryKind):
    model = FakeModel(kind, n_rs_seq=2)
    context = context_of(model)
    feed(context, [97, 98, 99, 100])
    assert not context.seq_rm(0, 1, -1)
    assert not context.seq_rm(-1, 3, -1)
    assert not context.seq_rm(-1, -1, -1)
    assert np.array_equal(feed(context, [101], 4)[-1], replay(model, [97, 98, 99, 100, 101])[-1])


@stateful
def test_removing_the_beginning_of_a_state_does_nothing_to_it(kind: MemoryKind):
    context = context_of(FakeModel(kind))
    feed(context, [97, 98, 99, 100])
    assert context.seq_rm(0, 0, 2)
    assert context.seq_pos_max(0) == 3


@stateful
def test_rows_of_several_sequences_are_refused(kind: MemoryKind):
    context = context_of(FakeModel(kind), n_seq_max=2)
    with pytest.raises(NoSlotError):
        feed(context, [97], 0, (0, 1))
    assert positions(context) == [(-1, -1)] * 2


@stateful
def test_a_copied_state_has_no_snapshots(kind: MemoryKind):
    model = FakeModel(kind, n_rs_seq=4)
    context = context_of(model, n_seq_max=2)
    feed(context, [97, 98, 99])
    context.seq_cp(0, 1, -1, -1)
    text = [97, 98, 99, 100, 101]
    assert np.array_equal(feed(context, text[3:], 3, (1,)), replay(model, text)[3:])
    assert np.array_equal(feed(context, [120], 3)[-1], replay(model, [97, 98, 99, 120])[-1])
    assert context.seq_rm(1, 2, -1)  # three back, two decoded since it has its own state
    assert not np.array_equal(feed(context, [121], 2, (1,))[-1], replay(model, [97, 98, 121])[-1])
