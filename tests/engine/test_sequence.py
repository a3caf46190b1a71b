"""What a verdict adds to an answer, and what the finished answer says about itself."""

from __future__ import annotations

from typing import Any

import pytest

from edgedec.engine.sampling import Sampler
from edgedec.engine.sequence import Clocks, Committed, Sequence
from edgedec.types import Draft, Request, Span, Verdict

END = 0
PIECES = {1: b"a", 2: b"b", 3: b"cd", 4: "é".encode()[:1], 5: "é".encode()[1:], 6: b""}


def running(n_prompt: int = 3, n_ctx: int = 100, **options: Any) -> Sequence:
    request = Request((9,) * n_prompt, **options)
    return Sequence(0, request, Sampler(request.sampling, 10, n_ctx=n_ctx), n_ctx, Clocks(0.0))


def commit(seq: Sequence, tokens: tuple[int, ...], n_accepted: int = 0, sources: str = "") -> Committed:
    """A verdict whose path is the beginning of a chain; ``sources`` names the drafters of the chain by one letter."""
    sources = sources or "x" * n_accepted
    draft = Draft(tokens[:n_accepted] + (9,) * (len(sources) - n_accepted), tuple(range(-1, len(sources) - 1)),
                  tuple(sources), (0.5,) * len(sources))  # fmt: skip
    verdict = Verdict(tokens, tuple(range(n_accepted)))
    return seq.commit(verdict, draft, PIECES.__getitem__, frozenset({END}))


def test_plain_steps() -> None:
    seq = running()
    assert commit(seq, (1,)) == Committed("a", (1,), ((1, "target"),), 0)
    assert commit(seq, (3,)) == Committed("cd", (3,), ((1, "target"),), 0)
    assert seq.tokens == [9, 9, 9, 1, 3]
    assert (seq.token_ids, seq.spans, seq.finish_reason) == ([1, 3], [(2, "target")], None)
    assert (seq.steps, seq.plain_steps, seq.drafted, seq.accepted) == (2, 2, 0, 0)


def test_tokens_are_credited_to_who_guessed_them() -> None:
    seq = running()
    done = commit(seq, (1, 1, 2, 3), 3, "xxyyy")
    spans: list[Span] = [(2, "x"), (1, "y"), (1, "target")]
    assert done == Committed("aabcd", (1, 1, 2, 3), tuple(spans), 3)
    assert commit(seq, (2,), 0, "x").spans == ((1, "target"),)
    assert seq.spans == [(2, "x"), (1, "y"), (2, "target")]
    assert (seq.steps, seq.plain_steps, seq.drafted, seq.accepted) == (2, 0, 6, 3)
    x, y = seq.drafters["x"], seq.drafters["y"]
    assert (x.n_gen_tokens, x.n_acc_tokens, x.n_acc_tokens_per_pos) == (3, 2, [1, 1])
    assert (y.n_gen_tokens, y.n_acc_tokens, y.n_acc_tokens_per_pos) == (3, 1, [0, 0, 1])


def test_spans_of_several_steps_are_joined() -> None:
    seq = running()
    commit(seq, (1, 1), 2)
    commit(seq, (1, 1), 2)
    commit(seq, (2,))
    commit(seq, (2,))
    assert seq.spans == [(4, "x"), (2, "target")]


@pytest.mark.parametrize("n_accepted", [2, 3])
def test_an_end_token(n_accepted: int) -> None:
    """Guessed or not, it ends the answer, and is no part of it."""
    seq = running()
    done = commit(seq, (1, 2, END), n_accepted)
    assert done.token_ids == (1, 2)
    assert done.text == "ab"
    assert done.n_accepted == seq.accepted == 2
    assert seq.finish_reason == "eog"
    assert sum(n for n, _ in seq.spans) == 2
    assert seq.tokens[-1] == END


def test_a_stop_string_drops_what_comes_after_it() -> None:
    seq = running(stop=("bc",))
    done = commit(seq, (1, 2, 3, 1, 1), 4)
    assert done.text == "a"
    assert done.token_ids == (1, 2, 3), "a token cannot be cut"
    assert done.spans == ((3, "x"),)
    assert (seq.finish_reason, seq.accepted) == ("stop", 3)
    assert seq.tokens == [9, 9, 9, 1, 2, 3]


