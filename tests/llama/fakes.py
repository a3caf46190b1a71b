"""Short ways to run fake models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgedec.llama.base import ContextParams, Logits
from edgedec.llama.fake import FakeContext, FakeModel
from tests.llama.contract import feed


def context_of(model: FakeModel, **params: Any) -> FakeContext:
    return model.new_context(ContextParams(**{"n_ctx": 128, "n_batch": 64, "n_ubatch": 64, **params}))


def replay(model: FakeModel, tokens: Sequence[int]) -> Logits:
    """The logits of a text decoded in one go in a fresh context."""
    return feed(context_of(model), tokens)


def greedy(context: FakeContext, prompt: Sequence[int], n: int) -> list[int]:
    text = list(prompt)
    row = feed(context, prompt)[-1]
    for _ in range(n):
        text.append(int(row.argmax()))
        row = feed(context, text[-1:], len(text) - 1)[-1]
    return text[len(prompt) :]


def positions(context: FakeContext) -> list[tuple[int, int]]:
    return [(context.seq_pos_min(s), context.seq_pos_max(s)) for s in range(context.n_seq_max)]
