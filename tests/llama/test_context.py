"""llama.cpp's context behind the interface: what the shared contract does not say."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.errors import AbortedError, ClosedError, DecodeError, UsageError
from edgedec.llama.base import ContextParams, Logits, MemoryKind, MemoryTraits, Rows
from edgedec.llama.context import KV_TYPES, LlamaContext
from edgedec.llama.model import LlamaModel
from tests.llama.contract import feed
from tests.tiny_gguf import write_text_model

SHARP = {"type_k": "f32", "type_v": "f32", "flash_attn": "off"}  # nothing is rounded on the way
ONE, YES = ((0,),), (True,)


@pytest.fixture(scope="module")
def model(tiny: Path) -> Iterator[LlamaModel]:
    model = LlamaModel(tiny)
    yield model
    model.close()


def open_context(model: LlamaModel, **params: Any) -> closing[LlamaContext]:
    return closing(model.new_context(ContextParams(**{"n_ctx": 256, "n_batch": 64, "n_threads": 1, **params})))


def close(a: Logits, b: Logits, tolerance: float = 1e-3) -> bool:
    return float(np.abs(a - b).max()) < tolerance


# Sizes and types


def test_the_smallest_context_works(model: LlamaModel) -> None:
    with open_context(model, n_ctx=1, n_batch=1, n_ubatch=1, n_outputs_max=1) as context:
        assert (context.n_ctx, context.n_batch, context.n_outputs_max) == (1, 1, 1)
        assert feed(context, [5]).shape == (1, model.n_vocab)
        assert context.traits.n_rollback == -1


@pytest.mark.parametrize("kind", KV_TYPES)
def test_every_type_of_cells(model: LlamaModel, kind: str) -> None:
    tokens = model.tokenize("The sky is blue.")
    with open_context(model, **SHARP) as context:
        right = feed(context, tokens)
    with open_context(model, type_k=kind, type_v=kind) as context:
        assert close(feed(context, tokens), right, 2.0)  # 0.01 with f16, 0.1 with q8_0, 1.3 with q4_0


def test_impossible_settings(model: LlamaModel) -> None:
    for params, message in (
        ({"type_k": "q3_k"}, "type_k is 'q3_k'"),
        ({"type_v": ""}, "type_v is ''"),
        ({"flash_attn": "maybe"}, "flash_attn is 'maybe'"),
        ({"type_v": "q4_0", "flash_attn": "off"}, "needs flash attention"),
        ({"n_seq_max": 5, "n_outputs_max": 4}, "only 4 outputs"),
        ({"n_seq_max": 9, "n_batch": 8}, "only 8 outputs"),
        ({"n_outputs_max": 0}, "only 0 outputs"),
    ):
        with pytest.raises(UsageError, match=message):
            open_context(model, **params)


def test_kinds_of_memory_are_asked_not_guessed(tmp_path: Path) -> None:
    found = {}
    for architecture in ("llama", "gemma3", "lfm2", "mamba"):
        model = LlamaModel(write_text_model(tmp_path / "odd-name.gguf", architecture))
        with open_context(model, n_seq_max=4) as context:
            found[architecture] = context.traits
        model.close()
    assert found == {
        "llama": MemoryTraits(MemoryKind.FULL, n_rollback=-1, can_branch=True),
        "gemma3": MemoryTraits(MemoryKind.WINDOW, n_rollback=-1, n_window=16),
        "lfm2": MemoryTraits(MemoryKind.HYBRID, n_rollback=0),
        "mamba": MemoryTraits(MemoryKind.RECURRENT, n_rollback=0),
    }


def test_a_window_may_be_kept_whole(tmp_path: Path) -> None:
    model = LlamaModel(write_text_model(tmp_path / "window.gguf", "gemma3"))
    with open_context(model, n_seq_max=4, swa_full=True) as context:
        assert context.traits == MemoryTraits(MemoryKind.FULL, n_rollback=-1, can_branch=True)
    model.close()


# Batches


def test_nothing_is_there_before_the_first_decode(model: LlamaModel) -> None:
    with open_context(model) as context:
        assert context.seq_pos_max(0) == -1
        with pytest.raises(IndexError):
            context.logits(0)


def test_logits_are_views_until_the_next_decode(model: LlamaModel) -> None:
    with open_context(model) as context:
        feed(context, [5, 6])
        first, again = context.logits(1), context.logits(1)
        assert np.shares_memory(first, again)
        assert not first.flags.owndata
        assert first.shape == (model.n_vocab,)
        before = first.copy()
        with pytest.raises(DecodeError):
            context.decode(Rows((), (), (), ()))
        with pytest.raises(IndexError):
            context.logits(1)
        assert np.array_equal(first, before), "a batch that was refused has not touched them"


class NoNativeCode:
    """In place of the library: any call is a failure."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was called")


