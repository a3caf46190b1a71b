"""The central promise: whatever is guessed, the answer is the one of plain decoding."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.drafters.suffix import SuffixDrafter
from edgedec.engine.engine import Engine
from edgedec.llama.fake import END, FakeClock
from edgedec.speculation.cost import CostCurve
from edgedec.speculation.policy import Policy
from edgedec.types import Request, Result, SamplingParams
from tests.engine.lab import (
    DRAFTERS,
    EVERYTHING,
    GREEDY,
    MEMORIES,
    Always,
    Faulty,
    Guesser,
    Played,
    assert_same,
    at_random,
    drafters_for,
    full_text,
    new_context,
    new_model,
    oracle,
    plain,
    play,
    prompt_of,
)

every_memory = pytest.mark.parametrize("memory", MEMORIES)
both_samplings = pytest.mark.parametrize("sampling", [GREEDY, EVERYTHING], ids=["greedy", "everything"])


def guess(
    memory: str, drafter: str, request: Request, answer: Result, n_ctx: int = 256, n_draft: int = 16, **settings: Any
) -> Played:
    model = new_model(memory, **settings)
    context = new_context(model, n_ctx=n_ctx)
    engine = Engine(model, context, drafters_for(drafter, full_text(request, answer)), Always(n_draft), mode="test")  # type: ignore[arg-type]
    played = play(engine, context, request)
    room = n_ctx - len(request.prompt)
    played.check(request.stop, min(room, request.max_tokens or room))
    return played


@every_memory
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_guesses_do_not_change_the_answer(memory: str, drafter: str) -> None:
    reasons = set()
    for seed, sampling in itertools.product(range(3), (GREEDY, EVERYTHING)):
        request = Request(prompt_of(30 + seed, seed), sampling, max_tokens=40)
        model: dict[str, Any] = {"seed": seed, "end_rate": 0.02}
        answer = plain(memory, request, **model)
        reasons.add(answer.finish_reason)
        assert_same(guess(memory, drafter, request, answer, **model).result, answer)
    assert reasons == {"length", "eog"}


@settings(deadline=None, max_examples=250)
@given(
    memory=st.sampled_from(sorted(MEMORIES)),
    drafter=st.sampled_from(DRAFTERS),
    sampling=st.sampled_from([GREEDY, EVERYTHING]),
    n_prompt=st.integers(1, 90),
    max_tokens=st.integers(1, 50),
    seed=st.integers(0, 5),
    n_draft=st.integers(0, 20),
    cut=st.tuples(st.integers(0, 60), st.integers(1, 6)),
)
def test_any_request(
    memory: str,
    drafter: str,
    sampling: SamplingParams,
    n_prompt: int,
    max_tokens: int,
    seed: int,
    n_draft: int,
    cut: tuple[int, int],
) -> None:
    """With a stop string that stands somewhere in the answer, regardless of where tokens begin and end."""
    model_seed = {"seed": seed, "end_rate": 0.03}
    request = Request(prompt_of(n_prompt, seed), sampling, max_tokens=max_tokens)
    text = plain(memory, request, **model_seed).text
    word = text[cut[0] : sum(cut)].replace("\ufffd", "") or "never"
    request = Request(request.prompt, sampling, max_tokens, stop=(word, "also never"))
    answer = plain(memory, request, **model_seed)
    assert (word in text) == (answer.finish_reason == "stop")
    assert_same(guess(memory, drafter, request, answer, n_draft=n_draft, **model_seed).result, answer)


@every_memory
def test_every_length_up_to_the_end_token(memory: str) -> None:
    """max_tokens cuts the same answer everywhere, also where the last token would be the end token."""
    whole = Request(prompt_of(20, 3), GREEDY, max_tokens=200)
    script = tuple(b"one two one two one")
    answer = plain(memory, whole, script=script)
    assert answer.finish_reason == "eog"
    n = len(answer.token_ids)
    assert n == len(script)
    for max_tokens in range(1, n + 3):
        request = Request(whole.prompt, GREEDY, max_tokens)
        cut = plain(memory, request, script=script)
        assert cut.token_ids == answer.token_ids[:max_tokens]
        assert cut.finish_reason == ("length" if max_tokens <= n else "eog")
        for drafter in ("suffix", "oracle", "random", "ends"):
            assert_same(guess(memory, drafter, request, cut, script=script).result, cut)


@every_memory
def test_the_edge_of_the_context(memory: str) -> None:
    for n_prompt in range(40, 64):
        request = Request(prompt_of(n_prompt, 1), (GREEDY, EVERYTHING)[n_prompt % 2])
        answer = plain(memory, request, n_ctx=64, end_rate=0.0)
        assert answer.finish_reason == "length"
        assert len(answer.token_ids) == 64 - n_prompt
        for drafter in ("oracle", "oracle with errors", "random"):
            assert_same(guess(memory, drafter, request, answer, n_ctx=64, end_rate=0.0).result, answer)


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (("two",), "one "),  # several tokens
        (("é",), "one two caf"),  # begins and ends inside a token
        (("fé four", "three"), "one two ca"),
        (("he ",), "one two café four t"),  # inside one token
        (("x", "€"), "one two café four the "),
        (("never",), "one two café four the €5"),
    ],
)
def test_stop_strings_in_odd_places(stop: tuple[str, ...], text: str) -> None:
    """Tokens: "caf" with the first byte of "é", "the ", " " with the first two bytes of "€"."""
    model = new_model()
    script = (*b"one two ", *model.tokenize("café"), *b" four ", *model.tokenize("the €5"))
    request = Request(tuple(b"go "), GREEDY, stop=stop)
    answer = plain("full", request, script=script)
    assert answer.text == text
    assert answer.finish_reason == ("eog" if "never" in stop else "stop")
    for drafter in ("oracle", "oracle with errors", "nasty"):
        for n_draft in (1, 2, 16):
            assert_same(guess("full", drafter, request, answer, n_draft=n_draft, script=script).result, answer)


def test_an_oracle_is_used_to_the_full() -> None:
    """Drafting really happens: one step brings a whole draft and one token more."""
    request = Request(prompt_of(20), EVERYTHING, max_tokens=52)
    answer = plain("full", request, end_rate=0.0)
    played = guess("full", "oracle", request, answer, end_rate=0.0)
    assert [len(event.token_ids) for event in played.events] == [1, 17, 17, 17]
    assert [event.n_accepted for event in played.events] == [0, 16, 16, 16]
    assert played.result.spans == [(1, "target"), (16, "guesser"), (1, "target"), *[(16, "guesser"), (1, "target")] * 2]
    stats = played.result.speculation
    assert (stats.drafted, stats.accepted, stats.steps, stats.plain_steps, stats.mode) == (48, 48, 4, 1, "test")
    assert stats.acceptance_rate == 1
    assert stats.tokens_per_step == 13
    assert played.events[-1].n_past == 20 + 51


@every_memory
def test_guesses_go_as_far_as_the_memory_can_undo(memory: str) -> None:
    request = Request(prompt_of(20), GREEDY, max_tokens=40)
    answer = plain(memory, request, end_rate=0.0)
    played = guess(memory, "oracle with errors", request, answer, end_rate=0.0)
    longest = max(event.n_drafted for event in played.events)
    assert longest == {"full": 16, "window": 16}.get(memory, 5 if "snapshots" in memory else 0)
    assert played.result.speculation.note == "", "all of them could be taken back"
    assert any(0 < event.n_accepted < event.n_drafted for event in played.events) == (longest > 0)


def test_a_request_can_decline_guesses() -> None:
    request = Request(prompt_of(20), GREEDY, max_tokens=20, speculate=False)
    answer = plain("full", request)
    played = guess("full", "oracle", request, answer)
    assert_same(played.result, answer)
    assert played.result.speculation.drafted == 0
    assert played.result.speculation.mode == "off"


@pytest.mark.parametrize("verb", ["begin", "draft", "process", "accept", "end"])
def test_a_broken_drafter_is_left_alone_until_the_next_answer(verb: str, caplog: pytest.LogCaptureFixture) -> None:
    request = Request(prompt_of(20), GREEDY, max_tokens=30)
    answer = plain("full", request)
    model = new_model()
    context = new_context(model)
    faulty, good = Faulty(verb), oracle(full_text(request, answer))
    engine = Engine(model, context, [faulty, good], Always())  # type: ignore[arg-type]
    for i in range(3):
        caplog.clear()
        result = play(engine, context, request, i).result
        assert result.token_ids == answer.token_ids
        assert sum("faulty" in record.message for record in caplog.records) == 1
        assert result.speculation.drafters["guesser"].accepted > 0
    assert not good.texts
    faulty._verb = "none"
    n_faulty, n_good = faulty.n_asked, good.n_asked
    play(engine, context, request, 3)
    assert faulty.n_asked - n_faulty == good.n_asked - n_good > 1


def test_drafters_hear_everything_that_was_said() -> None:
    heard: list[tuple[list[int], bool]] = []
    begun: list[list[int]] = []

    class Listener(Guesser):
        name = "listener"

        def begin(self, seq_id: int, prompt: Any) -> None:
            super().begin(seq_id, prompt)
            begun.append(list(prompt))

        def accept(self, seq_id: int, tokens: Any, used: bool) -> None:
            super().accept(seq_id, tokens, used)
            heard.append((list(tokens), used))

    request = Request(prompt_of(20), GREEDY, max_tokens=30)
    answer = plain("full", request)
    text = full_text(request, answer)
    model = new_model()
    context = new_context(model)
    listener = Listener(lambda said, n: text[len(said) : len(said) + 3] if len(said) % 2 else [])
    engine = Engine(model, context, [listener, at_random(2)], Always())  # type: ignore[arg-type]
    assert play(engine, context, request).result.token_ids == answer.token_ids
    assert begun == [list(request.prompt)]
    assert [t for tokens, _ in heard for t in tokens] == text[20:]
    assert {used for _, used in heard} == {False, True}


@every_memory
@both_samplings
def test_the_real_policy(memory: str, sampling: SamplingParams) -> None:
    """On a clock on which a wide step costs little more than a narrow one."""
    request = Request(prompt_of(40), sampling, max_tokens=120)
    answer = plain(memory, request, end_rate=0.0, n_window=16)
    clock = FakeClock()
    clock.advance(1)
    model = new_model(memory, end_rate=0.0, clock=clock, delay=lambda n_rows, n_past: 0.01 + 0.0002 * n_rows)
    context = new_context(model)
    policy = Policy(CostCurve({n: 10 + 0.2 * n for n in (1, 2, 4, 8, 16)}), n_max=32)
    drafters = [SuffixDrafter(), oracle(full_text(request, answer), 9)]
    engine = Engine(model, context, drafters, policy, mode="auto", clock=clock.now)
    for i in range(2):
        result = play(engine, context, request, i).result
        assert (result.token_ids, result.text, result.finish_reason) == (
            answer.token_ids,
            answer.text,
            answer.finish_reason,
        )
        assert (result.speculation.drafted > 0) == (memory not in ("hybrid", "recurrent"))
        if result.speculation.drafted:
            assert result.speedup > 1.5
            assert result.timing.plain_tokens_per_second == pytest.approx(1000 / 10.2)
            assert result.timing.tokens_per_second > 140


@pytest.mark.parametrize("n_ubatch", [1, 3, 8])
def test_a_draft_wider_than_a_piece_of_a_window_memory(n_ubatch: int) -> None:
    """Its first rows push cells out of the window that are needed again when the draft is wrong."""
    model = new_model("window", end_rate=0.0)
    context = new_context(model, n_ubatch=n_ubatch)
    request = Request(prompt_of(60), GREEDY, max_tokens=60)
    answer = plain("window", request, end_rate=0.0)
    engine = Engine(model, context, [at_random()], Always())  # type: ignore[arg-type]
    assert_same(play(engine, context, request).result, answer)


@every_memory
@pytest.mark.parametrize("n_batch", [7, 16, 33])
def test_small_batches(memory: str, n_batch: int) -> None:
    """A prompt of several batches, whatever the engine makes of the time that they take."""
    clock = FakeClock()
    clock.advance(1)
    for delay in (0.0, 0.001, 10.0):
        model = new_model(memory, clock=clock, delay=lambda n_rows, n_past, delay=delay: delay)
        context = new_context(model, n_batch=n_batch, n_ubatch=n_batch)
        request = Request(prompt_of(150), GREEDY, max_tokens=10)
        answer = plain(memory, request)
        engine = Engine(model, context, [oracle(full_text(request, answer), 4)], Always(), clock=clock.now)  # type: ignore[arg-type]
        played = play(engine, context, request)
        assert_same(played.result, answer)
        assert [event.phase for event in played.events].count("prefill") >= 150 // n_batch - 1
        assert all(event.n_prompt == 150 for event in played.events)
        n_past = [event.n_past for event in played.events if event.phase == "prefill"]
        assert n_past == sorted(n_past)


def test_the_end_token_is_no_part_of_the_answer() -> None:
    request = Request(tuple(b"go"), GREEDY)
    result = plain("full", request, script=tuple(b"yes"))
    assert result.token_ids == list(b"yes")
    assert END not in result.token_ids
    assert result.speculation.tokens_per_step == 1
