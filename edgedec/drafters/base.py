"""The contract of a drafter: something that proposes what comes next.

Verbs are llama.cpp's (``common/speculative``): begin, draft, process, accept; expect is our own. The engine calls them
on a list and never asks which kind of drafter it has. A drafter knows tokens only; whether its proposals are used is
decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from edgedec.llama.base import Logits
from edgedec.types import Candidates


@dataclass(frozen=True, slots=True)
class Want:
    """A call for proposals after the last accepted token of a sequence: at most ``n_max`` nodes, none deeper than
    ``depth_max`` (the first token after the root has depth 1)."""

    seq_id: int
    n_max: int
    depth_max: int


@dataclass(frozen=True, slots=True)
class Walked:
    """The rows of target logits that a verification walk read, in order: the root's, then those of accepted nodes.

    ``tokens[i]`` was evaluated at row i (``tokens[0]`` is the root), ``before`` is the token in front of the root
    (-1 if there is none), and ``row(i)`` gives the logits [n_vocab] that decided what followed ``tokens[i]``: a
    view that is valid during the call only.
    """

    before: int
    tokens: tuple[int, ...]
    row: Callable[[int], Logits]


class Drafter:
    """Base of all drafters. State is kept per sequence, under its id; ids are reused after `end`."""

    name: ClassVar[str]
    feature_names: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[frozenset[str]] = frozenset()
    """What `process` must see besides tokens; "logits" is the only word so far. Empty: `process` is not called."""
    remembers: ClassVar[bool] = False
    """Whether what it saw in one sequence may show in what it proposes for others, later ones included."""

    @dataclass(frozen=True, slots=True)
    class Options:
        """Settings of this drafter; each subclass has its own."""

    def __init__(self, options: Any = None) -> None:
        self.options: Any = options if options is not None else self.Options()

    def begin(self, seq_id: int, prompt: Sequence[int]) -> None:
        """A sequence starts. ``prompt`` is all of its prompt's tokens."""
        raise NotImplementedError

    def expect(self, seq_id: int, prediction: Sequence[int]) -> None:
        """The caller expects the answer to be like ``prediction``. Called right after `begin`, if it does at all."""

    def draft(self, wants: Sequence[Want]) -> list[Candidates]:
        """One `Candidates` per want, in order; empty ones where there is nothing to say."""
        raise NotImplementedError

    def process(self, seq_id: int, walked: Walked) -> None:
        """After each walk, before `accept`, for drafters whose ``needs`` has "logits"."""

    def accept(self, seq_id: int, tokens: Sequence[int], used: bool) -> None:
        """The sequence went on by ``tokens``. Told to all; ``used``: this one's proposals were in the draft."""
        raise NotImplementedError

    def end(self, seq_id: int) -> None:
        """The sequence is over; its state may go. Unknown ids are ignored."""
        raise NotImplementedError

    def close(self) -> None:
        """Release everything; a second call does nothing."""
