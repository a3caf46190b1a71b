"""What every `Model` and `Context` must do, whatever stands behind them. Each `check_*` takes one backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from edgedec.errors import AbortedError, ClosedError, DecodeError, NoSlotError, UsageError
from edgedec.llama.base import Context, ContextParams, Logits, MemoryKind, Model, Rows

TEXT = "The quick brown fox jumps over the lazy dog, then sleeps in the warm sun."


# One thread: with more, tiny models spend their time waiting for each other.
_PARAMS = {"n_ctx": 256, "n_batch": 64, "n_ubatch": 64, "n_threads": 1}


@dataclass(frozen=True)
class Backend:
    """``tolerance``: largest difference of two logits that mean the same; a wrong context must exceed it."""

    model: Model
    tolerance: float = 0.0

    @contextmanager
    def context(self, **params: Any) -> Iterator[Context]:
        context = self.model.new_context(ContextParams(**{**_PARAMS, **params}))
        try:
            yield context
        finally:
            context.close()

    def text(self, n: int) -> list[int]:
        tokens = self.model.tokenize(TEXT)
        assert len(tokens) >= n
        return tokens[:n]

    def same(self, a: Logits, b: Logits) -> bool:
        return float(np.abs(a - b).max()) <= self.tolerance


def feed(context: Context, tokens: Sequence[int], start: int = 0, seq: tuple[int, ...] = (0,)) -> Logits:
    """Decode a chain; logits of all its rows, copied."""
    n = len(tokens)
    context.decode(Rows(tokens, range(start, start + n), (seq,) * n, (True,) * n))
    return np.array([context.logits(i) for i in range(n)])


def refused(context: Context, rows: Rows, code: int = -1) -> None:
    """The batch must be refused and the memory stay as it is."""
    before = [(context.seq_pos_min(s), context.seq_pos_max(s)) for s in range(context.n_seq_max)]
    with pytest.raises(DecodeError) as caught:
        context.decode(rows)
    assert caught.value.code == code
    assert isinstance(caught.value, NoSlotError) == (code == 1)
    assert [(context.seq_pos_min(s), context.seq_pos_max(s)) for s in range(context.n_seq_max)] == before
    with pytest.raises(IndexError):
        context.logits(0)


def check_sizes(backend: Backend) -> None:
    with backend.context(n_ctx=256, n_batch=32, n_seq_max=2, n_outputs_max=8) as context:
        assert (context.n_ctx, context.n_batch, context.n_seq_max, context.n_outputs_max) == (256, 32, 2, 8)
        assert context.n_threads >= 1
        row = feed(context, backend.text(1))
        assert row.shape == (1, backend.model.n_vocab)
        assert row.dtype == np.float32


def check_impossible_sizes(backend: Backend) -> None:
    for params in ({"n_ctx": 0}, {"n_batch": 0}, {"n_ubatch": 0}, {"n_seq_max": 0}, {"n_seq_max": 257}):
        with pytest.raises(UsageError), backend.context(**params):
            pass


def check_batching_does_not_matter(backend: Backend) -> None:
    tokens = backend.text(12)
    with backend.context() as context:
        whole = feed(context, tokens)
        context.clear()
        single = np.concatenate([feed(context, [t], i) for i, t in enumerate(tokens)])
        context.clear()
        parts = np.concatenate([feed(context, tokens[:5]), feed(context, tokens[5:], 5)])
    assert backend.same(whole, single)
    assert backend.same(whole, parts)


def check_pieces_do_not_matter(backend: Backend) -> None:
    tokens = backend.text(14)
    with backend.context() as context, backend.context(n_ubatch=6) as small:
        assert backend.same(feed(context, tokens), feed(small, tokens))


def check_context_matters(backend: Backend) -> None:
    tokens = backend.text(10)
    with backend.context() as context:
        right = feed(context, tokens)[-1]
        context.clear()
        wrong = feed(context, [tokens[1], *tokens[1:]])[-1]
    assert float(np.abs(right - wrong).max()) > backend.tolerance


def check_positions(backend: Backend) -> None:
    with backend.context(n_seq_max=2) as context:
        assert (context.seq_pos_min(0), context.seq_pos_max(0)) == (-1, -1)
        feed(context, backend.text(6))
        assert context.seq_pos_max(0) == 5
        has_cells = context.traits.kind in (MemoryKind.FULL, MemoryKind.WINDOW)
        assert context.seq_pos_min(0) == (0 if has_cells else 5)
        assert (context.seq_pos_min(1), context.seq_pos_max(1)) == (-1, -1)
        context.clear()
        assert context.seq_pos_max(0) == -1


def check_bad_batches(backend: Backend) -> None:
    a, b, c = backend.text(3)
    one, yes = ((0,),), (True,)
    with backend.context(n_batch=16, n_seq_max=2, n_outputs_max=8) as context:
        feed(context, [a, b])
        refused(context, Rows((), (), (), ()))
        refused(context, Rows((a,), (3,), one, yes))  # 2 would be next
        refused(context, Rows((a,), (1,), one, yes))
        refused(context, Rows((a, b), (2, 4), one * 2, yes * 2))
        refused(context, Rows((a, b), (3, 2), one * 2, yes * 2))
        refused(context, Rows((a,), (-1,), ((1,),), yes))
        refused(context, Rows((-1,), (2,), one, yes))
        refused(context, Rows((backend.model.n_vocab,), (2,), one, yes))
        refused(context, Rows((a,), (2,), ((2,),), yes))
        refused(context, Rows((a,), (2,), ((-1,),), yes))
        refused(context, Rows((a,), (2,), ((),), yes))
        refused(context, Rows((a,) * 17, range(2, 19), one * 17, (False,) * 17))
        refused(context, Rows((a,) * 9, range(2, 11), one * 9, yes * 9))
        refused(context, Rows((a, b), (2,), one, yes))
        refused(context, Rows((a,), (2,), ((0, 1),), yes))  # sequence 1 is empty: they have diverged
        for bad in (2, -1):
            with pytest.raises(DecodeError):
                context.seq_pos_max(bad)
        feed(context, [c], 2)


def check_a_new_sequence_may_start_anywhere(backend: Backend) -> None:
    with backend.context() as context:
        feed(context, backend.text(2), 7)
        assert context.seq_pos_max(0) == 8


def check_outputs(backend: Backend) -> None:
    tokens = backend.text(4)
    with backend.context() as context:
        with pytest.raises(IndexError):
            context.logits(0)
        rows = feed(context, tokens)
        context.clear()
        context.decode(Rows(tokens, range(4), ((0,),) * 4, (False, True, False, True)))
        assert backend.same(context.logits(1), rows[1])
        assert backend.same(context.logits(3), rows[3])
        for row in (0, 2, 4, -1):
            with pytest.raises(IndexError):
                context.logits(row)


def check_rollback(backend: Backend) -> None:
    """Root and a rejected draft of three: what is said afterwards is what would have been said without it."""
    tokens = backend.text(12)
    with backend.context() as context, backend.context() as fresh:
        feed(context, tokens[:6])
        feed(context, [tokens[6], *tokens[2:5]], 6)
        removed = context.seq_rm(0, 7, -1)
        if -1 < context.traits.n_rollback < 3:
            assert not removed
            assert context.seq_pos_max(0) == 9
            assert context.seq_rm(0, -1, -1)
            assert context.seq_pos_max(0) == -1
            return
        assert removed
        assert context.seq_pos_max(0) == 6
        feed(fresh, tokens[:7])
        assert backend.same(feed(context, tokens[7:], 7), feed(fresh, tokens[7:], 7))


def check_removing_everything(backend: Backend) -> None:
    tokens = backend.text(6)
    with backend.context(n_seq_max=2) as context:
        right = feed(context, tokens)
        feed(context, tokens[::-1], 0, (1,))
        assert context.seq_rm(0, 0, -1)
        assert (context.seq_pos_max(0), context.seq_pos_max(1)) == (-1, 5)
        assert backend.same(feed(context, tokens), right)


def check_any_sequence(backend: Backend) -> None:
    tokens = backend.text(6)
    with backend.context(n_seq_max=2) as context:
        feed(context, tokens)
        feed(context, tokens[::-1], 0, (1,))
        has_cells = context.traits.kind in (MemoryKind.FULL, MemoryKind.WINDOW)
        assert context.seq_rm(-1, 4, -1) == has_cells
        assert context.seq_pos_max(0) == context.seq_pos_max(1) == (3 if has_cells else 5)


def check_sequences_do_not_see_each_other(backend: Backend) -> None:
    tokens = backend.text(12)
    with backend.context(n_seq_max=2) as context, backend.context() as alone:
        feed(context, tokens[:3], 0, (0,))
        feed(context, tokens[5:8], 0, (1,))
        context.decode(Rows((tokens[3], tokens[8]), (3, 3), ((0,), (1,)), (True, True)))
        both = np.array([context.logits(0), context.logits(1)])
        first = feed(alone, tokens[:4])[-1]
        alone.clear()
        assert backend.same(both, np.array([first, feed(alone, tokens[5:9])[-1]]))


def check_sequence_copy_and_keep(backend: Backend) -> None:
    tokens = backend.text(12)
    with backend.context(n_seq_max=3) as context:
        whole = feed(context, tokens)
        context.clear()
        feed(context, tokens[:6])
        context.seq_cp(0, 2, -1, -1)
        context.seq_cp(0, 0, -1, -1)
        assert context.seq_pos_max(2) == 5
        feed(context, tokens[::-1][:4], 6)  # the source goes on differently
        assert backend.same(feed(context, tokens[6:], 6, (2,)), whole[6:])
        context.seq_keep(2)
        assert (context.seq_pos_max(0), context.seq_pos_max(2)) == (-1, 11)


def check_tree_equals_chains(backend: Backend) -> None:
    """Root 6, children 7a and 7b, below 7a also 8a and 8b: three leaves; then the path 6 7a 8b is kept."""
    tokens = backend.text(12)
    with backend.context(n_seq_max=3) as context, backend.context() as chain:
        if not context.traits.can_branch:
            pytest.skip("this memory cannot branch")
        feed(context, tokens[:6], 0, (0, 1, 2))
        sevens, eights = (tokens[7], tokens[0]), (tokens[8], tokens[1])
        tree = Rows(
            (tokens[6], sevens[0], sevens[1], eights[0], eights[1]),
            (6, 7, 7, 8, 8),
            ((0, 1, 2), (0, 1), (2,), (0,), (1,)),
            (True,) * 5,
        )
        context.decode(tree)
        rows = [context.logits(i).copy() for i in range(5)]
        for path in ((0, 1, 3), (0, 1, 4), (0, 2)):
            chain.clear()
            feed(chain, tokens[:6])
            expected = feed(chain, [tree.tokens[i] for i in path], 6)
            assert backend.same(np.array([rows[i] for i in path]), expected)
        context.seq_keep(1)
        for s in (0, 2):
            context.seq_cp(1, s, -1, -1)
            assert context.seq_pos_max(s) == 8
        chain.clear()
        feed(chain, [*tokens[:7], sevens[0], eights[1]])
        right = feed(chain, tokens[9:], 9)
        assert backend.same(feed(context, tokens[9:], 9, (0, 1, 2)), right)


def check_stale_cells_are_seen(backend: Backend) -> None:
    """A sibling that was not removed is visible to whoever carries its id: other logits, or a refused batch."""
    tokens = backend.text(12)
    with backend.context(n_seq_max=2) as context, backend.context() as chain:
        if not context.traits.can_branch:
            pytest.skip("this memory cannot branch")
        feed(context, tokens[:6], 0, (0, 1))
        context.decode(Rows((tokens[6], tokens[0]), (6, 6), ((0,), (1,)), (True, True)))
        context.seq_cp(0, 1, -1, -1)  # sequence 1 still has its own cell at 6
        assert context.seq_pos_max(1) == 6
        right = feed(chain, tokens[:8])[-1]
        stale = feed(context, tokens[7:8], 7, (1,))[-1]
    assert float(np.abs(right - stale).max()) > backend.tolerance


def check_diverged_sequences_cannot_share(backend: Backend) -> None:
    tokens = backend.text(6)
    with backend.context(n_seq_max=2) as context:
        feed(context, tokens, 0, (0,))
        feed(context, tokens[:3], 0, (1,))
        with pytest.raises(DecodeError) as caught:
            context.decode(Rows((tokens[0],), (6,), ((0, 1),), (True,)))
        assert caught.value.code == -1


def check_no_room(backend: Backend) -> None:
    tokens = (backend.text(16) * 16)[:256]
    with backend.context(n_ctx=256) as context:
        if context.traits.kind is MemoryKind.RECURRENT:
            pytest.skip("a running state has no size")
        for i in range(0, 256, 64):
            n = min(64, 250 - i)
            context.decode(Rows(tokens[i : i + n], range(i, i + n), ((0,),) * n, (False,) * n))
        refused(context, Rows(tokens[:7], range(250, 257), ((0,),) * 7, (False,) * 7), code=1)
        feed(context, tokens[250:], 250)
        refused(context, Rows(tokens[:1], (256,), ((0,),), (True,)), code=1)


def check_state(backend: Backend) -> None:
    tokens = backend.text(12)
    with backend.context() as context, backend.context(n_seq_max=2) as other:
        feed(context, tokens[:6])
        saved = context.state_save(0)
        right = feed(context, tokens[6:], 6)
        context.clear()
        context.state_load(0, saved)
        assert context.seq_pos_max(0) == 5
        assert backend.same(feed(context, tokens[6:], 6), right)
        context.state_load(0, saved)  # over what is there
        assert context.seq_pos_max(0) == 5
        feed(other, tokens[::-1][:4])
        other.state_load(1, saved)
        assert (other.seq_pos_max(0), other.seq_pos_max(1)) == (3, 5)
        assert backend.same(feed(other, tokens[6:], 6, (1,)), right)


def check_bad_state(backend: Backend) -> None:
    tokens = backend.text(8)
    with backend.context() as context:
        feed(context, tokens)
        saved = context.state_save(0)
        for bad in (b"", b"nonsense", saved[:-1]):
            with pytest.raises(DecodeError):
                context.state_load(0, bad)
        assert context.seq_pos_max(0) == 7


def check_abort(backend: Backend) -> None:
    tokens = backend.text(12)
    with backend.context() as context:
        right = feed(context, tokens)
        context.clear()
        feed(context, tokens[:4])
        context.abort()
        for _ in range(2):
            with pytest.raises(AbortedError) as caught:
                context.decode(Rows(tokens[4:8], range(4, 8), ((0,),) * 4, (True,) * 4))
            assert caught.value.code == 2
            with pytest.raises(IndexError):
                context.logits(3)
            context.clear()
            context.clear_abort()
            feed(context, tokens[:4])
            context.abort()
        context.clear_abort()
        assert backend.same(feed(context, tokens[4:], 4), right[4:])


def check_close(backend: Backend) -> None:
    with backend.context() as context:
        feed(context, backend.text(2))
        saved = context.state_save(0)
        context.close()
        context.close()
        calls = [
            lambda: feed(context, backend.text(1), 2),
            lambda: context.logits(0),
            lambda: context.seq_rm(0, 0, -1),
            lambda: context.seq_cp(0, 0, -1, -1),
            lambda: context.seq_keep(0),
            lambda: context.seq_pos_min(0),
            lambda: context.seq_pos_max(0),
            lambda: context.clear(),
            lambda: context.state_save(0),
            lambda: context.state_load(0, saved),
        ]
        for call in calls:
            with pytest.raises(ClosedError):
                call()


def check_vocabulary(backend: Backend) -> None:
    model = backend.model
    for text in (TEXT, "naïve café – 12 € 🦊\n\n", ""):
        assert b"".join(map(model.piece, model.tokenize(text))).decode().strip() == text.strip()
    assert model.eos_id in model.eog_ids
    controls = model.control_strings()
    assert list(map(len, controls)) == sorted(map(len, controls), reverse=True)
    assert controls
    for spelling in controls[:3]:
        (token,) = model.tokenize(spelling, parse_special=True)
        assert model.is_control(token)
        assert model.piece(token) == b""
        assert model.special_text(token) == spelling
        assert not any(map(model.is_control, model.tokenize(spelling)))
    for bad in (-1, model.n_vocab):
        with pytest.raises(UsageError):
            model.piece(bad)


CHECKS = [check for name, check in list(globals().items()) if name.startswith("check_")]
