"""After a run: where do the modes' texts part from plain decoding's, and is each of these forks a near-tie?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from edgedec.bench.forks import Fork, gap_of, noise, parting
from edgedec.bench.record import PLAIN, Measured, Settings
from edgedec.engine.setup import Setup, context_params
from edgedec.llama.base import Context
from edgedec.llm import LLM
from edgedec.types import SamplingParams

_N_TEXTS = 10  # that the noise is measured on
_ALLOWED = 2.0  # times the noise

Progress = Callable[[int, int], None]
"""(forks looked at, forks in all)"""


def find_forks(
    llm: LLM,
    measured: Sequence[Measured],
    names: Sequence[str],
    settings: Settings,
    progress: Progress = lambda done, total: None,
) -> float | None:
    """Note in ``measured`` where the answers of the modes ``names`` part from plain ones.

    Returns the noise that forks are judged by; None where none had to be. Decodes the texts in question again, on a
    context of its own.
    """
    wanted: list[tuple[Measured, str]] = []
    for one in measured:
        plain = one.answers[PLAIN]
        for name in names:
            other = one.answers[name]
            if plain.token_ids is not None and other.token_ids is not None:
                at = parting(plain.token_ids, other.token_ids)
                if at is not None:
                    wanted.append((one, name))
            elif plain.text != other.text:
                one.forks[name] = Fork(None)
    if not wanted:
        return None
    config, n_ctx = llm.client.config, llm.n_ctx
    context = llm.client.call(lambda _: llm.model.new_context(context_params(config, n_ctx)))
    try:
        return _judge(llm, context, wanted, settings, progress)
    finally:
        llm.client.call(lambda _: context.close())


def _judge(
    llm: LLM, context: Context, wanted: Sequence[tuple[Measured, str]], settings: Settings, progress: Progress
) -> float:
    gaps = []
    for done, (one, name) in enumerate(wanted):
        progress(done, len(wanted))
        gaps.append(llm.client.call(partial(_gap, llm, context, one, name, settings)))
    texts = list({id(one): one for one, _ in wanted}.values())[:_N_TEXTS]
    level = max(llm.client.call(partial(_noise, context, one)) for one in texts)
    for (one, name), gap in zip(wanted, gaps, strict=True):
        at = parting(_ids(one, PLAIN), _ids(one, name))
        one.forks[name] = Fork(at, gap, gap <= _ALLOWED * level)
    return level


def _gap(llm: LLM, context: Context, one: Measured, name: str, settings: Settings, _: Setup) -> float:
    params = SamplingParams(temperature=settings.temperature, seed=settings.seed + one.case.index)
    return gap_of(context, params, one.case.ids, _ids(one, PLAIN), _ids(one, name), llm.model.eog_ids)


def _noise(context: Context, one: Measured, _: Setup) -> float:
    return noise(context, one.case.ids, _ids(one, PLAIN))


def _ids(one: Measured, name: str) -> tuple[int, ...]:
    return one.answers[name].token_ids or ()
