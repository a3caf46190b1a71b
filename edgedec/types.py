"""Plain data that every layer speaks. No behaviour beyond derived numbers, no third-party import."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from edgedec.errors import UsageError

FinishReason = Literal["stop", "length", "eog", "cancelled"]

TARGET = "target"
"""Source name, in spans, of a token that no drafter had guessed."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is chosen from a row of logits; names, order and defaults are llama.cpp's.

    Order: logit bias → repeat/presence/frequency penalties → DRY → top-k → top-p → min-p → temperature → draw.
    ``temperature == 0`` is argmax (ties: lowest id). ``seed`` fixes the draw at each position whatever the batch.
    """

    temperature: float = 0.8
    top_k: int = 40  # 0: off
    top_p: float = 0.95  # 1: off
    min_p: float = 0.05  # 0: off
    repeat_penalty: float = 1.0  # 1: off
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_last_n: int = 64  # window of the three penalties in tokens; 0: off, -1: the whole context
    dry_multiplier: float = 0.0  # 0: off
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1  # window of DRY in tokens; 0: off, -1: the whole context
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added to its logit; -inf forbids it)
    seed: int = 0

    def __post_init__(self) -> None:
        def need(ok: bool, name: str, rule: str) -> None:
            if not ok:
                raise UsageError(f"{name} is {getattr(self, name)!r}.", f"Use {rule}.")

        for name in ("temperature", "top_p", "min_p", "repeat_penalty", "presence_penalty",
                     "frequency_penalty", "dry_multiplier", "dry_base"):  # fmt: skip
            value = getattr(self, name)
            need(isinstance(value, int | float) and math.isfinite(value), name, "a finite number")
        for name in ("top_k", "penalty_last_n", "dry_allowed_length", "dry_penalty_last_n", "seed"):
            value = getattr(self, name)
            need(isinstance(value, int) and not isinstance(value, bool), name, "a whole number")
        need(0 <= self.temperature <= 100, "temperature", "a number from 0 (greedy) to 100")
        need(0 <= self.top_k < 2**31, "top_k", "a whole number ≥ 0; 0 switches it off")
        need(0 < self.top_p <= 1, "top_p", "a number above 0 and up to 1; 1 switches it off")
        need(0 <= self.min_p <= 1, "min_p", "a number from 0 (off) to 1")
        need(0.01 <= self.repeat_penalty <= 100, "repeat_penalty", "a number from 0.01 to 100; 1 switches it off")
        need(abs(self.presence_penalty) <= 100, "presence_penalty", "a number from -100 to 100")
        need(abs(self.frequency_penalty) <= 100, "frequency_penalty", "a number from -100 to 100")
        need(self.penalty_last_n >= -1, "penalty_last_n", "tokens to look back; 0 is off, -1 the whole context")
        need(self.dry_multiplier >= 0, "dry_multiplier", "a number ≥ 0; 0 switches DRY off")
        need(self.dry_base >= 1, "dry_base", "a number ≥ 1")
        need(self.dry_allowed_length >= 1, "dry_allowed_length", "a whole number ≥ 1")
        need(self.dry_penalty_last_n >= -1, "dry_penalty_last_n", "tokens to look back; 0 is off, -1 the whole context")
        need(0 <= self.seed < 2**64, "seed", "a whole number from 0 to 2^64-1")


@dataclass(frozen=True, slots=True)
class Request:
    """One answer to generate, in token ids. Text, templates and file names are the caller's business."""

    prompt: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None  # None: until the model ends or the context is full
    stop: tuple[str, ...] = ()
    speculate: bool | tuple[str, ...] = True  # False: decoded plainly; names: guessed by these drafters only
    prediction: tuple[int, ...] = ()  # what the answer is expected to be like: it speeds up, and changes nothing

    def __post_init__(self) -> None:
        if not self.prompt:
            raise UsageError("The prompt is empty.", "Give at least one character of text.")
        n = self.max_tokens
        if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 1):
            raise UsageError(f"max_tokens is {n!r}.", "Use a whole number ≥ 1.")
        if not all(isinstance(s, str) for s in self.stop):
            raise UsageError(f"stop is {self.stop!r}.", "Give a text, or a list of texts.")
        if any(not s for s in self.stop):
            raise UsageError("A stop string is empty.", "Give at least one character per stop string.")


