"""The drafter that guesses from what was said before: past answers, and documents that the user added.

The same question as for `suffix`, asked of a `Store` instead of this text: when these words were said before, what came
next? Answers that are long enough are stored when they end, so that the next one may profit.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count, islice

import numpy as np

from edgedec.drafters.base import Drafter, Want
from edgedec.drafters.contexts import DEPTH, SEPARATOR, Contexts, Match
from edgedec.drafters.evidence import score
from edgedec.drafters.store import TAIL_LIMIT, Document, Store
from edgedec.errors import EdgedecError, UsageError
from edgedec.types import Candidates

log = logging.getLogger("edgedec.drafters")

N_LEARN = 16
"""Tokens that an answer must have to be stored, however it ended."""

N_SAMPLE = 24
"""Occurrences of a context that are looked at. There may be thousands; this many tell the shares well enough."""

_MERGE_NOW = 4 * TAIL_LIMIT  # merging can wait for `close`, unless a process runs for very long


class HistoryDrafter(Drafter):
    """Goes on as the store's texts did after the longest known end of this one, or after the next shorter end if that
    is the better guide. Where they went on differently, the branches are proposed as a tree, likeliest nodes first.

    Features of a node mean what they mean in `suffix`: ``match_len``, tokens of context that its prediction rests on
    (the match it started from, counted up to `DEPTH`, and the draft before it); ``share``, how much of the context's
    occurrences went on this way; ``count``, the context's occurrences; ``recent``, 1.0 if the most recent one went on
    this way; ``depth``, 1 for the first.
    """

    name = "history"
    feature_names = ("match_len", "share", "count", "recent", "depth")
    remembers = True

    @dataclass(frozen=True, slots=True)
    class Options(Drafter.Options):
        """``store``: where the texts are; None: there are none. ``learn``: store answers when they end. ``model``: the
        name they are stored under. ``match_min``: shorter matches are no guide. ``p_min``: a node is proposed only if
        its path probability, by the drafter's own scores, reaches this."""

        store: Store | None = None
        learn: bool = True
        model: str = ""
        match_min: int = 2
        p_min: float = 0.02

        def __post_init__(self) -> None:
            if not 1 <= self.match_min <= DEPTH:
                raise UsageError(f"match_min is {self.match_min!r}.", f"Use a whole number from 1 to {DEPTH}.")
            if not 0 <= self.p_min <= 1:
                raise UsageError(f"p_min is {self.p_min!r}.", "Use a probability from 0 to 1.")

    def __init__(self, options: Options | None = None) -> None:
        options = options or self.Options()
        super().__init__(options)
        self._match_min = options.match_min
        self._p_min = options.p_min
        self._store = options.store
        self._learns = options.learn and options.store is not None
        self._known: list[Contexts] = []
        self._texts: dict[int, _Text] = {}

    def begin(self, seq_id: int, prompt: Sequence[int]) -> None:
        self._texts[seq_id] = _Text(list(prompt[-DEPTH:]))
        if self._store is not None and not self._works(self._look, "past answers are not used"):
            self._store, self._learns, self._known = None, False, []

    def _look(self) -> None:
        assert self._store is not None
        self._store.refresh()
        self._known = self._store.contexts()

    def draft(self, wants: Sequence[Want]) -> list[Candidates]:
        if not self._known:
            return [Candidates(self.name) for _ in wants]
        return [self._tree(self._texts[want.seq_id].tail, want) for want in wants]

    def accept(self, seq_id: int, tokens: Sequence[int], used: bool) -> None:
        text = self._texts[seq_id]
        text.tail = [*text.tail, *tokens][-DEPTH:]
        if self._learns:
            text.answer.extend(tokens)

    def end(self, seq_id: int) -> None:
        text = self._texts.pop(seq_id, None)
        store = self._store
        if text is None or store is None or not self._learns or len(text.answer) < N_LEARN:
            return
        answer = Document("answer", np.array(text.answer, np.uint32), model=self.options.model)

        def store_it() -> None:
            store.append(answer)
            store.merge(_MERGE_NOW)

        self._learns = self._works(store_it, "answers are not stored")

    def close(self) -> None:
        self._texts.clear()
        if self._store is not None and self._learns:
            self._works(self._store.merge, "answers are not stored")
        self._store, self._learns, self._known = None, False, []

    def _works(self, action: Callable[[], None], otherwise: str) -> bool:
        """Do something with the disk. That it fails is no reason for an answer to fail."""
        try:
            action()
        except (OSError, EdgedecError) as error:
            log.warning("%s from here on: %s", otherwise, error)
            return False
        return True

    def _tree(self, tail: Sequence[int], want: Want) -> Candidates:
        out = Candidates(self.name)
        numbers = count()
        queue: list[tuple[float, int, int, _Node]] = []  # what may come next, by path probability

        def add(nodes: Sequence[_Node], path: float, parent: int) -> None:
            for node in nodes:
                if path * node.score >= self._p_min:
                    heappush(queue, (-path * node.score, next(numbers), parent, node))

        add(self._first_nodes(tail) if want.depth_max > 0 else (), 1.0, -1)
        while queue and len(out) < want.n_max:
            minus_path, _, parent, node = heappop(queue)
            out.tokens.append(node.token)
            out.parents.append(parent)
            out.scores.append(node.score)
            out.features.append(node.features)
            if node.seen.depth < want.depth_max:
                add(node.seen.nodes(), -minus_path, len(out) - 1)
        return out

    def _first_nodes(self, tail: Sequence[int]) -> list[_Node]:
        """What came after the longest known end of the text, or after the next shorter one if that is surer."""
        found = [(part, list(islice(part.matches(tail), 2))) for part in self._known]
        lengths = sorted({match.length for _, matches in found for match in matches}, reverse=True)
        choices = [_seen(found, length).nodes() for length in lengths[:2] if length >= self._match_min]
        return max(choices, key=lambda nodes: nodes[0].score, default=[])


