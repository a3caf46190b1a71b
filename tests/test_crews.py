"""Requests that name their drafters: who is asked, and that no set of drafters profits from another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edgedec.config import EngineConfig
from edgedec.errors import UnknownNameError, UsageError
from edgedec.llama.base import MemoryKind
from edgedec.metrics import DrafterMetrics
from tests.bench.lab import loaded as flat_machine
from tests.lab import Loaded, answer, context_of, request

AUTO = EngineConfig(n_ctx=512, learn=False)


@pytest.fixture
def loaded() -> Iterator[Loaded]:
    fakes = Loaded()
    yield fakes
    fakes.close()


def test_only_the_named_drafters_are_asked(loaded: Loaded) -> None:
    client = loaded.client(config=AUTO)
    for speculate, mode, asked in (
        (True, "auto", {"history", "predicted", "suffix"}),
        (("recycle",), "recycle", {"recycle"}),
        (("suffix", "recycle"), "suffix,recycle", {"suffix", "recycle"}),
        (False, "off", set()),
        ((), "off", set()),
    ):
        result = client.submit(request(speculate=speculate)).result()
        assert result.speculation.mode == mode
        assert set(result.speculation.drafters) == asked


def test_the_text_is_the_same_whoever_guesses(loaded: Loaded) -> None:
    client = loaded.client(config=AUTO)
    texts = [answer(client, request(speculate=s)) for s in (False, True, ("suffix",), ("recycle", "suffix"))]
    assert texts[1:] == texts[:1] * 3


def test_each_set_of_names_keeps_its_own_drafters_and_judgement(loaded: Loaded) -> None:
    client = loaded.client(config=AUTO)
    for speculate in (("suffix",), ("suffix", "recycle"), ("suffix",), False, True):
        answer(client, request(speculate=speculate))
    crews, default = client.call(lambda setup: (dict(setup.engine._crews), setup.engine._loaded))
    assert set(crews) == {("suffix",), ("suffix", "recycle"), ()}
    everybody = [default, *crews.values()]
    assert len({id(policy) for _, policy in everybody}) == 4
    assert len({id(drafter) for drafters, _ in everybody for drafter in drafters}) == 6
    answer(client, request(speculate=("suffix",)))
    again = client.call(lambda setup: setup.engine._crews[("suffix",)])
    assert again is crews[("suffix",)]


def test_plain_requests_teach_the_default_nothing(loaded: Loaded) -> None:
    client = loaded.client(config=AUTO)
    answer(client, request(max_tokens=40))
    before = client.call(lambda setup: setup.engine._loaded[1].plain_ms)
    for _ in range(3):
        answer(client, request(max_tokens=40, speculate=False))
    assert client.call(lambda setup: setup.engine._loaded[1].plain_ms) == before


def test_names_that_do_not_exist(loaded: Loaded) -> None:
    client = loaded.client(config=AUTO)
    with pytest.raises(UnknownNameError, match="sufix"):
        client.submit(request(speculate=("sufix",))).result()
    with pytest.raises(UsageError, match="2 times"):
        client.submit(request(speculate=("suffix", "suffix"))).result()
    assert answer(client), "the next request is none the worse"
    llm = loaded.llm(AUTO)
    with pytest.raises(UnknownNameError, match="sufix"):
        llm.stream("Hi", speculate="sufix")


def test_how_the_python_api_says_it(loaded: Loaded) -> None:
    llm = loaded.llm(AUTO)
    for value, mode in (
        ("suffix", "suffix"),
        (["suffix", "recycle"], "suffix,recycle"),
        ("auto", "auto"),
        ("off", "off"),
        (True, "auto"),
        (False, "off"),
    ):
        assert llm.generate("Hi", max_tokens=3, speculate=value).speculation.mode == mode


def test_a_model_loaded_without_guessing_says_so(loaded: Loaded) -> None:
    client = loaded.client()
    assert answer(client, request(speculate=False)) == answer(client)
    with pytest.raises(UsageError, match="without guessing") as caught:
        client.submit(request(speculate=("suffix",))).result()
    assert "auto" in caught.value.hint


def test_a_model_that_cannot_guess_answers_plainly(loaded: Loaded) -> None:
    client = loaded.client(config=AUTO, kind=MemoryKind.RECURRENT)
    result = client.submit(request(speculate=("suffix",))).result()
    assert result.speculation.drafted == 0
    assert "recurrent" in result.speculation.note


def test_a_refused_rollback_ends_guessing_for_every_set(monkeypatch: pytest.MonkeyPatch) -> None:
    with flat_machine(monkeypatch) as llm:
        first, second = (request(max_tokens=60, speculate=names) for names in (("suffix",), ("suffix", "recycle")))
        assert llm.client.submit(second).result().speculation.drafted > 0
        context_of(llm).refuse_seq_rm(-1)
        text = llm.client.submit(first).result()
        context_of(llm).refuse_seq_rm(0)
        result = llm.client.submit(second).result()
        assert (
            text.speculation.note == result.speculation.note == "the memory of this model refused to take guesses back"
        )
        assert result.speculation.drafted == 0
        assert result.token_ids == text.token_ids


def test_steps_tell_what_looking_took(loaded: Loaded) -> None:
    client = loaded.client(config=AUTO)
    events = [e for e in client.submit(request(max_tokens=20)) if e.phase == "decode"]
    assert all(0 <= e.draft_ms <= e.step_ms for e in events)
    assert any(e.draft_ms > 0 for e in events)


def test_tokens_are_counted_by_depth() -> None:
    metrics = DrafterMetrics()
    for depth in (1, 2, 2, 4):
        metrics.drafted_at(depth)
    for depth in (1, 4):
        metrics.accepted_at(depth)
    counts = metrics.counts()
    assert (counts.drafted, counts.accepted) == (4, 2)
    assert (counts.drafted_per_pos, counts.accepted_per_pos) == ([1, 2, 0, 1], [1, 0, 0, 1])