@pytest.mark.parametrize(
    "rows",
    [
        Rows((), (), (), ()),
        Rows((5,) * 65, range(65), ONE * 65, (False,) * 65),
        Rows((5,) * 9, range(9), ONE * 9, YES * 9),
        Rows((-1,), (0,), ONE, YES),
        Rows((10**6,), (0,), ONE, YES),
        Rows((2**40,), (0,), ONE, YES),
        Rows((5,), (-1,), ONE, YES),
        Rows((5,), (2**31,), ONE, YES),
        Rows((5,), (0,), ((),), YES),
        Rows((5,), (0,), ((-1,),), YES),
        Rows((5,), (0,), ((4,),), YES),
        Rows((5,), (0,), ((0, 1, 2, 3, 0),), YES),
        Rows((5, 5), (0, 1), ((0,), (7,)), YES * 2),
        Rows((5, 5), (0,), ONE, YES),
        Rows((5,), (0, 1), ONE, YES),
        Rows((5,), (0,), ONE * 2, YES),
        Rows((5,), (0,), ONE, YES * 2),
    ],
)
def test_wrong_batches_do_not_reach_native_code(model: LlamaModel, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_context(model, n_seq_max=4, n_outputs_max=8) as context:
        with monkeypatch.context() as patch:
            patch.setattr("edgedec.llama.context.capi", NoNativeCode())
            with pytest.raises(DecodeError) as caught:
                context.decode(rows)
        assert caught.value.code == -1
        feed(context, [5, 6])


def test_a_sequence_id_given_twice_counts_once(model: LlamaModel) -> None:
    with open_context(model, n_seq_max=2) as context:
        context.decode(Rows((5,), (0,), ((0, 0),), YES))
        assert (context.seq_pos_max(0), context.seq_pos_max(1)) == (0, -1)


def test_sequences_that_do_not_exist(model: LlamaModel) -> None:
    with open_context(model, n_seq_max=2) as context:
        feed(context, [5])
        saved = context.state_save(0)
        for bad in (2, -1, 300):
            for question in (
                lambda bad=bad: context.seq_cp(0, bad, -1, -1),
                lambda bad=bad: context.seq_cp(bad, 0, -1, -1),
                lambda bad=bad: context.seq_keep(bad),
                lambda bad=bad: context.seq_pos_min(bad),
                lambda bad=bad: context.seq_pos_max(bad),
                lambda bad=bad: context.state_save(bad),
                lambda bad=bad: context.state_load(bad, saved),
            ):
                with pytest.raises(DecodeError, match="does not exist"):
                    question()
        with pytest.raises(DecodeError, match="does not exist"):
            context.seq_rm(2, 0, -1)


def test_parts_of_sequences(model: LlamaModel) -> None:
    with open_context(model, n_seq_max=4) as context:
        feed(context, range(20, 30))
        context.seq_cp(0, 1, 0, 4)
        assert (context.seq_pos_min(1), context.seq_pos_max(1)) == (0, 3)
        assert context.seq_rm(0, 0, 2)
        assert (context.seq_pos_min(0), context.seq_pos_max(0)) == (2, 9)
        assert (context.seq_pos_min(1), context.seq_pos_max(1)) == (0, 3), "they share cells, not fates"
        assert context.seq_rm(0, 8, -1)
        assert context.seq_pos_max(0) == 7
        context.seq_keep(1)
        assert (context.seq_pos_max(0), context.seq_pos_max(1)) == (-1, 3)
        context.clear()
        assert context.seq_pos_max(1) == -1


def test_a_tree_of_four_leaves_is_four_texts(model: LlamaModel) -> None:
    """Root r; children a, b; below a: c, d; below b: e, f. Each row sees its ancestors and nothing else."""
    prompt, (r, a, b, c, d, e, f) = list(range(20, 31)), range(40, 47)
    leaves = {(r, a, c): 0, (r, a, d): 1, (r, b, e): 2, (r, b, f): 3}
    rows = Rows(
        (r, a, b, c, d, e, f),
        (11, 12, 12, 13, 13, 13, 13),
        ((0, 1, 2, 3), (0, 1), (2, 3), (0,), (1,), (2,), (3,)),
        YES * 7,
    )
    with open_context(model, n_seq_max=4, **SHARP) as context, open_context(model, **SHARP) as single:
        feed(context, prompt, 0, (0, 1, 2, 3))
        context.decode(rows)
        tree = {token: context.logits(i).copy() for i, token in enumerate(rows.tokens)}
        for path, seq_id in leaves.items():
            single.clear()
            chain = np.concatenate([feed(single, [token], i) for i, token in enumerate([*prompt, *path])])
            for token, right in zip(path, chain[-3:], strict=True):
                assert close(tree[token], right)
            single.clear()
            after = feed(single, [*prompt, *path, 50])[-1]
            assert close(feed(context, [50], 14, (seq_id,))[-1], after)


# State


def test_damaged_and_foreign_states(model: LlamaModel, tmp_path: Path) -> None:
    with open_context(model) as context:
        feed(context, range(20, 40))
        saved = context.state_save(0)
        for at in (0, 8, 30, 60, len(saved) // 2, len(saved) - 1):
            damaged = bytearray(saved)
            damaged[at] ^= 0x40
            with pytest.raises(DecodeError, match=r"damaged|belongs to another"):
                context.state_load(0, bytes(damaged))
        for bad in (saved[:-1], saved + b"\0", saved[:39], saved[1:], b""):
            with pytest.raises(DecodeError, match="damaged"):
                context.state_load(0, bad)
        assert context.seq_pos_max(0) == 19, "a state that was refused changes nothing"
    other = LlamaModel(write_text_model(tmp_path / "other.gguf", seed=1))
    with open_context(other) as context, pytest.raises(DecodeError, match="belongs to another"):
        context.state_load(0, saved)
    other.close()
    with open_context(model, type_k="q8_0") as context, pytest.raises(DecodeError, match="belongs to another"):
        context.state_load(0, saved)
    with open_context(model, flash_attn="off") as context, pytest.raises(DecodeError):
        context.state_load(0, saved)


def test_a_state_that_does_not_fit(model: LlamaModel) -> None:
    with open_context(model, n_ctx=512, n_batch=512) as context:
        context.decode(Rows((20,) * 300, range(300), ONE * 300, (False,) * 300))
        saved = context.state_save(0)
    with open_context(model, n_seq_max=2) as small:
        feed(small, [5, 6, 7], 0, (1,))
        with pytest.raises(DecodeError, match="does not fit"):
            small.state_load(0, saved)
        assert (small.seq_pos_max(0), small.seq_pos_max(1)) == (-1, 2)
        feed(small, [5], 0)


def test_an_empty_sequence_has_a_state(model: LlamaModel) -> None:
    with open_context(model) as context:
        saved = context.state_save(0)
        feed(context, [5, 6])
        context.state_load(0, saved)
        assert context.seq_pos_max(0) == -1


# Stopping and closing


def abort_when(context: LlamaContext, event: threading.Event) -> threading.Thread:
    def stop() -> None:
        event.wait()
        context.abort()

    thread = threading.Thread(target=stop)
    thread.start()
    return thread


def test_abort_stops_decoding_from_another_thread(model: LlamaModel) -> None:
    rows = Rows((20,) * 512, range(512), ONE * 512, (False,) * 512)
    begun = threading.Event()
    with open_context(model, n_ctx=512, n_batch=512, n_ubatch=32) as context:
        right = feed(context, range(20, 30))

        def decode_for_ever() -> None:
            while True:
                context.clear()
                begun.set()
                context.decode(rows)

        thread = abort_when(context, begun)
        with pytest.raises(AbortedError):
            decode_for_ever()
        thread.join()
        context.clear()
        with pytest.raises(AbortedError):
            feed(context, [5])
        context.clear_abort()
        context.clear()
        assert close(feed(context, range(20, 30)), right, 0.05)


@pytest.mark.gguf
def test_abort_leaves_a_long_prefill_early(smollm2: Path) -> None:
    """Two thousand tokens take seconds; abort comes at once."""
    model, begun, n = LlamaModel(smollm2), threading.Event(), 2048
    with closing(model.new_context(ContextParams(n_ctx=n, n_batch=n, n_ubatch=32))) as context:
        thread = abort_when(context, begun)
        begun.set()
        with pytest.raises(AbortedError):
            context.decode(Rows((20,) * n, range(n), ONE * n, (False,) * n))
        thread.join()
        assert context.seq_pos_max(0) < n - 1
    model.close()


def test_closing_twice_and_using_what_is_closed(model: LlamaModel) -> None:
    context = model.new_context(ContextParams(n_ctx=256, n_threads=1))
    context.close()
    context.close()
    context.abort()
    context.clear_abort()
    with pytest.raises(ClosedError):
        context.decode(Rows((5,), (0,), ONE, YES))
    with pytest.raises(ClosedError):
        context.clear()


LEAK = """
import os, sys
from pathlib import Path
from edgedec.llama.base import ContextParams, Rows
from edgedec.llama.model import LlamaModel

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def use(n):
    for _ in range(n):
        context = model.new_context(ContextParams(n_ctx=2048, n_threads=1))
        context.decode(Rows((5,) * 512, range(512), ((0,),) * 512, (False,) * 512))
        context.close()

model = LlamaModel(Path(sys.argv[1]))
empty = resident()
held = [model.new_context(ContextParams(n_ctx=2048, n_threads=1)) for _ in range(3)]
for context in held:
    context.decode(Rows((5,) * 512, range(512), ((0,),) * 512, (False,) * 512))
one = (resident() - empty) / 3
for context in held:
    context.close()
use(3)
before = resident()
use(20)
print(one, resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the size of the process")
def test_contexts_give_their_memory_back(tiny: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAK, tiny], capture_output=True, text=True, timeout=120, check=True
    )  # fmt: skip
    one, growth = map(float, done.stdout.split())
    assert growth < 3 * one, "twenty contexts have come and gone"
