"""The noise of a draw: a fixed number for each (seed, position, token id), so that no call depends on an earlier one.

Gumbel-max: ``argmax_x [log p(x) + g(x)]`` with independent standard Gumbel ``g`` is a sample of ``p``. When ``g`` is a
hash of its coordinates, a token does not depend on how its step was batched, and a draft model that uses the same
``g`` tends to choose the same token (Daliri, Musco, Suresh 2024, "Coupling without communication and drafter-invariant
speculative decoding", arXiv 2408.07978).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.integer[Any]]

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_ID_STRIDE = 0xD1342543DE82EF95

_BITS = 52  # with one bit more, u = (bits + ½)·2^-bits would not be exact in float64 and could round to 1
_LOWEST = -3.61
_BLOCK = 16384  # ids hashed at once: the arrays stay in the first caches


def gumbel(seed: int, position: int, ids: Ids) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise of the tokens ``ids`` [n] at an absolute ``position`` of the sequence, shape [n].

    ``0 <= seed < 2**64``. Each value depends on nothing but (seed, position, its id) and lies between -3.61 and 36.74.
    """
    u = (_bits(seed, position, ids) + 0.5) * 2.0**-_BITS
    noise: npt.NDArray[np.float64] = -np.log(-np.log(u))
    return noise


def draw(seed: int, position: int, ids: Ids, log_p: npt.NDArray[np.float64]) -> int:
    """The id with the largest ``log_p + gumbel(seed, position, ids)``; ties go to the lowest id.

    ``ids`` [n ≥ 1] in any order, ``log_p`` [n] up to a constant, its largest value finite.
    """
    if ids.size == 1:
        return int(ids[0])
    score = log_p + gumbel(seed, position, ids)
    return int(ids[score == score.max()].min())


def loud_ids(seed: int, position: int, n_vocab: int, least: float) -> npt.NDArray[np.intp]:
    """The ids below ``n_vocab`` whose Gumbel noise is at least ``least``, possibly with a few just below it.

    Noise grows with the hash, so comparing the hash is enough: this is several times faster than `gumbel` of all ids.
    """
    # The margins cover the rounding of log and exp: an id too many is harmless, one too few is not.
    u = math.exp(-math.exp(1e-9 - max(least, _LOWEST)))
    least_bits = max(0, int(u * 2**_BITS) - 4)
    found = []
    for start in range(0, n_vocab, _BLOCK):
        bits = _bits(seed, position, np.arange(start, min(start + _BLOCK, n_vocab)))
        found.append(start + np.flatnonzero(bits >= least_bits))
    return np.concatenate(found)


def _bits(seed: int, position: int, ids: Ids) -> npt.NDArray[np.uint64]:
    """``splitmix64(seed ^ splitmix64(position) ^ id·stride)``, its upper 52 bits (Steele, Lea, Flood 2014)."""
    x = ids.astype(np.uint64)
    x *= _ID_STRIDE
    x ^= seed ^ _splitmix64(position)
    x += _GOLDEN
    x ^= x >> 30
    x *= _MIX_1
    x ^= x >> 27
    x *= _MIX_2
    x ^= x >> 31
    x >>= 64 - _BITS
    return x


def _splitmix64(x: int) -> int:
    x = (x + _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * _MIX_1) & _MASK
    x = ((x ^ (x >> 27)) * _MIX_2) & _MASK
    return x ^ (x >> 31)
