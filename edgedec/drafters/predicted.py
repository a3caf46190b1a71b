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

N_NEAR = 128
"""How far ahead of the last certain place the last token alone makes a place: two tokens do wherever they are."""

N_CERTAIN = 8
"""Tokens matched in a row that make a place certain."""

N_PLACES = 3
"""Places followed while none is certain."""

_PRIORS = (0.1, 0.3, 0.45, 0.6, 0.7, 0.75, 0.8, 0.85, *8 * (0.92,), 0.97)
# By tokens matched (the last entry: and more): how often the next token of the expected text comes. Measured on old and
# new versions of 42 edited source files; the last one was 0.996 there, but a model edits more freely.

_UNTOUCHED = 0.8
# Until the first deviation nothing is known but that the caller expects this text.


class Follower:
    """Where an answer is in the text that was expected, token by token.

    ``places`` are the positions in the text whose token may come next, the likeliest first, each with the number of
    tokens that matched in front of it: one alone while it is certain. Edits are local: places are looked for from the
    last certain one on, forwards first.

    Constant time per token, but for a bisection among the occurrences of a pair of tokens.
    """

    __slots__ = (
        "_behind_one", "_behind_two", "_home", "_is_certain", "_last", "places", "resyncs", "since_mismatch", "text",
    )  # fmt: skip

    def __init__(self, text: Sequence[int] = ()) -> None:
        self.text = tuple(text)
        self.places: dict[int, int] = {0: 0}
        self.since_mismatch = 0
        """Tokens said since one came that was not the likeliest place's."""
        self.resyncs = 0
        """How often that happened."""
        self._is_certain = True
        self._home = 0  # the last certain place
        self._last = -1  # the last token said
        self._behind_one: dict[int, list[int]] = {}  # token -> positions behind it, rising
        self._behind_two: dict[tuple[int, int], list[int]] = {}
        before = -1
        for place, token in enumerate(self.text, 1):
            self._behind_one.setdefault(token, []).append(place)
            self._behind_two.setdefault((before, token), []).append(place)
            before = token

    def follow(self, tokens: Iterable[int]) -> None:
        """The answer went on by ``tokens``."""
        for token in tokens:
            self.since_mismatch += 1
            places = {at + 1: n + 1 for at, n in self.places.items() if self.text[at : at + 1] == (token,)}
            likeliest = next(iter(self.places), None)
            if likeliest is not None and likeliest + 1 not in places:
                self.since_mismatch = 0
                self.resyncs += 1
                places[likeliest + 1] = 0  # where the answer is if it put one token in the place of another
                self._is_certain = False
            if not self._is_certain:
                places = self._search(places, token)
                self._is_certain = max(places.values(), default=0) >= N_CERTAIN
            if self._is_certain:
                self._home = next(iter(places))
                places = {self._home: places[self._home]}
            self.places = places
            self._last = token

    def _search(self, alive: dict[int, int], token: int) -> dict[int, int]:
        """The likeliest places: those that are still ``alive``, and one behind ``token``."""
        places, matched = dict(alive), 2
        place = self._nearest(self._behind_two.get((self._last, token), ()))
        if place is None:
            place, matched = self._nearest(self._behind_one.get(token, ())), 1
            if place is not None and not self._home <= place <= self._home + N_NEAR:
                place = None
        if place is not None:
            places[place] = max(matched, places.get(place, 0))
        return dict(sorted(places.items(), key=lambda item: -item[1])[:N_PLACES])

    def _nearest(self, places: Sequence[int]) -> int | None:
        """The first of ``places`` from the last certain one on; without one, the last before it."""
        return places[min(bisect_left(places, self._home), len(places) - 1)] if places else None


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
        heap: list[tuple[float, int, int, int, int, float]] = []

        def add(path: float, at: int, match_len: int, parent: int, depth: int) -> None:
            if at < len(text) and depth <= want.depth_max:
                score = _score(match_len, is_untouched)
                if path * score >= self._p_min:
                    heappush(heap, (-path * score, at, match_len, parent, depth, score))

        for at, matched in follower.places.items():
            add(1.0, at, matched, -1, 1)
        while heap and len(out) < want.n_max:
            minus_path, at, match_len, parent, depth, score = heappop(heap)
            node = nodes.setdefault((parent, text[at]), len(out))
            if node == len(out):
                out.tokens.append(text[at])
                out.parents.append(parent)
                out.scores.append(score)
                out.features.append(
                    (float(match_len), float(follower.since_mismatch), float(follower.resyncs), float(depth))
                )
            add(-minus_path, at + 1, match_len + 1, node, depth + 1)
        return out


def _score(match_len: int, is_untouched: bool) -> float:
    """Probability of the next token behind so many matched ones."""
    score = _PRIORS[min(match_len, len(_PRIORS) - 1)]
    return max(score, _UNTOUCHED) if is_untouched else score
