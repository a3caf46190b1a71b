"""An index over texts that finds where the end of another text was said before, and what came next.

The texts are stored backwards. What precedes a position is then what follows it on disk, so that sorting positions by
what follows puts positions with a common *context* side by side: one search finds the longest match of any length and
the number of its occurrences. A suffix array of the reversed text (Manber and Myers, Suffix arrays: a new method for
on-line string searches, 1990), limited to `DEPTH` tokens. Tokens are big-endian, so that slices of bytes compare as
their tokens do, and a file that is mapped into memory can be searched as it lies on the disk.
"""

from __future__ import annotations

import mmap
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.uint32]

DEPTH = 32
"""Tokens of context that are compared; longer matches count as this long."""

SEPARATOR = 0xFFFFFFFF
"""Stands between texts, and `DEPTH` times at both ends of all of them. No token id is as large."""

_WIDTH = 4  # bytes of a token


def reversed_text(texts: Sequence[Tokens]) -> Tokens:
    """The texts (oldest first) as one array in which everything is backwards: the most recent token comes first."""
    end = np.array([SEPARATOR], np.uint32)
    ends = np.full(DEPTH, SEPARATOR, np.uint32)
    return np.concatenate([ends, *(part for text in reversed(texts) for part in (text[::-1], end)), ends])


def sorted_positions(text: Tokens) -> Tokens:
    """The positions of a `reversed_text` whose next token is known, sorted by their `DEPTH` tokens of context; among
    equals the most recent first.

    Doubles the sorted depth (Manber and Myers), looking only at what is not yet told apart (Larsson and Sadakane,
    Faster suffix sorting, 1999). Takes about 60 bytes a token meanwhile.
    """
    n, is_token = len(text), text != SEPARATOR
    radix = int(text[is_token].max(initial=0)) + 2
    key, depth = np.where(is_token, text.astype(np.int64), radix - 1), 1
    while depth < DEPTH and radix ** (2 * depth) < 2**63:
        key, depth = key * radix**depth + _shifted(key, depth), 2 * depth
    rank, slots = np.empty(n, np.int64), np.arange(n)
    order = np.argsort(key)
    key = key[order]
    while True:
        # The rank of a position is the slot where its group of equals starts. Alone in a group, it is in its place.
        starts = np.r_[True, key[1:] != key[:-1]]
        rank[order[slots]] = np.maximum.accumulate(np.where(starts, slots, 0))
        slots = slots[~(starts & np.r_[starts[1:], True])]
        if depth >= DEPTH or not len(slots):
            break
        positions = order[slots]
        key = rank[positions] * n + _shifted(rank, depth)[positions]
        within = np.argsort(key)
        order[slots], key, depth = positions[within], key[within], 2 * depth
    order[slots] = np.sort(rank[order[slots]] * n + order[slots]) % n
    is_known = is_token & np.r_[False, is_token[:-1]]
    found: Tokens = order[is_known[order]].astype(np.uint32)
    return found


def _shifted(values: npt.NDArray[np.int64], by: int) -> npt.NDArray[np.int64]:
    """``values[i + by]`` at i. Beyond the end are only separators: what lies there decides nothing."""
    shifted: npt.NDArray[np.int64] = np.zeros_like(values)
    shifted[:-by] = values[by:]
    return shifted


@dataclass(frozen=True, slots=True)
class Match:
    """The occurrences of the last ``length`` tokens of a text: ``order[lo:hi]`` of a `Contexts`."""

    length: int
    lo: int
    hi: int


class Contexts:
    """A sorted text that can be searched.

    Args:
        text: a `reversed_text` as big-endian bytes, in memory or mapped from a file.
        order: its `sorted_positions`.
    """

    def __init__(self, text: bytes | mmap.mmap, order: memoryview) -> None:
        self._text = text
        self.order = order

    @classmethod
    def of(cls, texts: Sequence[Tokens]) -> Contexts:
        """Index texts (oldest first) in memory."""
        text = reversed_text(texts)
        return cls(text.astype(">u4").tobytes(), sorted_positions(text).data)

    def matches(self, tail: Sequence[int]) -> Iterator[Match]:
        """Where a text that ends with ``tail`` (the last `DEPTH` tokens count) was before: the occurrences of its
        longest known end, then those of the next shorter end that has more of them, and so on."""
        text, order, n = self._text, self.order, len(self.order)
        query = struct.pack(f">{len(tail)}I", *reversed(tail))
        size = len(query)

        def context(position: int) -> bytes:
            start = _WIDTH * position
            return text[start : start + size]

        lo = hi = bisect_left(order, query, key=context)
        while True:
            before = _n_common(query, context(order[lo - 1])) if lo > 0 else 0
            after = _n_common(query, context(order[hi])) if hi < n else 0
            length = max(before, after)
            if length <= 0:
                return
            prefix = query[: _WIDTH * length]
            if before == length:
                lo = bisect_left(order, prefix, 0, lo, key=context)
            if after == length:
                hi = bisect_left(order, prefix + b"\xff" * size, hi, n, key=context)
            yield Match(length, lo, hi)

    def sample(self, match: Match, n: int) -> list[int]:
        """Positions of a match, the most recent first: all, or if there are more than ``n`` an even sample with the
        most recent one."""
        found = self.order[match.lo : match.hi]
        if len(found) > n:
            newest = int(np.asarray(found).min())
            found = found[:: -(-len(found) // n)]
            return [newest, *sorted(position for position in found if position != newest)]
        return sorted(found)

    def next_token(self, position: int) -> int:
        """What came after the context at ``position``, whose own context ends at ``position - 1``; `SEPARATOR` if the
        text ended."""
        return int.from_bytes(self._text[_WIDTH * (position - 1) : _WIDTH * position])


def _n_common(a: bytes, b: bytes) -> int:
    """How many tokens at their beginning are equal."""
    if a == b:
        return len(a) // _WIDTH
    differing = int.from_bytes(a) ^ int.from_bytes(b)
    return (8 * len(a) - differing.bit_length()) // (8 * _WIDTH)
