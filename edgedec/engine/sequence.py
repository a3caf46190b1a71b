"""All mutable state of one request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from edgedec.engine.sampling import Sampler
from edgedec.engine.text import TextStream
from edgedec.metrics import DrafterMetrics
from edgedec.types import (
    TARGET,
    Draft,
    FinishReason,
    Request,
    Result,
    Span,
    SpeculationStats,
    Timing,
    Usage,
    Verdict,
    add_span,
)


@dataclass(slots=True)
class Clocks:
    """Marks in seconds on the engine's clock; 0: not reached."""

    submitted: float
    admitted: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0


@dataclass(slots=True)
class Committed:
    """What one verdict added to the answer."""

    text: str
    token_ids: tuple[int, ...]
    spans: tuple[Span, ...]
    n_accepted: int


@dataclass(slots=True)
class Sequence:
    """A running request. ``tokens`` are prompt and answer, the last one being the root of the next step."""

    seq_id: int
    request: Request
    sampler: Sampler
    n_ctx: int
    clocks: Clocks
    tokens: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    text: TextStream = field(init=False)
    spans: list[Span] = field(default_factory=list)
    n_cached: int = 0
    n_first: int = 0  # tokens that the step after prefill brought
    n_said: int = 0  # tokens that the model chose, an end token included
    steps: int = 0
    plain_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    drafters: dict[str, DrafterMetrics] = field(default_factory=dict)
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)
        self.text = TextStream(self.request.stop)

    @property
    def n_prompt(self) -> int:
        return len(self.request.prompt)

    @property
    def room(self) -> int:
        """Tokens that may still be emitted."""
        in_context = self.n_ctx - len(self.tokens)
        wanted = self.request.max_tokens
        return in_context if wanted is None else min(in_context, wanted - len(self.token_ids))

    def commit(
        self, verdict: Verdict, draft: Draft, piece: Callable[[int], bytes], end_ids: frozenset[int]
    ) -> Committed:
        """Take the verdict's tokens in order until something ends the answer; what comes after is dropped."""
        text: list[str] = []
        spans: list[Span] = []
        n_before = len(self.token_ids)
        n_accepted = 0
        for i, token in enumerate(verdict.tokens):
            self.tokens.append(token)
            self.n_said += 1
            if token in end_ids:
                self.finish_reason = "eog"
                break
            source = draft.sources[verdict.path[i]] if i < verdict.n_accepted else TARGET
            if i < verdict.n_accepted:
                n_accepted += 1
                self.drafters.setdefault(source, DrafterMetrics()).accepted_at(i + 1)
            self.token_ids.append(token)
            add_span(spans, 1, source)
            text.append(self.text.push(piece(token)))
            if self.text.stopped:
                self.finish_reason = "stop"
                break
            if self.room <= 0:
                self.finish_reason = "length"
                break
        for n, source in spans:
            add_span(self.spans, n, source)
        self.steps += 1
        self.plain_steps += len(draft) == 0
        self.drafted += len(draft)
        self.accepted += n_accepted
        depths: list[int] = []
        for source, parent in zip(draft.sources, draft.parents, strict=True):
            depths.append(1 + (depths[parent] if parent >= 0 else 0))
            self.drafters.setdefault(source, DrafterMetrics()).drafted_at(depths[-1])
        return Committed("".join(text), tuple(self.token_ids[n_before:]), tuple(spans), n_accepted)

    def result(self, *, mode: str, note: str, plain_ms: float, speedup: float) -> Result:
        """The finished answer. ``plain_ms`` 0: no baseline, so the answer's own speed is the plain speed."""
        assert self.finish_reason is not None
        clocks, n = self.clocks, len(self.token_ids)
        decode_s = max(0.0, clocks.last_token - clocks.first_token)
        rate = (n - self.n_first) / decode_s if decode_s > 0 and n > self.n_first else 0.0
        plain = 1e3 / plain_ms if plain_ms > 0 else rate
        return Result(
            text=self.text.text,
            token_ids=self.token_ids,
            finish_reason=self.finish_reason,
            usage=Usage(self.n_prompt, self.n_cached, n),
            timing=Timing(
                prefill_s=max(0.0, clocks.first_token - clocks.admitted),
                decode_s=decode_s,
                ttft_s=max(0.0, clocks.first_token - clocks.submitted),
                tokens_per_second=rate,
                plain_tokens_per_second=plain,
                speedup=speedup,
            ),
            speculation=SpeculationStats(
                mode=mode,
                steps=self.steps,
                plain_steps=self.plain_steps,
                drafted=self.drafted,
                accepted=self.accepted,
                acceptance_rate=self.accepted / self.drafted if self.drafted else 0.0,
                tokens_per_step=self.n_said / self.steps if self.steps else 0.0,
                drafters={name: m.counts() for name, m in sorted(self.drafters.items())},
                note=note,
            ),
            spans=self.spans,
            seed=self.request.sampling.seed,
        )
