"""`Model` and `Context` on numpy, for tests: the bookkeeping rules of llama.cpp, made-up text, thousands of tokens a
second.

A row's logits depend on every cell that the row can see, and on what those saw in their turn: an engine that leaves a
stale cell behind, forgets one, or mixes up positions or sequence ids says something else than plain decoding does. They
do not depend on how rows were batched, to the last bit.
"""

from edgedec.llama.fake.context import Delay, FakeClock, FakeContext
from edgedec.llama.fake.model import (
    ASSISTANT,
    BOS,
    CHAT_TEMPLATE,
    END,
    EOS,
    N_VOCAB,
    SYSTEM,
    USER,
    FakeModel,
)

__all__ = [
    "ASSISTANT",
    "BOS",
    "CHAT_TEMPLATE",
    "END",
    "EOS",
    "N_VOCAB",
    "SYSTEM",
    "USER",
    "Delay",
    "FakeClock",
    "FakeContext",
    "FakeModel",
]