@dataclass(slots=True)
class Candidates:
    """What one drafter proposes after the last accepted token (the root): a forest of nodes in parallel lists.

    ``parents[i]`` is an index into the same lists, or -1 for a child of the root; parents come before children;
    siblings have different tokens. ``scores[i]`` in (0, 1] is the drafter's own estimate that token i comes next
    given that its parent was right. ``features[i]`` are the numbers that calibration may use, in the order of the
    drafter's ``feature_names``.
    """

    source: str
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    features: list[tuple[float, ...]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Draft:
    """The nodes that this step will check, selected from all candidates. Empty lists: a plain step.

    ``parents`` as in `Candidates`. ``sources[i]`` names the drafter credited with node i; ``probs[i]`` is the
    calibrated probability that node i is accepted given that its parent is.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    probs: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        return all(p == i - 1 for i, p in enumerate(self.parents))


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of one walk. ``tokens`` are the tokens to emit, in order: accepted nodes, then one that the target
    chose itself (recovered after a rejection, or bonus after a full acceptance), unless the walk ended early.
    ``path[i]`` is the draft node that produced ``tokens[i]``, for the accepted part: ``len(path) == n_accepted``.
    """

    tokens: tuple[int, ...]
    path: tuple[int, ...]

    @property
    def n_accepted(self) -> int:
        return len(self.path)


@dataclass(slots=True)
class Usage:
    """Token counts of one request."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


@dataclass(slots=True)
class DrafterCounts:
    """Counters of one drafter within one request."""

    drafted: int = 0
    accepted: int = 0
    time_s: float = 0.0
    drafted_per_pos: list[int] = field(default_factory=list)  # [0]: right after the root
    accepted_per_pos: list[int] = field(default_factory=list)


Span = tuple[int, str]
"""(number of consecutive tokens, where they came from: a drafter's name or "target")."""


def add_span(spans: list[Span], n: int, source: str) -> None:
    """Append ``n`` tokens from ``source``, run-length encoded."""
    if n <= 0:
        return
    if spans and spans[-1][1] == source:
        spans[-1] = (spans[-1][0] + n, source)
    else:
        spans.append((n, source))


@dataclass(frozen=True, slots=True)
class StepEvent:
    """What one step of one sequence brought. During prefill ``token_ids`` is empty and ``n_past`` grows.

    ``text`` is complete characters only and never part of a stop string; it may lag behind ``token_ids``. The last
    event of a request has ``finish_reason`` and ``result``.
    """

    phase: Literal["prefill", "decode"]
    text: str = ""
    token_ids: tuple[int, ...] = ()
    spans: tuple[Span, ...] = ()
    n_drafted: int = 0
    n_accepted: int = 0
    n_past: int = 0  # tokens of this sequence in the KV memory after the step
    n_prompt: int = 0
    decode_ms: float = 0.0  # inside llama_decode
    step_ms: float = 0.0  # the whole step
    draft_ms: float = 0.0  # looking for guesses and choosing among them
    finish_reason: FinishReason | None = None
    result: Result | None = None


@dataclass(slots=True)
class Timing:
    """Seconds, and the speeds that follow from them. ``ttft_s``: from submission to the first token."""

    load_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    ttft_s: float = 0.0
    tokens_per_second: float = 0.0
    plain_tokens_per_second: float = 0.0  # from measured plain steps; 0: not known
    speedup: float = 0.0  # over plain decoding; 0: not known


@dataclass(slots=True)
class SpeculationStats:
    """What guessing did within one request."""

    mode: str = "off"
    steps: int = 0
    plain_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    acceptance_rate: float = 0.0
    tokens_per_step: float = 0.0
    drafters: dict[str, DrafterCounts] = field(default_factory=dict)
    note: str = ""  # why the model cannot be sped up, if it cannot


@dataclass(slots=True)
class Result:
    """A finished answer."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    usage: Usage
    timing: Timing
    speculation: SpeculationStats
    spans: list[Span]
    seed: int = 0

    @property
    def speedup(self) -> float:
        return self.timing.speedup


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str
