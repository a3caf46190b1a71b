"""The drafter that guesses from the text itself: when these words were said before, what came next?

Prompt lookup without its limits: the longest earlier match of what was just said, whatever its length, found without
looking at the history again; the most recent occurrence, not the first; counts that say how sure to be; drafts that
get longer as the evidence does.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edgedec.drafters.base import Drafter, Want
from edgedec.drafters.evidence import score
from edgedec.errors import UsageError
from edgedec.types import Candidates

ROOT = 0
"""The state of the empty string."""

N_CLIMB = 24
# Counting an occurrence means visiting every suffix that ends there, and in repetitive text those are thousands. The
# longest suffice: a draft starts at the longest match or one link below it and only moves on to longer strings. What
# goes uncounted is a string that ends beneath N_CLIMB longer ones, all of which occurred before; in prose and code the
# whole path is shorter than that. Such a string keeps a smaller count and an older occurrence, but a true one.


class SuffixAutomaton:
    """All substrings of a growing text of tokens, as the smallest automaton that knows them.

    A state stands for the strings that end at the same positions of the text; ``length`` is that of the longest of
    them, ``link`` the state of its longest suffix that also ends elsewhere (-1 for the root). ``link[last]`` is
    therefore the longest suffix of the text that occurred before. At most two states and three transitions per token,
    amortised constant time per token.

    ``count`` and ``end`` (position of the last token) of the most recent occurrence are those of the occurrences whose
    next token is known: all but the one at the very end of the text. Both ignore occurrences beyond `N_CLIMB`.

    Source: Blumer et al., The smallest automaton recognizing the subwords of a text, 1985.
    """

    __slots__ = ("_first_target", "_first_token", "_more", "count", "end", "last", "length", "link", "text")

    def __init__(self, text: Iterable[int] = ()) -> None:
        self.text = array("i")
        self.length = array("i", [0])
        self.link = array("i", [-1])
        self.count = array("i", [0])
        self.end = array("i", [-1])
        self.last = ROOT
        # Most states have one transition: it lies in two arrays, and only what goes beyond it needs a dict.
        self._first_token = array("i", [-1])
        self._first_target = array("i", [-1])
        self._more: dict[int, dict[int, int]] = {}
        self.extend(text)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens (ids from 0 to 2^31-1) to the text."""
        for token in tokens:
            self._count_last()
            self._append(token)

    def step(self, state: int, token: int) -> int:
        """The state of (a string of ``state``) + ``token``; -1 if that never occurred."""
        if self._first_token[state] == token:
            return self._first_target[state]
        more = self._more.get(state)
        return -1 if more is None else more.get(token, -1)

    def _count_last(self) -> None:
        """The text is about to grow: what ends at its end becomes an occurrence with a known continuation."""
        link, count, end = self.link, self.count, self.end
        state, position = self.last, len(self.text) - 1
        for _ in range(N_CLIMB):
            if state <= ROOT:
                break
            count[state] += 1
            end[state] = position
            state = link[state]

    def _append(self, token: int) -> None:
        link, length, first_token, first_target, more = (
            self.link, self.length, self._first_token, self._first_target, self._more,
        )  # fmt: skip
        self.text.append(token)
        state = self.last
        new = self.last = self._new_state(length[state] + 1, ROOT, 0, -1, -1, -1)
        while state >= 0:
            if first_token[state] == token:
                old = first_target[state]
                break
            if first_token[state] < 0:
                first_token[state], first_target[state] = token, new
            elif state not in more:
                more[state] = {token: new}
            elif token in more[state]:
                old = more[state][token]
                break
            else:
                more[state][token] = new
            state = link[state]
        else:
            return
        if length[old] == length[state] + 1:
            link[new] = old
            return
        # Only the shorter strings of `old` occur here as well: they part from the longer ones.
        part = self._new_state(
            length[state] + 1, link[old], self.count[old], self.end[old], first_token[old], first_target[old]
        )
        if old in more:
            more[part] = more[old].copy()
        link[old] = link[new] = part
        while state >= 0:
            if first_token[state] == token:
                if first_target[state] != old:
                    break
                first_target[state] = part
            elif more[state][token] == old:
                more[state][token] = part
            else:
                break
            state = link[state]

    def _new_state(self, length: int, link: int, count: int, end: int, token: int, target: int) -> int:
        self.length.append(length)
        self.link.append(link)
        self.count.append(count)
        self.end.append(end)
        self._first_token.append(token)
        self._first_target.append(target)
        return len(self.length) - 1


