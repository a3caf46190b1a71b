"""The drafter that was told what the answer will be, nearly: the file being edited, the answer given before.

It drafts all that is left of the expected text and finds its place in it again after each deviation.
Source of the idea: Sun et al., Instantaneous grammatical error correction with shallow aggressive decoding, ACL 2021.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from edgedec.drafters.base import Drafter, Want
from edgedec.errors import UsageError
from edgedec.types import Candidates

N_GRAMS = (8, 4, 2)
"""How many of the last tokens are looked for while the place is uncertain: the longest that occur decide."""

N_NEAR = 64
"""How far ahead of the last certain place the last token alone makes a place."""

N_CERTAIN = 8
"""Tokens matched in a row that make a place certain."""

N_PLACES = 3
"""Places followed while none is certain."""

_PRIORS = (0.2, 0.3, 0.45, 0.6, 0.7, 0.75, 0.8, 0.85, *8 * (0.92,), 0.97)
# By tokens matched (the last entry: and more): how often the next token of the expected text comes. Measured on old and
# new versions of edited source files, 45 pairs; the last one was 0.996 there, but a model edits more freely.

_UNTOUCHED = 0.8
# Until the first deviation nothing is known but that the caller expects this text.


class Follower:
    """Where an answer is in the text that was expected, token by token.

    ``places`` are the positions in the text whose token may come next, the likeliest first, each with the number of
    tokens that matched in front of it. There is one while it is certain, and none while the answer is elsewhere. Edits
    are local: places are looked for from the last certain one on, forwards first.

    Amortised constant time per token, but for a bisection among the occurrences of an n-gram.
    """

    __slots__ = (
        "_away",
        "_home",
        "_is_certain",
        "_occurrences",
        "_tail",
        "places",
        "resyncs",
        "since_mismatch",
        "text",
    )

    def __init__(self, text: Sequence[int] = ()) -> None:
        self.text = tuple(text)
        self.places: dict[int, int] = {0: 0}
        self.since_mismatch = 0
        """Tokens said since one came that was not the likeliest place's."""
        self.resyncs = 0
        """How often that happened."""
        self._is_certain = True
        self._home = 0  # the last certain place
        self._away = 0  # tokens said since then
        self._tail: tuple[int, ...] = ()  # the last tokens said
        self._occurrences: dict[tuple[int, ...], list[int]] = {}  # n-gram -> positions behind it, rising
        for n in (1, *N_GRAMS):
            for end in range(n, len(self.text) + 1):
                self._occurrences.setdefault(self.text[end - n : end], []).append(end)

    def follow(self, tokens: Iterable[int]) -> None:
        """The answer went on by ``tokens``."""
        for token in tokens:
            self._tail = (*self._tail[1 - N_GRAMS[0] :], token)
            self._away += 1
            self.since_mismatch += 1
            places = {at + 1: n + 1 for at, n in self.places.items() if self.text[at : at + 1] == (token,)}
            if self.places and next(iter(self.places)) + 1 not in places:
                self.since_mismatch = 0
                self.resyncs += 1
            if not (self._is_certain and places):
                places = self._search(places)
                self._is_certain = max(places.values(), default=0) >= N_CERTAIN
            if self._is_certain:
                self._home, self._away = next(iter(places)), 0
                places = {self._home: places[self._home]}
            self.places = places

    def _search(self, alive: dict[int, int]) -> dict[int, int]:
        """The likeliest places: those of the last one that are still ``alive``, and others where the answer may be."""
        places = dict(alive)
        for n in N_GRAMS:
            place = self._nearest(self._tail[-n:]) if len(self._tail) >= n else None
            if place is not None:
                places[place] = max(n, places.get(place, 0))
                break
        else:
            place = self._nearest(self._tail[-1:])
            if place is not None and self._home <= place <= self._home + N_NEAR:
                places.setdefault(place, 1)
        if self._away == 1:
            places.setdefault(self._home + 1, 0)  # where the answer is if it put one token in the place of another
        return dict(sorted(places.items(), key=lambda item: -item[1])[:N_PLACES])

    def _nearest(self, tokens: tuple[int, ...]) -> int | None:
        """The first place behind these tokens from the last certain one on; without one, the last before it."""
        places = self._occurrences.get(tokens)
        if places is None:
            return None
        i = bisect_left(places, self._home)
        return places[min(i, len(places) - 1)]


