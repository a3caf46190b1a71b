"""How an expected text gets from the caller to the drafter, and when it does not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from edgedec.client import Client
from edgedec.config import EngineConfig
from edgedec.drafters.predicted import PredictedDrafter
from edgedec.errors import UsageError
from edgedec.llama.fake import USER, FakeModel
from edgedec.llm import LLM

OPTIONS: dict[str, Any] = {"temperature": 0, "max_tokens": 12}


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM(Client(FakeModel(), EngineConfig(n_ctx=512, speculate=("predicted",)))) as llm:
        yield llm


@pytest.fixture
def expected(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """What the drafter was told to expect, request by request."""
    heard: list[tuple[int, ...]] = []
    real = PredictedDrafter.expect

    def expect(self: PredictedDrafter, seq_id: int, prediction: Sequence[int]) -> None:
        heard.append(tuple(prediction))
        real(self, seq_id, prediction)

    monkeypatch.setattr(PredictedDrafter, "expect", expect)
    return heard


def test_text_or_token_ids(llm: LLM, expected: list[tuple[int, ...]]) -> None:
    plain = llm.generate("Hi", speculate=False, prediction="abc", **OPTIONS)
    assert expected == []
    for prediction in ("abc", [97, 98, 99], (97, 98, 99)):
        assert llm.generate("Hi", prediction=prediction, **OPTIONS).token_ids == plain.token_ids
    llm.chat().send("Hi", prediction="abc", **OPTIONS)
    assert expected == [(97, 98, 99)] * 4


def test_a_prediction_cannot_spell_control_tokens(llm: LLM, expected: list[tuple[int, ...]]) -> None:
    llm.generate("Hi", prediction="<|user|>", **OPTIONS)
    assert USER not in expected[0]
    assert b"".join(map(llm.model.piece, expected[0])) == b"<|user|>"


def test_nothing_expected(llm: LLM, expected: list[tuple[int, ...]]) -> None:
    llm.generate("Hi", **OPTIONS)
    llm.generate("Hi", prediction="", **OPTIONS)
    llm.generate("Hi", prediction=[], **OPTIONS)
    assert expected == []


@pytest.mark.parametrize("prediction", [[97, "b"], [1.5], [True], [-1], [10**6]])
def test_not_a_prediction(llm: LLM, prediction: list[Any]) -> None:
    with pytest.raises(UsageError, match="prediction"):
        llm.generate("Hi", prediction=prediction, **OPTIONS)


def test_regenerating_expects_the_old_answer(llm: LLM, expected: list[tuple[int, ...]]) -> None:
    chat = llm.chat()
    chat.send("Hi", **OPTIONS)
    assert expected == []
    old = chat.messages[-1].content
    assert chat.regenerate(**OPTIONS).text == old
    chat.regenerate(prediction="else", **OPTIONS)
    assert expected == [tuple(llm.model.tokenize(old)), tuple(llm.model.tokenize("else"))]
