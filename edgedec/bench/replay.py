"""The recorded texts once more, on make-believe machines: what would guessing bring under another cost curve?

Each plain answer is written again by the same engine, with the same modes, on a context whose decodes take what the
curve of a `Device` says (`pretend`). So widths are chosen for that machine, and drafters and judgement learn as they
would there. Looking for guesses and all else between two decodes takes the time that it takes here. What a replay
cannot know: how T(n) grows with the context, and what another model would have answered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from edgedec import drafters
from edgedec.bench.device import Device
from edgedec.bench.forks import rows
from edgedec.bench.modes import Mode, as_answer
from edgedec.bench.pretend import N_KEPT, PretendContext, Text
from edgedec.bench.record import PLAIN, Measured, Settings
from edgedec.engine.engine import Engine
from edgedec.engine.setup import Setup, context_params, engine_on
from edgedec.llama.base import Context
from edgedec.llm import LLM
from edgedec.types import Request, SamplingParams, StepEvent

Progress = Callable[[int, int], None]
"""(answers replayed, answers in all)"""


def replay(
    llm: LLM,
    measured: Sequence[Measured],
    modes: Sequence[Mode],
    devices: Sequence[Device],
    settings: Settings,
    *,
    n_rows_max: int,
    progress: Progress = lambda done, total: None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[list[Measured]]:
    """For each device, the cases of ``measured`` as its modes would have answered them: the plain answers.

    No step is wider than ``n_rows_max``, nor than the device's curve is known.
    """
    machines = [_Machine(llm, device, n_rows_max, clock) for device in devices]
    context = _scoring_context(llm) if _needs_logits(modes) else None
    try:
        found: list[list[Measured]] = [[] for _ in devices]
        for done, one in enumerate(measured):
            progress(done, len(measured))
            text = _text_of(llm, context, one)
            for machine, cases in zip(machines, found, strict=True):
                cases.append(machine.replay(one, text, modes, settings))
        return found
    finally:
        for machine in machines:
            machine.engine.close()
        if context is not None:
            llm.client.call(partial(_close, context))


class _Machine:
    """A device with an engine on it. What modes learn on it is kept from one case to the next."""

    def __init__(self, llm: LLM, device: Device, n_rows_max: int, clock: Callable[[], float]) -> None:
        n_seq_max, traits = llm.client.call(lambda setup: (setup.context.n_seq_max, setup.context.traits))
        self._stop = llm.template.stop
        self._context = PretendContext(
            device,
            n_ctx=llm.n_ctx,
            n_vocab=llm.model.n_vocab,
            n_rows_max=min(n_rows_max, device.widest),
            n_seq_max=n_seq_max,
            traits=traits,
            clock=clock,
        )
        self.engine: Engine = engine_on(llm.model, self._context, llm.client.config, device.cost_ms, self._context.now)

    def replay(self, one: Measured, text: Text, modes: Sequence[Mode], settings: Settings) -> Measured:
        found = Measured(one.case)
        self._context.play(text)
        for mode in modes:
            request = Request(
                prompt=one.case.ids,
                sampling=SamplingParams(temperature=0),
                max_tokens=settings.max_tokens,
                stop=self._stop,
                speculate=mode.speculate,
            )
            self.engine.submit(0, request)
            events = []
            while not self.engine.is_idle:
                for _, outcome in self.engine.step():
                    if not isinstance(outcome, StepEvent):
                        raise outcome
                    events.append(outcome)
            found.answers[mode.name] = as_answer(events)
        return found


def _needs_logits(modes: Sequence[Mode]) -> bool:
    """Whether a drafter of these modes learns from rows."""
    names = set(drafters.AUTO if any(mode.speculate is True for mode in modes) else ())
    for mode in modes:
        if isinstance(mode.speculate, tuple):
            names.update(mode.speculate)
    return any("logits" in drafters.drafter_class(name).needs for name in names)


def _scoring_context(llm: LLM) -> Context:
    config, n_ctx = llm.client.config, llm.n_ctx
    return llm.client.call(lambda _: llm.model.new_context(context_params(config, n_ctx)))


def _close(context: Context, _: Setup) -> None:
    context.close()


def _text_of(llm: LLM, context: Context | None, one: Measured) -> Text:
    answer = one.answers[PLAIN]
    tokens = answer.token_ids or ()
    if answer.finish_reason == "eog":
        tokens = (*tokens, min(llm.model.eog_ids))
    if context is None:
        nothing = (len(tokens), 0)
        return Text(one.case.ids, tokens, np.empty(nothing, np.int32), np.empty(nothing, np.float32))
    return llm.client.call(partial(_read, context, one.case.ids, tokens))


def _read(context: Context, prompt: tuple[int, ...], tokens: tuple[int, ...], _: Setup) -> Text:
    """The rows of a text, decoded as wide as the context allows."""
    likely, logits = [], []
    for row in rows(context, prompt, tokens, context.n_outputs_max):
        kept = np.argpartition(row, -min(N_KEPT, row.size))[-N_KEPT:]
        likely.append(kept)
        logits.append(row[kept])
    return Text(prompt, tokens, np.array(likely, np.int32), np.array(logits, np.float32))
