"""The chain of the sampler, slow and obvious, and llama.cpp's own samplers to hold it against."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np
from hypothesis import strategies as st

from edgedec.engine.sampling import gumbel
from edgedec.types import SamplingParams

PURE = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
GREEDY = SamplingParams(temperature=0.0)
N_CTX = 4096


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


def chosen(p: SamplingParams, row: np.ndarray, positions: Sequence[int]) -> list[set[int]]:
    """For each position the token, or the few that rounding at a threshold might make it."""
    if p.temperature == 0:
        return [{int(np.flatnonzero(row == row.max())[0])}] * len(positions)
    slacks = (-1e-5, 0.0, 1e-5)
    kept = [survivors(p, row, slack_p, slack_floor) for slack_p in slacks for slack_floor in slacks]
    fewest, longest = min(map(len, kept)), max(kept, key=len)  # they all begin alike
    best = float(row.max())
    result = []
    for position in positions:
        g = gumbel(p.seed, position, np.array(longest))
        scores = [(float(row[i]) - best) / p.temperature + g[n] for n, i in enumerate(longest)]
        winners = itertools.accumulate(zip(scores, longest, strict=True), lambda a, b: max(a, b, key=rank))
        result.append({i for _, i in itertools.islice(winners, fewest - 1, None)})
    return result


def rank(scored: tuple[float, int]) -> tuple[float, int]:
    score, token = scored
    return score, -token


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


@st.composite
def histories(draw: st.DrawFn) -> list[int]:
    """Up to 60 tokens with many repetitions."""
    n, n_words, seed = draw(st.integers(0, 60)), draw(st.integers(1, 4)), draw(st.integers(0, 2**32 - 1))
    return np.random.default_rng(seed).integers(0, n_words, n).tolist()
