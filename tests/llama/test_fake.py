"""The fake model: stopping, time, failures on demand, what it says, and its vocabulary."""

from __future__ import annotations

import threading

import jinja2
import numpy as np
import pytest

from edgedec.errors import AbortedError, ClosedError, DecodeError, NoSlotError, UsageError
from edgedec.llama import fake
from edgedec.llama.base import MemoryKind, Rows
from edgedec.llama.fake import FakeClock, FakeModel
from tests.llama.contract import feed
from tests.llama.fakes import context_of, greedy, positions, replay

FULL, WINDOW, HYBRID, RECURRENT = MemoryKind.FULL, MemoryKind.WINDOW, MemoryKind.HYBRID, MemoryKind.RECURRENT

every_kind = pytest.mark.parametrize("kind", MemoryKind)


# Stopping, time, failures on demand


@every_kind
def test_abort_between_pieces_keeps_the_earlier_ones(kind: MemoryKind):
    calls: list[tuple[int, int]] = []

    def delay(n_rows: int, n_past: int) -> float:
        calls.append((n_rows, n_past))
        if len(calls) == 3:
            context.abort()
        return 0.5

    model = FakeModel(kind, delay=delay)
    context = context_of(model, n_ubatch=4)
    text = [97 + i for i in range(18)]
    with pytest.raises(AbortedError) as caught:
        feed(context, text)
    assert caught.value.code == 2
    assert calls == [(4, 0), (4, 4), (4, 8)]
    assert (context.n_decode_calls, context.n_rows) == (1, 8)
    assert model.clock.now() == 1.5
    context.clear_abort()
    if kind in (FULL, WINDOW):
        assert context.seq_pos_max(0) == 7
        assert np.array_equal(feed(context, text[8:], 8), replay(FakeModel(kind), text)[8:])
    else:  # the state cannot go back: it pretends to be where it is not
        assert context.seq_pos_max(0) == 11
        assert not np.array_equal(feed(context, text[12:], 12), replay(FakeModel(kind), text)[12:])


def test_abort_leaves_a_tree_in_disorder():
    context = context_of(FakeModel(), n_seq_max=2)
    feed(context, [97, 98], 0, (0, 1))
    context.abort()
    with pytest.raises(AbortedError):
        context.decode(Rows((99, 100, 101), (2, 3, 3), ((0, 1), (0,), (1,)), (True,) * 3))
    assert positions(context) == [(0, 2), (0, 1)]
    assert context.seq_rm(-1, 2, -1)
    assert positions(context) == [(0, 1), (0, 1)]


def test_abort_wakes_a_sleeping_decode():
    started = threading.Event()

    def delay(n_rows: int, n_past: int) -> float:
        started.set()
        return 3600.0

    context = context_of(FakeModel(delay=delay, sleep=True))
    caught: list[DecodeError] = []

    def work() -> None:
        try:
            feed(context, [97])
        except DecodeError as error:
            caught.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert started.wait(60)
    context.abort()
    thread.join(60)
    assert [type(error) for error in caught] == [AbortedError]


def test_delay_moves_a_shared_clock():
    clock = FakeClock()
    target = context_of(FakeModel(delay=lambda n_rows, n_past: n_rows + n_past / 100, clock=clock))
    draft = context_of(FakeModel(delay=lambda n_rows, n_past: 0.25, clock=clock))
    feed(target, [97, 98, 99])
    assert clock.now() == 3
    feed(draft, [97])
    feed(target, [100], 3)
    assert clock.now() == pytest.approx(4.28)
    clock.advance(1)
    assert clock.now() == pytest.approx(5.28)


def test_failures_on_demand():
    context = context_of(FakeModel())
    context.fail_decode(NoSlotError("full", code=1), DecodeError("broken", code=-3))
    for error in (NoSlotError, DecodeError):
        with pytest.raises(error):
            feed(context, [97, 98])
    assert positions(context) == [(-1, -1)]
    feed(context, [97, 98, 99])
    context.refuse_seq_rm(2)
    assert [context.seq_rm(0, 2, -1) for _ in range(3)] == [False, False, True]
    context.refuse_seq_rm(-1)
    assert not any(context.seq_rm(0, 0, -1) for _ in range(5))
    assert context.seq_pos_max(0) == 1
    context.refuse_seq_rm(0)
    assert context.seq_rm(0, 0, -1)


