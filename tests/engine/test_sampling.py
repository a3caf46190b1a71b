"""The sampler against a slow, obvious version of the whole chain, and that version against llama.cpp's samplers."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import llama_cpp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.engine.noise import loud_ids
from edgedec.engine.sampling import Sampler, breaker_ids, gumbel
from edgedec.errors import DecodeError, UsageError
from edgedec.types import SamplingParams

PURE = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
GREEDY = SamplingParams(temperature=0.0)
N_CTX = 4096

# ---------------------------------------------------------------- the reference


def window(history: Sequence[int], last_n: int, n_ctx: int) -> list[int]:
    n = n_ctx if last_n == -1 else min(last_n, n_ctx)
    return list(history)[max(0, len(history) - n) :]


def dry_matches(recent: list[int], breakers: frozenset[int], allowed: int) -> dict[int, int]:
    """Token → length of the longest end of ``recent``, with no breaker in it, that stands before it further left."""
    best: dict[int, int] = {}
    for end in range(len(recent) - 1):
        length = 0
        while length <= end and recent[end - length] == recent[-1 - length] and recent[-1 - length] not in breakers:
            length += 1
        follower = recent[end + 1]
        if length >= allowed and follower not in breakers:
            best[follower] = max(best.get(follower, 0), length)
    return best


def adjusted(
    p: SamplingParams,
    row: np.ndarray,
    history: Sequence[int],
    breakers: frozenset[int] = frozenset(),
    n_ctx: int = N_CTX,
) -> np.ndarray:
    out = row.copy()
    for token, bias in p.logit_bias:
        out[token] += np.float32(bias)
    recent = window(history, p.penalty_last_n, n_ctx)
    for token in set(recent):
        if out[token] > 0:
            out[token] /= np.float32(p.repeat_penalty)
        else:
            out[token] *= np.float32(p.repeat_penalty)
        out[token] -= np.float32(recent.count(token)) * np.float32(p.frequency_penalty) + np.float32(p.presence_penalty)
    if p.dry_multiplier:
        recent = window(history, p.dry_penalty_last_n, n_ctx)
        for token, length in dry_matches(recent, breakers, p.dry_allowed_length).items():
            out[token] -= np.float32(min(p.dry_multiplier * p.dry_base ** (length - p.dry_allowed_length), 1e30))
    return out


def survivors(p: SamplingParams, row: np.ndarray, slack_p: float = 0.0, slack_floor: float = 0.0) -> list[int]:
    """Ids that truncation leaves, best first. The slacks move the two thresholds, to see what rounding could do."""
    logits = [float(x) for x in row]
    ids = sorted((i for i, x in enumerate(logits) if x > -math.inf), key=lambda i: (-logits[i], i))
    best = logits[ids[0]]
    if p.top_k:
        ids = ids[: p.top_k]
    if p.top_p < 1:
        weights = [math.exp(logits[i] - best) for i in ids]
        mass = p.top_p * math.fsum(weights) * (1 + slack_p)
        sums = list(itertools.accumulate(weights))
        ids = ids[: 1 + next((n for n, s in enumerate(sums) if s >= mass), len(ids))]
    if p.min_p > 0:
        ids = [i for i in ids if logits[i] == best or logits[i] >= best + math.log(p.min_p) + slack_floor]
    if not 0 < p.top_k < len(logits) and p.top_p == 1 and p.min_p == 0:
        ids = [i for i in ids if logits[i] / p.temperature >= best / p.temperature - 30 + slack_floor]
    return ids


def noise(seed: int, position: int, token: int) -> float:
    def splitmix64(x: int) -> int:
        x = (x + 0x9E3779B97F4A7C15) % 2**64
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    x = splitmix64(seed ^ splitmix64(position) ^ token * 0xD1342543DE82EF95 % 2**64)
    return -math.log(-math.log(((x >> 12) + 0.5) / 2**52))


def chosen(p: SamplingParams, row: np.ndarray, position: int) -> set[int]:
    """The token, or the few that rounding at a threshold might make it."""
    if p.temperature == 0:
        return {int(np.flatnonzero(row == row.max())[0])}
    best = float(row.max())
    score = {
        i: (float(row[i]) - best) / p.temperature + noise(p.seed, position, i)
        for i in np.flatnonzero(row > -np.inf).tolist()
    }
    slacks = (-1e-5, 0.0, 1e-5)
    return {
        max(survivors(p, row, slack_p, slack_floor), key=lambda i: (score[i], -i))
        for slack_p in slacks
        for slack_floor in slacks
    }


# ---------------------------------------------------------------- llama.cpp as an oracle


def llama_apply(sampler: Any, row: np.ndarray, history: Sequence[int] = ()) -> dict[int, float]:
    """The ids that a llama.cpp sampler leaves of a row, and their logits."""
    data = (llama_cpp.llama_token_data * row.size)(*[(i, float(x), 0.0) for i, x in enumerate(row)])
    array = llama_cpp.llama_token_data_array(data=data, size=row.size, selected=-1, sorted=False)
    for token in history:
        llama_cpp.llama_sampler_accept(sampler, token)
    llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))
    kept = {array.data[i].id: array.data[i].logit for i in range(array.size)}
    llama_cpp.llama_sampler_free(sampler)
    return kept


def random_row(seed: int, n: int) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=n) * 3).astype(np.float32)


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


truncations = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-300, 1e-3, 0.2, 0.8, 1.0, 3.0, 100.0]),
    top_k=st.sampled_from([0, 0, 1, 2, 3, 40, 65, 400, 3001, 2**31 - 1]),
    top_p=st.sampled_from([1.0, 1.0, 1e-9, 0.3, 0.9, 0.999]),
    min_p=st.sampled_from([0.0, 0.0, 1e-60, 1e-9, 0.05, 0.9, 1.0]),
    seed=st.integers(0, 2**64 - 1),
)


@given(p=truncations, row=rows(), position=st.integers(0, 2**20))
@settings(deadline=None, max_examples=300)
def test_truncation_and_draw(p: SamplingParams, row: np.ndarray, position: int) -> None:
    row.flags.writeable = False
    sampler = Sampler(p, row.size, n_ctx=N_CTX)
    token = sampler.sample(row, position)
    assert type(token) is int
    assert token in chosen(p, row, position)
    assert Sampler(p, row.size, n_ctx=N_CTX).sample(np.repeat(row, 2)[::2], position) == token


penalties = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7]),
    top_k=st.sampled_from([0, 3]),
    repeat_penalty=st.sampled_from([1.0, 1.5, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.3, -0.1]),
    penalty_last_n=st.sampled_from([-1, 0, 1, 5, 64]),
    dry_multiplier=st.sampled_from([0.0, 0.5, 2.0]),
    dry_base=st.sampled_from([1.0, 1.3, 1e20]),
    dry_allowed_length=st.integers(1, 3),
    dry_penalty_last_n=st.sampled_from([-1, 0, 1, 4, 9]),
    logit_bias=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([-math.inf, -1.0, 0.25, 2.0])), max_size=3).map(
        tuple
    ),
)


@given(
    p=penalties,
    history=st.lists(st.integers(0, 3), max_size=40),
    n_prompt=st.integers(0, 40),
    breakers=st.frozensets(st.integers(0, 4), max_size=1),
    n_ctx=st.sampled_from([2, 7, 12, 100]),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, max_examples=400)
def test_penalties_dry_and_bias_see_exactly_the_accepted_tokens(
    p: SamplingParams, history: list[int], n_prompt: int, breakers: frozenset[int], n_ctx: int, seed: int
) -> None:
    row = random_row(seed, 6)
    row.flags.writeable = False
    sampler = Sampler(p, row.size, history[:n_prompt], breaker_ids=breakers, n_ctx=n_ctx)
    for n in range(min(n_prompt, len(history)), len(history) + 1):
        expected = chosen(p, adjusted(p, row, history[:n], breakers, n_ctx), n)
        assert sampler.sample(row, n) in expected
        assert sampler.sample(row, n) in expected
        if n < len(history):
            sampler.accept(history[n])


def test_a_token_that_would_prolong_several_phrases_loses_by_the_longest() -> None:
    p = replace(GREEDY, dry_multiplier=1.0, dry_base=2.0, dry_allowed_length=1)
    history = [0, 1, 2, 3, 1, 2, 3, 4, 0, 1, 2]  # 3 followed (0 1 2) and (1 2): lengths 3 and 2
    row = np.zeros(6, np.float32)
    for margin, token in [(3.9, 5), (4.1, 3)]:
        row[3] = margin  # the loss is 2**(3 - 1) = 4
        row[5] = 0.01
        assert Sampler(p, 6, history, n_ctx=N_CTX).sample(row, 11) == token


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


def test_a_wide_nucleus_is_found() -> None:
    row = random_row(1, 20_000) * np.float32(0.1)  # 256 and 1024 tokens are not enough
    p = replace(PURE, top_p=0.2)
    for position in range(5):
        assert Sampler(p, row.size, n_ctx=N_CTX).sample(row, position) in chosen(p, row, position)


def test_without_truncation_tokens_30_nats_below_the_best_are_out() -> None:
    position = next(i for i in range(10**6) if noise(0, i, 1) - noise(0, i, 0) > 10)
    for distance, token in [(9.0, 1), (31.0, 0)]:
        assert Sampler(PURE, 2, n_ctx=N_CTX).sample(np.array([0, -distance], np.float32), position) == token
    row = np.full(3000, -31, np.float32)
    row[7] = 0
    p = replace(PURE, temperature=0.99)
    assert {Sampler(p, 3000, n_ctx=N_CTX).sample(row, i) for i in range(20)} == {7}


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


# ---------------------------------------------------------------- breakers


def test_breaker_ids_are_the_tokens_that_contain_a_breaker() -> None:
    pieces = [b"a", b"\n", b".\n\n", b"", b"x:y", "é".encode(), b"\xc3"]
    assert breaker_ids(("\n", ":", "é"), pieces) == {1, 2, 4, 5}
    assert breaker_ids((), pieces) == frozenset()
    with pytest.raises(UsageError, match="empty"):
        breaker_ids(("\n", ""), pieces)


# ---------------------------------------------------------------- noise and law


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
    p = replace(PURE, temperature=1.7, top_k=20, top_p=0.95, min_p=0.2, seed=6)
    kept = survivors(p, row)
    assert 5 < len(kept) < 20
    groups = np.zeros(300, np.intp)
    groups[kept] = np.arange(len(kept))
    assert chi_square(p, row, groups, 10_000) < 60


def test_untruncated_draws_from_a_large_vocabulary_follow_the_law() -> None:
    row = random_row(4, 2000)
    groups = np.argsort(np.argsort(-row)) // 100  # by rank; most of the mass lies beyond the strongest few
    assert chi_square(replace(PURE, temperature=3.0), row, groups, 8_000) < 65  # 19 dof: P < 1e-6


@given(seed=st.integers(0, 2**64 - 1), position=st.integers(0, 2**40), ids=st.lists(st.integers(0, 2**31), min_size=1))
@settings(deadline=None)
def test_noise_is_the_hash_that_it_says(seed: int, position: int, ids: list[int]) -> None:
    expected = [noise(seed, position, i) for i in ids]
    np.testing.assert_allclose(gumbel(seed, position, np.array(ids)), expected, rtol=1e-12, atol=1e-14)


def test_noise_never_changes() -> None:
    """A seed promises a text: these numbers are part of the promise."""
    expected = [-0.873525895024594, 0.3781439847076996, -0.13909709166650705]
    np.testing.assert_allclose(gumbel(7, 100, np.array([0, 1, 49151], np.int32)), expected, rtol=1e-12)


def streams() -> Iterator[np.ndarray]:
    """Noise along ids, positions and seeds, as uniforms."""
    n, ids = 4096, np.arange(4096)
    yield np.exp(-np.exp(-gumbel(0, 0, ids)))
    yield np.exp(-np.exp(-np.array([gumbel(3, i, ids[:1])[0] for i in range(n)])))
    yield np.exp(-np.exp(-np.array([gumbel(i, 3, ids[:1])[0] for i in range(n)])))


def test_noise_is_uniform_along_ids_positions_and_seeds() -> None:
    for u in streams():
        steps = np.arange(1, u.size + 1) / u.size
        assert np.abs(np.sort(u) - steps).max() < 2.6 / math.sqrt(u.size)  # Kolmogorov-Smirnov, P < 1e-5
        assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 5 / math.sqrt(u.size)


@pytest.mark.parametrize(("seed", "position"), [(1, 0), (0, 1), (1, 1), (2**63, 0), (0, 2**20)])
def test_noise_of_other_seeds_and_positions_is_unrelated(seed: int, position: int) -> None:
    ids = np.arange(20_000)
    a, b = gumbel(0, 0, ids), gumbel(seed, position, ids)
    assert abs(np.corrcoef(a, b)[0, 1]) < 5 / math.sqrt(ids.size)
    assert not np.intersect1d(a, b).size


@pytest.mark.parametrize("least", [-10.0, 0.0, 3.0, 9.0])
def test_loud_ids_are_those_with_enough_noise(least: float) -> None:
    n = 40_000
    assert loud_ids(9, 12, n, least).tolist() == np.flatnonzero(gumbel(9, 12, np.arange(n)) >= least).tolist()


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