class SuffixDrafter(Drafter):
    """Copies on from the most recent earlier occurrence of what was just said.

    Each sequence has an automaton over all of its text. The chain starts after the longest suffix that occurred before,
    or after the next shorter one if that is the better guide. Where the copy reaches the end of the text, it goes on
    with what it has drafted, so that a repeating text repeats.

    Features of a node: ``match_len``, tokens of context that its prediction rests on (the match it started from and
    the draft before it); ``share``, how much of the context's occurrences went on this way; ``count``, the context's
    occurrences; ``recent``, 1.0 if the most recent one went on this way; ``depth``, 1 for the first.
    """

    name = "suffix"
    feature_names = ("match_len", "share", "count", "recent", "depth")

    @dataclass(frozen=True, slots=True)
    class Options(Drafter.Options):
        """``p_min``: a chain ends before its path probability, by its own scores, falls below this."""

        p_min: float = 0.02

        def __post_init__(self) -> None:
            if not 0 <= self.p_min <= 1:
                raise UsageError(f"p_min is {self.p_min!r}.", "Use a probability from 0 to 1.")

    def __init__(self, options: Options | None = None) -> None:
        options = options or self.Options()
        super().__init__(options)
        self._p_min = options.p_min
        self._texts: dict[int, SuffixAutomaton] = {}

    def begin(self, seq_id: int, prompt: Sequence[int]) -> None:
        self._texts[seq_id] = SuffixAutomaton(prompt)

    def draft(self, wants: Sequence[Want]) -> list[Candidates]:
        return [self._chain(self._texts[want.seq_id], min(want.n_max, want.depth_max)) for want in wants]

    def accept(self, seq_id: int, tokens: Sequence[int], used: bool) -> None:
        self._texts[seq_id].extend(tokens)

    def end(self, seq_id: int) -> None:
        self._texts.pop(seq_id, None)

    def close(self) -> None:
        self._texts.clear()

    def _chain(self, known: SuffixAutomaton, n_max: int) -> Candidates:
        out = Candidates(self.name)
        start = _best_start(known)
        if start == ROOT:
            return out
        text, match_len, path = known.text, known.length[start], 1.0
        first = known.end[start] + 1
        state, position = start, first
        for depth in range(1, n_max + 1):
            if position == len(text):
                # The copy has caught up with its own draft, which is text[first:] and goes on as that did.
                state, position = start, first
            following, n_hits, n_seen = _evidence(known, state, position)
            probability = score(match_len, n_hits, n_seen)
            path *= probability
            if path < self._p_min:
                break
            out.tokens.append(text[position])
            out.parents.append(depth - 2)
            out.scores.append(probability)
            out.features.append((float(match_len), n_hits / n_seen, float(n_seen), 1.0, float(depth)))
            state, position, match_len = following, position + 1, match_len + 1
        return out


def _best_start(known: SuffixAutomaton) -> int:
    """The state to draft from: the longest match, or the one below it if its first token has the higher score."""
    longest = max(known.link[known.last], ROOT)
    shorter = max(known.link[longest], ROOT)
    return max(longest, shorter, key=lambda state: _first_score(known, state))


def _first_score(known: SuffixAutomaton, state: int) -> float:
    if state == ROOT:
        return 0.0
    _, n_hits, n_seen = _evidence(known, state, known.end[state] + 1)
    return score(known.length[state], n_hits, n_seen)


def _evidence(known: SuffixAutomaton, state: int, position: int) -> tuple[int, int, int]:
    """For a context that ends just before ``position`` in the text: the state that the token there leads to, how many
    of the context's occurrences went on with that token, and how many there are."""
    following = known.step(state, known.text[position])
    # The automaton does not count what ends at the end of the text, but as a continuation it is known.
    n_hits = known.count[following] + (position == len(known.text) - 1)
    return following, n_hits, max(known.count[state], n_hits)
