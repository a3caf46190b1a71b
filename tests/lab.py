"""Loaded fakes for the tests of `edgedec.client` and `edgedec.llm`."""

from __future__ import annotations

import threading
from typing import Any

from edgedec.client import Client
from edgedec.config import EngineConfig
from edgedec.llama.fake import FakeContext, FakeModel
from edgedec.llm import LLM
from edgedec.types import Request, SamplingParams

GREEDY = SamplingParams(temperature=0)
PLAIN = EngineConfig(n_ctx=512, speculate=("off",))

SCRIPT = b"one two three. The end"
"""What `Loaded.scripted` says to anything."""


class Loaded:
    """Clients and models that are closed together."""

    def __init__(self) -> None:
        self._clients: list[Client] = []

    def client(self, model: FakeModel | None = None, config: EngineConfig = PLAIN, **settings: Any) -> Client:
        self._clients.append(Client(model or FakeModel(**settings), config))
        return self._clients[-1]

    def llm(self, config: EngineConfig = PLAIN, **settings: Any) -> LLM:
        return LLM(self.client(None, config, **settings), load_s=1.5)

    def scripted(self) -> LLM:
        return self.llm(script=SCRIPT)

    def close(self) -> None:
        for client in self._clients:
            client.close()


def context_of(loaded: Client | LLM) -> FakeContext:
    """The context in use."""
    model = loaded.model
    assert isinstance(model, FakeModel)
    return model.contexts[-1]


def said_to(llm: LLM) -> list[int]:
    """The tokens in memory."""
    cells = context_of(llm)._memory.caches[0]
    own = cells.seq[0]
    return [int(t) for t in cells.token[own][cells.pos[own].argsort()]]


def request(text: bytes = b"say something", max_tokens: int | None = 20, **options: Any) -> Request:
    return Request(tuple(text), GREEDY, max_tokens, **options)


def long_request(n: int, max_tokens: int | None = 5) -> Request:
    return Request(tuple(97 + i % 23 for i in range(n)), GREEDY, max_tokens)


def answer(client: Client, of: Request | None = None) -> list[int]:
    return client.submit(of or request()).result().token_ids


class Gate:
    """A delay that holds the decodes of a model from the ``n``-th on, so that an answer is certainly running."""

    def __init__(self, n: int = 0) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()
        self._n = n

    def __call__(self, n_rows: int, n_past: int) -> float:
        self._n -= 1
        if self._n < 0:
            self.reached.set()
            assert self.open.wait(60)
        return 0.0
