"""The sampler against a slow, obvious version of the whole chain, and that version against llama.cpp's samplers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import llama_cpp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.engine.sampling import Sampler, gumbel
from edgedec.errors import DecodeError, UsageError
from edgedec.types import SamplingParams
from tests.engine.reference import GREEDY, N_CTX, PURE, adjusted, chosen, histories, llama_apply, random_row, survivors

TRUNCATIONS: list[tuple[dict[str, float], Callable[..., Any]]] = [
    ({"top_k": 7}, llama_cpp.llama_sampler_init_top_k),
    ({"top_k": 5000}, llama_cpp.llama_sampler_init_top_k),
    ({"top_p": 0.3}, lambda p: llama_cpp.llama_sampler_init_top_p(p, 1)),
    ({"top_p": 0.97}, lambda p: llama_cpp.llama_sampler_init_top_p(p, 1)),
    ({"min_p": 0.02}, lambda p: llama_cpp.llama_sampler_init_min_p(p, 1)),
    ({"min_p": 1.0}, lambda p: llama_cpp.llama_sampler_init_min_p(p, 1)),
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("setting", "init"), TRUNCATIONS)
def test_reference_truncation_is_llama_cpps(setting: dict[str, float], init: Callable[..., Any], seed: int) -> None:
    row = random_row(seed, 3000)
    (value,) = setting.values()
    assert set(llama_apply(init(value), row)) == set(survivors(replace(PURE, **setting), row))


# ---------------------------------------------------------------- the sampler against the reference


@st.composite
def rows(draw: st.DrawFn) -> np.ndarray:
    """Tiny to a few thousand entries; spread or flat; many equal, many forbidden."""
    n = draw(st.one_of(st.integers(1, 8), st.integers(60, 70), st.integers(100, 400), st.just(3001)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    row = rng.normal(size=n) * draw(st.sampled_from([0.0, 0.3, 3.0, 20.0]))
    if draw(st.booleans()):
        row = row.round()
    row[rng.random(n) < draw(st.sampled_from([0.0, 0.3, 0.98]))] = -np.inf
    row[rng.integers(n)] = rng.normal()
    return row.astype(np.float32)


@st.composite
def truncations(draw: st.DrawFn, n_vocab: int) -> SamplingParams:
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 1e-300, 1e-3, 0.2, 0.8, 1.0, 3.0, 100.0])),
        top_k=draw(st.sampled_from([0, 0, 0, 1, 2, 3, 40, 65, max(1, n_vocab - 1), n_vocab, 2**31 - 1])),
        top_p=draw(st.sampled_from([1.0, 1.0, 1e-9, 0.3, 0.9, 0.999, 1 - 1e-12])),
        min_p=draw(st.sampled_from([0.0, 0.0, 1e-60, 1e-9, 0.05, 0.5, 0.9, 1.0])),
        seed=draw(st.integers(0, 2**64 - 1)),
    )


@given(row=rows(), data=st.data(), position=st.integers(0, 2**20))
@settings(deadline=None, max_examples=200)
def test_truncation_and_draw(row: np.ndarray, data: st.DataObject, position: int) -> None:
    p = data.draw(truncations(row.size))
    row.flags.writeable = False
    sampler = Sampler(p, row.size, n_ctx=N_CTX)
    positions = range(position, position + 10)
    tokens = [sampler.sample(row, i) for i in positions]
    assert all(type(token) is int for token in tokens)
    assert all(token in ok for token, ok in zip(tokens, chosen(p, row, positions), strict=True))
    strided = np.repeat(row, 2)[::2]
    assert [sampler.sample(strided, i) for i in positions] == tokens


settings_that_change_scores = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7]),
    top_k=st.sampled_from([0, 3]),
    repeat_penalty=st.sampled_from([1.0, 1.5, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.3, -0.1]),
    penalty_last_n=st.sampled_from([0, 5, 64]),
    dry_multiplier=st.sampled_from([0.0, 0.5, 2.0]),
    dry_penalty_last_n=st.sampled_from([0, -1]),
    logit_bias=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([-math.inf, -1.0, 0.25, 2.0])), max_size=3).map(
        tuple
    ),
)


@given(p=settings_that_change_scores, history=histories(), n_prompt=st.integers(0, 60), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=300)
def test_the_whole_chain_sees_exactly_the_accepted_tokens(
    p: SamplingParams, history: list[int], n_prompt: int, seed: int
) -> None:
    sampler = Sampler(p, 6, history[:n_prompt], breaker_ids=frozenset({2}), n_ctx=N_CTX)
    for n in range(min(n_prompt, len(history)), len(history) + 1):
        row = random_row(seed + n, 6)
        row.flags.writeable = False
        (expected,) = chosen(p, adjusted(p, row, history[:n], frozenset({2})), [n])
        assert sampler.sample(row, n) in expected
        assert sampler.sample(row, n) in expected
        if n < len(history):
            sampler.accept(history[n])


def test_bias_of_a_token_adds_up() -> None:
    p = replace(GREEDY, logit_bias=((1, 2.0), (0, 3.0), (1, 2.0)))
    assert Sampler(p, 3, n_ctx=N_CTX).sample(np.zeros(3, np.float32), 0) == 1


def test_greedy_takes_the_lowest_of_equals() -> None:
    row = np.array([0, 2, 1, 2, 2], np.float32)
    assert Sampler(GREEDY, 5, n_ctx=N_CTX).sample(row, 0) == 1


@pytest.mark.parametrize("n", [10, 5000])
def test_ties_at_the_kth_place_go_to_the_lowest_ids(n: int) -> None:
    row = np.zeros(n, np.float32)
    row[n // 2] = 0.1
    p = replace(PURE, top_k=3, temperature=100.0)
    sampler = Sampler(p, n, n_ctx=N_CTX)
    assert {sampler.sample(row, i) for i in range(100)} == {0, 1, n // 2}


def test_top_k_of_all_but_one_leaves_one_out() -> None:
    sampler = Sampler(replace(PURE, top_k=2), 3, n_ctx=N_CTX)
    assert {sampler.sample(np.zeros(3, np.float32), i) for i in range(50)} == {0, 1}


@pytest.mark.parametrize("seed", range(10))
def test_a_top_p_that_rounding_puts_out_of_reach_keeps_all(seed: int) -> None:
    row = random_row(seed, 300) * np.float32(0.1)
    p = replace(PURE, top_p=1 - 1e-15)
    expected = [Sampler(PURE, 300, n_ctx=N_CTX).sample(row, i) for i in range(10)]
    assert [Sampler(p, 300, n_ctx=N_CTX).sample(row, i) for i in range(10)] == expected


def test_top_p_keeps_the_token_that_reaches_it() -> None:
    row = np.log(np.array([0.5, 0.25, 0.25], np.float32))
    for top_p, kept in [(0.49, {0}), (0.51, {0, 1}), (0.74, {0, 1}), (0.76, {0, 1, 2})]:
        sampler = Sampler(replace(PURE, top_p=top_p), 3, n_ctx=N_CTX)
        assert {sampler.sample(row, i) for i in range(200)} == kept


def test_top_p_and_min_p_look_at_scores_before_temperature() -> None:
    row = np.array([0.0, -1.0, -4.0], np.float32)
    for setting in ({"top_p": 0.9}, {"min_p": 0.1}):
        sampler = Sampler(replace(PURE, temperature=100.0, **setting), 3, n_ctx=N_CTX)
        assert {sampler.sample(row, i) for i in range(200)} == {0, 1}


@pytest.mark.parametrize("top_k", [0, 3])
def test_top_p_reached_exactly_is_enough(top_k: int) -> None:
    sampler = Sampler(replace(PURE, top_k=top_k, top_p=0.5), 4, n_ctx=N_CTX)
    row = np.array([0, 0, -np.inf, -np.inf], np.float32)
    assert {sampler.sample(row, i) for i in range(50)} == {0}


def test_min_p_is_a_share_of_the_best_probability() -> None:
    sampler = Sampler(replace(PURE, min_p=0.1, temperature=5.0), 4, n_ctx=N_CTX)
    row = np.log(np.array([0.5, 0.0501, 0.0499, 0.01], np.float32))
    assert {sampler.sample(row, i) for i in range(100)} == {0, 1}


def test_top_p_is_a_share_of_what_top_k_left() -> None:
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    sampler = Sampler(replace(PURE, top_k=2, top_p=0.55), 4, n_ctx=N_CTX)
    assert {sampler.sample(row, i) for i in range(50)} == {0}


@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("min_p", [0.0, 0.4])
def test_in_a_large_vocabulary_any_token_above_the_floor_can_win(spread: float, min_p: float) -> None:
    row = np.random.default_rng(0).normal(size=3001).astype(np.float32) * np.float32(spread)
    p = replace(PURE, min_p=min_p, temperature=2.0)
    ids = np.array(survivors(p, row))
    sampler = Sampler(p, row.size, n_ctx=N_CTX)
    for position in range(200):
        score = row[ids].astype(np.float64) / 2 + gumbel(p.seed, position, ids)
        assert sampler.sample(row, position) == ids[score.argmax()]


def test_a_wide_nucleus_is_found() -> None:
    row = random_row(1, 20_000) * np.float32(0.1)  # 256 and 1024 tokens are not enough
    p = replace(PURE, top_p=0.2)
    sampler = Sampler(p, row.size, n_ctx=N_CTX)
    for position, expected in enumerate(chosen(p, row, range(5))):
        assert sampler.sample(row, position) in expected


def test_without_truncation_tokens_30_nats_below_the_best_are_out() -> None:
    seed = 177_337_536_941_527_953  # the hash of token 1 at position 0 is all ones
    assert gumbel(seed, 0, np.array([1]))[0] > 36
    for temperature in (1.0, 0.5):
        p = replace(PURE, temperature=temperature, seed=seed)
        for distance, token in [(29.9, 1), (30.1, 0)]:
            row = np.array([0, -distance * temperature], np.float32)
            assert Sampler(p, 2, n_ctx=N_CTX).sample(row, 0) == token
            assert Sampler(replace(p, top_k=2), 2, n_ctx=N_CTX).sample(row, 0) == token  # top-k of all is off
            assert Sampler(replace(p, min_p=1e-30), 2, n_ctx=N_CTX).sample(row, 0) == 1


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([0, math.nan, 1], "NaN"),
        ([math.nan] * 3, "NaN"),
        ([0, math.inf, 1], "infinite"),
        ([-math.inf] * 3, "Every token is forbidden"),
    ],
)
def test_useless_rows_are_refused(temperature: float, scores: list[float], message: str) -> None:
    sampler = Sampler(SamplingParams(temperature=temperature), 3, n_ctx=N_CTX)
    with pytest.raises(DecodeError, match=message) as caught:
        sampler.sample(np.array(scores, np.float32), 41)
    assert "position 41" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_forbidding_everything_is_an_error() -> None:
    sampler = Sampler(SamplingParams(logit_bias=((0, -math.inf), (1, -math.inf))), 2, n_ctx=N_CTX)
    with pytest.raises(DecodeError, match="forbidden"):
        sampler.sample(np.zeros(2, np.float32), 0)


@pytest.mark.parametrize("bias", [(-1, 1.0), (3, 1.0), (0, math.nan), (0, math.inf), (0, 1e300)])
def test_impossible_bias_is_refused(bias: tuple[int, float]) -> None:
    with pytest.raises(UsageError, match="logit_bias"):
        Sampler(SamplingParams(logit_bias=(bias,)), 3, n_ctx=N_CTX)


def test_absurd_penalties_do_not_overflow() -> None:
    p = SamplingParams(temperature=0.5, dry_multiplier=1e308, dry_base=1e300, dry_allowed_length=1, repeat_penalty=100)
    row = np.array([3e38, -3e38, 0], np.float32)
    assert Sampler(p, 3, [0, 1, 0, 1, 0, 1], n_ctx=N_CTX).sample(row, 6) == 0


# ---------------------------------------------------------------- law


def chi_square(p: SamplingParams, row: np.ndarray, groups: np.ndarray, n_draws: int) -> float:
    """Of draws at many positions, against the exact distribution, over groups of tokens."""
    law = np.exp(row.astype(np.float64) / p.temperature)
    kept = survivors(p, row)
    expected = np.bincount(groups[kept], law[kept]) / law[kept].sum() * n_draws
    sampler = Sampler(p, row.size, n_ctx=N_CTX)
    seen = np.bincount([groups[sampler.sample(row, i)] for i in range(n_draws)], minlength=expected.size)
    return float(((seen - expected) ** 2 / expected).sum())


def test_draws_follow_the_law_of_the_target() -> None:
    row = random_row(2, 10)
    assert chi_square(replace(PURE, temperature=1.5, seed=5), row, np.arange(10), 10_000) < 45  # 9 dof: P < 1e-6


def test_truncated_draws_follow_the_renormalised_law() -> None:
    row = random_row(3, 300) * np.float32(0.3)
    p = replace(PURE, temperature=1.7, top_k=20, top_p=0.9, min_p=0.3, seed=6)
    kept = survivors(p, row)
    assert 5 < len(kept) < 20
    groups = np.zeros(300, np.intp)
    groups[kept] = np.arange(len(kept))
    assert chi_square(p, row, groups, 10_000) < 60


def test_untruncated_draws_from_a_large_vocabulary_follow_the_law() -> None:
    row = random_row(4, 2000)
    groups = np.argsort(np.argsort(-row)) // 100  # by rank; most of the mass lies beyond the strongest few
    assert chi_square(replace(PURE, temperature=3.0), row, groups, 8_000) < 65  # 19 dof: P < 1e-6


def test_a_draw_does_not_depend_on_earlier_calls() -> None:
    row = random_row(5, 500)
    used = Sampler(PURE, 500, n_ctx=N_CTX)
    for position in range(50):
        used.sample(random_row(position, 500), position)
    fresh = [Sampler(PURE, 500, n_ctx=N_CTX).sample(row, i) for i in range(20)]
    assert [used.sample(row, i) for i in range(20)] == fresh
    assert [used.sample(row, i) for i in reversed(range(20))] == fresh[::-1]
    assert len(set(fresh)) > 10


def test_nearby_seeds_and_positions_draw_differently() -> None:
    row = np.zeros(1000, np.float32)
    tokens = {Sampler(replace(PURE, seed=s), 1000, n_ctx=N_CTX).sample(row, i) for s in range(8) for i in range(8)}
    assert len(tokens) > 50
