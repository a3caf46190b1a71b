"""One request after another on one engine: what is kept between them, what goes wrong, what is cancelled."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.engine.engine import Engine
from edgedec.errors import DecodeError, NoSlotError, PromptTooLongError, UsageError
from edgedec.llama.fake import FakeClock
from edgedec.types import Request, SamplingParams
from tests.engine.lab import (
    EVERYTHING,
    GREEDY,
    MEMORIES,
    REQUEST,
    Always,
    Guesser,
    at_random,
    finish,
    new_context,
    new_model,
    plain,
    play,
    prompt_of,
    with_oracle,
    works,
)

every_memory = pytest.mark.parametrize("memory", MEMORIES)

# What is kept


@every_memory
def test_the_same_prompt_again(memory: str) -> None:
    """All but its last token, whose logits are needed, if the memory can go back so far."""
    engine, context = with_oracle(memory)
    first = play(engine, context, REQUEST, 0).result
    again = play(engine, context, REQUEST, 1).result
    assert first.usage.cached_tokens == 0
    assert again.usage.cached_tokens == (29 if memory == "full" else 0)
    assert again.token_ids == first.token_ids


@every_memory
def test_a_prompt_that_goes_on_from_the_answer(memory: str) -> None:
    """Every memory keeps it: nothing has to be removed."""
    engine, context = with_oracle(memory)
    first = play(engine, context, REQUEST, 0).result
    n_held = len(engine._kv)
    assert n_held >= 30 + 29
    longer = Request((*REQUEST.prompt, *first.token_ids, *b" and"), GREEDY, max_tokens=20)
    result = play(engine, context, longer, 1).result
    assert result.usage.cached_tokens == n_held
    assert result.token_ids == plain(memory, longer).token_ids


def test_a_prompt_that_parts_from_the_last_one() -> None:
    for n_same in (0, 1, 17, 29):
        engine, context = with_oracle("full")
        play(engine, context, REQUEST, 0)
        other = Request((*REQUEST.prompt[:n_same], *b"XYZ"), GREEDY, max_tokens=20)
        result = play(engine, context, other, 1).result
        assert result.usage.cached_tokens == n_same
        assert result.token_ids == plain("full", other).token_ids


def test_a_window_goes_back_as_far_as_it_still_holds() -> None:
    """Of 16; the cells outside it were overwritten long ago."""
    model = new_model("window")
    for n_back, n_kept in ((3, 120 - 3), (60, 0)):
        context = new_context(model)
        engine = Engine(model, context)
        prompt = prompt_of(120)
        play(engine, context, Request(prompt, GREEDY, max_tokens=1), 0)
        shorter = Request((*prompt[: 120 - n_back], *b"XYZ"), GREEDY, max_tokens=10)
        result = play(engine, context, shorter, 1).result
        assert result.usage.cached_tokens == n_kept
        assert result.token_ids == plain("window", shorter).token_ids


def test_snapshots_are_not_taken_for_older_ones() -> None:
    """A state can go back within the last batch only; the memory would grant more and spoil the answer."""
    for memory in ("hybrid with snapshots", "recurrent with snapshots"):
        model = new_model(memory)
        context = new_context(model)
        engine = Engine(model, context)
        play(engine, context, Request(prompt_of(30), GREEDY, max_tokens=4), 0)
        works(engine, context, memory)
        again = Request(prompt_of(30), GREEDY, max_tokens=10)
        for i in range(2):
            assert play(engine, context, again, i).result.token_ids == plain(memory, again).token_ids


@settings(deadline=None, max_examples=80)
@given(
    memory=st.sampled_from(sorted(MEMORIES)),
    turns=st.lists(
        st.tuples(st.integers(0, 80), st.integers(1, 20), st.integers(1, 15), st.integers(0, 3)), min_size=2, max_size=6
    ),
)
def test_any_conversation_equals_fresh_engines(memory: str, turns: list[tuple[int, int, int, int]]) -> None:
    """Each prompt keeps a part of the text so far and adds something of its own."""
    model = new_model(memory)
    context = new_context(model)
    engine = Engine(model, context, [at_random()], Always())  # type: ignore[arg-type]
    text: tuple[int, ...] = ()
    for i, (n_kept, n_new, max_tokens, seed) in enumerate(turns):
        request = Request((*text[:n_kept], *prompt_of(n_new, seed)), EVERYTHING, max_tokens)
        result = play(engine, context, request, i).result
        assert result.token_ids == plain(memory, request).token_ids
        text = (*request.prompt, *result.token_ids)


# What goes wrong


@every_memory
@pytest.mark.parametrize("times", [1, -1], ids=["once", "always"])
def test_refused_removals_cost_time_only(memory: str, times: int) -> None:
    answer = plain(memory, REQUEST)
    for n_before in range(4):
        engine, context = with_oracle(memory)
        engine.submit(0, REQUEST)
        for _ in range(n_before):
            engine.step()
        context.refuse_seq_rm(times)
        played = finish(engine, context)
        assert played.result.token_ids == answer.token_ids
        assert played.result.text == answer.text
        works(engine, context, memory)


def test_after_a_refused_removal_nothing_is_guessed(caplog: pytest.LogCaptureFixture) -> None:
    """Each further rejection would cost a whole evaluation."""
    engine, context = with_oracle("full")
    context.refuse_seq_rm(1)
    played = play(engine, context, REQUEST)
    assert "refused" in played.result.speculation.note
    assert "speculation is off" in caplog.text
    assert [event.n_drafted > 0 for event in played.events] == [False, True] + [False] * (len(played.events) - 2)
    assert play(engine, context, REQUEST, 1).result.speculation.drafted == 0


def test_a_removal_that_did_not_happen_is_noticed() -> None:
    """The memory says yes and does nothing."""
    engine, context = with_oracle("full")
    context.seq_rm = lambda seq_id, p0, p1: True  # type: ignore[method-assign]
    assert play(engine, context, REQUEST).result.token_ids == plain("full", REQUEST).token_ids


@every_memory
def test_no_room_for_a_draft(memory: str) -> None:
    answer = plain(memory, REQUEST)
    for n_before in range(1, 4):
        engine, context = with_oracle(memory)
        engine.submit(0, REQUEST)
        for _ in range(n_before):
            engine.step()
        is_drafting = engine._n_useful(engine._active) > 0  # type: ignore[arg-type]
        context.fail_decode(NoSlotError("full", code=1))
        played = finish(engine, context)
        if is_drafting:
            assert played.events[0].n_drafted == 0
            assert played.result.token_ids == answer.token_ids
        else:
            assert isinstance(played.error, NoSlotError)
        works(engine, context, memory)


@every_memory
@pytest.mark.parametrize("n_before", range(4))
def test_a_failed_decode_ends_its_request_only(memory: str, n_before: int) -> None:
    """In the prompt, at the first token, in the answer; the next request waits already."""
    engine, context = with_oracle(memory)
    request = Request(prompt_of(150), GREEDY, max_tokens=20)
    engine.submit(0, request)
    engine.submit(1, REQUEST)
    for _ in range(n_before):
        engine.step()
    error = DecodeError("out of luck", code=-3)
    context.fail_decode(error)
    outcomes = engine.step()
    assert outcomes == [(0, error)]
    assert finish(engine, context, 1).result.token_ids == plain(memory, REQUEST).token_ids
    works(engine, context, memory)


@every_memory
@pytest.mark.parametrize("sampling", [GREEDY, EVERYTHING], ids=["greedy", "everything"])
def test_logits_that_are_not_numbers(memory: str, sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, context = with_oracle(memory)
    right = context.logits
    n_read = itertools.count()

    def logits(row: int) -> np.ndarray:
        return np.full_like(right(row), np.nan) if next(n_read) == 12 else right(row)

    monkeypatch.setattr(context, "logits", logits)
    played = play(engine, context, Request(REQUEST.prompt, sampling, max_tokens=30))
    assert isinstance(played.error, DecodeError)
    assert "NaN" in str(played.error)
    assert sum(len(event.token_ids) for event in played.events) <= 12
    works(engine, context, memory)


def test_everything_forbidden() -> None:
    engine, context = with_oracle("full")
    bias = tuple((t, -np.inf) for t in range(new_model().n_vocab))
    played = play(engine, context, Request(REQUEST.prompt, SamplingParams(logit_bias=bias), max_tokens=3))
    assert isinstance(played.error, DecodeError)
    works(engine, context, "full")


def test_a_prompt_that_does_not_fit() -> None:
    model = new_model(n_ctx_train=512)
    engine = Engine(model, new_context(model, n_ctx=64))
    with pytest.raises(PromptTooLongError, match="has 64 tokens, but the context holds 64") as caught:
        engine.submit(0, Request(prompt_of(64)))
    assert caught.value.hint == "Load the model with a larger n_ctx (up to 512), or shorten the prompt."
    model = new_model(n_ctx_train=64)
    with pytest.raises(PromptTooLongError) as caught:
        Engine(model, new_context(model, n_ctx=64)).submit(0, Request(prompt_of(65)))
    assert caught.value.hint == "Shorten the prompt."
    assert engine.is_idle


@pytest.mark.parametrize("token", [-1, 268])
def test_tokens_outside_of_the_vocabulary(token: int) -> None:
    model = new_model()
    assert model.n_vocab == 268
    engine = Engine(model, new_context(model))
    with pytest.raises(UsageError, match="token id outside 0…267"):
        engine.submit(0, Request((97, token)))
    with pytest.raises(UsageError, match="breaker is empty"):
        engine.submit(0, Request((97,), SamplingParams(dry_multiplier=1, dry_sequence_breakers=("",))))
    assert engine.is_idle
    assert engine.step() == []


def test_what_cannot_be_begun_is_dropped() -> None:
    """A memory that fails before the first decode takes its request with it, not the next one."""
    engine, context = with_oracle("full")
    play(engine, context, REQUEST, 0)
    right = context.seq_rm
    error = DecodeError("no memory")

    def seq_rm(seq_id: int, p0: int, p1: int) -> bool:
        raise error

    context.seq_rm = seq_rm  # type: ignore[method-assign]
    engine.submit(1, REQUEST)
    assert engine.step() == [(1, error)]
    assert engine.is_idle
    context.seq_rm = right  # type: ignore[method-assign]
    works(engine, context, "full")


# What is reported


def test_times() -> None:
    """Prefill until the first token; the speed of the rest; waiting counts for the first token only."""
    clock = FakeClock()
    clock.advance(1)
    model = new_model(end_rate=0.0, clock=clock, delay=lambda n_rows, n_past: 0.5)
    context = new_context(model, n_ubatch=64)
    engine = Engine(model, context, clock=clock.now)
    engine.submit(0, Request(prompt_of(10), GREEDY, max_tokens=5))
    clock.advance(2)
    engine.submit(1, Request(prompt_of(10, 1), GREEDY, max_tokens=1))
    timing = finish(engine, context, 0).result.timing
    assert (timing.prefill_s, timing.ttft_s, timing.decode_s) == (0.5, 2.5, 2.0)
    assert timing.tokens_per_second == timing.plain_tokens_per_second == 2
    assert timing.speedup == 1
    single = play(engine, context, Request(prompt_of(10, 2), GREEDY, max_tokens=1), 2).result.timing
    assert (single.prefill_s, single.decode_s, single.tokens_per_second) == (0.5, 0.0, 0.0)


def test_progress_of_a_long_prompt() -> None:
    """Chunks take about 0.4 s, whatever the machine: they grow on a fast one and shrink on a slow one."""
    for seconds_per_row, largest in ((1e-5, 512), (0.01, 128), (0.02, 128)):
        clock = FakeClock()
        clock.advance(1)
        model = new_model(clock=clock, delay=lambda n_rows, n_past, s=seconds_per_row: n_rows * s)
        context = new_context(model, n_ctx=4096, n_batch=512, n_ubatch=512)
        played = play(Engine(model, context, clock=clock.now), context, Request(prompt_of(1500), GREEDY, max_tokens=1))
        sizes = [len(rows) for rows in context.batches]
        assert max(sizes) == largest
        assert sum(sizes) == 1500
        later = [event.step_ms for event in played.events[1:-1]]
        assert all(ms <= 400 or n == 32 for ms, n in zip(later, sizes[1:-1], strict=True)), "or of 32, the least"
        assert [event.n_past for event in played.events] == list(itertools.accumulate(sizes))


def test_the_sequence_id_may_be_used_again() -> None:
    engine, context = with_oracle("full")
    drafter = engine._drafters[0]
    assert isinstance(drafter, Guesser)
    for _ in range(3):
        assert play(engine, context, REQUEST, 7).result.finish_reason == "length"
        assert not drafter.texts
