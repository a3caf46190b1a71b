"""From a row of logits to the next token: a pure function of (row, settings, accepted tokens, seed, position).

Order and meaning as in llama.cpp: logit bias → repeat/presence/frequency penalties → DRY → top-k → top-p → min-p →
temperature → draw. The draw is Gumbel-max with counter noise (see `edgedec.noise`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgedec.engine.penalties import Dry, RepeatPenalties, breaker_ids
from edgedec.errors import DecodeError, UsageError
from edgedec.llama.base import Logits
from edgedec.noise import draw, gumbel, loud_ids
from edgedec.ranking import largest
from edgedec.types import SamplingParams

__all__ = ["Sampler", "breaker_ids", "gumbel"]

_UNTRUNCATED = 30.0  # with no truncation, tokens e^30 times less likely than the best are out: part of the definition
_N_STRONG = 64
_TOP_P_FIRST = 256
_TOP_P_GROWTH = 4
_MAX_BIAS = 1e30

Ids = npt.NDArray[np.intp]


class Sampler:
    """Chooses the tokens of one sequence. Belongs to one thread.

    ``history``: the tokens of the prompt; penalties and DRY see them. ``breaker_ids``: tokens that end a phrase for
    DRY (from `breaker_ids`). A window of -1 in ``params`` is ``n_ctx`` tokens.

    Raises:
        UsageError: a biased token is not in the vocabulary, or its bias is neither -inf nor a number below 1e30.
    """

    def __init__(
        self,
        params: SamplingParams,
        n_vocab: int,
        history: Sequence[int] = (),
        *,
        breaker_ids: frozenset[int] = frozenset(),
        n_ctx: int,
    ) -> None:
        self._temperature = params.temperature
        self._seed = params.seed
        self._top_k = params.top_k if params.top_k < n_vocab else 0
        self._top_p = params.top_p
        min_p = np.float32(params.min_p)
        self._log_min_p = np.log(min_p) if min_p > 0 else None
        self._bias_ids, self._bias = _merged_bias(params.logit_bias, n_vocab)
        self._penalties = (
            RepeatPenalties(params, n_vocab, history, n_ctx) if RepeatPenalties.is_wanted(params) else None
        )
        self._dry = Dry(params, n_vocab, history, breaker_ids, n_ctx) if Dry.is_wanted(params) else None
        self._can_adjust = self._bias.size > 0 or self._penalties is not None or self._dry is not None
        self._scratch = np.empty(n_vocab, np.float32)

    def sample(self, logits: Logits, position: int) -> int:
        """The token at absolute index ``position`` of the sequence, from ``logits`` [n_vocab], which stay as they are.

        The same (logits, accepted tokens, position) give the same token whatever was sampled before.

        Raises:
            DecodeError: the scores have NaN or infinity in them, or every token is forbidden.
        """
        row = self._adjusted(logits)
        if self._temperature == 0:
            token = int(row.argmax())  # the first of the largest; NaN counts as largest
            _require_finite(float(row[token]), position)
            return token
        best = row.max()
        _require_finite(float(best), position)
        ids = self._candidates(row, best, position)
        return draw(self._seed, position, ids, self._log_p(row[ids], best))

    def accept(self, token: int) -> None:
        """The token was emitted: penalties and DRY see it from now on."""
        if self._penalties is not None:
            self._penalties.accept(token)
        if self._dry is not None:
            self._dry.accept(token)

    def _adjusted(self, logits: Logits) -> Logits:
        """Scores after bias, penalties and DRY: the row itself if nothing changes, else the scratch row."""
        if not self._can_adjust:
            return logits
        row = self._scratch
        with np.errstate(over="ignore", invalid="ignore"):  # absurd logits are found by their result
            penalties = self._penalties if self._penalties is not None and not self._penalties.is_empty else None
            losses = self._dry.penalties() if self._dry is not None else None
            if not self._bias.size and penalties is None and losses is None:
                return logits
            row[:] = logits
            if self._bias.size:
                row[self._bias_ids] += self._bias
            if penalties is not None:
                penalties.apply(row)
            if losses is not None:
                tokens, loss = losses
                np.minimum.at(row, tokens, row[tokens] - loss)
        return row

    def _log_p(self, scores: Logits, best: np.float32) -> npt.NDArray[np.float64]:
        """Log-probabilities after temperature, relative to the best token's."""
        with np.errstate(over="ignore"):  # a tiny temperature: -inf is the right quotient
            return (scores.astype(np.float64) - best) / self._temperature

    def _candidates(self, row: Logits, best: np.float32, position: int) -> Ids:
        """Ids among which the draw decides: what top-k, top-p and min-p leave, at least one.

        ``best`` is the largest score of the row. As in llama.cpp, top-p sums over what top-k left, and both top-p and
        min-p look at scores before temperature. The best token survives top-k and top-p, so the floor that min-p sets
        is known from the start.
        """
        if self._log_min_p is not None:
            floor = best + self._log_min_p
        elif self._top_k or self._top_p < 1:
            floor = np.float32(-np.inf)
        else:
            floor = best - np.float32(_UNTRUNCATED * self._temperature)
        if self._top_k:
            ids = largest(row, self._top_k)
            if self._top_p < 1:
                weights = _weights(row[ids], best)
                ids = ids[: _n_nucleus(weights, self._top_p * weights.sum())]
        elif self._top_p < 1:
            ids = self._nucleus(row, best, floor)
        else:
            return self._contenders(row, best, floor, position)
        return ids[: np.count_nonzero(row[ids] >= floor)]

    def _contenders(self, row: Logits, best: np.float32, floor: np.float32, position: int) -> Ids:
        """Of all ids with scores from ``floor`` up, those that can win the draw; an id may occur twice.

        Beyond the strongest few, a token must make up by its noise for a score no better than the last of them.
        """
        strong = largest(row, _N_STRONG)
        n_above = np.count_nonzero(row[strong] >= floor)
        if n_above < _N_STRONG:
            return strong[:n_above]
        log_p = self._log_p(row[strong], best)
        to_beat = (log_p + gumbel(self._seed, position, strong)).max()
        loud = loud_ids(self._seed, position, row.size, float(to_beat - log_p[-1]))
        return np.concatenate((strong, loud[row[loud] >= floor]))

    def _nucleus(self, row: Logits, best: np.float32, floor: np.float32) -> Ids:
        """Ids of the most likely tokens that together reach top-p, best first; may end early once below ``floor``."""
        mass = self._top_p * float(np.exp(row - best).sum())
        n = _TOP_P_FIRST
        while True:
            ids = largest(row, n)
            scores = row[ids]
            n_kept = _n_nucleus(_weights(scores, best), mass)
            if n_kept <= ids.size or ids.size < n or scores[-1] < floor:
                return ids[:n_kept]
            n *= _TOP_P_GROWTH


