from __future__ import annotations

from dataclasses import replace

import pytest

from edgedec.bench.compare import find_forks
from edgedec.bench.forks import Fork
from edgedec.bench.modes import Local, Mode
from edgedec.bench.record import Measured, Settings
from edgedec.llama.fake import FakeModel
from edgedec.llm import LLM
from tests.bench.lab import case, loaded

SETTINGS = Settings(max_tokens=12)
IDS = tuple(b"say it")


def in_both(llm: LLM, index: int = 0) -> Measured:
    """A case whose second mode is called other."""
    one = Measured(case(index, ids=IDS))
    one.answers["plain"] = Local(llm, Mode("plain", False)).answer(one.case, SETTINGS)
    one.answers["other"] = one.answers["plain"]
    return one


def changed(one: Measured, at: int) -> Measured:
    answer = one.answers["other"]
    assert answer.token_ids is not None
    ids = list(answer.token_ids)
    ids[at] = ids[at] - 1 if ids[at] else 1
    one.answers["other"] = replace(answer, token_ids=tuple(ids))
    return one


def test_equal_answers_have_no_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    with loaded(monkeypatch) as llm:
        one = in_both(llm)
        assert isinstance(llm.model, FakeModel)
        assert find_forks(llm, [one], ["other"], SETTINGS) is None
        assert one.forks == {}
        assert len(llm.model.contexts) == 1, "there was nothing to look at"


def test_a_fork_is_found_and_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake has no noise, so no gap is excused."""
    told = []
    with loaded(monkeypatch) as llm:
        cases = [in_both(llm), changed(in_both(llm, 1), 5)]
        level = find_forks(llm, cases, ["other"], SETTINGS, lambda *args: told.append(args))
        assert isinstance(llm.model, FakeModel)
        assert len(llm.model.contexts) == 2
        assert llm.generate("Hi", max_tokens=3).usage.completion_tokens, "the model is as usable as before"
    assert level == 0.0
    assert cases[0].forks == {}
    fork = cases[1].forks["other"]
    assert fork.at == 5
    assert fork.gap is not None
    assert fork.gap > 0
    assert fork.is_near_tie is False
    assert told == [(0, 1)]


def test_a_gap_within_twice_the_noise_is_a_near_tie(monkeypatch: pytest.MonkeyPatch) -> None:
    with loaded(monkeypatch) as llm:
        one = changed(in_both(llm), 5)
        find_forks(llm, [one], ["other"], SETTINGS)
        gap = one.forks["other"].gap
        assert gap is not None
        for level, is_near_tie in ((gap, True), (gap / 2.001, False), (gap / 1.999, True)):
            monkeypatch.setattr("edgedec.bench.compare.noise", lambda *_, level=level: level)
            assert find_forks(llm, [one], ["other"], SETTINGS) == level
            assert one.forks["other"].is_near_tie is is_near_tie


def test_where_only_texts_are_known_they_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    with loaded(monkeypatch) as llm:
        same, different = in_both(llm), in_both(llm, 1)
        for one, text in ((same, one_text(same)), (different, "something else")):
            one.answers["other"] = replace(one.answers["other"], token_ids=None, text=text)
        assert find_forks(llm, [same, different], ["other"], SETTINGS) is None
    assert same.forks == {}
    assert different.forks == {"other": Fork(None)}


def one_text(one: Measured) -> str:
    return one.answers["plain"].text
