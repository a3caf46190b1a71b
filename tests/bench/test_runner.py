from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import pytest

from edgedec.bench.record import Answer, Case, Settings
from edgedec.bench.runner import n_tokens_needed, run
from edgedec.bench.suite import Prompt
from edgedec.types import Message
from tests.bench.lab import plain

SETTINGS = Settings(max_tokens=50)


class Scripted:
    """Answers with its name and the prompt, and writes down who was asked what."""

    def __init__(self, name: str, calls: list[tuple[str, Case, Settings]]) -> None:
        self.name = name
        self._calls = calls

    def answer(self, case: Case, settings: Settings) -> Answer:
        self._calls.append((self.name, case, settings))
        return replace(plain(3), text=f"{self.name} on {case.messages[-1].content}")


def encode(messages: Sequence[Message]) -> tuple[int, ...]:
    """One token per message and one per character."""
    return tuple(0 for m in messages for _ in f"{m.role[0]}{m.content}")


def lines(n: int, *turns: str) -> list[Prompt]:
    return [Prompt(f"p{i}", "chat", turns or (f"question {i}",)) for i in range(n)]


def measure(prompts: Sequence[Prompt], *names: str, n_ctx: int = 1000, turns: int = 1) -> tuple:
    calls: list[tuple[str, Case, Settings]] = []
    found = run(prompts, [Scripted(name, calls) for name in names], encode, SETTINGS, turns=turns, n_ctx=n_ctx)
    return found, calls


def counted(calls: Sequence[tuple[str, Case, Settings]]) -> list[tuple[str, Case, Settings]]:
    return [call for call in calls if call[2] == SETTINGS]


@pytest.mark.parametrize("names", [("plain", "auto"), ("plain", "auto", "suffix"), ("plain", "a", "b", "c")])
def test_the_order_is_fair(names: tuple[str, ...]) -> None:
    """Every mode comes at every place equally often, and before each other one as often as after it."""
    n = 2 * len(names)
    _, calls = measure(lines(n), *names)
    orders = [[name for name, case, _ in counted(calls) if case.index == i] for i in range(n)]
    assert all(sorted(order) == sorted(names) for order in orders)
    assert set(Counter((name, order.index(name)) for order in orders for name in order).values()) == {2}
    for a, b in permutations(names, 2):
        assert sum(order.index(a) < order.index(b) for order in orders) == n / 2


def test_every_mode_warms_up_first_on_another_prompt() -> None:
    _, calls = measure(lines(1), "plain", "auto")
    warm = calls[:2]
    assert {name for name, _, _ in warm} == {"plain", "auto"}
    assert all(case.messages[0].content == "Say hello." and settings.max_tokens < 50 for _, case, settings in warm)


def test_each_prompt_is_read_before_anybody_is_measured() -> None:
    _, calls = measure(lines(2), "auto", "plain")
    readings = [i for i, (_, _, settings) in enumerate(calls) if settings.max_tokens == 1]
    assert [calls[i][0] for i in readings] == ["plain", "plain"]
    assert [case.prompt_id for i in readings for _, case, _ in calls[i : i + 3]] == ["p0"] * 3 + ["p1"] * 3


def test_all_modes_follow_the_plain_answer() -> None:
    found, calls = measure(lines(2, "first", "second"), "plain", "auto", turns=2)
    assert [(one.case.prompt_id, one.case.turn) for one in found.measured] == [
        ("p0", 1),
        ("p0", 2),
        ("p1", 1),
        ("p1", 2),
    ]
    assert [one.case.index for one in found.measured] == [0, 1, 2, 3]
    for name, case, _ in counted(calls):
        if case.turn == 2:
            assert [m.content for m in case.messages] == ["first", "plain on first", "second"], name
            assert [m.role for m in case.messages] == ["user", "assistant", "user"]
            assert case.ids == encode(case.messages)
    assert found.measured[1].answers["auto"].text == "auto on second"


def test_only_as_many_turns_as_wanted() -> None:
    found, _ = measure(lines(1, "first", "second", "third"), "plain", "auto", turns=2)
    assert [one.case.turn for one in found.measured] == [1, 2]


def test_what_does_not_fit_is_left_out_with_what_follows() -> None:
    prompts = [Prompt("short", "chat", ("hi",)), Prompt("long", "chat", ("x" * 60, "and", "so on")), *lines(1)]
    found, calls = measure(prompts, "plain", "auto", turns=3, n_ctx=100)
    assert found.skipped == [("long", 1), ("long", 2), ("long", 3)]
    assert [one.case.prompt_id for one in found.measured] == ["short", "p0"]
    assert all(case.prompt_id != "long" for _, case, _ in calls)
    fits, _ = measure([Prompt("edge", "chat", ("x" * 49,))], "plain", "auto", n_ctx=100)
    assert not fits.skipped


def test_a_second_turn_may_be_too_long() -> None:
    found, _ = measure(lines(1, "first", "y" * 80), "plain", "auto", turns=2, n_ctx=100)
    assert [one.case.turn for one in found.measured] == [1]
    assert found.skipped == [("p0", 2)]


def test_room_for_the_longest_conversation() -> None:
    prompts = [*lines(1, "four", "five!"), Prompt("x", "chat", ("x" * 40,))]
    assert n_tokens_needed(prompts, encode, SETTINGS, 1) == 41 + 50
    assert n_tokens_needed(prompts, encode, SETTINGS, 2) == len("ufour") + len("a") + len("ufive!") + 2 * 50
    found, _ = measure(prompts, "plain", "auto", turns=2, n_ctx=n_tokens_needed(prompts, encode, SETTINGS, 2))
    assert not found.skipped


def test_progress_is_told() -> None:
    told: list[tuple[int, int, str]] = []
    arms = [Scripted(name, []) for name in ("plain", "auto")]
    run(lines(3), arms, encode, SETTINGS, n_ctx=1000, progress=lambda *args: told.append(args))
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    assert {total for _, total, _ in told} == {3}
    assert (2, 3, "chat, auto") in told