def test_what_was_decoded_is_counted_and_kept():
    model = FakeModel()
    context = context_of(model)
    tokens = [97, 98]
    feed(context, tokens)
    tokens.append(99)
    with pytest.raises(DecodeError):
        feed(context, [97], 7)
    assert (context.n_decode_calls, context.n_rows) == (2, 2)
    assert context.batches[0] == Rows((97, 98), (0, 1), ((0,), (0,)), (True, True))
    assert context.batches[1].positions == (7,)
    assert model.contexts == [context]


def test_a_view_of_old_logits_is_spoilt():
    context = context_of(FakeModel())
    context.decode(Rows((97,), (0,), ((0,),), (True,)))
    view = context.logits(0)
    assert np.isfinite(view).all()
    context.decode(Rows((98,), (1,), ((0,),), (False,)))
    assert np.isnan(view).all()


def test_more_sequences_than_outputs_are_refused():
    for params in ({"n_outputs_max": 3}, {"n_batch": 3}, {"n_ctx": 3}):
        with pytest.raises(UsageError):
            context_of(FakeModel(), **{"n_seq_max": 4, **params})


def test_closing_the_model_closes_its_contexts():
    model = FakeModel()
    context = context_of(model)
    model.close()
    model.close()
    for call in (lambda: feed(context, [97]), lambda: model.tokenize("a"), lambda: context_of(model)):
        with pytest.raises(ClosedError):
            call()
    context.close()


@every_kind
def test_state_belongs_to_its_model_and_must_fit(kind: MemoryKind):
    model = FakeModel(kind, n_rs_seq=2)
    context = context_of(model, n_seq_max=2)
    feed(context, [97 + i for i in range(12)])
    saved = context.state_save(0)
    with pytest.raises(DecodeError):
        context_of(FakeModel(kind, n_rs_seq=2, seed=1)).state_load(0, saved)
    context.state_load(1, context.state_save(1))  # an empty sequence is a state, too
    assert context.seq_pos_max(1) == -1
    if kind is not RECURRENT:
        small = context_of(model, n_ctx=8)
        feed(small, [97])
        with pytest.raises(DecodeError):
            small.state_load(0, saved)
        assert positions(small) == [(-1, -1)]


# What it says


def test_text_can_be_guessed_and_mistakes_show():
    """Two thirds of the tokens follow from the last two; a wrong token 100 positions back moves a fifth of the rest."""
    hits, moved, n = 0, 0.0, 0
    for seed in range(5):
        model = FakeModel(seed=seed)
        prompt = model.tokenize("A prompt of some words.")
        context = context_of(model, n_ctx=512)
        text = prompt + greedy(context, prompt, 150)
        last: dict[tuple[int, ...], int] = {}
        for i in range(2, len(text)):
            key = tuple(text[i - 2 : i])
            hits += last.get(key) == text[i]
            last[key] = text[i]
        n += len(text) - 2
        tails = []
        for first in (text[0], 120):
            context.clear()
            context.decode(Rows([first, *text[1:63]], range(63), ((0,),) * 63, (False,) * 63))
            tails.append(feed(context, text[63:127], 63).argmax(axis=1))
        moved += float(np.mean(tails[0] != tails[1])) / 5
    assert 0.5 < hits / n < 0.9
    assert 0.1 < moved < 0.4


def test_without_noise_the_last_tokens_decide():
    model = FakeModel(noise=0.0, order=2)
    a, b = replay(model, [97, 98, 99])[-1], replay(model, [100, 101, 98, 99])[-1]
    assert np.array_equal(a, b)
    assert not np.array_equal(a, replay(model, [97, 97, 99])[-1])


