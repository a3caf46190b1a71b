from __future__ import annotations

import pytest

from edgedec import drafters
from edgedec.bench.modes import Local, Mode, parse_modes
from edgedec.bench.record import Answer, Settings
from edgedec.errors import UnknownNameError, UsageError
from edgedec.llm import LLM
from tests.bench.lab import FLAT, case, loaded

PLAIN = Mode("plain", False)
IDS = tuple(b"one two one two one two one")


def test_plain_is_always_there_and_first() -> None:
    assert parse_modes("plain,auto") == [PLAIN, Mode("auto", True)]
    assert parse_modes("suffix, AUTO ,plain,auto") == [PLAIN, Mode("suffix", ("suffix",)), Mode("auto", True)]
    assert parse_modes("suffix+recycle") == [PLAIN, Mode("suffix+recycle", ("suffix", "recycle"))]
    assert [mode.name for mode in parse_modes(",".join(drafters.names()))] == ["plain", *drafters.names()]


def test_modes_that_do_not_exist() -> None:
    with pytest.raises(UnknownNameError, match="sufix") as caught:
        parse_modes("plain,sufix")
    assert "'suffix'" in caught.value.hint
    for text in ("suffix+", "auto+suffix", "plain+suffix", "+"):
        with pytest.raises(UnknownNameError):
            parse_modes(text)
    for text in ("", " , ", "plain"):
        with pytest.raises(UsageError, match="no mode"):
            parse_modes(text)
    with pytest.raises(UsageError, match="twice"):
        parse_modes("suffix+suffix")


def answers(llm: LLM, text: str, settings: Settings) -> list[Answer]:
    return [Local(llm, mode).answer(case(ids=IDS), settings) for mode in parse_modes(text)]


def test_what_an_answer_amounts_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine where rows are free, ten milliseconds a step."""
    with loaded(monkeypatch, noise=0.0) as llm:
        plain, suffix = answers(llm, "suffix", Settings(max_tokens=101))
    assert plain.token_ids == suffix.token_ids
    assert plain.text == suffix.text
    assert plain.n_tokens == 100, "the first token is not counted"
    assert plain.seconds == pytest.approx(1.0)
    assert plain.rate == pytest.approx(100.0)
    assert {(step.n_rows, step.n_tokens) for step in plain.steps} == {(1, 1)}
    assert plain.drafters == {}

    assert suffix.n_tokens == sum(step.n_tokens for step in suffix.steps)
    assert suffix.seconds == pytest.approx(len(suffix.steps) * FLAT.ms(1) / 1e3)
    assert suffix.rate > 200.0
    counts = suffix.drafters["suffix"]
    assert counts.drafted == sum(step.n_rows - 1 for step in suffix.steps) == sum(counts.drafted_per_pos)
    assert counts.accepted == sum(step.n_tokens - 1 for step in suffix.steps) == sum(counts.accepted_per_pos)
    assert all(a <= d for a, d in zip(counts.accepted_per_pos, counts.drafted_per_pos, strict=False))
    assert list(counts.drafted_per_pos) == sorted(counts.drafted_per_pos, reverse=True), (
        "a chain has all its beginnings"
    )


def test_each_case_has_a_seed_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(max_tokens=20, temperature=1.0, seed=5)
    with loaded(monkeypatch) as llm:
        mode = Local(llm, PLAIN)
        first, second = (mode.answer(case(i, ids=IDS), settings) for i in (0, 1))
        same = Local(llm, Mode("suffix", ("suffix",))).answer(case(1, ids=IDS), settings)
        moved = mode.answer(case(0, ids=IDS), Settings(max_tokens=20, temperature=1.0, seed=6))
    assert first.token_ids != second.token_ids
    assert same.token_ids == second.token_ids == moved.token_ids


def test_modes_do_not_learn_from_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a mode does is the same whether others came before it or not."""
    settings = Settings(max_tokens=60)

    def widths(names: str) -> list[tuple[int, int]]:
        with loaded(monkeypatch) as llm:
            found = [answers(llm, names, settings)[-1] for _ in range(3)]
        return [(step.n_rows, step.n_tokens) for one in found for step in one.steps]

    alone = widths("suffix+recycle")
    assert any(n_rows > 1 for n_rows, _ in alone)
    assert widths("auto,recycle,suffix,suffix+recycle") == alone