@dataclass(slots=True)
class _Text:
    """A running sequence: its last `DEPTH` tokens, and its answer so far."""

    tail: list[int]
    answer: array[int] = field(default_factory=lambda: array("I"))


@dataclass(slots=True)
class _Seen:
    """Where a context was said: the end of the running text and ``depth`` tokens of draft.

    ``places``, the most recent first, stand for ``weight`` occurrences each. Each of them is a part of the store and
    the position there of the context's last token.
    """

    match_len: int
    depth: int
    weight: float
    places: list[tuple[Contexts, int]]

    def nodes(self) -> list[_Node]:
        """What came next, the most recent first."""
        following: dict[int, list[tuple[Contexts, int]]] = {}
        n_seen = 0.0
        for part, position in self.places:
            token = part.next_token(position)
            if token != SEPARATOR:
                following.setdefault(token, []).append((part, position - 1))
                n_seen += self.weight
        match_len, depth = float(self.match_len), float(self.depth + 1)
        nodes: list[_Node] = []
        for token, places in following.items():
            n_hits = self.weight * len(places)
            features = (match_len, n_hits / n_seen, n_seen, 0.0 if nodes else 1.0, depth)
            seen = _Seen(self.match_len + 1, self.depth + 1, self.weight, places)
            nodes.append(_Node(token, score(self.match_len, n_hits, n_seen), features, seen))
        return nodes


@dataclass(slots=True)
class _Node:
    token: int
    score: float
    features: tuple[float, ...]
    seen: _Seen


def _seen(found: Sequence[tuple[Contexts, Sequence[Match]]], length: int) -> _Seen:
    """The occurrences of the last ``length`` tokens in all parts."""
    n_found = 0
    places: list[tuple[Contexts, int]] = []
    for part, matches in found:
        long_enough = [match for match in matches if match.length >= length]
        if long_enough:
            n_found += long_enough[-1].hi - long_enough[-1].lo
            places += [(part, position) for position in part.sample(long_enough[-1], N_SAMPLE)]
    return _Seen(length, 0, n_found / len(places), places)
