"""Penalties and DRY, token by token, against the reference, and the reference against llama.cpp."""

from __future__ import annotations

from dataclasses import replace

import llama_cpp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.engine.penalties import Dry, RepeatPenalties, breaker_ids
from edgedec.engine.sampling import Sampler
from edgedec.errors import UsageError
from edgedec.types import SamplingParams
from tests.engine.reference import GREEDY, N_CTX, adjusted, dry_matches, histories, llama_apply, random_row, window

windows = st.sampled_from([-1, 1, 4, 9, 64])
contexts = st.sampled_from([2, 7, 12, 100])


@given(history=histories(), n_prompt=st.integers(0, 60), last_n=windows, n_ctx=contexts, seed=st.integers(0, 99))
@settings(deadline=None, max_examples=200)
def test_repeat_penalties_token_by_token(history: list[int], n_prompt: int, last_n: int, n_ctx: int, seed: int) -> None:
    p = SamplingParams(repeat_penalty=1.4, presence_penalty=0.3, frequency_penalty=-0.1, penalty_last_n=last_n)
    penalties = RepeatPenalties(p, 6, history[:n_prompt], n_ctx)
    for n in range(min(n_prompt, len(history)), len(history) + 1):
        row = random_row(seed, 6)
        expected = adjusted(p, row, history[:n], n_ctx=n_ctx)
        penalties.apply(row)
        np.testing.assert_allclose(row, expected, rtol=1e-6)
        assert penalties.is_empty is (n == 0)
        if n < len(history):
            penalties.accept(history[n])


@given(
    history=histories(),
    n_prompt=st.integers(0, 60),
    last_n=windows,
    n_ctx=contexts,
    breakers=st.frozensets(st.integers(0, 3), max_size=1),
    allowed=st.integers(1, 3),
)
@settings(deadline=None, max_examples=300)
def test_dry_token_by_token(
    history: list[int], n_prompt: int, last_n: int, n_ctx: int, breakers: frozenset[int], allowed: int
) -> None:
    p = SamplingParams(dry_multiplier=0.5, dry_base=1.25, dry_allowed_length=allowed, dry_penalty_last_n=last_n)
    dry = Dry(p, 6, history[:n_prompt], breakers, n_ctx)
    for n in range(min(n_prompt, len(history)), len(history) + 1):
        losses: dict[int, float] = {}
        for token, loss in zip(*map(np.ndarray.tolist, dry.penalties() or (np.array([]),) * 2), strict=True):
            losses[token] = max(losses.get(token, 0.0), loss)
        matches = dry_matches(window(history[:n], last_n, n_ctx), breakers, allowed)
        assert losses == pytest.approx({t: 0.5 * 1.25 ** (length - allowed) for t, length in matches.items()})
        if n < len(history):
            dry.accept(history[n])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "p",
    [
        SamplingParams(repeat_penalty=1.3),
        SamplingParams(presence_penalty=0.7, frequency_penalty=-0.2, penalty_last_n=9),
        SamplingParams(repeat_penalty=0.8, presence_penalty=-0.1, frequency_penalty=0.4, penalty_last_n=300),
    ],
)
def test_reference_penalties_are_llama_cpps(p: SamplingParams, seed: int) -> None:
    row = random_row(seed, 200)
    history = np.random.default_rng(seed).integers(0, 40, 100).tolist()
    sampler = llama_cpp.llama_sampler_init_penalties(
        row.size, p.penalty_last_n, p.repeat_penalty, p.frequency_penalty, p.presence_penalty
    )
    kept = llama_apply(sampler, row, history)
    np.testing.assert_allclose(adjusted(p, row, history), [kept[i] for i in range(row.size)], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("last_n", [3, 10, 60, 1000])
@pytest.mark.parametrize("allowed", [1, 2, 4])
def test_reference_dry_is_llama_cpps(seed: int, last_n: int, allowed: int) -> None:
    p = SamplingParams(dry_multiplier=0.8, dry_base=1.5, dry_allowed_length=allowed, dry_penalty_last_n=last_n)
    row = random_row(seed, 5)
    history = np.random.default_rng(seed).integers(0, 3, 80).tolist()
    sampler = llama_cpp.llama_sampler_init_dry(None, p.dry_multiplier, p.dry_base, allowed, last_n, None, 0)
    kept = llama_apply(sampler, row, history)
    np.testing.assert_allclose(adjusted(p, row, history), [kept[i] for i in range(row.size)], rtol=1e-6)
    assert seed or last_n < 60 or adjusted(p, row, history).tolist() != row.tolist()


def test_a_token_that_would_prolong_several_phrases_loses_by_the_longest() -> None:
    p = replace(GREEDY, dry_multiplier=1.0, dry_base=2.0, dry_allowed_length=1)
    history = [0, 1, 2, 3, 1, 2, 3, 4, 0, 1, 2]  # 3 followed (0 1 2) and (1 2): lengths 3 and 2
    row = np.zeros(6, np.float32)
    for margin, token in [(3.9, 5), (4.1, 3)]:
        row[3] = margin  # the loss is 2**(3 - 1) = 4
        row[5] = 0.01
        assert Sampler(p, 6, history, n_ctx=N_CTX).sample(row, 11) == token


def test_breaker_ids_are_the_tokens_that_contain_a_breaker() -> None:
    pieces = [b"a", b"\n", b".\n\n", b"", b"x:y", "é".encode(), b"\xc3"]
    assert breaker_ids(("\n", ":", "é"), pieces) == {1, 2, 4, 5}
    assert breaker_ids((), pieces) == frozenset()
    with pytest.raises(UsageError, match="empty"):
        breaker_ids(("\n", ""), pieces)