def test_models_of_one_seed_agree_mostly():
    text = greedy(context_of(FakeModel()), [97], 60)
    rows = {noise: replay(FakeModel(noise=noise), text).argmax(axis=1) for noise in (2.0, 1.0)}
    other = replay(FakeModel(seed=1), text).argmax(axis=1)
    assert 0.6 < np.mean(rows[2.0] == rows[1.0]) < 1
    assert np.mean(rows[2.0] == other) < 0.3


@every_kind
def test_script(kind: MemoryKind):
    model = FakeModel(kind, script=list(b"aab aac"))
    context = context_of(model)
    assert bytes(greedy(context, list(b"Say it: "), 7)) == b"aab aac"
    assert feed(context, [fake.EOS], 15)[-1].argmax() == ord("a")  # off the script: from the beginning
    context.clear()
    assert greedy(context, list(b"Say it: aab a"), 3) == [ord("a"), ord("c"), fake.END]


def test_script_with_temperature():
    row = replay(FakeModel(script=[100, 101]), [97])[-1].astype(np.float64)
    assert row[100] - np.log(np.exp(np.delete(row, 100)).sum()) > 7  # e^7 to 1


def test_end_rate():
    text = list(range(97, 123)) * 2
    for rate, expected in ((0.0, 0), (1.0, len(text))):
        ends = replay(FakeModel(end_rate=rate), text).argmax(axis=1) == fake.END
        assert ends.sum() == expected
    some = replay(FakeModel(end_rate=0.3), text).argmax(axis=1) == fake.END
    assert 0 < some.sum() < len(text)


# Vocabulary


def test_longest_match():
    model = FakeModel()
    text = "the café costs 5 €\n\n stop"
    pieces = [model.piece(t) for t in model.tokenize(text)]
    assert b"".join(pieces) == text.encode()
    assert pieces[0] == b"the "
    assert b"caf\xc3" in pieces  # half an "é"
    assert b" \xe2\x82" in pieces  # two thirds of a "€"
    assert pieces[-2:] == [b"\n\n", b" stop"]


def test_control_tokens():
    model = FakeModel()
    assert model.tokenize("a<|end|></s>", add_special=True, parse_special=True) == [fake.BOS, 97, fake.END, fake.EOS]
    assert fake.END not in model.tokenize("a<|end|>")
    assert model.eog_ids == {fake.EOS, fake.END}
    assert [t for t in range(model.n_vocab) if model.is_control(t)] == list(range(256, 262))
    assert model.special_text(fake.USER) + model.special_text(97) == "<|user|>a"


def test_chat_template():
    model = FakeModel()
    assert model.chat_template is not None
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = jinja2.Template(model.chat_template).render(messages=messages, add_generation_prompt=True)
    tokens = model.tokenize(text, parse_special=True)
    assert [t for t in tokens if model.is_control(t)] == [fake.SYSTEM, fake.END, fake.USER, fake.END, fake.ASSISTANT]
    assert FakeModel(chat_template=None).chat_template is None


def test_larger_vocabulary():
    model = FakeModel(n_vocab=1000)
    assert model.n_vocab == 1000
    assert replay(model, [97]).shape == (1, 1000)
    words = model.tokenize(" w700 w12")
    assert b"".join(map(model.piece, words)) == b" w700 w12"
    assert len(words) == 2
    with pytest.raises(UsageError):
        FakeModel(n_vocab=fake.N_VOCAB - 1)


def test_description():
    model = FakeModel(n_ctx_train=77)
    assert model.n_ctx_train == 77
    assert (model.bos_id, model.eos_id) == (fake.BOS, fake.EOS)
    assert model.architecture == model.metadata["general.architecture"] == "fake"
    assert model.name == model.path.stem
    assert min(model.n_params, model.n_bytes) > 0
    assert model.fingerprint == FakeModel().fingerprint
    variants = ({"seed": 1}, {"noise": 1.0}, {"order": 3}, {"script": [97]}, {"end_rate": 0.1}, {"kind": RECURRENT})
    prints = {FakeModel(**v).fingerprint for v in variants}
    assert len(prints | {model.fingerprint}) == len(variants) + 1
