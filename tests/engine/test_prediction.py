"""An expected text changes the number of steps and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from edgedec.drafters.base import Drafter
from edgedec.drafters.predicted import PredictedDrafter
from edgedec.drafters.recycle import RecycleDrafter
from edgedec.engine.engine import Engine
from edgedec.errors import UsageError
from edgedec.llama.fake import FakeClock
from edgedec.speculation.cost import CostCurve
from edgedec.speculation.policy import Policy
from edgedec.types import Request, Result, SamplingParams
from tests.engine.lab import EVERYTHING, GREEDY, Guesser, new_context, new_model, plain, play, prompt_of

MODEL = {"end_rate": 0.0}
both_samplings = pytest.mark.parametrize("sampling", [GREEDY, EVERYTHING], ids=["greedy", "everything"])


def guessed(drafters: Sequence[Drafter], *requests: Request) -> list[Result]:
    """On a clock on which a wide step costs little more than a narrow one."""
    clock = FakeClock()
    clock.advance(1)
    model = new_model(**MODEL, clock=clock, delay=lambda n_rows, n_past: 0.01 + 0.0001 * n_rows)
    context = new_context(model)
    policy = Policy(CostCurve({n: 10 + 0.1 * n for n in (1, 2, 4, 8, 16, 32)}), n_max=32)
    engine = Engine(model, context, drafters, policy, mode="test", clock=clock.now)
    return [play(engine, context, request, i).result for i, request in enumerate(requests)]


def request_of(sampling: SamplingParams, prediction: Sequence[int] = (), max_tokens: int = 150) -> Request:
    return Request(prompt_of(40), sampling, max_tokens=max_tokens, prediction=tuple(prediction))


@both_samplings
def test_the_answer_itself_is_expected(sampling: SamplingParams) -> None:
    answer = plain("full", request_of(sampling), **MODEL)
    without, with_it = guessed([PredictedDrafter()], request_of(sampling), request_of(sampling, answer.token_ids))
    assert without.token_ids == with_it.token_ids == answer.token_ids
    assert without.text == with_it.text == answer.text
    assert without.speculation.steps == 150
    assert without.speculation.drafted == 0
    assert with_it.speculation.steps < 150 / 5
    assert with_it.speculation.acceptance_rate > 0.95
    assert with_it.speculation.drafters["predicted"].accepted > 100


@both_samplings
def test_an_edited_answer_is_expected(sampling: SamplingParams) -> None:
    answer = plain("full", request_of(sampling), **MODEL)
    ids = answer.token_ids
    old = [*b"before: ", *ids[:40], *b"another", *ids[45:90], *ids[110:]]
    (result,) = guessed([PredictedDrafter()], request_of(sampling, old))
    assert (result.token_ids, result.text) == (answer.token_ids, answer.text)
    assert result.speculation.steps < 150 / 2
    assert result.speculation.accepted > 75


@both_samplings
def test_a_wrong_text_is_expected(sampling: SamplingParams) -> None:
    answer = plain("full", request_of(sampling), **MODEL)
    (result,) = guessed([PredictedDrafter()], request_of(sampling, b"0123456789" * 30))
    assert (result.token_ids, result.text) == (answer.token_ids, answer.text)


@both_samplings
def test_recycling_does_not_change_the_answer(sampling: SamplingParams) -> None:
    answer = plain("full", request_of(sampling), **MODEL)
    results = guessed([RecycleDrafter()], *[request_of(sampling)] * 3)
    for result in results:
        assert (result.token_ids, result.text) == (answer.token_ids, answer.text)
    assert results[0].speculation.accepted > 0
    assert results[-1].speculation.steps < 150


def test_only_those_that_expect_something_say_so() -> None:
    heard: list[tuple[str, tuple[int, ...]]] = []

    class Listener(Guesser):
        def begin(self, seq_id: int, prompt: Sequence[int]) -> None:
            super().begin(seq_id, prompt)
            heard.append(("begin", tuple(prompt)))

        def expect(self, seq_id: int, prediction: Sequence[int]) -> None:
            heard.append(("expect", tuple(prediction)))

    guessed([Listener(lambda said, n: [])], request_of(GREEDY, max_tokens=3), request_of(GREEDY, (1, 2), max_tokens=3))
    prompt = prompt_of(40)
    assert heard == [("begin", prompt), ("begin", prompt), ("expect", (1, 2))]


@pytest.mark.parametrize("token", [-1, 268, 2**40])
def test_tokens_that_do_not_exist(token: int) -> None:
    model = new_model()
    engine = Engine(model, new_context(model))
    with pytest.raises(UsageError, match="prediction has a token id outside 0…267"):
        engine.submit(0, request_of(GREEDY, (5, token)))
    assert engine.is_idle
