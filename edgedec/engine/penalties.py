"""What the text so far does to the next scores: the three penalties on repeated tokens, and DRY on repeated phrases.

Meanings, names and order are those of llama.cpp (``llama_sampler_init_penalties``, ``llama_sampler_init_dry``). Both
keep their state up to date token by token, and touch only the few entries of a row that they change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from edgedec.errors import UsageError
from edgedec.types import SamplingParams

_MAX_LOSS = 1e30  # far below any score, yet finite in float32: what is penalised stays better than what is forbidden


class RepeatPenalties:
    """Repeat, presence and frequency penalties over the last ``window`` tokens, the prompt included."""

    def __init__(self, params: SamplingParams, n_vocab: int, history: Sequence[int], n_ctx: int) -> None:
        self._repeat = params.repeat_penalty
        self._presence = params.presence_penalty
        self._frequency = params.frequency_penalty
        window = _window(params.penalty_last_n, n_ctx)
        recent = np.array(history[-window:], np.intp)
        self._n_accepted = recent.size
        self._recent = np.zeros(window, np.intp)  # a ring; only its contents matter, not their order
        self._recent[: recent.size] = recent
        self._counts = np.bincount(recent, minlength=n_vocab).astype(np.float32)  # within the window

    @staticmethod
    def is_wanted(params: SamplingParams) -> bool:
        is_neutral = params.repeat_penalty == 1 and params.presence_penalty == 0 and params.frequency_penalty == 0
        return params.penalty_last_n != 0 and not is_neutral

    def accept(self, token: int) -> None:
        slot = self._n_accepted % self._recent.size
        if self._n_accepted >= self._recent.size:
            self._counts[self._recent[slot]] -= 1
        self._recent[slot] = token
        self._counts[token] += 1
        self._n_accepted += 1

    @property
    def is_empty(self) -> bool:
        return self._n_accepted == 0

    def apply(self, row: npt.NDArray[np.float32]) -> None:
        """Penalise ``row`` [n_vocab] in place."""
        tokens = self._recent[: self._n_accepted]  # a repeated token is computed, and written, the same each time
        scores = row[tokens]
        if self._repeat != 1:
            scores = np.where(scores <= 0, scores * self._repeat, scores / self._repeat)
        row[tokens] = scores - (self._counts[tokens] * self._frequency + self._presence)


class Dry:
    """DRY ("don't repeat yourself"): a token that would prolong a phrase said before loses score, exponentially in
    the length of the phrase. By p-e-w (oobabooga/text-generation-webui, pull request 5677).

    For each position j of the window, ``lengths`` holds how many tokens up to and including j equal the last tokens of
    the text. When token t arrives, the length at j becomes the old length at j-1 plus one if t stands at j, else 0;
    after a breaker nothing matches. Tokens and lengths of the last one to two windows lie in one straight buffer.
    """

    def __init__(
        self, params: SamplingParams, n_vocab: int, history: Sequence[int], breakers: frozenset[int], n_ctx: int
    ) -> None:
        self._multiplier = params.dry_multiplier
        self._base = params.dry_base
        self._allowed = params.dry_allowed_length
        self._breakers = breakers
        self._is_breaker = np.zeros(n_vocab, np.bool_)
        self._is_breaker[list(breakers)] = True
        self._window = _window(params.dry_penalty_last_n, n_ctx)
        self._tokens = np.zeros(2 * self._window, np.intp)
        self._lengths = np.zeros(2 * self._window + 1, np.int32)  # entry j+1 belongs to position j
        recent = history[-self._window :]
        self._n = len(recent)
        self._tokens[: self._n] = recent
        self._lengths[1 : self._n] = _suffix_lengths(self._tokens[: self._n], self._is_breaker)

    @staticmethod
    def is_wanted(params: SamplingParams) -> bool:
        return params.dry_multiplier > 0 and params.dry_penalty_last_n != 0

    def accept(self, token: int) -> None:
        if self._n == self._tokens.size:
            self._n = self._window
            self._tokens[: self._n] = self._tokens[self._n :]
            self._lengths[: self._n + 1] = self._lengths[self._n :]
        start, n = max(0, self._n - self._window), self._n
        if token in self._breakers:
            self._lengths[start + 1 : n + 1] = 0
        else:
            same = self._tokens[start:n] == token
            self._lengths[start + 1 : n + 1] = (self._lengths[start:n] + 1) * same
        self._tokens[n] = token
        self._n += 1

    def penalties(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]] | None:
        """Tokens that would prolong a repetition, and what each loses; None if there are none.

        A token that would prolong several repetitions occurs as often; its largest loss is the one that counts.
        """
        start = max(0, self._n - self._window)
        matches = np.flatnonzero(self._lengths[start + 1 : self._n] >= self._allowed)
        if not matches.size:
            return None
        tokens = self._tokens[start + 1 + matches]
        lengths = np.minimum(self._lengths[start + 1 + matches], matches + 1)  # the match, too, must be in the window
        counts = (lengths >= self._allowed) & ~self._is_breaker[tokens]
        loss = np.minimum(self._multiplier * self._base ** (lengths[counts] - self._allowed), _MAX_LOSS)
        return tokens[counts], loss.astype(np.float32)


def breaker_ids(breakers: Sequence[str], pieces: Iterable[bytes]) -> frozenset[int]:
    """Tokens whose text contains one of the ``breakers``; ``pieces`` are the texts of all tokens, in order of id.

    A breaker that is spread over several tokens is not seen, unlike in llama.cpp.

    Raises:
        UsageError: a breaker is empty.
    """
    if not all(breakers):
        raise UsageError("A DRY sequence breaker is empty.", "Give at least one character per breaker.")
    wanted = [breaker.encode() for breaker in breakers]
    return frozenset(token for token, piece in enumerate(pieces) if any(breaker in piece for breaker in wanted))


def _window(last_n: int, n_ctx: int) -> int:
    return n_ctx if last_n < 0 else min(last_n, n_ctx)


def _suffix_lengths(tokens: npt.NDArray[np.intp], is_breaker: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    """For each position of ``tokens`` [n] but the last, how many tokens up to it equal the last ones: shape [n-1]."""
    n = tokens.size
    lengths = np.zeros(max(0, n - 1), np.int32)
    alive = np.arange(n - 1)
    for length in range(n - 1):
        wanted = tokens[n - 1 - length]
        if is_breaker[wanted]:
            break
        alive = alive[alive >= length]
        alive = alive[tokens[alive - length] == wanted]
        if not alive.size:
            break
        lengths[alive] = length + 1
    return lengths
