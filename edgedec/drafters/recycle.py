"""The drafter that remembers what the target would also have said: the runners-up behind every token it passed.

Source: Luo et al., Turning trash into treasure: accelerating inference of large language models with token recycling,
ACL 2025. There the last row behind each token is kept and the tree is a fixed template. Here pairs of tokens have rows
as well, rows are averaged, the tree grows where it is likeliest, and nothing is proposed that was never seen.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import exp, inf, log
from typing import NamedTuple

from edgedec.drafters.base import Drafter, Walked, Want
from edgedec.errors import UsageError
from edgedec.llama.base import Logits
from edgedec.types import Candidates

_NEWEST = 0.5
# What the newest row weighs in the average.

_NOTHING = -1
# In the place of a token.

_SHARE_MIN = 0.001
_AGREED_MAX = 4
_WEIGHTS = {
    1: (-2.03, 0.26, -0.65, 0.12, 0.73),
    2: (-1.12, 0.5, -1.34, 0.53, 1.11),
}
# By known tokens of context: constant, and weights of log-odds of the share, log(1 + rank), agreed, fresh. A logistic
# regression on 5500 greedy tokens of SmolLM2-135M (Spec-Bench's first prompts of each category).


class RunnersUp(NamedTuple):
    """What the target considered behind a context: ``tokens``, the likeliest first, with their ``shares``, averages of
    the probability among the k best. ``agreed``: how many rows in a row had tokens[0] as their best, after the first
    that had; ``writer``: who saw the last row."""

    tokens: list[int]
    shares: list[float]
    agreed: int
    writer: int


class Memory:
    """The runners-up behind a token and behind a pair of tokens; of each context the average of its rows, of which the
    newest weighs half. Bounded: the context that was not seen for the longest time makes room.

    Args:
        k: runners-up per context.
        n_contexts: contexts at most.
    """

    def __init__(self, k: int, n_contexts: int) -> None:
        self._k = k
        self._n_contexts = n_contexts
        self._known: OrderedDict[int, RunnersUp] = OrderedDict()  # the longest unseen first

    def __len__(self) -> int:
        return len(self._known)

    def get(self, before: int, token: int) -> RunnersUp | None:
        """What came behind ``before``, ``token``; behind ``token`` wherever it was if ``before`` is -1."""
        return self._known.get(_context(before, token))

    def learn(self, before: int, token: int, tokens: list[int], shares: list[float], writer: int) -> None:
        """A row behind this context: its best ``tokens``, at least one and at most k, the best first."""
        known, context = self._known, _context(before, token)
        old, agreed = known.get(context), 0
        if old is not None:
            known.move_to_end(context)
            agreed = old.agreed + 1 if old.tokens[0] == tokens[0] else 0
            mixed = {t: _NEWEST * share for t, share in zip(tokens, shares, strict=True)}
            for t, share in zip(old.tokens, old.shares, strict=True):
                mixed[t] = mixed.get(t, 0.0) + (1 - _NEWEST) * share
            tokens = sorted(mixed, key=mixed.__getitem__, reverse=True)[: self._k]
            shares = [mixed[t] for t in tokens]
        elif len(known) >= self._n_contexts:
            known.popitem(last=False)
        known[context] = RunnersUp(tokens, shares, agreed, writer)


def _context(before: int, token: int) -> int:
    """One number for a pair of ids, or for a single one."""
    return (before + 1) << 32 | token


def best_of(row: Logits, k: int) -> tuple[list[int], list[float]]:
    """The ``k`` best tokens of a row of logits [n_vocab], best first, of equals the lowest, and their logits; fewer if
    fewer are above -inf. The row has no NaN.

    For a handful of tokens k searches cost less than one search for k: right after a decode, when nothing is in the
    caches, 40 µs for 8 of 49152 where `edgedec.ranking.largest` takes 100.
    """
    rest = row.copy()
    tokens: list[int] = []
    logits: list[float] = []
    for _ in range(min(k, row.size)):
        token = int(rest.argmax())
        logit = float(rest[token])
        if logit == -inf:
            break
        tokens.append(token)
        logits.append(logit)
        rest[token] = -inf
    return tokens, logits


class RecycleDrafter(Drafter):
    """Proposes the runners-up of earlier rows, likeliest first, as a tree.

    The children of a node are the runners-up behind it and the token before it, else those behind it alone. What was
    seen in one sequence serves all.

    Features of a node: ``match_len``, tokens of the context that was known, 2 or 1; ``share``, its averaged probability
    among the k best; ``rank``, 0 for the best; ``agreed``, how often in a row it was confirmed as the best; ``fresh``,
    1.0 if the last row was seen in this sequence; ``depth``, 1 for the first.
    """

    name = "recycle"
    feature_names = ("match_len", "share", "rank", "agreed", "fresh", "depth")
    needs = frozenset({"logits"})
    remembers = True

    @dataclass(frozen=True, slots=True)
    class Options(Drafter.Options):
        """``k``: runners-up kept per context. ``n_contexts``: tokens and pairs remembered; one takes up to 850
        bytes with k = 8. ``p_min``: a node is proposed only if its path probability, by the drafter's own scores,
        reaches
        this."""

        k: int = 8
        n_contexts: int = 32768
        p_min: float = 0.02

        def __post_init__(self) -> None:
            if not 1 <= self.k <= 32:
                raise UsageError(f"k is {self.k!r}.", "Use a whole number from 1 to 32.")
            if self.n_contexts < 1:
                raise UsageError(f"n_contexts is {self.n_contexts!r}.", "Use a whole number ≥ 1.")
            if not 0 <= self.p_min <= 1:
                raise UsageError(f"p_min is {self.p_min!r}.", "Use a probability from 0 to 1.")

    def __init__(self, options: Options | None = None) -> None:
        options = options or self.Options()
        super().__init__(options)
        self._k = options.k
        self._p_min = options.p_min
        self._memory = Memory(options.k, options.n_contexts)
        self._n_begun = 0
        self._tails: dict[int, _Tail] = {}

    def begin(self, seq_id: int, prompt: Sequence[int]) -> None:
        self._n_begun += 1
        tail = self._tails[seq_id] = _Tail(self._n_begun)
        tail.extend(prompt)

    def draft(self, wants: Sequence[Want]) -> list[Candidates]:
        return [self._tree(self._tails[want.seq_id], want) for want in wants]

    def process(self, seq_id: int, walked: Walked) -> None:
        writer, before = self._tails[seq_id].writer, walked.before
        for i, token in enumerate(walked.tokens):
            tokens, logits = best_of(walked.row(i), self._k)
            if tokens:
                weights = [exp(logit - logits[0]) for logit in logits]
                total = sum(weights)
                shares = [weight / total for weight in weights]
                self._memory.learn(_NOTHING, token, tokens, shares, writer)
                if before != _NOTHING:
                    self._memory.learn(before, token, tokens, shares, writer)
            before = token

    def accept(self, seq_id: int, tokens: Sequence[int], used: bool) -> None:
        self._tails[seq_id].extend(tokens)

    def end(self, seq_id: int) -> None:
        self._tails.pop(seq_id, None)

    def close(self) -> None:
        self._tails.clear()
        self._memory = Memory(self._k, self.options.n_contexts)

    def _tree(self, tail: _Tail, want: Want) -> Candidates:
        """The likeliest nodes first. A node enters the queue when its next likelier sibling leaves it."""
        out = Candidates(self.name)
        queue: list[tuple[float, int, int, float, _Family]] = []

        def add(family: _Family, rank: int) -> None:
            if rank < len(family.known.tokens):
                score = _score(family, rank)
                path = family.path * score
                if path >= self._p_min:
                    heappush(queue, (-path, family.parent, rank, score, family))

        def add_children(before: int, token: int, path: float, parent: int, depth: int) -> None:
            if depth <= want.depth_max:
                known = self._memory.get(before, token) if before != _NOTHING else None
                match_len = 2 if known is not None else 1
                known = known or self._memory.get(_NOTHING, token)
                if known is not None:
                    add(_Family(known, match_len, known.writer == tail.writer, token, path, parent, depth), 0)

        add_children(tail.before, tail.last, 1.0, -1, 1)
        while queue and len(out) < want.n_max:
            minus_path, parent, rank, score, family = heappop(queue)
            node, token = len(out), family.known.tokens[rank]
            out.tokens.append(token)
            out.parents.append(parent)
            out.scores.append(score)
            out.features.append(family.features(rank))
            add(family, rank + 1)
            add_children(family.token, token, -minus_path, node, family.depth + 1)
        return out


@dataclass(slots=True)
class _Tail:
    """Where a sequence is: its last two tokens. ``writer`` is its number among all that ever began."""

    writer: int
    before: int = _NOTHING
    last: int = _NOTHING

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens[-2:]:
            self.before, self.last = self.last, token


@dataclass(slots=True)
class _Family:
    """The possible children of one node: ``token``, at index ``parent``, reached with probability ``path``."""

    known: RunnersUp
    match_len: int
    is_fresh: bool
    token: int
    path: float
    parent: int
    depth: int  # of the children

    def features(self, rank: int) -> tuple[float, ...]:
        return (
            float(self.match_len),
            self.known.shares[rank],
            float(rank),
            float(self.known.agreed) if rank == 0 else 0.0,
            float(self.is_fresh),
            float(self.depth),
        )


def _score(family: _Family, rank: int) -> float:
    """Probability of a runner-up if its parent was right."""
    share = min(max(family.known.shares[rank], _SHARE_MIN), 1 - _SHARE_MIN)
    constant, by_share, by_rank, by_agreed, by_fresh = _WEIGHTS[family.match_len]
    odds = constant + by_share * log(share / (1 - share)) + by_rank * log(1 + rank) + by_fresh * family.is_fresh
    if rank == 0:
        odds += by_agreed * min(family.known.agreed, _AGREED_MAX)
    return 1 / (1 + exp(-odds))
