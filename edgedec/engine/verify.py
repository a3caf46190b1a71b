"""Sample and walk: the one verifier, for every drafter, chain and tree.

The target's own sampler is run at the root, then at the child that equals the sampled token, and so on until the
sampled token is not a child. Each emitted token is a fresh sample from the target given exactly the text before it,
so the output law is the target's whatever was drafted, and with counter-based noise it is the same text (DESIGN §4;
the acceptance rule of SpecExec and of llama.cpp's server, here on trees). Only rows on the walk are read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from edgedec.llama.base import Logits
from edgedec.types import Draft, Verdict

ROOT = -1


class TokenChooser(Protocol):
    """What the walk needs of `edgedec.engine.sampling.Sampler`."""

    def sample(self, logits: Logits, position: int) -> int: ...
    def accept(self, token: int) -> None: ...


def walk(
    draft: Draft,
    row: Callable[[int], Logits],
    chooser: TokenChooser,
    position: int,
    max_tokens: int,
    end_ids: frozenset[int],
) -> Verdict:
    """Decide which drafted tokens are emitted, and the one after them.

    Args:
        draft: nodes that were decoded behind the root; siblings have different tokens.
        row: logits [n_vocab] at a node; `ROOT` (-1) is the root itself.
        chooser: the sequence's sampler; it accepts exactly the tokens of the verdict, in order.
        position: absolute index, in the sequence, of the first token to choose.
        max_tokens: never emit more than this (≥ 1).
        end_ids: tokens after which nothing follows.
    """
    children = {(parent, token): i for i, (parent, token) in enumerate(zip(draft.parents, draft.tokens, strict=True))}
    node = ROOT
    tokens: list[int] = []
    path: list[int] = []
    while True:
        token = chooser.sample(row(node), position + len(tokens))
        chooser.accept(token)
        tokens.append(token)
        child = children.get((node, token))
        if child is not None:
            path.append(child)
        if child is None or token in end_ids or len(tokens) >= max_tokens:
            return Verdict(tuple(tokens), tuple(path))
        node = child