class PredictedDrafter(Drafter):
    """Copies on from where the answer is in the text that the caller expects (`expect`); silent without one.

    While the place is uncertain, each place that is followed starts a branch.

    Features of a node: ``match_len``, tokens that match in front of it at its place, the draft before it included;
    ``since_mismatch``, tokens said since one came that was not the likeliest; ``resyncs``, how often that happened;
    ``depth``, 1 for the first.
    """

    name = "predicted"
    feature_names = ("match_len", "since_mismatch", "resyncs", "depth")

    @dataclass(frozen=True, slots=True)
    class Options(Drafter.Options):
        """``p_min``: a node is proposed only if its path probability, by the drafter's own scores, reaches this."""

        p_min: float = 0.02

        def __post_init__(self) -> None:
            if not 0 <= self.p_min <= 1:
                raise UsageError(f"p_min is {self.p_min!r}.", "Use a probability from 0 to 1.")

    def __init__(self, options: Options | None = None) -> None:
        options = options or self.Options()
        super().__init__(options)
        self._p_min = options.p_min
        self._followers: dict[int, Follower] = {}

    def begin(self, seq_id: int, prompt: Sequence[int]) -> None:
        self._followers[seq_id] = Follower()

    def expect(self, seq_id: int, prediction: Sequence[int]) -> None:
        self._followers[seq_id] = Follower(prediction)

    def draft(self, wants: Sequence[Want]) -> list[Candidates]:
        followers = self._followers
        return [
            self._forest(followers[want.seq_id], want) if len(followers[want.seq_id].text) else Candidates(self.name)
            for want in wants
        ]

    def accept(self, seq_id: int, tokens: Sequence[int], used: bool) -> None:
        follower = self._followers[seq_id]
        if len(follower.text):
            follower.follow(tokens)

    def end(self, seq_id: int) -> None:
        self._followers.pop(seq_id, None)

    def close(self) -> None:
        self._followers.clear()

    def _forest(self, follower: Follower, want: Want) -> Candidates:
        """The likeliest nodes first. Places that go on alike share their nodes."""
        out = Candidates(self.name)
        text, is_untouched = follower.text, follower.resyncs == 0
        nodes: dict[tuple[int, int], int] = {}  # (parent, token) -> node
        heap: list[tuple[float, int, int, int, int, int, float]] = []

        def add(path: float, order: int, at: int, match_len: int, parent: int, depth: int) -> None:
            if at < len(text) and depth <= want.depth_max:
                score = _score(match_len, is_untouched)
                if path * score >= self._p_min:
                    heappush(heap, (-path * score, order, at, match_len, parent, depth, score))

        for order, (at, matched) in enumerate(follower.places.items()):
            add(1.0, order, at, matched, -1, 1)
        while heap and len(out) < want.n_max:
            minus_path, order, at, match_len, parent, depth, score = heappop(heap)
            node = nodes.setdefault((parent, text[at]), len(out))
            if node == len(out):
                out.tokens.append(text[at])
                out.parents.append(parent)
                out.scores.append(score)
                out.features.append(
                    (float(match_len), float(follower.since_mismatch), float(follower.resyncs), float(depth))
                )
            add(-minus_path, order, at + 1, match_len + 1, node, depth + 1)
        return out


def _score(match_len: int, is_untouched: bool) -> float:
    """Probability of the next token behind so many matched ones."""
    score = _PRIORS[min(match_len, len(_PRIORS) - 1)]
    return max(score, _UNTOUCHED) if is_untouched else score
