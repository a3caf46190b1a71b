"""What the fake model says: logits as a pure function of what a row sees.

Each logit is the sum of a floor (most byte values are unlikely), four favoured continuations that depend on the last
``order`` tokens only, so that text repeats itself and can be guessed, and noise that depends on everything in sight, so
that a wrong cell anywhere moves every logit and many choices.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.llama.base import Logits
from edgedec.llama.fake.cells import GOLDEN, M64, Sight, mix, mix_array

# Added to a logit.
_FAVOURED = (5.0, 6.0, 7.0, 8.0)
_END = 18.0
_SCRIPT = 30.0  # certain at any temperature up to 1
_UNLIKELY = -6.0
_NEVER = -14.0


class LogitRule:
    """``likely``: tokens that favourites are drawn from. ``never``: tokens that are not worth a guess.

    ``noise``: width of the noise; favourites are 1 apart. ``end_rate``: how many of the n-grams are followed by
    ``end``. ``script``: tokens said in any case: after a text that ends in the first k of them (the largest such k,
    maybe 0) comes the next one, after all of them ``end``.
    """

    def __init__(
        self,
        n_vocab: int,
        *,
        seed: int,
        order: int,
        noise: float,
        end_rate: float,
        end: int,
        likely: Sequence[int],
        never: Sequence[int],
        script: Sequence[int] | None,
    ) -> None:
        self._key = mix(seed & M64)
        self._order = order
        self._noise = np.float32(noise * 2.0**-24)
        self._end_limit = int(end_rate * 2**64)
        self._end = end
        self._likely = tuple(likely)
        self._floor = np.full(n_vocab, _UNLIKELY, np.float32)
        self._floor[list(likely)] = 0.0
        self._floor[list(never)] = _NEVER
        self._steps = np.arange(n_vocab, dtype=np.uint64) * np.uint64(GOLDEN)
        self._script = None if script is None else (*script, end)
        self._places: dict[int, list[int]] = {}  # token -> how much of the script may have been said, longest first
        for k in range(len(script or ()), 0, -1):
            self._places.setdefault((script or ())[k - 1], []).append(k)
        self.n_tail = max(order, len(script or ()))

    def fill(self, out: Logits, sights: Sequence[Sight]) -> None:
        """Write the logits of ``sights`` into ``out``, shape [len(sights), n_vocab]; no row depends on another."""
        keys = np.array([mix(sight.key ^ self._key) for sight in sights], np.uint64)
        bits = mix_array(keys[:, None] + self._steps) >> np.uint64(40)
        np.multiply(bits.astype(np.float32), self._noise, out=out)
        out += self._floor
        for row, sight in zip(out, sights, strict=True):
            for token, height in self._favourites(sight.tail).items():
                row[token] += height

    def _favourites(self, tail: Sequence[int]) -> dict[int, float]:
        h = self._key
        for token in tail[-self._order :]:
            h = mix(h ^ token)
        n = len(self._likely)
        found = {self._likely[(h >> 16 * i & 0xFFFF) % n]: height for i, height in enumerate(_FAVOURED)}
        if mix(h) < self._end_limit:
            found[self._end] = _END
        if self._script is not None:
            found[self._script[self._said(tail)]] = _SCRIPT
        return found

    def _said(self, tail: Sequence[int]) -> int:
        """How many tokens of the script the text ends in."""
        assert self._script is not None
        for k in self._places.get(tail[-1], ()) if tail else ():
            if tuple(tail[-k:]) == self._script[:k]:
                return k
        return 0
