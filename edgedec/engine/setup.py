"""From a loaded model and a configuration to a running engine: context, drafters, measured cost, policy."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from edgedec import drafters
from edgedec.config import AUTO, OFF, EngineConfig
from edgedec.drafters.base import Drafter
from edgedec.engine.engine import Crew, Engine
from edgedec.errors import UsageError
from edgedec.llama.base import Context, ContextParams, MemoryTraits, Model
from edgedec.paths import corpus_dir
from edgedec.speculation import profile
from edgedec.speculation.cost import CostCurve, measure
from edgedec.speculation.policy import Policy

log = logging.getLogger("edgedec.engine")

DEFAULT_CTX = 4096
N_DRAFT_MAX = 32
_TELLING_WIDTH = 8  # a measurement that ran out of time before this was disturbed: it is not kept for the next load


@dataclass(slots=True)
class Setup:
    """An engine and what it stands on.

    ``note`` says why there is no speculation, if there is none. ``cost_ms``: T(n) as it was measured before the first
    request, rows → milliseconds; empty without speculation.
    """

    engine: Engine
    context: Context
    note: str
    cost_ms: Mapping[int, float] = field(default_factory=dict)


def drafter_names(speculate: tuple[str, ...]) -> list[str]:
    """The drafters that a mode stands for. Raises UnknownNameError."""
    if speculate == (OFF,):
        return []
    if speculate == (AUTO,):
        return list(drafters.AUTO)
    for name in speculate:
        drafters.drafter_class(name)
    return list(speculate)


def initial_n_ctx(model: Model, config: EngineConfig) -> int:
    """What the context starts with. Raises UsageError beyond what the model was trained for."""
    limit = model.n_ctx_train
    if config.n_ctx is None:
        return min(DEFAULT_CTX, limit) if limit > 0 else DEFAULT_CTX
    if 0 < limit < config.n_ctx:
        raise UsageError(f"n_ctx is {config.n_ctx}, but the model was trained for {limit}.", f"Use up to {limit}.")
    return config.n_ctx


def why_not(traits: MemoryTraits) -> str:
    """Why a memory cannot be guessed ahead on; "" if it can."""
    if traits.n_rollback == 0:
        return f"the {traits.kind} memory of this model cannot take guesses back"
    return ""


def context_params(config: EngineConfig, n_ctx: int) -> ContextParams:
    """The context that the engine runs on."""
    return ContextParams(
        n_ctx=n_ctx,
        n_batch=config.n_batch,
        n_ubatch=config.n_ubatch,
        n_threads=config.n_threads,
        n_outputs_max=min(N_DRAFT_MAX + 1, config.n_ubatch),  # a draft in two pieces takes twice the time
        type_k=config.type_k,
        type_v=config.type_v,
        flash_attn=config.flash_attn,
    )


def set_up(model: Model, config: EngineConfig, n_ctx: int, *, clock: Callable[[], float] = time.perf_counter) -> Setup:
    """Make a context of ``n_ctx`` tokens and an engine on it. The caller closes the context."""
    names = drafter_names(config.speculate)
    context = model.new_context(context_params(config, n_ctx))
    try:
        note = why_not(context.traits) if names else ""
        if not names or note:
            return Setup(Engine(model, context, mode=config.mode, note=note, clock=clock), context, note)
        cost = _cost(model, context, config, clock)
        return Setup(engine_on(model, context, config, cost, clock), context, "", cost)
    except BaseException:
        context.close()
        raise


def engine_on(
    model: Model, context: Context, config: EngineConfig, cost_ms: Mapping[int, float], clock: Callable[[], float]
) -> Engine:
    """An engine that guesses as ``config`` says, with T(n) known."""

    def crew(chosen: tuple[str, ...]) -> Crew:
        return drafters.create(chosen, _options(chosen, model, config)), Policy(CostCurve(cost_ms), n_max=N_DRAFT_MAX)

    loaded = crew(tuple(drafter_names(config.speculate)))
    return Engine(model, context, *loaded, mode=config.mode, crew=crew, clock=clock)


def _options(names: Sequence[str], model: Model, config: EngineConfig) -> dict[str, Drafter.Options]:
    """Settings of the drafters that need to know more than their defaults."""
    options: dict[str, Drafter.Options] = {}
    if "history" in names:
        from edgedec.drafters.history import HistoryDrafter
        from edgedec.drafters.store import Store

        store = Store(corpus_dir() / model.vocabulary)
        options["history"] = HistoryDrafter.Options(store=store, learn=config.learn, model=model.name)
    return options


def _cost(model: Model, context: Context, config: EngineConfig, clock: Callable[[], float]) -> dict[int, float]:
    key = profile.profile_key(
        model.fingerprint,
        f"threads {context.n_threads}, gpu layers {config.n_gpu_layers}, kv {config.type_k}/{config.type_v}, "
        f"flash {config.flash_attn}, ubatch {config.n_ubatch}",
    )
    cost = profile.load(key)
    if cost is None:
        cost = measure(context, clock=clock)
        if max(cost) >= min(_TELLING_WIDTH, context.n_batch, context.n_outputs_max):
            profile.store(key, cost)
        log.info("measured cost of n rows: %s", {n: round(ms, 2) for n, ms in sorted(cost.items())})
    return cost