def _weights(scores: Logits, best: np.float32) -> npt.NDArray[np.float64]:
    """Probabilities up to a common factor; the best token weighs 1."""
    return np.exp(scores.astype(np.float64) - best)


def _n_nucleus(weights: npt.NDArray[np.float64], mass: float) -> int:
    """How many of the ``weights``, in order, are needed to reach ``mass``; one more than there are if they do not."""
    return int(weights.cumsum().searchsorted(mass)) + 1


def _merged_bias(bias: Sequence[tuple[int, float]], n_vocab: int) -> tuple[Ids, Logits]:
    """Distinct ids and the sums of their biases."""
    total: dict[int, float] = {}
    for token, value in bias:
        if not 0 <= token < n_vocab:
            raise UsageError(f"logit_bias names token {token}.", f"Token ids of this model go from 0 to {n_vocab - 1}.")
        if not (value == -math.inf or abs(value) <= _MAX_BIAS):
            raise UsageError(f"logit_bias of token {token} is {value}.", "Use a number, or -inf to forbid the token.")
        total[token] = total.get(token, 0.0) + value
    return np.array(list(total), np.intp), np.array(list(total.values()), np.float32)


def _require_finite(best: float, position: int) -> None:
    if math.isfinite(best):
        return
    if best == -math.inf:
        raise DecodeError(
            f"Every token is forbidden at position {position}.",
            "Forbid fewer tokens; if you forbid none, the model file may be damaged.",
        )
    raise DecodeError(
        f"The model produced NaN or infinite scores at position {position}.",
        "The model file may be damaged; try another file of the same model.",
    )
