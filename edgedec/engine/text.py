"""The rim where tokens become text: bytes to characters, and the search for stop strings.

Which stop string wins is decided character by character, so the text does not depend on how it was cut into tokens:
the first to be complete; of several that end in the same character the longest, which begins first. The text before
it is the answer's text. The answer's token ids follow another rule: all tokens up to and including the one that
completed the stop string belong to it, for a token cannot be cut.

The search is the automaton of Aho and Corasick (1975): its state is the longest end of the text that is the beginning
of a stop string, which is exactly what must not be shown yet. For given stop strings, time is linear in the text.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Turns the bytes of one answer, in pieces of any size, into text that may be shown at once and never taken back.

    Bytes that are not UTF-8 become U+FFFD, as ``bytes.decode("utf-8", "replace")`` makes them of the whole.
    ``stopped``: a stop string is complete; the text before it has been returned, and nothing will follow.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self.stopped = False
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._automaton = _Automaton(stop)
        self._state = 0
        self._held = ""  # the end of the text that may become a stop string
        self._shown: list[str] = []

    def push(self, piece: bytes) -> str:
        """Take the bytes of the next token; return the text that is now safe to show, which may be ""."""
        return self._scan(self._decoder.decode(piece))

    def flush(self) -> str:
        """The text is over: return what was held back ("" if stopped). Bytes of an unfinished character: U+FFFD."""
        text = self._scan(self._decoder.decode(b"", final=True))
        if self.stopped or not self._held:
            return text
        self._shown.append(self._held)
        text += self._held
        self._held = ""
        self._state = 0
        return text

    @property
    def text(self) -> str:
        """All text returned so far."""
        self._shown = ["".join(self._shown)]
        return self._shown[0]

    def _scan(self, new: str) -> str:
        if self.stopped or not new:
            return ""
        pending = self._held + new
        state, automaton = self._state, self._automaton
        for end, character in enumerate(new, start=len(self._held) + 1):
            state = automaton.step(state, character)
            if automaton.n_matched[state]:
                self.stopped = True
                n_safe, self._held = end - automaton.n_matched[state], ""
                break
        else:
            n_safe = len(pending) - automaton.depth[state]
            self._state, self._held = state, pending[n_safe:]
        safe = pending[:n_safe]
        self._shown.append(safe)
        return safe


class _Automaton:
    """A trie of all stop strings with links; state 0 is the root.

    ``depth[s]``: characters from the root. ``n_matched[s]``: length of the longest stop string that the text of state
    s ends with, 0 if there is none.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._link = [0]  # the state of the longest proper end of this state's text that is in the trie
        self.depth = [0]
        self.n_matched = [0]
        for word in stop:
            state = 0
            for character in word:
                if character not in self._next[state]:
                    self._next[state][character] = len(self._next)
                    self._next.append({})
                    self._link.append(0)
                    self.depth.append(self.depth[state] + 1)
                    self.n_matched.append(0)
                state = self._next[state][character]
            self.n_matched[state] = len(word)
        queue = list(self._next[0].values())
        for state in queue:
            for character, child in self._next[state].items():
                self._link[child] = self.step(self._link[state], character)
                self.n_matched[child] = self.n_matched[child] or self.n_matched[self._link[child]]
                queue.append(child)

    def step(self, state: int, character: str) -> int:
        """The state after one more character."""
        while state and character not in self._next[state]:
            state = self._link[state]
        return self._next[state].get(character, 0)
