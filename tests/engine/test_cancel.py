"""Requests that are stopped: in the prompt, in the answer, before they began, after the end."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest

from edgedec.engine.engine import Engine
from edgedec.errors import EdgedecError
from edgedec.llama.fake import FakeContext
from edgedec.types import Request
from tests.engine.lab import (
    GREEDY,
    MEMORIES,
    REQUEST,
    Always,
    assert_same,
    finish,
    full_text,
    new_context,
    new_model,
    oracle,
    plain,
    play,
    prompt_of,
    with_oracle,
    works,
)

every_memory = pytest.mark.parametrize("memory", MEMORIES)


def cancelling(memory: str, at_decode: int, act: Callable[[Engine, FakeContext], None]) -> tuple[Engine, FakeContext]:
    """An engine in whose ``at_decode``-th piece of a decode something happens."""
    n_pieces = itertools.count()

    def delay(n_rows: int, n_past: int) -> float:
        if next(n_pieces) == at_decode:
            act(engine, context)
        return 0.0

    model = new_model(memory, delay=delay)
    context = new_context(model)
    text = full_text(REQUEST, plain(memory, REQUEST))
    engine = Engine(model, context, [oracle(text, 6)], Always())  # type: ignore[arg-type]
    return engine, context


@every_memory
def test_cancel_inside_a_decode(memory: str) -> None:
    """In a piece of the prompt, in the first step, in a step with guesses. The text so far is kept."""
    answer = plain(memory, REQUEST)
    n_tokens = set()
    for at_decode in range(6):
        engine, context = cancelling(memory, at_decode, lambda engine, _: engine.cancel(0))
        played = play(engine, context, REQUEST)
        played.check()
        n = len(played.result.token_ids)
        n_tokens.add(n)
        assert played.result.finish_reason == "cancelled"
        assert played.result.token_ids == answer.token_ids[:n]
        assert answer.text.startswith(played.result.text.rstrip("\ufffd"))
        assert played.result.usage.completion_tokens == n
        works(engine, context, memory)
        assert play(engine, context, REQUEST, 1).result.token_ids == answer.token_ids
    assert min(n_tokens) == 0
    assert len(n_tokens) > 3


@every_memory
def test_a_stray_abort_loses_nothing(memory: str) -> None:
    answer = plain(memory, REQUEST)
    for at_decode in range(8):
        engine, context = cancelling(memory, at_decode, lambda _, context: context.abort())
        played = play(engine, context, REQUEST)
        played.check()
        assert_same(played.result, answer)
        assert play(engine, context, REQUEST, 1).result.token_ids == answer.token_ids


def test_cancel_between_steps_keeps_what_was_held_back() -> None:
    """The text that might have become a stop string is shown after all."""
    model = new_model(script=b"wait for it")
    context = new_context(model)
    engine = Engine(model, context)
    engine.submit(0, Request(tuple(b"go "), GREEDY, stop=("for ever",)))
    shown = ""
    for _ in range(8):
        ((_, event),) = engine.step()
        assert not isinstance(event, EdgedecError)
        shown += event.text
    assert shown == "wait "
    engine.cancel(0)
    played = finish(engine, context)
    assert played.result.text == "wait for"
    assert played.events[-1].text == "for"
    assert played.result.finish_reason == "cancelled"


def test_cancel_before_it_began() -> None:
    """Nothing is done for it, and what others left in memory stays."""
    engine, context = with_oracle("full")
    first = play(engine, context, REQUEST, 0).result
    n_calls, held = context.n_decode_calls, list(engine._kv.tokens)
    engine.submit(1, Request(prompt_of(20, 5), GREEDY))
    engine.submit(2, REQUEST)
    engine.cancel(1)
    played = finish(engine, context, 1)
    assert (played.result.text, played.result.token_ids, played.result.finish_reason) == ("", [], "cancelled")
    assert played.result.usage.cached_tokens == 0
    assert n_calls < context.n_decode_calls
    assert held == engine._kv.tokens, "request 2 said the same again"
    assert play(engine, context, REQUEST, 3).result.token_ids == first.token_ids


def test_cancel_after_the_end_or_of_nobody() -> None:
    engine, context = with_oracle("full")
    play(engine, context, REQUEST, 0)
    engine.cancel(0)
    engine.cancel(12345)
    assert play(engine, context, REQUEST, 0).result.finish_reason == "length"
    engine.submit(1, REQUEST)
    engine.step()
    engine.cancel(0)
    assert finish(engine, context, 1).result.finish_reason == "length"
    works(engine, context, "full")


def test_cancel_one_of_several() -> None:
    engine, _ = with_oracle("full")
    for seq_id in range(3):
        engine.submit(seq_id, REQUEST)
    engine.cancel(1)
    reasons = {}
    while not engine.is_idle:
        for seq_id, event in engine.step():
            assert not isinstance(event, EdgedecError)
            if event.result is not None:
                reasons[seq_id] = event.result.finish_reason
    assert list(reasons.items()) == [(0, "length"), (1, "cancelled"), (2, "length")]


def test_cancel_from_inside_cancel() -> None:
    """As when the garbage collector closes an abandoned answer while another one is being cancelled."""
    engine, context = with_oracle("full")
    engine.submit(0, REQUEST)
    engine.submit(1, REQUEST)
    engine.step()
    right = context.abort

    def abort() -> None:
        engine.cancel(1)
        right()

    context.abort = abort  # type: ignore[method-assign]
    thread = threading.Thread(target=engine.cancel, args=(0,), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert finish(engine, context, 1).result.finish_reason == "cancelled"
