"""The step loop. Token ids in, token ids and finished text out; knows nothing of templates, files or readers.

Seven calls in a row, each takes data and returns data: admit, draft, select, batch, decode, verify, commit; the
returned outcomes are what the caller emits. Plain decoding is the same loop with an empty draft. Prompt evaluation
is the same loop with more tokens pending than the root: whatever is missing in memory is evaluated first, so a lost
or refused rollback costs time, never correctness.

One thread calls `step`; only `cancel` may come from another.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import RLock
from typing import TypeVar

from edgedec.config import OFF
from edgedec.drafters.base import Drafter, Walked, Want
from edgedec.engine.batch import decode_rows, prefill_rows
from edgedec.engine.kv import KvSlot
from edgedec.engine.sampling import Sampler, breaker_ids
from edgedec.engine.sequence import Clocks
from edgedec.engine.sequence import Sequence as Running
from edgedec.engine.verify import ROOT, walk
from edgedec.errors import AbortedError, EdgedecError, NoSlotError, PromptTooLongError, UsageError
from edgedec.llama.base import Context, Logits, Model
from edgedec.metrics import DrafterMetrics
from edgedec.speculation.policy import PLAIN, Policy
from edgedec.types import Candidates, Draft, FinishReason, Request, StepEvent, Verdict

log = logging.getLogger("edgedec.engine")

T = TypeVar("T")

Outcome = tuple[int, StepEvent | EdgedecError]
"""(seq_id, what happened). An error, or an event with a result, is the last outcome of its request."""

Crew = tuple[Sequence[Drafter], Policy | None]
"""Drafters, and the policy that has learnt what their guesses are worth."""

_KV_SEQ = 0
_CHUNK_START = 128
_CHUNK_SECONDS = 0.4  # of prefill between two looks at cancels and progress


class Engine:
    """Runs requests one after the other on one context.

    Args:
        model, context: what to run; the engine does not close them.
        drafters: sources of guesses; empty for plain decoding.
        policy: how much to guess; None: nothing, for the reason in ``note``.
        mode: how speculation is named in results.
        crew: makes drafters and policy for requests that name their drafters (or none). Each set of names keeps its own
            for as long as the engine lives, so that no set profits from what another was told. None: no such requests.
    """

    def __init__(
        self,
        model: Model,
        context: Context,
        drafters: Sequence[Drafter] = (),
        policy: Policy | None = None,
        *,
        mode: str = "off",
        note: str = "",
        crew: Callable[[tuple[str, ...]], Crew] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._model = model
        self._context = context
        self._loaded: Crew = (tuple(drafters), policy)
        self._drafters: Sequence[Drafter] = self._loaded[0]  # of the active sequence
        self._readers: Sequence[Drafter] = ()  # those of them that learn from logits
        self._policy = policy  # of the active sequence
        self._make_crew = crew
        self._crews: dict[tuple[str, ...], Crew] = {}
        self._mode = mode
        self._note = note
        self._clock = clock
        self._kv = KvSlot(context, _KV_SEQ)
        self._waiting: deque[Running] = deque()
        self._active: Running | None = None
        self._muted: set[str] = set()  # drafters that failed on the active sequence
        self._cancelled: set[int] = set()
        # Guards what `cancel` looks at and changes. The garbage collector may cancel an abandoned answer at any
        # moment, also in a thread that holds the lock.
        self._lock = RLock()
        self._chunk = min(_CHUNK_START, context.n_batch)
        self._breakers: dict[tuple[str, ...], frozenset[int]] = {}

    def close(self) -> None:
        """Close the drafters. A second call does nothing."""
        for drafters, _ in (self._loaded, *self._crews.values()):
            for drafter in drafters:
                try:
                    drafter.close()
                except Exception:
                    log.exception("drafter %r failed while closing", drafter.name)

    def move_to(self, context: Context) -> None:
        """Go on with another context of the same model, between requests. What was learnt about guessing stays; the
        text in memory does not come along."""
        if not self.is_idle:
            raise RuntimeError("an engine moves between requests only")
        with self._lock:
            self._context = context
            self._kv = KvSlot(context, _KV_SEQ)
            self._chunk = min(self._chunk, context.n_batch)

    # ---- requests

    def submit(self, seq_id: int, request: Request) -> None:
        """Queue a request. Raises PromptTooLongError or UsageError before anything is decoded."""
        n_ctx, n_prompt = self._context.n_ctx, len(request.prompt)
        if n_prompt >= n_ctx:
            limit = self._model.n_ctx_train
            more = f"Load the model with a larger n_ctx (up to {limit}), or " if limit > n_ctx else ""
            raise PromptTooLongError(n_prompt, n_ctx, f"{more}shorten the prompt." if more else "Shorten the prompt.")
        if min(request.prompt) < 0 or max(request.prompt) >= self._model.n_vocab:
            raise UsageError(f"The prompt has a token id outside 0…{self._model.n_vocab - 1}.")
        if request.prediction and not 0 <= min(request.prediction) <= max(request.prediction) < self._model.n_vocab:
            raise UsageError(f"The prediction has a token id outside 0…{self._model.n_vocab - 1}.")
        self._crew(request)  # names that do not exist are refused here
        sampler = Sampler(
            request.sampling,
            self._model.n_vocab,
            request.prompt,
            breaker_ids=self._breaker_ids(request),
            n_ctx=n_ctx,
        )
        seq = Running(seq_id, request, sampler, n_ctx, Clocks(self._clock()))
        with self._lock:
            self._waiting.append(seq)

    def _crew(self, request: Request) -> Crew:
        """Who guesses for a request. Raises UnknownNameError or UsageError."""
        if self._note:
            return (), None
        if request.speculate is True or (not request.speculate and self._make_crew is None):
            return self._loaded
        if self._make_crew is None:
            raise UsageError("The model was loaded without guessing.", 'Load it with speculate="auto".')
        names = request.speculate or ()
        if names not in self._crews:
            self._crews[names] = self._make_crew(names)
        return self._crews[names]

    def _breaker_ids(self, request: Request) -> frozenset[int]:
        if request.sampling.dry_multiplier <= 0:
            return frozenset()
        strings = request.sampling.dry_sequence_breakers
        if strings not in self._breakers:
            pieces = (self._model.piece(t) for t in range(self._model.n_vocab))
            self._breakers[strings] = breaker_ids(strings, pieces)
        return self._breakers[strings]

    def cancel(self, seq_id: int) -> None:
        """Stop a request within one step, from any thread. Its last outcome has finish_reason "cancelled"."""
        with self._lock:
            active = self._active
            if active is not None and active.seq_id == seq_id:
                self._cancelled.add(seq_id)
                self._context.abort()
            elif any(seq.seq_id == seq_id for seq in self._waiting):
                self._cancelled.add(seq_id)

    @property
    def is_idle(self) -> bool:
        """Whether `step` has nothing to do."""
        return self._active is None and not self._waiting

    # ---- the loop

    def step(self) -> list[Outcome]:
        """One step of one request: a chunk of its prompt, or one decode with its verdict."""
        is_new = self._active is None
        seq = self._admit() if is_new else self._active
        if seq is None:
            return []
        try:
            if seq.seq_id in self._cancelled:
                event = self._finish(seq, "cancelled")
            else:
                if is_new:
                    self._begin(seq)
                event = self._prefill(seq) if self._n_missing(seq) > self._chunk else self._advance(seq)
        except AbortedError:
            self._kv.resync()
            with self._lock:
                self._context.clear_abort()
            return []  # the next step sees the cancel; a stray abort is simply tried again
        except EdgedecError as error:
            self._release(seq)
            self._kv.clear()
            return [(seq.seq_id, error)]
        return [(seq.seq_id, event)]

    def _admit(self) -> Running | None:
        with self._lock:
            if self._waiting:
                self._context.clear_abort()
                self._active = self._waiting.popleft()
            return self._active

    def _begin(self, seq: Running) -> None:
        seq.clocks.admitted = self._clock()
        self._muted.clear()
        seq.n_cached = self._kv.reuse(seq.tokens)
        self._drafters, self._policy = self._crew(seq.request)
        self._readers = [drafter for drafter in self._drafters if "logits" in drafter.needs]
        if self._policy is not None:
            self._policy.begin()
        if self._guesses(seq):
            for drafter in self._drafters:
                self._ask(drafter, lambda d: d.begin(seq.seq_id, seq.request.prompt))
                if seq.request.prediction:
                    self._ask(drafter, lambda d: d.expect(seq.seq_id, seq.request.prediction))

    def _n_missing(self, seq: Running) -> int:
        return len(seq.tokens) - len(self._kv)

    def _prefill(self, seq: Running) -> StepEvent:
        """Evaluate one chunk of what is missing, sized so that progress and cancels come often."""
        began = self._clock()
        n_past = len(self._kv)
        chunk = seq.tokens[n_past : n_past + self._chunk]
        self._context.decode(prefill_rows(_KV_SEQ, chunk, n_past))
        self._kv.extend(chunk)
        elapsed = self._clock() - began
        if elapsed > 0 and len(chunk) == self._chunk:
            wanted = int(len(chunk) * _CHUNK_SECONDS / elapsed) // 32 * 32
            self._chunk = min(self._context.n_batch, max(32, min(2 * self._chunk, wanted)))
        ms = elapsed * 1e3
        return StepEvent("prefill", n_past=len(self._kv), n_prompt=seq.n_prompt, decode_ms=ms, step_ms=ms)

    def _advance(self, seq: Running) -> StepEvent:
        """The step: draft, select, batch, decode, verify, commit."""
        began = self._clock()
        pending = seq.tokens[len(self._kv) :]
        n_max = self._n_useful(seq) if len(pending) == 1 else 0
        proposals = self._draft(seq, n_max) if n_max > 0 else []
        draft = self._select(proposals, n_max)
        drafted = self._clock()
        draft, decode_s = self._decode(pending, draft)
        n_before = len(pending) - 1
        position = len(seq.tokens)

        def row(node: int) -> Logits:
            return self._context.logits(n_before + 1 + node)

        verdict = walk(draft, row, seq.sampler, position, seq.room, self._model.eog_ids)
        walked = self._clock()
        self._process(seq, verdict, row)
        processed = self._clock()
        self._settle_memory(pending, draft, len(verdict.path))
        done = seq.commit(verdict, draft, self._model.piece, self._model.eog_ids)
        settled = self._clock()
        self._tell(seq, draft, verdict.tokens)
        now = self._clock()
        if len(pending) == 1 and seq.clocks.first_token:
            self._learn(
                proposals, draft, verdict.tokens, now - began, now - settled + processed - walked + drafted - began
            )
        if not seq.clocks.first_token:
            seq.clocks.first_token, seq.n_first = now, len(done.token_ids)
        seq.clocks.last_token = now
        event = StepEvent(
            "decode",
            text=done.text,
            token_ids=done.token_ids,
            spans=done.spans,
            n_drafted=len(draft),
            n_accepted=done.n_accepted,
            n_past=len(self._kv),
            n_prompt=seq.n_prompt,
            decode_ms=decode_s * 1e3,
            step_ms=(now - began) * 1e3,
            draft_ms=(drafted - began) * 1e3,
        )
        return self._finish(seq, seq.finish_reason, event) if seq.finish_reason else event

    def _guesses(self, seq: Running) -> bool:
        return self._policy is not None and bool(seq.request.speculate)

    def _draft(self, seq: Running, n_max: int) -> list[Candidates]:
        """What every drafter proposes."""
        proposals = []
        want = [Want(seq.seq_id, n_max, n_max)]
        for drafter in self._drafters:
            began = self._clock()
            found = self._ask(drafter, lambda d: d.draft(want))
            if found is not None:
                metrics = seq.drafters.get(drafter.name)
                if metrics is None:
                    metrics = seq.drafters[drafter.name] = DrafterMetrics()
                metrics.n_call_draft += 1
                metrics.t_draft_us += (self._clock() - began) * 1e6
                proposals.extend(found)
        return proposals

    def _n_useful(self, seq: Running) -> int:
        """How long a draft can be: each node needs a row and must leave the memory again if it is wrong, and the step
        emits one token more than the draft has. There is a cell for every token that may be emitted."""
        if self._policy is None or not seq.request.speculate:
            return 0
        rows = min(self._context.n_batch, self._context.n_outputs_max) - 1
        n_rollback = self._context.traits.n_rollback
        undoable = n_rollback if n_rollback >= 0 else rows
        return min(self._policy.n_max, seq.room - 1, rows, undoable)

    def _select(self, proposals: Sequence[Candidates], n_max: int) -> Draft:
        return self._policy.choose(proposals, n_max) if self._policy is not None and proposals else PLAIN

    def _decode(self, pending: Sequence[int], draft: Draft) -> tuple[Draft, float]:
        """The one blocking call. Without room for the draft the step goes on without it."""
        n_past = len(self._kv)
        began = self._clock()
        try:
            self._context.decode(decode_rows(_KV_SEQ, pending, n_past, draft))
        except NoSlotError:
            if not len(draft):
                raise
            draft = PLAIN
            self._context.decode(decode_rows(_KV_SEQ, pending, n_past, draft))
        return draft, self._clock() - began

    def _settle_memory(self, pending: Sequence[int], draft: Draft, n_accepted: int) -> None:
        """The rows are in memory now; rejected ones leave it again."""
        keep = len(self._kv) + len(pending) + n_accepted
        self._kv.extend((*pending, *draft.tokens))
        if not self._kv.trim(keep):
            # Never again with this context: each further rejection would cost a whole evaluation.
            self._policy, self._note = None, "the memory of this model refused to take guesses back"
            log.warning("speculation is off: %s", self._note)

    def _process(self, seq: Running, verdict: Verdict, row: Callable[[int], Logits]) -> None:
        """Show the rows of the walk to drafters that learn from them, while the rows are valid."""
        if not self._readers or not self._guesses(seq):
            return
        nodes = (ROOT, *verdict.path)[: len(verdict.tokens)]
        before = seq.tokens[-2] if len(seq.tokens) > 1 else -1
        walked = Walked(before, (seq.tokens[-1], *verdict.tokens[:-1]), lambda i: row(nodes[i]))
        for drafter in self._readers:
            self._ask(drafter, lambda d: d.process(seq.seq_id, walked))

    def _tell(self, seq: Running, draft: Draft, emitted: Sequence[int]) -> None:
        """Every drafter hears what was said, whoever proposed it."""
        if not self._guesses(seq):
            return
        used = set(draft.sources)
        for drafter in self._drafters:
            self._ask(drafter, lambda d: d.accept(seq.seq_id, emitted, d.name in used))

    def _learn(
        self,
        proposals: Sequence[Candidates],
        draft: Draft,
        emitted: Sequence[int],
        step_s: float,
        draft_s: float,
    ) -> None:
        if self._policy is not None:
            self._policy.learn(proposals, draft, emitted, step_s * 1e3, draft_s * 1e3)

    def _ask(self, drafter: Drafter, question: Callable[[Drafter], T]) -> T | None:
        """Ask a drafter; one that raises is not asked again for this sequence, and the answer goes on."""
        if drafter.name in self._muted:
            return None
        try:
            return question(drafter)
        except Exception:
            self._muted.add(drafter.name)
            log.exception("drafter %r failed and is off for this answer", drafter.name)
            return None

    # ---- the end of a request

    def _finish(self, seq: Running, reason: FinishReason, event: StepEvent | None = None) -> StepEvent:
        seq.finish_reason = reason
        tail = seq.text.flush()
        policy = self._policy
        chosen = seq.request.speculate
        mode = ",".join(chosen) if isinstance(chosen, tuple) and chosen else self._mode if chosen else OFF
        result = seq.result(
            mode=mode,
            note=self._note,
            plain_ms=policy.plain_ms if policy is not None else 0.0,
            speedup=policy.speedup if policy is not None and seq.steps > 1 else 1.0,
        )
        self._release(seq)
        base = event or StepEvent("decode", n_past=len(self._kv), n_prompt=seq.n_prompt)
        return replace(base, text=base.text + tail, finish_reason=reason, result=result)

    def _release(self, seq: Running) -> None:
        self._muted.clear()
        for drafter in self._drafters:
            self._ask(drafter, lambda d: d.end(seq.seq_id))
        with self._lock:
            self._active = None
            self._cancelled.discard(seq.seq_id)
            self._context.clear_abort()
