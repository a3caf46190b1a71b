"""Measured cases made up by hand, and a loaded fake whose time passes as a curve says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from edgedec.bench.device import Device
from edgedec.bench.record import Answer, Case, Measured, Step
from edgedec.client import Client
from edgedec.config import EngineConfig
from edgedec.engine import setup
from edgedec.llama.fake import FakeClock, FakeModel
from edgedec.llm import LLM
from edgedec.types import DrafterCounts, Message

FLAT = Device("flat", "a machine where rows are free", "made up", {1: 10.0, 64: 10.0})
STEEP = Device("steep", "a machine where rows cost as much as steps", "made up", {1: 10.0, 2: 20.0, 64: 640.0})
STAIRS = Device("stairs", "four rows for the price of two", "made up", {1: 10.0, 2: 20.0, 4: 20.0, 5: 50.0, 8: 80.0})


def case(index: int = 0, category: str = "chat", ids: Sequence[int] = (1, 2, 3), turn: int = 1) -> Case:
    return Case(index, f"p{index}", category, turn, (Message("user", "Hi"),), tuple(ids))


def plain(n: int, ms: float = 10.0, **options: Any) -> Answer:
    """``n`` steps of one token."""
    return answer([(1, 1)] * n, ms=ms, **options)


def answer(
    widths: Sequence[tuple[int, int]],
    *,
    ms: float = 10.0,
    decode_ms: float = 9.0,
    draft_ms: float = 0.5,
    drafters: dict[str, DrafterCounts] | None = None,
    token_ids: Sequence[int] | None = None,
    text: str = "text",
) -> Answer:
    """Steps of (rows, tokens), each of which takes ``ms``."""
    steps = tuple(Step(n_rows, n_tokens, ms, decode_ms, draft_ms) for n_rows, n_tokens in widths)
    n_tokens = sum(step.n_tokens for step in steps)
    ids = tuple(range(n_tokens + 1)) if token_ids is None else tuple(token_ids)
    return Answer(text, ids, "length", n_tokens, ms * len(steps) / 1e3, steps, drafters or {})


def measured(index: int = 0, category: str = "chat", **answers: Answer) -> Measured:
    return Measured(case(index, category), dict(answers))


@contextmanager
def loaded(
    monkeypatch: pytest.MonkeyPatch, device: Device = FLAT, speculate: tuple[str, ...] = ("auto",), **settings: Any
) -> Iterator[LLM]:
    """The fake on a machine with that curve. Only decoding takes time."""
    clock = FakeClock()
    monkeypatch.setattr("edgedec.client.set_up", partial(setup.set_up, clock=clock.now))
    model = FakeModel(delay=lambda n_rows, _: device.ms(n_rows) / 1e3, clock=clock, **settings)
    with LLM(Client(model, EngineConfig(n_ctx=512, speculate=speculate, learn=False))) as llm:
        yield llm
