from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.bench.forks import WIDE, gap, gap_of, noise, parting, rows
from edgedec.engine.sampling import Sampler
from edgedec.llama.fake import EOS, FakeModel
from edgedec.types import SamplingParams
from tests.llama.fakes import context_of, greedy

GREEDY = SamplingParams(temperature=0)
PROMPT = tuple(b"tell me")

tokens = st.lists(st.integers(0, 3), max_size=8)


@settings(deadline=None)
@given(tokens, tokens)
def test_where_two_answers_part(a: list[int], b: list[int]) -> None:
    at = parting(a, b)
    if at is None:
        assert a == b
    else:
        assert a != b
        assert a[:at] == b[:at]
        assert a[at : at + 1] != b[at : at + 1]


def test_rows_are_those_that_chose_the_answer() -> None:
    model = FakeModel()
    answer = greedy(context_of(model), PROMPT, 20)
    for width in (1, 3, WIDE):
        found = [int(row.argmax()) for row in rows(context_of(model), PROMPT, answer, width)]
        assert found == answer
    assert len(list(rows(context_of(model, n_batch=4, n_ubatch=4), PROMPT, answer, 4))) == 20


def test_the_fake_has_no_noise_and_a_broken_one_has() -> None:
    model = FakeModel()
    answer = greedy(context_of(model), PROMPT, 20)
    context = context_of(model)
    assert noise(context, PROMPT, answer) == 0.0
    true = context.logits

    def shifted(row: int) -> np.ndarray:
        return true(row) + (0.25 if len(context.batches[-1]) > 1 else 0.0)

    context.logits = shifted  # type: ignore[method-assign]
    assert noise(context, PROMPT, answer) == pytest.approx(0.25, abs=1e-5)
    assert noise(context, PROMPT, ()) == 0.0


def test_noise_is_measured_within_what_a_context_can_put_out() -> None:
    context = context_of(FakeModel(), n_batch=4, n_ubatch=4, n_outputs_max=4)
    assert noise(context, PROMPT, tuple(b"abcdefg")) == 0.0


def test_the_greedy_gap_is_the_difference_of_two_logits() -> None:
    row = np.array([1.0, 4.0, 3.25, -2.0], np.float32)
    assert gap(GREEDY, (0,), (), row, 1) == 0.0
    assert gap(GREEDY, (0,), (), row, 2) == pytest.approx(0.75, abs=1e-5)
    assert gap(GREEDY, (0,), (), row, 3) == pytest.approx(6.0, abs=1e-5)


def test_a_forbidden_token_is_out_of_reach() -> None:
    row = np.array([1.0, 4.0, -math.inf], np.float32)
    assert gap(GREEDY, (0,), (), row, 2) == math.inf
    biased = SamplingParams(temperature=0, logit_bias=((0, -math.inf),))
    assert gap(biased, (0,), (), row, 0) == math.inf


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**20), st.floats(0.2, 1.5), st.integers(0, 30))
def test_the_sampled_gap_is_the_least_raise(seed: int, temperature: float, n_said: int) -> None:
    row = (np.random.default_rng(seed).normal(size=16) * 2).astype(np.float32)
    params = SamplingParams(temperature=temperature, top_k=0, top_p=1, min_p=0, seed=seed, presence_penalty=0.5)
    said = [seed % 16] * n_said
    rival = (seed + 5) % 16
    found = gap(params, (0,), said, row, rival)

    def picks(raise_by: float) -> bool:
        sampler = Sampler(params, row.size, (0,), n_ctx=4096)
        for token in said:
            sampler.accept(token)
        changed = row.copy()
        changed[rival] += raise_by
        return sampler.sample(changed, 1 + n_said) == rival

    assert picks(found + 1e-3)
    assert found == 0.0 or not picks(found - 1e-3)


def test_the_gap_of_two_answers() -> None:
    model = FakeModel()
    context = context_of(model)
    answer = tuple(greedy(context, PROMPT, 20))
    row = [row.copy() for row in rows(context, PROMPT, answer, 1)][7]
    second = int(np.argsort(row)[-2])
    other = (*answer[:7], second, *answer[8:])
    found = gap_of(context, GREEDY, PROMPT, answer, other, model.eog_ids)
    assert found == pytest.approx(float(row[answer[7]] - row[second]), abs=1e-4)
    assert gap_of(context, GREEDY, PROMPT, answer, answer, model.eog_ids) == 0.0


def test_an_answer_that_ended_earlier_chose_an_end_token() -> None:
    model = FakeModel()
    context = context_of(model)
    answer = tuple(greedy(context, PROMPT, 10))
    row = [row.copy() for row in rows(context, PROMPT, answer, 1)][4]
    found = gap_of(context, GREEDY, PROMPT, answer, answer[:4], model.eog_ids)
    assert found == pytest.approx(min(float(row.max() - row[end]) for end in model.eog_ids), abs=1e-4)
    longer = (*answer, EOS)
    assert gap_of(context, GREEDY, PROMPT, answer, longer, model.eog_ids) > 0, "the plain answer was over"
