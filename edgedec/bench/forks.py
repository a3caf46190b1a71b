"""Where two answers to one prompt part, and whether the numbers excuse it.

Guessing changes no token, but llama.cpp's kernels differ in the last bits with the width of a batch, so a token whose
rival is that close may flip. The gap of a fork is the smallest raise of the other token's logit that would have made
the plain rule pick it in the plain run. A fork is a near-tie if its gap is at most twice the noise: the largest
difference of a logit between decoding a text one row and `WIDE` rows at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from edgedec.engine.sampling import Sampler
from edgedec.llama.base import Context, Logits, Rows
from edgedec.types import SamplingParams

WIDE = 8
_N_NOISE = 128  # tokens of a text that its noise is measured on
_RAISE_MAX = 64.0  # logits; beyond this a token is out of reach
_UNCOUNTED_CTX = 1 << 20


@dataclass(frozen=True, slots=True)
class Fork:
    """``at``: index of the first token that differs. All is None where only the texts are known."""

    at: int | None
    gap: float | None = None
    is_near_tie: bool | None = None


def parting(plain: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first token that differs, or the length of the shorter answer; None if they are equal."""
    for i, (a, b) in enumerate(zip(plain, other, strict=False)):
        if a != b:
            return i
    return None if len(plain) == len(other) else min(len(plain), len(other))


def rows(context: Context, prompt: Sequence[int], answer: Sequence[int], width: int) -> Iterator[Logits]:
    """The logits [n_vocab] that choose each token of ``answer``, decoded ``width`` rows at a time; each is valid
    until the next is asked for. Overwrites the memory. Raises DecodeError."""
    context.clear()
    for start in range(0, len(prompt) - 1, context.n_batch):
        part = prompt[start : min(start + context.n_batch, len(prompt) - 1)]
        n = len(part)
        context.decode(Rows(part, range(start, start + n), ((0,),) * n, (False,) * n))
    tokens, n_past = [prompt[-1], *answer[:-1]], len(prompt) - 1
    for start in range(0, len(tokens), width):
        part = tokens[start : start + width]
        n, position = len(part), n_past + start
        context.decode(Rows(part, range(position, position + n), ((0,),) * n, (True,) * n))
        yield from (context.logits(i) for i in range(n))


def noise(context: Context, prompt: Sequence[int], answer: Sequence[int]) -> float:
    """The largest difference of a logit between one row and `WIDE` rows at a time, on the beginning of a text."""
    begun = answer[:_N_NOISE]
    narrow = [row.copy() for row in rows(context, prompt, begun, 1)]
    wide = rows(context, prompt, begun, min(WIDE, context.n_outputs_max))
    return max((float(np.abs(a - b).max()) for a, b in zip(narrow, wide, strict=True)), default=0.0)


def gap_of(
    context: Context,
    params: SamplingParams,
    prompt: Sequence[int],
    plain: Sequence[int],
    other: Sequence[int],
    end_ids: Iterable[int],
) -> float:
    """The gap where ``other`` parts from ``plain``, in logits; infinite if no raise would do. An answer that is over at
    that point chose one of ``end_ids``."""
    at = parting(plain, other)
    if at is None:
        return 0.0
    said = plain[:at]
    row = [row.copy() for row in rows(context, prompt, [*said, 0], 1)][-1]
    rivals = [other[at]] if at < len(other) else end_ids
    return min((gap(params, prompt, said, row, rival) for rival in rivals), default=math.inf)


def gap(params: SamplingParams, prompt: Sequence[int], said: Sequence[int], row: Logits, rival: int) -> float:
    """The smallest raise of the rival's logit in ``row`` that makes the sampler pick it next."""
    sampler = Sampler(params, row.size, prompt, n_ctx=_UNCOUNTED_CTX)
    for token in said:
        sampler.accept(token)
    position = len(prompt) + len(said)

    def picks(raise_by: float) -> bool:
        changed = row.copy()
        changed[rival] += raise_by
        return sampler.sample(changed, position) == rival

    if picks(0.0):
        return 0.0
    if not picks(_RAISE_MAX):
        return math.inf
    low, high = 0.0, _RAISE_MAX
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if picks(middle) else (middle, high)
    return high