def test_text_waits_for_whole_characters_and_stop_strings() -> None:
    seq = running(stop=("é!",))
    assert commit(seq, (1,)).text == "a"
    assert commit(seq, (4,)).text == ""
    assert commit(seq, (5,)).text == ""
    assert commit(seq, (6,)).text == ""
    assert commit(seq, (2,)).text == "éb"
    assert seq.token_ids == [1, 4, 5, 6, 2]


@pytest.mark.parametrize(
    ("options", "room"),
    [({}, 7), ({"max_tokens": 4}, 4), ({"max_tokens": 7}, 7), ({"max_tokens": 8}, 7)],
)
def test_room(options: dict[str, int], room: int) -> None:
    """The answer ends with the context or with max_tokens, whichever comes first."""
    seq = running(3, n_ctx=10, **options)
    assert seq.room == room
    for left in range(room - 1, -1, -1):
        assert seq.finish_reason is None
        commit(seq, (1,))
        assert seq.room == left
    assert seq.finish_reason == "length"


def test_the_limit_inside_a_verdict() -> None:
    seq = running(max_tokens=2)
    done = commit(seq, (1, 2, 3), 2)
    assert done.token_ids == (1, 2)
    assert seq.finish_reason == "length"


@pytest.mark.parametrize(("last", "reason"), [(3, "stop"), (END, "eog"), (1, "length")])
def test_what_ends_the_answer_when_several_do(last: int, reason: str) -> None:
    seq = running(max_tokens=2, stop=("bcd",))
    commit(seq, (2,))
    commit(seq, (last,))
    assert seq.finish_reason == reason


def test_result() -> None:
    seq = running(4)
    seq.n_cached, seq.n_first = 2, 1
    seq.clocks = Clocks(1.0, admitted=2.0, first_token=5.0, last_token=7.0)
    commit(seq, (1,))
    commit(seq, (1, 2, 3), 2, "xxx")
    commit(seq, (1, END), 1)
    result = seq.result(mode="auto", note="so so", plain_ms=500.0, speedup=1.5)
    assert (result.token_ids, result.text, result.finish_reason) == ([1, 1, 2, 3, 1], "aabcda", "eog")
    assert (result.usage.prompt_tokens, result.usage.cached_tokens, result.usage.completion_tokens) == (4, 2, 5)
    timing = result.timing
    assert (timing.prefill_s, timing.decode_s, timing.ttft_s) == (3.0, 2.0, 4.0)
    assert (timing.tokens_per_second, timing.plain_tokens_per_second, timing.speedup) == (2.0, 2.0, 1.5)
    assert result.speedup == 1.5
    stats = result.speculation
    assert (stats.mode, stats.note, stats.steps, stats.plain_steps) == ("auto", "so so", 3, 1)
    assert (stats.drafted, stats.accepted, stats.acceptance_rate) == (4, 3, 0.75)
    assert stats.tokens_per_step == 2, "the end token was brought by a step as well"
    assert stats.drafters["x"].accepted == 3


def test_result_of_nothing() -> None:
    """Cancelled before its first token."""
    seq = running()
    seq.clocks = Clocks(1.0, admitted=2.0)
    seq.finish_reason = "cancelled"
    result = seq.result(mode="off", note="", plain_ms=0.0, speedup=1.0)
    assert (result.token_ids, result.text, result.spans) == ([], "", [])
    timing = result.timing
    assert (timing.prefill_s, timing.decode_s, timing.ttft_s, timing.tokens_per_second) == (0, 0, 0, 0)
    assert (result.speculation.acceptance_rate, result.speculation.tokens_per_step) == (0, 0)


def test_without_a_baseline_its_own_speed_is_the_plain_one() -> None:
    seq = running(max_tokens=3)
    for _ in range(3):
        commit(seq, (1,))
    seq.n_first = 1
    seq.clocks = Clocks(1.0, admitted=1.0, first_token=2.0, last_token=6.0)
    timing = seq.result(mode="off", note="", plain_ms=0.0, speedup=1.0).timing
    assert timing.tokens_per_second == timing.plain_tokens_per_second == 0.5
